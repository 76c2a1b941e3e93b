//! The parts of the processes in one keyspace: access to those that live.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::coordinator::{CoordinatorObserver, HandoffResult};
use segue_coordination::store::StoreError;
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::RoundCause;
use segue_protocol::records::Phase;
use segue_protocol::view::View;

use crate::pod::Pod;
use crate::process::Process;
use crate::router::Router;
use crate::world::World;

/// One keyspace and its routers and pods.
pub(crate) struct Cluster {
    pub(crate) world: Arc<World>,
    routers: RefCell<BTreeMap<String, Rc<Router>>>,
    pods: RefCell<BTreeMap<String, Rc<Pod>>>,
    /// How many of a hundred exchanges break.
    pub(crate) breaking: Cell<u32>,
}

impl Cluster {
    pub(crate) fn new(world: Arc<World>) -> Rc<Self> {
        Rc::new(Cluster { world, routers: RefCell::default(), pods: RefCell::default(), breaking: Cell::new(0) })
    }

    pub(crate) fn add_router(&self, router: Rc<Router>) {
        self.routers.borrow_mut().insert(router.member.process.name.clone(), router);
    }

    pub(crate) fn add_pod(&self, pod: Pod) {
        self.pods.borrow_mut().insert(pod.member.process.name.clone(), Rc::new(pod));
    }

    /// The part of a pod's process ends at once. It may have ended before.
    pub(crate) fn crash_pod(&self, process: &Process) {
        let pod = self.pods.borrow().get(&process.name).cloned();
        if let Some(pod) = pod.filter(|pod| pod.member.process.life == process.life) {
            pod.crash();
        }
    }

    /// The router of that name, if it runs.
    pub(crate) fn router(&self, name: &str) -> Option<Rc<Router>> {
        self.routers.borrow().get(name).filter(|router| !router.member.process.is_dead()).cloned()
    }

    /// The pod of that name, if it runs.
    pub(crate) fn pod(&self, name: &str) -> Option<Rc<Pod>> {
        self.pods.borrow().get(name).filter(|pod| !pod.member.process.is_dead()).cloned()
    }

    pub(crate) fn routers(&self) -> Vec<Rc<Router>> {
        self.routers.borrow().values().filter(|it| !it.member.process.is_dead()).cloned().collect()
    }

    pub(crate) fn pods(&self) -> Vec<Rc<Pod>> {
        self.pods.borrow().values().filter(|it| !it.member.process.is_dead()).cloned().collect()
    }

    /// When the exchange that begins now breaks, if it does.
    pub(crate) fn breaks_after(&self) -> Option<Duration> {
        let rng = &self.world.rng;
        let breaks = self.breaking.get() > 0 && rng.percent(self.breaking.get());
        breaks.then(|| rng.millis(1..=2 * (self.world.setting.message_ms + self.world.setting.work_ms)))
    }
}

/// The observer of a coordinator.
pub(crate) struct Observer {
    pub(crate) world: Arc<World>,
    pub(crate) name: String,
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
