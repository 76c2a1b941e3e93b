//! A leader that can do nothing for a while does nothing: it neither spins nor repeats its writes.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use async_trait::async_trait;
use segue_coordination::store::{MemoryStore, Store, StoreError, Watch};
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Keys, Snapshot, Txn, TxnOutcome};
use tokio::time::{sleep, timeout};

use super::{ViewCount, coordinator, keys};

/// The embedded store with a very slow disk.
#[derive(Debug)]
struct SlowDisk(MemoryStore);

#[async_trait]
impl Store for SlowDisk {
    async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
        self.0.snapshot(keys).await
    }

    async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
        self.0.watch(keys, from).await
    }

    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        sleep(Duration::from_secs(2)).await;
        self.0.commit(txn).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.0.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.0.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.0.revoke(lease).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_write_is_under_way_rests_until_it_is_done() {
    let (store, views) = (MemoryStore::new(), Arc::new(ViewCount::default()));
    let run = coordinator(Arc::new(SlowDisk(store.clone())), "c", Duration::from_secs(6), views.clone());
    timeout(Duration::from_secs(10), run).await.expect_err("nobody ends it");
    assert!(!store.snapshot(&Keys::One(keys().config())).await.unwrap().entries.is_empty(), "its write was made");
    assert!(views.0.load(SeqCst) < 40, "{} rounds in ten seconds", views.0.load(SeqCst));
}
