//! Keeps a registration's key as its writer wrote it, and attached to the writer's lease.
//!
//! A shell shows it the key after every change of its view. [`registration`](segue_protocol::registration) decides what
//! to write. Writes run beside the shell's loop.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::{Epoch, Incarnation, LeaseId, Revision};
use segue_protocol::registration::{Attachment, attachment, put_back};
use segue_protocol::view::{Versioned, View};
use tracing::{info, warn};

use super::{Registration, WriteQueue};
use crate::store::{SharedHorizon, Store};

/// How long a write rests after one of its guards failed.
const WRITE_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The key of a registration, as seen by its writer.
pub(crate) struct OwnKey {
    key: String,
    incarnation: Incarnation,
    lease: LeaseId,
    horizon: SharedHorizon,
    /// How often the store had gone back when this life began, and the floor of epochs that its first view showed.
    times: u64,
    floor: Option<Epoch>,
    /// The pending writes, by the revision of the put that each undoes.
    writes: WriteQueue<Revision>,
}

impl OwnKey {
    pub(crate) fn of(store: Arc<dyn Store>, registration: &Registration) -> Self {
        OwnKey {
            key: registration.key.clone(),
            incarnation: registration.incarnation,
            lease: registration.lease.id(),
            horizon: registration.lease.horizon().clone(),
            times: registration.lease.times(),
            floor: None,
            writes: WriteQueue::new(store, "registration cannot be restored; retrying", WRITE_RETRY_PAUSE),
        }
    }

    /// Restores the key if the view shows it changed. `intact` states that its value is this participant's. Returns `false`
    /// if the key is gone or another life's, or if the store went back: the participant must fence.
    pub(crate) fn keep<T>(
        &mut self,
        view: &View,
        seen: Option<&Versioned<T>>,
        intact: bool,
        value: impl FnOnce() -> Vec<u8>,
    ) -> bool {
        if self.is_past(view) {
            return false;
        }
        let written_at = match (attachment(seen, self.incarnation, self.lease), seen) {
            (Attachment::Gone, _) | (_, None) => return false,
            (Attachment::Attached, _) if intact => {
                self.writes.forget(|_| true);
                return true;
            }
            (_, Some(seen)) => seen.mod_revision,
        };
        self.writes.want(written_at, view.revision);
        let due = self.writes.take_due();
        if let Some(seen) = due.last() {
            warn!(key = self.key, "registration overwritten by another writer; restoring it");
            let txn = put_back(&self.key, self.incarnation, *seen, value(), self.lease);
            self.writes.send([(*seen, Some(txn))]);
        }
        true
    }

    /// Returns whether the store has gone back during this life, as this process has seen or another one says by the floor of
    /// epochs.
    fn is_past(&mut self, view: &View) -> bool {
        if self.horizon.times() > self.times {
            return true;
        }
        let floor = *self.floor.get_or_insert(view.epoch_floor());
        let why = self.horizon.ends_life(view, floor);
        if let Some(why) = why {
            warn!(key = self.key, why, "this life is over; registering anew");
        }
        why.is_some()
    }

    /// Returns after each completed write. Pending while none is in flight. Cancel-safe.
    pub(crate) async fn written(&mut self) {
        for (_, result) in self.writes.next_results().await {
            match result {
                Ok(outcome) if outcome.committed() => info!(key = self.key, "registration restored"),
                Ok(_) => info!(key = self.key, "registration changed again"),
                Err(_) => {}
            }
        }
    }
}
