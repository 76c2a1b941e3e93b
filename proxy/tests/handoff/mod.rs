//! Coordinators, routers with real routing tables and pods that do their duty, over the embedded store and a paused
//! clock: partitions move while requests flow.
//!
//! Pods and sockets are left out here: a request goes no further than its [`Permit`], and the pod that it was passed to is
//! asked whether it would accept it. Whole processes are tested in the root package.
mod leases;
mod moves;
mod routers;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::router::{DrainSettings, RouterSettings};
use segue_coordination::session::{Claim, Registration, Update, Watcher, count_by_tokio, register};
use segue_coordination::store::{MemoryStore, Store};
use segue_protocol::handoff::advance::{Ack, acknowledge};
use segue_protocol::handoff::pod::{Duty, duty, warmed};
use segue_protocol::handoff::router::OnStoreLoss;
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::Policy;
use segue_protocol::records::{Capabilities, Mode, PodAck, PodAckKind, PodRecord, encode};
use segue_protocol::txn::Keys;
use segue_protocol::view::View;
use segue_proxy::router::RouterControl;
use segue_proxy::routing::permit::{Admission, TableHandle};
use segue_proxy::routing::table::{Bounce, StashLimits, Table};
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

const P3: PartitionId = PartitionId::new(3);

const PARTITIONS: u32 = 16;
const TTL: Duration = Duration::from_secs(6);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);

/// The epochs that each pod accepts, as the pods themselves believe.
type Accepted = Rc<RefCell<HashMap<(String, PartitionId), Epoch>>>;

struct Fixture {
    store: Arc<MemoryStore>,
    keys: Keyspace,
    accepted: Accepted,
    mode: Mode,
    served: Rc<Cell<u64>>,
    dead: RefCell<HashSet<String>>,
}

struct Router {
    table: Arc<Table>,
    control: RouterControl,
    task: JoinHandle<()>,
}

impl Fixture {
    fn new(mode: Mode) -> Rc<Self> {
        count_by_tokio();
        Rc::new(Fixture {
            store: Arc::new(MemoryStore::new()),
            keys: Keyspace::new("/segue/", "test"),
            accepted: Accepted::default(),
            mode,
            served: Rc::default(),
            dead: RefCell::default(),
        })
    }

    fn coordinator(&self, name: &str) -> (CancellationToken, JoinHandle<()>) {
        let settings = CoordinatorSettings {
            name: name.to_owned(),
            lease_ttl: TTL,
            policy: Policy {
                partitions: PARTITIONS,
                mode: self.mode,
                settle: Duration::from_millis(100),
                settle_max: Duration::from_secs(1),
                min_interval: Duration::from_millis(200),
                heartbeat: Duration::from_secs(5),
                warm_timeout: Duration::from_secs(30),
                phase_timeout: Duration::from_secs(20),
                max_concurrent_handoffs: 8,
                cool_down: Duration::ZERO,
                ..Policy::default()
            },
        };
        let shutdown = CancellationToken::new();
        let (status, _) = watch::channel(CoordinatorStatus::default());
        let store: Arc<dyn Store> = self.store.clone();
        let run = run_coordinator(store, self.keys.clone(), settings, Arc::new(()), status, shutdown.clone());
        (shutdown, spawn_local(run))
    }

    fn router(&self, name: &str) -> Router {
        self.router_of(name, self.store.clone())
    }

    fn router_of(&self, name: &str, store: Arc<dyn Store>) -> Router {
        let limits = StashLimits {
            max_requests: 10_000,
            max_bytes: 1 << 20,
            max_total_bytes: 1 << 24,
            max_wait: Duration::from_secs(60),
            flush_concurrency: 64,
        };
        let (table, notices) = Table::new(1, limits);
        let settings = RouterSettings {
            name: name.to_owned(),
            lease_ttl: TTL,
            on_store_loss: OnStoreLoss::Auto,
            drain: DrainSettings { timeout: DRAIN_TIMEOUT, ..DrainSettings::default() },
            admin: None,
            partitioner: None,
            request_timeout: REQUEST_TIMEOUT,
            max_wait: Duration::from_secs(60),
        };
        let (control, run) =
            RouterControl::new(table.clone(), notices, store, self.keys.clone(), settings, Arc::new(()));
        Router { table, control, task: spawn_local(run) }
    }

    fn pod(self: &Rc<Self>, name: &str, capabilities: Capabilities) -> JoinHandle<()> {
        let (fixture, name) = (self.clone(), name.to_owned());
        spawn_local(async move {
            let store: Arc<dyn Store> = fixture.store.clone();
            let record = PodRecord { capabilities, ..PodRecord::new(name.clone(), format!("{name}:80")) };
            loop {
                let claim = Claim::new(&fixture.keys, fixture.keys.pod(&name), TTL);
                let registration = register(&store.clone().into(), &claim, |_| encode(&record)).await;
                fixture.live(&store, &name, &registration).await;
                fixture.accepted.borrow_mut().retain(|(pod, _), _| *pod != name);
            }
        })
    }

