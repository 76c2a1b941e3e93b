//! A keyspace that is coordinated by assignment rounds, on a real etcd: each process is a pod and takes part in them,
//! and there is no leader.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use segue_coordination::coordinator::{
    CoordinatorObserver, CoordinatorSettings, CoordinatorStatus, HandoffResult, run_coordinator,
};
use segue_coordination::pod::{HandlerError, HandoffContext, HandoffHandler, PodHandle, PodSettings};
use segue_coordination::session::{Claim, Registration, register};
use segue_coordination::store::{EtcdOptions, EtcdStore, Store, StoreError};
use segue_coordination::test_util::StoredKeyspace;
use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::planning::{Coordination, Policy, RoundCause};
use segue_protocol::records::{Drain, Operation, Origin, Phase, Request, encode};
use segue_protocol::rounds::{Member, RoundStep};
use segue_protocol::txn::{Event, Keys};
use segue_protocol::view::View;
use segue_tests::etcd::Etcd;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const PARTITIONS: u32 = 6;
/// A busy machine may stop the test for seconds, which must not cost a lease.
const TTL: Duration = Duration::from_secs(5);

static ETCD: LazyLock<Etcd> = LazyLock::new(Etcd::start);

fn store() -> Arc<dyn Store> {
    Arc::new(EtcdStore::connect(EtcdOptions::new([ETCD.endpoint()])).unwrap())
}

fn policy() -> Policy {
    Policy {
        partitions: PARTITIONS,
        coordination: Coordination::Rounds,
        settle: Duration::from_millis(50),
        min_interval: Duration::from_millis(100),
        heartbeat: Duration::from_secs(2),
        cool_down: Duration::ZERO,
        ..Policy::default()
    }
}

/// Counts the handoffs whose end a process told.
#[derive(Debug, Default)]
struct Ends(watch::Sender<u32>);

impl Ends {
    async fn more_than(&self, before: u32) {
        let mut told = self.0.subscribe();
        let more = timeout(Duration::from_secs(60), told.wait_for(|told| *told > before));
        more.await.expect("it has acted for its own").unwrap();
    }
}

impl CoordinatorObserver for Ends {
    fn leads(&self, _: bool) {}
    fn round(&self, _: RoundCause) {}
    fn phase_ended(&self, _: Phase, _: Duration) {}
    fn view_changed(&self, _: &View) {}
    fn resync(&self, _: &StoreError) {}

    fn handoff_ended(&self, _: PartitionId, _: HandoffResult) {
        self.0.send_modify(|told| *told += 1);
    }
}

/// A service whose partitions get warm when the test lets them.
struct Service(watch::Sender<bool>);

#[async_trait]
impl HandoffHandler for Service {
    async fn warm(&self, _: &HandoffContext) -> Result<(), HandlerError> {
        self.0.subscribe().wait_for(|warms| *warms).await?;
        Ok(())
    }
}

struct Site(StoredKeyspace);

impl Deref for Site {
    type Target = StoredKeyspace;

    fn deref(&self) -> &StoredKeyspace {
        &self.0
    }
}

impl Site {
    fn new(name: &str) -> Self {
        Site(StoredKeyspace::new(store(), name))
    }

    async fn settled(&self, what: &str, pods: &[(&str, usize)]) -> View {
        let wanted: BTreeMap<String, usize> = pods.iter().map(|(pod, count)| ((*pod).to_owned(), *count)).collect();
        self.until(what, |view| view.handoffs.is_empty() && owned(view) == wanted).await
    }

    /// Returns how often a key was put or deleted after one revision and up to another, at which the keyspace changed.
    async fn changes(&self, key: &str, after: Revision, until: Revision) -> usize {
        let mut watch = self.store.watch(&self.keys.planned(), after.next()).await.unwrap();
        let mut changes = 0;
        loop {
            let batch = watch.next().await.unwrap();
            let is_of_key = |event: &&Event| match event {
                Event::Put(entry) => entry.key == key,
                Event::Delete { key: deleted, .. } => deleted == key,
            };
            changes += batch.events.iter().filter(is_of_key).count();
            if batch.revision >= until {
                return changes;
            }
        }
    }

    /// Starts a pod that takes no part in the rounds.
    fn pod(&self, name: &str) -> (PodHandle, Arc<Service>) {
        let settings = PodSettings { lease_ttl: TTL, ..PodSettings::new(name, "127.0.0.1:1") };
        let service = Arc::new(Service(watch::Sender::new(true)));
        let pod = PodHandle::start(store(), self.keys.name(), self.keys.clone(), settings, service.clone());
        (pod, service)
    }

    fn process(&self, name: &str) -> Process {
        self.process_with(name, policy())
    }

