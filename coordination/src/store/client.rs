//! What the shells ask of a store, and the watch that it answers with.

use std::time::Duration;

use async_trait::async_trait;
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Batch, Keys, Snapshot, Txn, TxnOutcome};
use tokio::sync::mpsc;

use super::StoreError;

/// Changes of watched keys, in order, from the revision asked for on. Dropping it ends the watch.
///
/// After an error nothing more comes: take a snapshot and watch from the revision after it.
#[derive(Debug)]
pub struct Watch {
    batches: mpsc::Receiver<Result<Batch, StoreError>>,
}

impl Watch {
    /// A watch that is fed through `batches`: for whoever implements [`Store`].
    pub fn new(batches: mpsc::Receiver<Result<Batch, StoreError>>) -> Self {
        Watch { batches }
    }

    /// The next batch of whole revisions. Cancel-safe.
    pub async fn next(&mut self) -> Result<Batch, StoreError> {
        self.batches.recv().await.unwrap_or_else(|| Err(StoreError::Unavailable("the watch has ended".into())))
    }

    /// A batch that has already arrived. `None`: nothing yet.
    pub fn try_next(&mut self) -> Option<Result<Batch, StoreError>> {
        self.batches.try_recv().ok()
    }
}

/// What the protocol needs of etcd v3.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug + 'static {
    /// All of `keys` at the newest revision (a linearizable read).
    async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError>;

    /// The changes of `keys` at revision `from` and later. [`StoreError::Compacted`] comes from here or from the
    /// watch's first [`next`](Watch::next).
    async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError>;

    /// Carries out a transaction, whole or not at all.
    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError>;

    /// Carries out each of these by itself, and says of each what became of it. For many that are due together and
    /// have nothing to do with each other: a store may take them all in one request and look at all guards before it
    /// carries anything out, so none may write what another one compares or writes.
    async fn commit_all(&self, txns: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>> {
        futures_util::future::join_all(txns.into_iter().map(|txn| self.commit(txn))).await
    }

    /// A new lease of `ttl`, which is rounded up to the store's own step (a second for etcd).
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Renews a lease for its whole TTL. [`StoreError::LeaseNotFound`] if it has ended.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends a lease and deletes its keys. A lease that is gone already is no error.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;
}
