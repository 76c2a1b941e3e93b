//! A store that answers reads, watches and renewals, and refuses writes.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType, Client};
use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::store::{EtcdOptions, EtcdStore, Fault, FaultyStore, MemoryStore, Store, StoreCall, Usage};
use segue_coordination::test_util::StoredKeyspace;
use segue_protocol::handoff::pod::warmed;
use segue_protocol::ids::{Epoch, HandoffId, LeaseId, PartitionId};
use segue_protocol::planning::Policy;
use segue_protocol::records::{
    Assignment, Capabilities, Handoff, HandoffEnd, HistoryEntry, KeyspaceConfig, Phase, PodRecord, RouterRecord, encode,
};
use segue_protocol::txn::{Keys, Op};
use segue_protocol::view::Versioned;
use segue_tests::etcd::Etcd;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::drains::{MOVING, site};
use super::foreign_writes::until;
use super::{ViewCount, keys};

const NOTICE: &str = "refuses writes";

/// A keyspace of two partitions, whose pods and router the test plays.
#[derive(Clone)]
pub(super) struct Site(StoredKeyspace);

impl Deref for Site {
    type Target = StoredKeyspace;

    fn deref(&self) -> &StoredKeyspace {
        &self.0
    }
}

impl Site {
    /// Returns the keyspace, in which `old` owns both partitions.
    pub(super) async fn new(store: Arc<dyn Store>) -> Self {
        let site = Site(StoredKeyspace::new(store, keys().name()));
        site.put(site.keys.config(), encode(&KeyspaceConfig::new(2))).await;
        site.join("old").await;
        let old = site.view().await.incarnation_of("old");
        for partition in PartitionId::all(2) {
            let owned = Assignment::new(partition, "old", old, Epoch::new(1));
            site.put(site.keys.assignment(partition), encode(&owned)).await;
        }
        site.put_leased(site.keys.router("r"), encode(&RouterRecord::new("r"))).await;
        site
    }

    pub(super) async fn join(&self, pod: &str) -> LeaseId {
        let record = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new(pod, "127.0.0.1:1") };
        self.put_leased(self.keys.pod(pod), encode(&record)).await
    }

    /// Returns the handoff in this phase, once there is one.
    async fn handoff(&self, phase: Phase) -> Versioned<Handoff> {
        let found = async || self.view().await.handoffs.into_values().find(|handoff| handoff.value.phase == phase);
        until("a handoff", found).await
    }

    /// Plays the new owner, which is warm.
    async fn warm(&self, handoff: &Versioned<Handoff>) {
        let view = self.view().await;
        let (pod, partition) = (&handoff.value.new_owner, handoff.value.partition);
        let txn = warmed(&view, pod, view.incarnation_of(pod), handoff.id(), partition, 0).unwrap();
        self.commit(txn).await;
    }

    async fn is_over(&self, handoff: HandoffId) {
        let is_gone = async || {
            let goes_on = self.view().await.handoffs.values().any(|other| other.id() == handoff);
            (!goes_on).then_some(())
        };
        until("the end of the handoff", is_gone).await;
    }

    /// Returns a handoff's entry in the history, and the revision that created it.
    async fn entry(&self, handoff: &Versioned<Handoff>) -> Option<Versioned<HistoryEntry>> {
        let key = self.keys.history_entry(handoff.value.partition, handoff.id());
        let entry = self.store.snapshot(&Keys::One(key)).await.unwrap().entries.pop()?;
        let value = serde_json::from_slice(&entry.value).unwrap();
        let (create_revision, mod_revision) = (entry.create_revision, entry.mod_revision);
        Some(Versioned { create_revision, mod_revision, lease: entry.lease, value })
    }
}

/// A coordinator that acts through this store.
pub(super) struct Coordinator(watch::Receiver<CoordinatorStatus>);

impl Coordinator {
    pub(super) async fn leading(store: Arc<dyn Store>) -> Self {
        Self::settling(store, Duration::from_millis(50)).await
    }

    /// Returns a coordinator that waits so long for changes to settle.
    pub(super) async fn settling(store: Arc<dyn Store>, settle: Duration) -> Self {
        let policy = Policy {
            partitions: 2,
            settle,
            settle_max: 10 * settle,
            min_interval: Duration::from_millis(100),
            heartbeat: Duration::from_secs(5),
            phase_timeout: Duration::from_secs(2),
            cool_down: Duration::ZERO,
            ..Policy::default()
        };
        let settings = CoordinatorSettings { name: "c".to_owned(), lease_ttl: Duration::from_secs(60), policy };
        let (sender, status) = watch::channel(CoordinatorStatus::default());
        let views = Arc::new(ViewCount::default());
        tokio::spawn(run_coordinator(store, keys(), settings, views, sender, CancellationToken::new()));
        until("a leader", async || status.borrow().leads.then_some(())).await;
        Coordinator(status)
    }

    async fn says(&self, is_refused: bool) {
        let says = || self.0.borrow().notices.iter().any(|notice| notice.contains(NOTICE));
        until("the notice", async || (says() == is_refused).then_some(())).await;
    }
}

fn is_commit(call: &StoreCall) -> bool {
    matches!(call, StoreCall::Commit(_))
}

/// Returns whether this call puts a key below this prefix.
fn puts(call: &StoreCall, prefix: &str) -> bool {
    let is_meant = |op: &Op| matches!(op, Op::Put { key, .. } if key.starts_with(prefix));
    matches!(call, StoreCall::Commit(txn) if txn.then.iter().any(is_meant))
}