    /// One life of a pod, until its lease is lost.
    async fn live(&self, store: &Arc<dyn Store>, name: &str, registration: &Registration) {
        let mut watcher = Watcher::start(store.clone(), self.keys.clone());
        let mut view = View::empty(self.keys.clone());
        while !registration.lease.state().borrow().lost {
            registration.lease.made_progress();
            match timeout(TTL / 6, watcher.next()).await {
                Ok(Update::Snapshot(snapshot)) => view = *snapshot,
                Ok(Update::Batch(batch)) => drop(view.apply(batch)),
                Ok(Update::Lost(_)) | Err(_) => {}
            }
            for partition in PartitionId::all(view.partitions()) {
                self.do_duty(&view, name, registration, partition).await;
            }
        }
    }

    async fn do_duty(&self, view: &View, name: &str, registration: &Registration, partition: PartitionId) {
        let key = (name.to_owned(), partition);
        let incarnation = registration.incarnation;
        let now = duty(view, name, incarnation, partition);
        match now {
            Duty::Serve { epoch } => {
                self.accepted.borrow_mut().insert(key, epoch);
            }
            _ => drop(self.accepted.borrow_mut().remove(&key)),
        }
        let say = |kind, handoff| {
            let ack = PodAck::new(name, partition, handoff, kind);
            Some(acknowledge(view, &Ack::Pod(ack), registration.key.clone(), incarnation, 0))
        };
        let txn = match now {
            Duty::Warm { handoff, .. } => warmed(view, name, incarnation, handoff, partition, 0),
            Duty::Drain { handoff, .. } => say(PodAckKind::Drained, handoff),
            Duty::Sync { handoff, .. } => say(PodAckKind::Synced, handoff),
            Duty::Release { handoff } => say(PodAckKind::Released, handoff),
            _ => None,
        };
        if let Some(txn) = txn {
            // Seen from the outside a pod takes its time.
            sleep(Duration::from_millis(2)).await;
            // A store that is away is asked again: duties are level-triggered.
            let _ = self.store.commit(txn).await;
        }
    }

    /// Starts a client that sends one request after another through a router. The pod of each checks it.
    fn client(self: &Rc<Self>, router: &Router, number: u32) -> JoinHandle<()> {
        let (fixture, worker) = (self.clone(), router.table.worker(0));
        spawn_local(async move {
            let mut partition = number % PARTITIONS;
            while worker.partitions() == 0 {
                sleep(Duration::from_millis(10)).await;
            }
            loop {
                partition = (partition + 5) % PARTITIONS;
                fixture.request(&worker, PartitionId::new(partition)).await;
                sleep(Duration::from_micros(300)).await;
            }
        })
    }

    async fn request(&self, worker: &TableHandle, partition: PartitionId) {
        loop {
            let mut permit = match worker.enter(partition, Some(7), 100, Instant::now()).unwrap() {
                Admission::Admitted(permit) => permit,
                Admission::Queued(queued) => queued.await.unwrap(),
            };
            let pod = permit.pod().name.clone();
            if self.accepted.borrow().get(&(pod.clone(), partition)) != Some(&permit.epoch()) {
                // The pod has not seen yet that it is the owner, or no longer is: 421.
                match permit.put_back(Bounce::Unreachable).unwrap().await {
                    Ok(again) => drop(again),
                    Err(refusal) => panic!("{refusal}"),
                }
                continue;
            }
            sleep(Duration::from_micros(800)).await;
            let still = self.accepted.borrow().get(&(pod.clone(), partition)).copied();
            let died = self.dead.borrow().contains(&pod);
            assert!(died || still == Some(permit.epoch()), "{pod} lost partition {partition} with work in it");
            permit.delivered();
            self.served.set(self.served.get() + 1);
            return;
        }
    }

    /// Starts a task that checks at every step that no two pods accept the same partition.
    fn sentinel(self: &Rc<Self>) -> JoinHandle<()> {
        let fixture = self.clone();
        spawn_local(async move {
            loop {
                let mut owners: HashMap<PartitionId, String> = HashMap::new();
                for (pod, partition) in fixture.accepted.borrow().keys() {
                    if let Some(other) = owners.insert(*partition, pod.clone()) {
                        panic!("partition {partition} is accepted by {pod} and {other}");
                    }
                }
                sleep(Duration::from_micros(100)).await;
            }
        })
    }

    async fn view(&self) -> View {
        let snapshot = self.store.snapshot(&Keys::Prefix(self.keys.root().to_owned())).await.unwrap();
        View::from_snapshot(self.keys.clone(), snapshot)
    }

    /// Waits until every partition has a living owner, the pods are balanced, and no handoff is left.
    async fn settles(&self, pods: usize) {
        let settled = async {
            loop {
                let view = self.view().await;
                let mut counts: HashMap<&str, usize> = HashMap::new();
                let alive = PartitionId::all(PARTITIONS).filter_map(|partition| view.live_owner(partition));
                alive.for_each(|(assignment, _)| *counts.entry(&assignment.owner).or_default() += 1);
                let owned: usize = counts.values().sum();
                let quota = PARTITIONS as usize / pods;
                let balanced = counts.len() == pods && counts.values().all(|count| (quota..=quota + 1).contains(count));
                if view.handoffs.is_empty() && owned == PARTITIONS as usize && balanced {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        if timeout(Duration::from_secs(120), settled).await.is_err() {
            let view = self.view().await;
            panic!("it does not settle: {:#?}\n{:#?}", view.handoffs, view.acks);
        }
    }
}

async fn within(fixture: impl AsyncFnOnce()) {
    LocalSet::new().run_until(fixture()).await;
}

fn crash(handle: &JoinHandle<()>) {
    handle.abort();
}
