//! Keeps a registration's key as its writer wrote it, and attached to the writer's lease.
//!
//! A shell shows it the key after every change of its view; what is to be written is decided in
//! [`registration`](segue_protocol::registration). Writes run beside the shell's loop.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::{Incarnation, LeaseId, Revision};
use segue_protocol::registration::{Attachment, attachment, put_back};
use segue_protocol::view::Stamped;
use tracing::{info, warn};

use super::{Outbox, Registration};
use crate::store::Store;

/// How long a write that was refused or failed waits for its next try.
const WRITE_AGAIN: Duration = Duration::from_millis(100);

/// A registration's key, from its writer's side.
pub(crate) struct OwnKey {
    key: String,
    incarnation: Incarnation,
    lease: LeaseId,
    /// By the revision of the put that is undone.
    writes: Outbox<Revision>,
}

impl OwnKey {
    pub(crate) fn of(store: Arc<dyn Store>, registration: &Registration) -> Self {
        OwnKey {
            key: registration.key.clone(),
            incarnation: registration.incarnation,
            lease: registration.lease.id(),
            writes: Outbox::new(store, WRITE_AGAIN),
        }
    }

    /// Has the key put back if it does not stand as it should in a view of revision `revision`. `intact`: its value is
    /// this participant's. Returns `false` if the key is gone or another life's: the participant must fence.
    pub(crate) fn keep<T>(
        &mut self,
        seen: Option<&Stamped<T>>,
        intact: bool,
        revision: Revision,
        value: impl FnOnce() -> Vec<u8>,
    ) -> bool {
        let written_at = match (attachment(seen, self.incarnation, self.lease), seen) {
            (Attachment::Gone, _) | (_, None) => return false,
            (Attachment::Attached, _) if intact => {
                self.writes.forget(|_| true);
                return true;
            }
            (_, Some(seen)) => seen.mod_revision,
        };
        self.writes.want(written_at, revision);
        let due = self.writes.take_due();
        if let Some(seen) = due.last() {
            warn!(key = self.key, "this registration was written by another hand: putting it back");
            let txn = put_back(&self.key, self.incarnation, *seen, value(), self.lease);
            self.writes.send([(*seen, Some(txn))]);
        }
        true
    }

    /// Returns after each answer to a write; never, if none is under way. Cancel-safe.
    pub(crate) async fn written(&mut self) {
        for (_, result) in self.writes.answered().await {
            match result {
                Ok(outcome) if outcome.committed() => info!(key = self.key, "the registration stands again"),
                Ok(_) => info!(key = self.key, "the registration has changed once more"),
                Err(error) => warn!(key = self.key, %error, "cannot put the registration back; trying again"),
            }
        }
    }
}