#[tokio::test]
async fn a_stopped_partition_comes_back_while_etcd_has_no_space_left() {
    let etcd = Etcd::start();
    let store = Arc::new(EtcdStore::connect(EtcdOptions::new([etcd.endpoint()])).unwrap());
    let site = Site::new(store.clone()).await;
    let coordinator = Coordinator::leading(store).await;
    site.join("new").await;
    let handoff = site.handoff(Phase::Warming).await;
    site.warm(&handoff).await;
    // The router has stopped, and cannot say so any more.
    let mut maintenance = Client::connect([etcd.endpoint()], None).await.unwrap();
    maintenance.alarm(AlarmAction::Activate, AlarmType::Nospace, None).await.unwrap();
    site.is_over(handoff.id()).await;
    coordinator.says(true).await;
    assert_eq!(site.entry(&handoff).await, None, "nothing was put");
    assert!(site.view().await.assignments.values().all(|assignment| assignment.value.owner == "old"));

    maintenance.alarm(AlarmAction::Deactivate, AlarmType::Nospace, None).await.unwrap();
    let entry = until("the entry", async || site.entry(&handoff).await).await;
    assert_eq!((entry.value.result, entry.value.end_cause.as_str()), (HandoffEnd::Cancelled, "store_refused"));
    coordinator.says(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_writes_is_told_within_half_a_minute_though_nothing_moves() {
    let memory = MemoryStore::new();
    let site = Site::new(Arc::new(memory.clone())).await;
    let store = Arc::new(FaultyStore::new(Arc::new(memory)));
    let coordinator = Coordinator::leading(store.clone()).await;
    let says = || coordinator.0.borrow().notices.iter().any(|notice| notice.contains(NOTICE));
    sleep(Duration::from_secs(120)).await;
    let revision = site.view().await.revision;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(site.view().await.revision, revision, "something is written at rest");
    for is_refused in [true, false] {
        if is_refused {
            store.refuse_puts()
        } else {
            store.pass()
        }
        sleep(Duration::from_secs(30)).await;
        assert_eq!(says(), is_refused, "{:?}", coordinator.0.borrow().notices);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fills_up_is_told_until_somebody_compacts_it() {
    let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
    let usage = |is_readable| Usage { revision: Usage::FIRST, bytes: 3 << 29, quota: None, is_readable };
    store.set_usage(usage(true));
    let coordinator = Coordinator::leading(store.clone()).await;
    let says = || coordinator.0.borrow().notices.iter().any(|notice| notice.contains("nobody compacts the store"));
    until("the notice", async || says().then_some(())).await;
    store.set_usage(usage(false));
    sleep(Duration::from_secs(700)).await;
    assert!(!says());
}

#[tokio::test(start_paused = true)]
async fn no_move_begins_while_the_store_refuses_writes() {
    let memory = MemoryStore::new();
    let site = Site::new(Arc::new(memory.clone())).await;
    let store = Arc::new(FaultyStore::new(Arc::new(memory)));
    let coordinator = Coordinator::leading(store.clone()).await;
    store.refuse_puts();
    site.join("new").await;
    coordinator.says(true).await;
    let begins = |call: &StoreCall| PartitionId::all(2).any(|partition| puts(call, &site.keys.handoff(partition)));
    let begun = store.count(begins);
    let before = store.count(is_commit);
    sleep(Duration::from_secs(600)).await;
    let attempts = store.count(is_commit) - before;
    assert!((15..=60).contains(&attempts), "{attempts} attempts in ten minutes");
    assert_eq!(store.count(begins), begun, "another one was to begin");
    store.pass();
    sleep(Duration::from_secs(5)).await;
    site.handoff(Phase::Warming).await;
    coordinator.says(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_whose_cancel_is_not_recorded_is_left_alone_until_it_is() {
    let memory = MemoryStore::new();
    let site = Site::new(Arc::new(memory.clone())).await;
    let store = Arc::new(FaultyStore::new(Arc::new(memory)));
    let _coordinator = Coordinator::leading(store.clone()).await;
    let new = site.join("new").await;
    let handoff = site.handoff(Phase::Warming).await;
    site.warm(&handoff).await;
    store.refuse_puts();
    // No back-off follows the death of a pod.
    site.store.revoke(new).await.unwrap();
    site.is_over(handoff.id()).await;
    site.join("next").await;
    // What would refuse a write of before the cancel cannot be put, everything else can.
    let history = site.keys.history_entry(handoff.value.partition, handoff.id());
    store.set_rule(move |call| if puts(call, &history) { Fault::Refuse } else { Fault::Pass });
    sleep(Duration::from_secs(300)).await;
    let partition = handoff.value.partition;
    let moves = site.view().await.handoffs;
    assert!(!moves.contains_key(&partition), "the partition moves");
    store.pass();
    let entry = until("the entry", async || site.entry(&handoff).await).await;
    assert_eq!(entry.value.result, HandoffEnd::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_router_whose_acknowledgements_are_refused_stops_no_further_partition() {
    let store = MemoryStore::new();
    let through = Arc::new(FaultyStore::new(Arc::new(store.clone())));
    let (router, moves) = site(&store, through.clone()).await;
    through.refuse_puts();
    moves.begin(&store, &MOVING[..1]).await;
    until("the refusal", async || (through.count(|call| puts(call, keys().root())) > 5).then_some(())).await;
    let is_open = |partition| router.gates.open.lock().unwrap().contains_key(&partition);
    assert!(!is_open(MOVING[0]));
    sleep(Duration::from_secs(60)).await;
    let before = through.count(is_commit);
    until("one more refusal", async || (through.count(is_commit) > before).then_some(())).await;
    moves.begin(&store, &MOVING[1..2]).await;
    sleep(Duration::from_secs(10)).await;
    assert!(is_open(MOVING[1]), "it was stopped in vain");
    through.pass();
    until("the stop", async || (!is_open(MOVING[1])).then_some(())).await;
}
