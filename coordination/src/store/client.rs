//! The store interface of the shells, and its watch.

use std::time::Duration;

use async_trait::async_trait;
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Batch, Keys, Snapshot, Txn, TxnOutcome};
use tokio::sync::mpsc;

use super::horizon::Observer;
use super::{SharedHorizon, StoreError, Usage};

/// Changes of watched keys, in order, from the requested revision on. Dropping it ends the watch.
///
/// Nothing follows an error: take a snapshot and watch from the revision after it.
#[derive(Debug)]
pub struct Watch {
    batches: mpsc::Receiver<Result<Batch, StoreError>>,
    observer: Option<Observer>,
}

impl Watch {
    /// Returns a watch that is fed through `batches`, for implementations of [`Store`].
    pub fn new(batches: mpsc::Receiver<Result<Batch, StoreError>>) -> Self {
        Watch { batches, observer: None }
    }

    /// Returns this watch with its batches recorded.
    pub(super) fn observed(self, observer: Observer) -> Self {
        Watch { observer: Some(observer), ..self }
    }

    /// Returns the next batch of whole revisions. Cancel-safe.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Compacted`] if changes are missing, and otherwise if the watch has ended.
    pub async fn next(&mut self) -> Result<Batch, StoreError> {
        let batch = self.batches.recv().await;
        self.recorded(batch.unwrap_or_else(|| Err(StoreError::Unavailable("the watch has ended".into()))))
    }

    /// Returns a batch that has already arrived, if there is one.
    pub fn try_next(&mut self) -> Option<Result<Batch, StoreError>> {
        self.batches.try_recv().ok().map(|batch| self.recorded(batch))
    }

    fn recorded(&self, batch: Result<Batch, StoreError>) -> Result<Batch, StoreError> {
        if let (Ok(batch), Some(observer)) = (&batch, &self.observer) {
            observer.saw(batch.revision);
        }
        batch
    }
}

/// A look at the store that shows whether a watch has missed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survey {
    /// The store's revision.
    pub revision: Revision,
    /// Number of keys.
    pub keys: usize,
    /// Whether a key was put since then.
    pub is_changed: bool,
}

/// The part of etcd v3 that the protocol needs.
///
/// No call has a default body, so that a store around another one forgets to pass none on.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug + 'static {
    /// Returns all of `keys` at the newest revision (a linearizable read).
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable or refuses the read.
    async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError>;

    /// Returns the number of keys, and whether any was put after revision `since`. The store looks at each key and sends
    /// none of their values.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable or refuses the read.
    async fn survey(&self, keys: &Keys, since: Revision) -> Result<Survey, StoreError>;

    /// Watches the changes of `keys` at revision `from` and later. [`StoreError::Compacted`] comes from here or from
    /// the watch's first [`next`](Watch::next).
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable or refuses the watch, and with [`StoreError::Compacted`] if it has forgotten
    /// changes since `from`.
    async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError>;

    /// Commits a transaction, whole or not at all.
    ///
    /// # Errors
    ///
    /// After [`StoreError::Unavailable`] the transaction may have been applied, after every other error it was not. A
    /// guard that does not hold is no error: see [`TxnOutcome`].
    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError>;

    /// Commits each of these transactions by itself, in any order, and returns their results. For many transactions that
    /// are due together. A store may commit at one revision, by guards evaluated before it, those of which none writes what
    /// another one compares or writes.
    async fn commit_all(&self, txns: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>>;

    /// Grants a lease of `ttl`, which is rounded up to the store's resolution (a second for etcd).
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable, or refuses a TTL that is too long for it.
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Renews a lease for its whole TTL. [`StoreError::LeaseNotFound`] if it has ended.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::LeaseNotFound`] if the lease has ended. After any other error it may have been renewed.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Frees what the store keeps for the renewals of this lease, which goes on. For a process that will not renew it
    /// again; another renewal is no error.
    fn forget_lease(&self, lease: LeaseId);

    /// Returns what this process shares of the store. `None` if it shares nothing yet.
    fn horizon(&self) -> Option<&SharedHorizon>;

    /// Returns how full the store is, and whether `key` can still be read as it was at revision `since`. `None` if the store
    /// has no limit, or does not tell this process.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable or refuses the read.
    async fn usage(&self, key: &str, since: Revision) -> Result<Option<Usage>, StoreError>;

    /// Ends a lease and deletes its keys. A lease that is already gone is no error.
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable or refuses. The lease then ends with its TTL at the latest.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;
}
