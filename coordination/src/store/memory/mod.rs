//! The embedded store: one process, nothing on disk, etcd's semantics.
//!
//! For tests, simulators and deployments on one machine. It does not replace an etcd cluster, and its content ends with
//! the process.
//!
//! Leases end by tokio's clock without a task of their own: every call first ends those whose time is over, and every
//! watch sleeps no longer than until the next end. A lease is therefore always seen to end exactly when it should.
//!
//! # Invariants
//!
//! * A writer never waits for a watch. A watch reads the history at its own pace, through a small task that ends with
//!   it. A slow watch delays nothing, and loses nothing until the history it still needs is compacted away; it is told
//!   then.

mod check;
mod state;
#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Batch, Keys, Snapshot, Txn, TxnOutcome};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use self::state::{HistoryRead, StoreState};
use super::batches::batches;
use super::{SharedHorizon, Store, StoreError, Survey, Usage, Watch};

/// Most batches in a watch's buffer. Further ones stay in the history.
const BUFFERED_BATCHES: usize = 16;

/// The embedded store. Clones are the same store. [`watch`](Store::watch) needs a tokio runtime.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

/// A copy of an embedded store at one revision.
#[cfg(any(test, feature = "test-util"))]
#[derive(Debug, Clone)]
pub struct MemoryBackup(StoreState);

#[derive(Debug)]
struct Inner {
    guarded: Mutex<GuardedState>,
    /// Wakes the watches, in the order in which they began to wait: there is something to read, an earlier lease to
    /// wait for, or an outage. (With a `tokio::sync::watch` the order would be random, and no simulation reproducible.)
    changes: Notify,
}

#[derive(Debug)]
struct GuardedState {
    state: StoreState,
    available: bool,
    /// Grows with each outage, so that a watch also notices one that is already over.
    outages: u64,
}

impl MemoryStore {
    /// Returns an empty store.
    pub fn new() -> Self {
        let guarded = GuardedState { state: StoreState::new(), available: true, outages: 0 };
        MemoryStore { inner: Arc::new(Inner { guarded: Mutex::new(guarded), changes: Notify::new() }) }
    }

    /// Simulates an outage. While the store is not available, every call fails with [`StoreError::Unavailable`] and
    /// every watch has ended with it, as if the store could not be reached. Nothing is forgotten, and leases continue
    /// to age.
    pub fn set_available(&self, available: bool) {
        self.with(|guarded, _| {
            guarded.outages += u64::from(guarded.available && !available);
            guarded.available = available;
        });
    }

    /// Returns a backup of the store.
    #[cfg(any(test, feature = "test-util"))]
    pub fn back_up(&self) -> MemoryBackup {
        self.with(|guarded, _| MemoryBackup(guarded.state.clone()))
    }

    /// Restores a backup without higher revisions: the store goes back. Watches end, and leases begin anew, as with etcd.
    #[cfg(any(test, feature = "test-util"))]
    pub fn restore(&self, backup: &MemoryBackup) {
        self.with(|guarded, now| {
            guarded.outages += 1;
            guarded.state.restore(backup.0.clone(), now);
        });
    }

    /// Forgets the history before `revision`: a watch from an earlier one fails with [`StoreError::Compacted`].
    ///
    /// # Errors
    ///
    /// Fails if the store is switched off, has no such revision yet, or has forgotten it already.
    pub fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.call(|state, _| state.compact(revision))
    }

    /// Runs `act` after ending the leases whose time is over.
    fn with<T>(&self, act: impl FnOnce(&mut GuardedState, Instant) -> T) -> T {
        let now = Instant::now();
        let mut guarded = self.lock();
        let before = guarded.signature();
        guarded.state.expire(now);
        let result = act(&mut guarded, now);
        let changed = guarded.signature() != before;
        drop(guarded);
        if changed {
            self.inner.changes.notify_waiters();
        }
        result
    }

    /// Runs `act` if the store is available.
    fn call<T>(&self, act: impl FnOnce(&mut StoreState, Instant) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.with(|guarded, now| {
            if !guarded.available {
                return Err(unavailable());
            }
            act(&mut guarded.state, now)
        })
    }

    fn lock(&self) -> MutexGuard<'_, GuardedState> {
        // No code that holds the lock panics half-way through a change; see `State`.
        self.inner.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Feeds a watch until it is dropped or fails.
    async fn feed(self, keys: Keys, mut next: Revision, outages: u64, out: mpsc::Sender<Result<Batch, StoreError>>) {
        loop {
            let mut changed = pin!(self.inner.changes.notified());
            // Enabled before the read, so that any later change wakes this task.
            changed.as_mut().enable();
            let read = self.with(|guarded, _| {
                if guarded.outages != outages {
                    return Err(unavailable());
                }
                Ok((guarded.state.read(&keys, next)?, guarded.state.next_deadline()))
            });
            let (HistoryRead { batch, next: after, at_end }, deadline) = match read {
                Ok(read) => read,
                Err(error) => {
                    let _ = out.send(Err(error)).await;
                    return;
                }
            };
            next = after;
            if let Some(batch) = batch
                && out.send(Ok(batch)).await.is_err()
            {
                return;
            }
            if at_end {
                tokio::select! {
                    biased;
                    () = out.closed() => return,
                    () = changed => {}
                    () = until(deadline) => {}
                }
            }
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl GuardedState {
    /// Returns the state whose changes wake the watches.
    fn signature(&self) -> (Revision, Option<Instant>, u64) {
        (self.state.revision(), self.state.next_deadline(), self.outages)
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("the embedded store is switched off".into())
}

#[async_trait]
impl Store for MemoryStore {
    async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
        self.call(|state, _| Ok(state.snapshot(keys)))
    }

    async fn survey(&self, keys: &Keys, since: Revision) -> Result<Survey, StoreError> {
        let Snapshot { revision, entries } = self.snapshot(keys).await?;
        let is_changed = entries.iter().any(|entry| entry.mod_revision > since);
        Ok(Survey { revision, keys: entries.len(), is_changed })
    }

    async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
        let outages = self.with(|guarded, _| {
            if !guarded.available {
                return Err(unavailable());
            }
            guarded.state.check_start(from)?;
            Ok(guarded.outages)
        })?;
        let (out, batches) = mpsc::channel(BUFFERED_BATCHES);
        tokio::spawn(self.clone().feed(keys.clone(), from, outages, out));
        Ok(Watch::new(batches))
    }

    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        self.call(|state, _| state.commit(txn))
    }

    async fn commit_all(&self, txns: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>> {
        let together = |batch: Vec<Txn>| match self.call(|state, _| state.commit_together(batch.clone())) {
            Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
            // One transaction is at fault, which is no reason to refuse the others.
            Err(StoreError::Refused(_)) => {
                batch.into_iter().map(|txn| self.call(|state, _| state.commit(txn))).collect::<Vec<_>>()
            }
            Err(error) => vec![Err(error); batch.len()],
        };
        batches(txns).into_iter().flat_map(together).collect()
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.call(|state, now| state.grant(ttl, now))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.call(|state, now| state.keep_alive(lease, now))
    }

    fn forget_lease(&self, _lease: LeaseId) {}

    fn horizon(&self) -> Option<&SharedHorizon> {
        None
    }

    async fn usage(&self, _key: &str, _since: Revision) -> Result<Option<Usage>, StoreError> {
        Ok(None)
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.call(|state, _| {
            state.revoke(lease);
            Ok(())
        })
    }
}
