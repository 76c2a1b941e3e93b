//! The processes of a simulation by name: how they start and end, and access to those that live.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::coordinator::{
    CoordinatorObserver, CoordinatorSettings, CoordinatorStatus, HandoffResult, run_coordinator,
};
use segue_coordination::store::{Store, StoreError};
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::RoundCause;
use segue_protocol::records::Phase;
use segue_protocol::view::View;
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio_util::sync::CancellationToken;

use crate::pod::Pod;
use crate::process::Process;
use crate::router::Router;
use crate::store_link::{Kind, StoreLink};
use crate::world::World;

/// One life of a coordinator.
pub(crate) struct Coordinator {
    process: Arc<Process>,
    link: Arc<StoreLink>,
    shutdown: CancellationToken,
}

/// All processes.
pub(crate) struct Cluster {
    pub(crate) world: Arc<World>,
    coordinators: RefCell<BTreeMap<String, Rc<Coordinator>>>,
    routers: RefCell<BTreeMap<String, Rc<Router>>>,
    pods: RefCell<BTreeMap<String, Rc<Pod>>>,
    lives: Cell<u64>,
    /// How many of a hundred exchanges break.
    pub(crate) breaking: Cell<u32>,
}

/// A process, whatever it is, as faults see it.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) process: Arc<Process>,
    pub(crate) link: Arc<StoreLink>,
}

impl Cluster {
    /// The cluster as it begins.
    pub(crate) fn start(world: &Arc<World>) -> Rc<Self> {
        let cluster = Rc::new(Cluster {
            world: world.clone(),
            coordinators: RefCell::default(),
            routers: RefCell::default(),
            pods: RefCell::default(),
            lives: Cell::new(0),
            breaking: Cell::new(0),
        });
        cluster.complete();
        cluster
    }

    /// Starts whatever is missing.
    pub(crate) fn complete(&self) {
        let setting = &self.world.setting;
        for number in 0..setting.coordinators {
            self.start_coordinator(&format!("c{number}"));
        }
        for number in 0..setting.routers {
            self.start_router(&format!("r{number}"));
        }
        for number in 0..setting.pods {
            self.start_pod(&format!("p{number}"));
        }
    }

    fn life(&self, name: &str) -> u64 {
        let life = self.lives.get() + 1;
        self.lives.set(life);
        self.world.trace.event(format_args!("{name} starts, life {life}"));
        life
    }

    /// Starts a coordinator unless one of that name runs.
    pub(crate) fn start_coordinator(&self, name: &str) {
        if self.coordinators.borrow().get(name).is_some_and(|running| !running.process.is_dead()) {
            return;
        }
        let world = &self.world;
        let process = Process::new(name, self.life(name), &world.trace);
        let link = StoreLink::new(world, &process, Kind::Coordinator);
        let settings = CoordinatorSettings {
            name: name.to_owned(),
            lease_ttl: world.setting.lease_ttl,
            policy: world.setting.policy.clone(),
        };
        let shutdown = CancellationToken::new();
        let observer = Arc::new(Observer { world: world.clone(), name: name.to_owned() });
        let (status, _) = watch::channel(CoordinatorStatus::default());
        let store: Arc<dyn Store> = link.clone();
        let run = run_coordinator(store, world.keys.clone(), settings, observer, status, shutdown.clone());
        let (confined, ended) = (process.run(run), process.clone());
        spawn_local(async move {
            confined.await;
            ended.kill();
        });
        self.coordinators.borrow_mut().insert(name.to_owned(), Rc::new(Coordinator { process, link, shutdown }));
    }

    /// Starts a router unless one of that name runs.
    pub(crate) fn start_router(&self, name: &str) {
        if self.router(name).is_none() {
            let router = Router::start(&self.world, name, self.life(name));
            self.routers.borrow_mut().insert(name.to_owned(), router);
        }
    }

    /// Starts a pod unless one of that name runs.
    pub(crate) fn start_pod(&self, name: &str) {
        if self.pod(name).is_none() {
            let pod = Rc::new(Pod::start(&self.world, name, self.life(name)));
            self.pods.borrow_mut().insert(name.to_owned(), pod);
        }
    }

    /// The router of that name, if it runs.
    pub(crate) fn router(&self, name: &str) -> Option<Rc<Router>> {
        self.routers.borrow().get(name).filter(|router| !router.process.is_dead()).cloned()
    }

    /// The pod of that name, if it runs.
    pub(crate) fn pod(&self, name: &str) -> Option<Rc<Pod>> {
        self.pods.borrow().get(name).filter(|pod| !pod.process.is_dead()).cloned()
    }

    pub(crate) fn coordinators(&self) -> Vec<Rc<Coordinator>> {
        self.coordinators.borrow().values().filter(|it| !it.process.is_dead()).cloned().collect()
    }

    pub(crate) fn routers(&self) -> Vec<Rc<Router>> {
        self.routers.borrow().values().filter(|it| !it.process.is_dead()).cloned().collect()
    }

    pub(crate) fn pods(&self) -> Vec<Rc<Pod>> {
        self.pods.borrow().values().filter(|it| !it.process.is_dead()).cloned().collect()
    }

    /// Every process that lives.
    pub(crate) fn members(&self) -> Vec<Member> {
        let coordinators = self.coordinators().into_iter().map(|it| it.member());
        let routers = self.routers().into_iter().map(|it| it.member());
        coordinators.chain(routers).chain(self.pods().into_iter().map(|it| it.member())).collect()
    }

    /// When the exchange that begins now breaks, if it does.
    pub(crate) fn breaks_after(&self) -> Option<Duration> {
        let rng = &self.world.rng;
        let breaks = self.breaking.get() > 0 && rng.percent(self.breaking.get());
        breaks.then(|| rng.millis(1..=2 * (self.world.setting.message_ms + self.world.setting.work_ms)))
    }
}

impl Coordinator {
    pub(crate) fn member(&self) -> Member {
        Member { process: self.process.clone(), link: self.link.clone() }
    }

    pub(crate) fn shut_down(&self) {
        self.shutdown.cancel();
    }
}

impl Router {
    pub(crate) fn member(&self) -> Member {
        Member { process: self.process.clone(), link: self.link.clone() }
    }
}

impl Pod {
    pub(crate) fn member(&self) -> Member {
        Member { process: self.process.clone(), link: self.link.clone() }
    }
}

struct Observer {
    world: Arc<World>,
    name: String,
}

impl CoordinatorObserver for Observer {
    fn leads(&self, leads: bool) {
        self.world.trace.event(format_args!("{} leads: {leads}", self.name));
        if leads {
            self.world.trace.seen("a coordinator was elected");
        }
    }

    fn round(&self, cause: RoundCause) {
        self.world.trace.event(format_args!("{} plans: {}", self.name, cause.as_str()));
    }

    fn phase_ended(&self, _: Phase, _: Duration) {}

    fn handoff_ended(&self, partition: PartitionId, result: HandoffResult) {
        self.world.trace.event(format_args!("{}: handoff of {partition} {result:?}", self.name));
    }

    fn view_changed(&self, _: &View) {}

    fn resync(&self, cause: &StoreError) {
        self.world.trace.event(format_args!("{} resyncs: {cause}", self.name));
    }
}