    fn process_with(&self, name: &str, policy: Policy) -> Process {
        let (shutdown, (status, shown)) = (CancellationToken::new(), watch::channel(CoordinatorStatus::default()));
        let settings = CoordinatorSettings { name: name.to_owned(), lease_ttl: TTL, policy };
        let ends = Arc::new(Ends::default());
        let run = run_coordinator(store(), self.keys.clone(), settings, ends.clone(), status, shutdown.clone());
        let coordinator = tokio::spawn(run);
        let (pod, service) = self.pod(name);
        Process { pod, service, coordinator, shutdown, ends, status: shown }
    }
}

/// A pod that takes part in the rounds.
struct Process {
    pod: PodHandle,
    service: Arc<Service>,
    coordinator: JoinHandle<()>,
    shutdown: CancellationToken,
    ends: Arc<Ends>,
    status: watch::Receiver<CoordinatorStatus>,
}

impl Process {
    fn crash(self) {
        self.coordinator.abort();
        self.pod.crash();
    }

    async fn stop(self) {
        self.pod.set_draining();
        self.pod.emptied().await;
        self.pod.shutdown(Duration::from_secs(5)).await;
        self.shutdown.cancel();
        self.coordinator.await.unwrap();
    }
}

/// The number of partitions that each living pod owns.
fn owned(view: &View) -> BTreeMap<String, usize> {
    let mut owned = BTreeMap::new();
    for partition in PartitionId::all(PARTITIONS) {
        if let Some((at, _)) = view.live_owner(partition) {
            *owned.entry(at.owner.clone()).or_default() += 1;
        }
    }
    owned
}

