//! Deletes the oldest entries of the history while a coordinator acts for the keyspace as a whole.
//!
//! Its writes are apart from those of [`leadership`](super::leadership): a leader waits until its view shows its own
//! writes, and no view shows the history.
//!
//! # Invariants
//!
//! * Only the holder of the authority deletes entries: its guards are in each transaction.
//! * An entry by which the store refuses a write of the present authority stays ([`RefusingEntries`]).
//! * The history is read once by each process that comes to act for the keyspace as a whole. It is read again after
//!   [`INTERVAL`] further handoffs, and after the authority has changed: the evidence of an assignment round ends with it.
//!   It therefore has at most that many entries above its limit, those of handoffs in flight, and the evidence.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use segue_protocol::authority::Authority;
use segue_protocol::handoff::history::{RefusingEntries, surplus};
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{Keys, Op, Txn};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, warn};

use crate::store::{Store, StoreError};

/// Number of handoffs that end between two reads of the history.
///
/// Each read lists the whole history. A smaller number costs more reads, a larger one more entries above the limit: the
/// first placement of 65,536 partitions reads it 32 times, and a full history grows from 4,096 entries to 6,144.
const INTERVAL: u64 = 2048;
/// Most entries that one transaction deletes. etcd accepts 128 operations.
const MAX_DELETES: usize = 100;
/// Pause after a failure, and after a change of the authority. Rounds may follow each other quickly.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Prunes the history until it is dropped.
#[derive(Debug)]
pub(super) struct HistoryPruner {
    ended: watch::Sender<u64>,
    authority: watch::Sender<Authority>,
    evidence: Arc<Mutex<RefusingEntries>>,
    _task: AbortOnDropHandle<()>,
}

impl HistoryPruner {
    /// Starts to prune by this authority.
    pub(super) fn start(store: Arc<dyn Store>, keys: Keyspace, authority: Authority) -> Self {
        let (ended, handoffs) = watch::channel(0);
        let (authority, current) = watch::channel(authority);
        let evidence = Arc::default();
        let running = run(store, keys, current, Arc::clone(&evidence), handoffs).in_current_span();
        let task = tokio::spawn(running);
        HistoryPruner { ended, authority, evidence, _task: AbortOnDropHandle::new(task) }
    }

    /// Continues by this authority.
    pub(super) fn continue_by(&self, authority: Authority) {
        self.authority.send_replace(authority);
    }

    /// Records that a write about this partition may still be on its way.
    pub(super) fn keep_evidence(&self, partition: PartitionId) {
        lock(&self.evidence).keep(partition);
    }

    /// Records that a handoff has ended.
    pub(super) fn handoff_ended(&self) {
        self.ended.send_modify(|ended| *ended += 1);
    }
}

fn lock(evidence: &Mutex<RefusingEntries>) -> MutexGuard<'_, RefusingEntries> {
    evidence.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn run(
    store: Arc<dyn Store>,
    keys: Keyspace,
    mut authority: watch::Receiver<Authority>,
    evidence: Arc<Mutex<RefusingEntries>>,
    mut ended: watch::Receiver<u64>,
) {
    loop {
        let seen = *ended.borrow_and_update();
        // The guards are those of the authority that the evidence is for.
        let current = authority.borrow_and_update().clone();
        match prune(store.as_ref(), &keys, &current, &evidence).await {
            Ok(true) => {
                let more_have_ended = async { ended.wait_for(|ended| *ended >= seen + INTERVAL).await.is_ok() };
                let goes_on = tokio::select! {
                    biased;
                    goes_on = more_have_ended => goes_on,
                    changed = authority.changed() => {
                        sleep(RETRY_PAUSE).await;
                        changed.is_ok()
                    }
                };
                if !goes_on {
                    return;
                }
            }
            // The authority has just changed.
            Ok(false) => sleep(RETRY_PAUSE).await,
            Err(error) => {
                warn!(%error, "old entries of the history cannot be deleted; retrying");
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Returns whether the store has accepted all deletions.
async fn prune(
    store: &dyn Store,
    keys: &Keyspace,
    authority: &Authority,
    evidence: &Mutex<RefusingEntries>,
) -> Result<bool, StoreError> {
    let entries = store.snapshot(&keys.history()).await?.entries;
    let entries = entries.iter().filter_map(|entry| keys.parse_history_entry(&entry.key));
    let surplus = surplus(entries, authority, &lock(evidence));
    for chunk in surplus.chunks(MAX_DELETES) {
        let delete = |(partition, handoff): &_| Op::Delete(Keys::One(keys.history_entry(*partition, *handoff)));
        let txn = Txn::guarded(authority.guards(keys), chunk.iter().map(delete).collect::<Vec<_>>());
        if !store.commit(txn).await?.committed() {
            return Ok(false);
        }
    }
    Ok(true)
}
