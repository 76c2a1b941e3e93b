//! Deletes the oldest entries of the history while a coordinator leads.
//!
//! Its writes are apart from those of [`leadership`](super::leadership): a leader waits until its view shows its own
//! writes, and no view shows the history.
//!
//! # Invariants
//!
//! * Only the leader deletes entries: each transaction is guarded by its key.
//! * The history is read once a term, and again after [`INTERVAL`] further handoffs. It therefore has at most that many
//!   entries above its limit, and those of handoffs in flight.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::history::surplus;
use segue_protocol::ids::Revision;
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::store::{Store, StoreError};

/// Number of handoffs that end between two reads of the history.
const INTERVAL: u64 = 512;
/// Most entries that one transaction deletes. etcd accepts 128 operations.
const MAX_DELETES: usize = 100;
/// Pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Prunes the history until it is dropped.
#[derive(Debug)]
pub(super) struct HistoryPruner {
    ended: watch::Sender<u64>,
    _task: AbortOnDropHandle<()>,
}

impl HistoryPruner {
    /// Starts to prune for the leader whose key was created at this revision.
    pub(super) fn start(store: Arc<dyn Store>, keys: Keyspace, term: Revision) -> Self {
        let (ended, handoffs) = watch::channel(0);
        HistoryPruner { ended, _task: AbortOnDropHandle::new(tokio::spawn(run(store, keys, term, handoffs))) }
    }

    /// Records that a handoff has ended.
    pub(super) fn handoff_ended(&self) {
        self.ended.send_modify(|ended| *ended += 1);
    }
}

async fn run(store: Arc<dyn Store>, keys: Keyspace, term: Revision, mut ended: watch::Receiver<u64>) {
    loop {
        let seen = *ended.borrow_and_update();
        if let Err(error) = prune(store.as_ref(), &keys, term).await {
            warn!(%error, "old entries of the history cannot be deleted; retrying");
            sleep(RETRY_PAUSE).await;
        } else if ended.wait_for(|ended| *ended >= seen + INTERVAL).await.is_err() {
            return;
        }
    }
}

async fn prune(store: &dyn Store, keys: &Keyspace, term: Revision) -> Result<(), StoreError> {
    let entries = store.snapshot(&keys.history()).await?.entries;
    let surplus = surplus(entries.iter().filter_map(|entry| keys.parse_history_entry(&entry.key)));
    for chunk in surplus.chunks(MAX_DELETES) {
        let delete = |(partition, handoff): &_| Op::Delete(Keys::One(keys.history_entry(*partition, *handoff)));
        let when = vec![Compare::created_at(keys.leader(), term)];
        store.commit(Txn { when, then: chunk.iter().map(delete).collect(), otherwise: None }).await?;
    }
    Ok(())
}
