//! The processes of a simulation by name, each with a part in every keyspace: how they start and end.
//!
//! Not here: the parts themselves, and requests, which belong to one keyspace ([`cluster`](crate::cluster)).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::session::Leases;
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Observer};
use crate::pod::Pod;
use crate::process::Process;
use crate::router::Router;
use crate::store_link::{Kind, StoreLink};
use crate::world::World;

/// One life of a process, as its parts and faults see it.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) process: Arc<Process>,
    pub(crate) link: Arc<StoreLink>,
    /// The lease that its parts share.
    pub(crate) leases: Leases,
}

/// One life of a coordinator.
pub(crate) struct Coordinator {
    pub(crate) member: Member,
    shutdown: CancellationToken,
}

/// All processes.
pub(crate) struct Site {
    /// Of each keyspace.
    pub(crate) clusters: Vec<Rc<Cluster>>,
    coordinators: RefCell<BTreeMap<String, Rc<Coordinator>>>,
    /// The parts of processes that may stand still alone, with their processes.
    parts: RefCell<Vec<(Arc<Process>, Arc<Process>)>>,
    lives: Cell<u64>,
    /// The store is about to go back.
    pub(crate) goes_back: Cell<bool>,
}

impl Site {
    /// The site as it begins.
    pub(crate) fn start(worlds: Vec<Arc<World>>) -> Rc<Self> {
        let clusters = worlds.into_iter().map(Cluster::new).collect();
        let site = Rc::new(Site {
            clusters,
            coordinators: RefCell::default(),
            parts: RefCell::default(),
            lives: Cell::new(0),
            goes_back: Cell::new(false),
        });
        site.complete();
        site
    }

    /// The world of the first keyspace, for what all of them share.
    pub(crate) fn world(&self) -> &Arc<World> {
        &self.clusters[0].world
    }

    /// Starts whatever is missing.
    pub(crate) fn complete(&self) {
        let setting = &self.world().setting;
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

    fn member(&self, name: &str, kind: Kind) -> Member {
        let life = self.lives.get() + 1;
        self.lives.set(life);
        let world = self.world();
        world.trace.event(format_args!("{name} starts, life {life}"));
        let process = Process::new(name, life, &world.trace);
        let worlds = self.clusters.iter().map(|cluster| cluster.world.clone()).collect();
        let link = StoreLink::new(worlds, &process, kind);
        Member { leases: Leases::from(link.clone()), process, link }
    }

    /// `run` as the part of a process in one keyspace.
    fn part(&self, process: &Arc<Process>, run: impl Future<Output = ()> + 'static) -> impl Future + 'static {
        let part = Process::new(&process.name, process.life, &self.world().trace);
        let mut parts = self.parts.borrow_mut();
        parts.retain(|(process, _)| !process.is_dead());
        parts.push((process.clone(), part.clone()));
        process.run(async move { part.run(run).await })
    }

    /// Runs the parts of a process, which ends with the last of them.
    fn run(&self, process: &Arc<Process>, runs: Vec<impl Future<Output = ()> + 'static>) {
        let tasks: Vec<_> = runs
            .into_iter()
            .map(|run| {
                let part = self.part(process, run);
                spawn_local(async move { drop(part.await) })
            })
            .collect();
        let ended = process.clone();
        spawn_local(async move {
            for task in tasks {
                // A panic of it has been reported by then.
                let _ = task.await;
            }
            // None of its tasks continues.
            ended.kill();
        });
    }

    /// Starts a coordinator unless one of that name runs.
    pub(crate) fn start_coordinator(&self, name: &str) {
        if self.coordinators.borrow().get(name).is_some_and(|running| !running.member.process.is_dead()) {
            return;
        }
        let member = self.member(name, Kind::Coordinator);
        let shutdown = CancellationToken::new();
        let runs = self.clusters.iter().map(|cluster| {
            let world = &cluster.world;
            let settings = CoordinatorSettings {
                name: name.to_owned(),
                lease_ttl: world.setting.lease_ttl,
                policy: world.setting.policy.clone(),
            };
            let observer = Arc::new(Observer { world: world.clone(), name: name.to_owned() });
            let (status, _) = watch::channel(CoordinatorStatus::default());
            let leases = member.leases.clone();
            run_coordinator(leases, world.keys.clone(), settings, observer, status, shutdown.clone())
        });
        self.run(&member.process, runs.collect());
        self.coordinators.borrow_mut().insert(name.to_owned(), Rc::new(Coordinator { member, shutdown }));
    }

    /// Starts a router unless one of that name runs.
    pub(crate) fn start_router(&self, name: &str) {
        if self.clusters[0].router(name).is_some() {
            return;
        }
        let member = self.member(name, Kind::Router);
        let runs = self.clusters.iter().map(|cluster| {
            let (router, run) = Router::start(&cluster.world, &member);
            cluster.add_router(router);
            run
        });
        self.run(&member.process, runs.collect());
    }

    /// Starts a pod unless one of that name runs.
    pub(crate) fn start_pod(&self, name: &str) {
        if self.clusters[0].pod(name).is_some() {
            return;
        }
        let member = self.member(name, Kind::Pod);
        for cluster in &self.clusters {
            let (pod, run) = Pod::start(&cluster.world, &member);
            cluster.add_pod(pod);
            let part = self.part(&member.process, run);
            spawn_local(async move { drop(part.await) });
        }
    }

    /// The parts of a pod's process in each keyspace.
    pub(crate) fn parts_of(&self, process: &Process) -> Vec<Rc<Pod>> {
        let part = |cluster: &Rc<Cluster>| cluster.pod(&process.name);
        self.clusters.iter().filter_map(part).filter(|pod| pod.member.process.life == process.life).collect()
    }

    /// A pod's process ends at once.
    pub(crate) fn crash_pod(&self, process: &Process) {
        for cluster in &self.clusters {
            cluster.crash_pod(process);
        }
    }

    /// A router's process ends properly.
    pub(crate) fn shut_down_router(&self, process: &Process) {
        for cluster in &self.clusters {
            if let Some(router) = cluster.router(&process.name).filter(|it| it.member.process.life == process.life) {
                router.shut_down();
            }
        }
    }

    pub(crate) fn coordinators(&self) -> Vec<Rc<Coordinator>> {
        self.coordinators.borrow().values().filter(|it| !it.member.process.is_dead()).cloned().collect()
    }

    /// The processes of the routers that live.
    pub(crate) fn routers(&self) -> Vec<Member> {
        self.clusters[0].routers().into_iter().map(|it| it.member.clone()).collect()
    }

    /// The processes of the pods that live.
    pub(crate) fn pods(&self) -> Vec<Member> {
        self.clusters[0].pods().into_iter().map(|it| it.member.clone()).collect()
    }

    /// Every process that lives.
    pub(crate) fn members(&self) -> Vec<Member> {
        let coordinators = self.coordinators().into_iter().map(|it| it.member.clone());
        coordinators.chain(self.routers()).chain(self.pods()).collect()
    }

    /// Every part of a process that lives.
    pub(crate) fn parts(&self) -> Vec<Arc<Process>> {
        self.parts.borrow().iter().filter(|(process, _)| !process.is_dead()).map(|(_, part)| part.clone()).collect()
    }
}

impl Coordinator {
    pub(crate) fn shut_down(&self) {
        self.shutdown.cancel();
    }
}
