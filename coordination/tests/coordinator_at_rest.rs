//! A leader that can do nothing for a while does nothing: it neither spins nor asks the store again and again.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use segue_coordination::coordinator::{
    CoordinatorObserver, CoordinatorSettings, CoordinatorStatus, HandoffResult, run_coordinator,
};
use segue_coordination::store::{MemoryStore, Store, StoreError, Watch};
use segue_protocol::ids::{LeaseId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{Policy, RoundCause};
use segue_protocol::records::Phase;
use segue_protocol::txn::{Keys, Snapshot, Txn, TxnOutcome};
use segue_protocol::view::View;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

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

/// Counts how often the leader's loop comes round.
#[derive(Default)]
struct Rounds(AtomicU32);

impl CoordinatorObserver for Rounds {
    fn leads(&self, _: bool) {}
    fn round(&self, _: RoundCause) {}
    fn phase_ended(&self, _: Phase, _: Duration) {}
    fn handoff_ended(&self, _: PartitionId, _: HandoffResult) {}
    fn resync(&self, _: &StoreError) {}

    fn view_changed(&self, _: &View) {
        // With the clock paused, a loop that spins would never end.
        assert!(self.0.fetch_add(1, SeqCst) < 1_000, "the leader spins");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_write_is_under_way_rests_until_it_is_done() {
    let settings = CoordinatorSettings {
        name: "c".to_owned(),
        lease_ttl: Duration::from_secs(6),
        policy: Policy {
            partitions: 4,
            settle: Duration::from_millis(100),
            settle_max: Duration::from_secs(1),
            min_interval: Duration::from_millis(200),
            heartbeat: Duration::from_secs(5),
            warm_timeout: Duration::from_secs(30),
            phase_timeout: Duration::from_secs(20),
            max_concurrent_handoffs: 8,
            ..Policy::default()
        },
    };
    let (store, rounds) = (MemoryStore::new(), Arc::new(Rounds::default()));
    let (status, _) = watch::channel(CoordinatorStatus::default());
    let keys = Keyspace::new("/segue/", "test");
    let slow: Arc<dyn Store> = Arc::new(SlowDisk(store.clone()));
    let run = run_coordinator(slow, keys.clone(), settings, rounds.clone(), status, CancellationToken::new());
    timeout(Duration::from_secs(10), run).await.expect_err("nobody ends it");
    assert!(!store.snapshot(&Keys::One(keys.config())).await.unwrap().entries.is_empty(), "its write was made");
    assert!(rounds.0.load(SeqCst) < 40, "{} rounds in ten seconds", rounds.0.load(SeqCst));
}