fn participants(view: &View) -> Vec<&str> {
    let current = view.rounds.current.iter();
    current.flat_map(|round| round.value.participants.keys().map(String::as_str)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_pods_share_the_partitions_without_a_leader_and_one_that_dies_loses_its_share() {
    let site = Site::new("three");
    let [a, b, c] = ["a", "b", "c"].map(|name| site.process(name));
    site.settled("an even share", &[("a", 2), ("b", 2), ("c", 2)]).await;
    let view = site.until("a round of all", |view| participants(view) == ["a", "b", "c"]).await;
    assert!(view.leader.is_none() && view.partitions() == PARTITIONS);

    c.crash();
    site.settled("the share of the dead", &[("a", 3), ("b", 3)]).await;
    let view = site.until("a round of the living", |view| participants(view) == ["a", "b"]).await;
    let d = site.process("d");
    site.settled("a share of the new one", &[("a", 2), ("b", 2), ("d", 2)]).await;
    let numbers = site.until("a later round", |view| participants(view) == ["a", "b", "d"]).await.rounds.current;
    assert!(numbers.unwrap().value.number > view.rounds.current.unwrap().value.number);

    let before = [&a, &b, &d].map(|process| *process.ends.0.borrow());
    for pod in ["a", "b"] {
        site.put(site.keys.drain(pod), drain()).await;
    }
    site.settled("all on one", &[("d", 6)]).await;
    for pod in ["a", "b"] {
        site.delete(site.keys.drain(pod)).await;
    }
    site.put(site.keys.drain("d"), drain()).await;
    site.settled("all on the others", &[("a", 3), ("b", 3)]).await;
    // Every partition has moved, so each has acted for its own. It tells an end once it has seen it.
    for (process, before) in [&a, &b, &d].into_iter().zip(before) {
        process.ends.more_than(before).await;
    }
}

fn drain() -> Vec<u8> {
    encode(&Drain { origin: Origin { who: "ann".into(), ..Origin::default() } })
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_are_drained_or_stopped_give_up_their_share_first() {
    let site = Site::new("drain");
    let [_a, _b, c] = ["a", "b", "c"].map(|name| site.process(name));
    site.settled("an even share", &[("a", 2), ("b", 2), ("c", 2)]).await;
    site.put(site.keys.drain("b"), drain()).await;
    site.settled("b is empty", &[("a", 3), ("c", 3)]).await;
    c.stop().await;
    let view = site.settled("all that is left", &[("a", 6)]).await;
    assert!(view.assignments.values().all(|at| at.value.owner == "a"));
    site.until("the round without c", |view| participants(view) == ["a", "b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_cancel_is_answered_by_whoever_acts_for_the_partition() {
    let site = Site::new("cancel");
    let a = site.process("a");
    site.settled("all on one", &[("a", 6)]).await;
    let b = site.process("b");
    b.service.0.send_replace(false);
    site.until("a round of both", |view| participants(view) == ["a", "b"]).await;
    let view = site.until("moves to b", |view| view.handoffs.len() == 3).await;
    for (partition, handoff) in &view.handoffs {
        let request = Request::Cancel { partition: *partition, handoff: handoff.id() };
        let origin = Origin { who: "ann".into(), ..Origin::default() };
        site.put(site.keys.operation(&partition.to_string()), encode(&Operation { request, origin, answer: None }))
            .await;
    }
    let ids = || view.handoffs.keys().map(ToString::to_string);
    let answered = |view: &View| {
        let answer = |id: String| view.intentions.operations.get(&id)?.value.answer.clone();
        ids().all(|id| answer(id).is_some_and(|answer| answer.accepted))
    };
    let after = site.until("answers", answered).await;
    let same = |(partition, was): (&PartitionId, _)| {
        let was: &segue_protocol::view::Versioned<_> = was;
        after.handoffs.get(partition).is_some_and(|is| is.create_revision == was.create_revision)
    };
    assert!(!view.handoffs.iter().any(same), "cancelled");
    b.service.0.send_replace(true);
    drop((a, b));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leaders_key_without_a_lease_stops_the_rounds_for_a_moment_only() {
    let site = Site::new("leaseless");
    let a = site.process("a");
    site.settled("all on one", &[("a", 6)]).await;
    site.put(site.keys.leader(), b"{".to_vec()).await;
    site.until("the key is gone", |view| view.leader.is_none()).await;
    let b = site.process("b");
    site.settled("an even share", &[("a", 3), ("b", 3)]).await;
    drop((a, b));
}

/// Takes part until it is in a round, and then keeps nothing but its lease.
async fn stuck(site: &Site, name: &str) -> Registration {
    let claim = Claim::new(&site.keys, site.keys.participant(name), TTL);
    let member = Member { name: name.to_owned(), incarnation: Default::default(), lease: Default::default() };
    let registration = register(&site.store.clone().into(), &claim, |_| member.record(None)).await;
    let (incarnation, lease) = (registration.incarnation, registration.lease.id());
    let member = Member { incarnation, lease, ..member };
    loop {
        registration.lease.made_progress();
        let next = |view: &View| match member.next_step(view) {
            Some(step @ RoundStep::Join(_)) => Some(step),
            _ => None,
        };
        let view =
            site.until("a gathering or a round", |view| next(view).is_some() || member.authority(view).is_some());
        let view = view.await;
        let Some(step) = next(&view) else { return registration };
        let txn = member.draft(&view, step, &policy()).txn;
        site.store.commit(txn).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_participant_that_lives_and_does_nothing_drops_out_with_the_heartbeat() {
    let site = Site::new("stuck");
    let a = site.process("b-alive");
    site.settled("all on one", &[("b-alive", 6)]).await;
    // The first by name: it acts for the keyspace, and for every other partition.
    let registration = stuck(&site, "a-stuck").await;
    let progress = async {
        loop {
            registration.lease.made_progress();
            tokio::time::sleep(TTL / 10).await;
        }
    };
    let rest = async {
        // A new participant would ask for a round at once.
        let c = site.pod("c-new");
        let view = site.settled("its share, too", &[("b-alive", 3), ("c-new", 3)]).await;
        let registered = view.rounds.participants.get("a-stuck").map(|it| it.create_revision);
        assert_eq!(registered, Some(registration.incarnation.revision()), "it lives");
        site.until("a round without it", |view| participants(view) == ["b-alive"]).await;
        drop(c);
    };
    tokio::select! {
        () = rest => {}
        () = progress => {}
    }
    drop(a);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyspace_stays_with_its_coordination_until_a_file_wins() {
    let site = Site::new("change");
    let a = site.process("a");
    let before = site.settled("all on one", &[("a", 6)]).await.revision;
    let leader = Policy { coordination: Coordination::Leader, ..policy() };
    let mut b = site.process_with("b", leader.clone());
    let both = site.until("a round of both", |view| participants(view) == ["a", "b"]).await.rounds.current.unwrap();
    let changes = site.changes(&site.keys.leader(), before, both.mod_revision).await;
    assert_eq!(changes, 0, "a leader's key stops the rounds");
    let says = |status: &CoordinatorStatus| status.notices.iter().any(|notice| notice.starts_with("coordination is"));
    timeout(Duration::from_secs(30), b.status.wait_for(says)).await.expect("it says so").unwrap();
    a.crash();
    b.crash();
    let c = site.process_with("c", Policy { config_wins: true, ..leader });
    let view = site.until("a leader", |view| {
        view.leader.as_ref().is_some_and(|leader| leader.value.holder == "c") && view.rounds.current.is_none()
    });
    assert_eq!(view.await.settings().unwrap().planning.as_ref().unwrap()["coordination"], "leader");
    site.settled("all on it", &[("c", 6)]).await;
    let history = site.store.snapshot(&Keys::One(site.keys.round())).await.unwrap();
    assert!(history.entries.is_empty());
    drop(c);
}
