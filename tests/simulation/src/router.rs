//! A simulated router: production's control side and routing table, and a request path with messages instead of
//! sockets.
//!
//! The decisions about a request are those of `segue_proxy::forward`: an unreachable pod was sent nothing, a 421 puts
//! the request back, a broken exchange is never repeated, and an exchange whose client has gone continues to its end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::router::{
    Cutover, DataPlane, DrainSettings, RouterObserver, RouterPorts, RouterSettings, RouterStatus, run_router,
};
use segue_coordination::store::StoreError;
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::Partitioner;
use segue_proxy::routing::permit::{Admission, Permit, QueuedPermit, TableHandle};
use segue_proxy::routing::table::{AdmissionError, Bounce, StashLimits, Table};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::byzantine::Hasty;
use crate::cluster::Cluster;
use crate::exchange::{Outcome, exchange};
use crate::history::{RequestId, Status};
use crate::sabotage::Sabotage;
use crate::site::Member;
use crate::world::World;

/// What the path of a request may take beyond its limits.
const SLACK: Duration = Duration::from_millis(200);

/// One life of a router in a keyspace.
pub(crate) struct Router {
    pub(crate) member: Member,
    pub(crate) table: Arc<Table>,
    world: Arc<World>,
    worker: TableHandle,
    /// Takes no requests any more.
    closed: Cell<bool>,
    /// Requests without an answer.
    open: Cell<usize>,
    /// Of each partition: requests without an answer that have been put back.
    returned: RefCell<BTreeMap<PartitionId, usize>>,
    shutdown: CancellationToken,
}

/// The weight of each request in a stash.
pub(crate) const WEIGHT: usize = 100;

/// A request that has been put back, until it is answered.
struct Returned<'router>(&'router Router, PartitionId);

impl<'router> Returned<'router> {
    fn count(router: &'router Router, partition: PartitionId) -> Self {
        *router.returned.borrow_mut().entry(partition).or_default() += 1;
        Returned(router, partition)
    }
}

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        if let Some(returned) = self.0.returned.borrow_mut().get_mut(&self.1) {
            *returned -= 1;
        }
    }
}

/// A request as a client sends it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) id: RequestId,
    pub(crate) partition: PartitionId,
    pub(crate) key: Option<u64>,
    pub(crate) work: Duration,
}

impl Router {
    /// A router's part of a process, and the work of its control side.
    pub(crate) fn start(world: &Arc<World>, member: &Member) -> (Rc<Router>, impl Future<Output = ()> + use<>) {
        let (setting, name) = (&world.setting, member.process.name.as_str());
        let limits = StashLimits {
            max_requests: setting.max_requests,
            // As many as `max_requests` of that size.
            max_bytes: setting.max_requests * WEIGHT,
            max_total_bytes: 1 << 22,
            max_wait: setting.max_wait,
            flush_concurrency: setting.flush_concurrency,
        };
        let (table, notices) = Table::new(1, limits);
        let settings = RouterSettings {
            name: name.to_owned(),
            lease_ttl: setting.lease_ttl,
            on_store_loss: setting.on_store_loss,
            drain: DrainSettings {
                timeout: setting.drain_timeout,
                on_timeout: setting.on_drain_timeout,
                streams: setting.drain_timeout / 4,
                patience: setting.drain_timeout / 2,
            },
            admin: None,
            partitioner: Some(Partitioner::NUMBER),
            request_timeout: setting.request_timeout,
            max_wait: setting.max_wait,
        };
        let plane: Arc<dyn DataPlane> = match world.is_sabotaged(Sabotage::EarlyRouterDrained) {
            true => Arc::new(Hasty::new(table.clone())),
            false => table.clone(),
        };
        let observer = Arc::new(Observer { world: world.clone(), name: name.to_owned() });
        let (status, _) = watch::channel(RouterStatus::default());
        let (ports, shutdown) = (RouterPorts { plane, notices, observer, status }, CancellationToken::new());
        let run = run_router(member.leases.clone(), world.keys.clone(), settings, ports, shutdown.clone());
        let worker = table.worker(0);
        let (closed, open, returned) = (Cell::new(false), Cell::new(0), RefCell::default());
        let (world, member) = (world.clone(), member.clone());
        (Rc::new(Router { member, table, world, worker, closed, open, returned, shutdown }), run)
    }

    /// Takes requests.
    pub(crate) fn listens(&self) -> bool {
        !self.closed.get() && !self.member.process.is_dead()
    }

    /// How many requests of the partition have been put back and have no answer yet.
    pub(crate) fn returned(&self, partition: PartitionId) -> usize {
        self.returned.borrow().get(&partition).copied().unwrap_or(0)
    }

    /// Ends properly: takes nothing more, lets what is under way end, and deregisters only then.
    pub(crate) fn shut_down(self: &Rc<Self>) {
        self.closed.set(true);
        let setting = &self.world.setting;
        // One that ends while a pod works for it has died, as far as that work is concerned. Where pods cannot say `drained`
        // nobody waits for that work then, and the protocol promises nothing: it takes as long as its requests may.
        let patience = setting.max_wait + 2 * setting.request_timeout;
        let limit = if setting.capabilities.drained { setting.drain_timeout } else { patience };
        let router = self.clone();
        spawn_local(self.member.process.run(async move {
            let deadline = Instant::now() + limit;
            let refusing = deadline - limit / 10;
            while router.open.get() > 0 && Instant::now() < deadline {
                if Instant::now() >= refusing {
                    router.table.shut_down();
                }
                sleep(Duration::from_millis(5)).await;
            }
            router.shutdown.cancel();
        }));
    }

    /// Answers a request through `answer`; a client that has gone has dropped the other end.
    pub(crate) async fn handle(
        self: Rc<Self>,
        cluster: Rc<Cluster>,
        asked: Asked,
        mut answer: oneshot::Sender<Status>,
    ) {
        self.open.set(self.open.get() + 1);
        let _open = Open(&self.open);
        let (arrived, paused) = (Instant::now(), self.member.process.paused());
        let status = self.route(&cluster, asked, arrived, &mut answer).await;
        self.world.history.unheld(asked.id);
        let Some(status) = status else { return };
        let took = arrived.elapsed().saturating_sub(self.member.process.paused() - paused);
        let setting = &self.world.setting;
        // It may wait for the router's first view; it may be with a pod that refuses it at last; then it may wait, and go to a
        // pod once more at the last moment.
        let at_most = 2 * (setting.max_wait + setting.request_timeout) + setting.connect_timeout + SLACK;
        self.world.history.took(asked.id, took, at_most);
        let _ = answer.send(status);
    }

    async fn route(
        self: &Rc<Self>,
        cluster: &Rc<Cluster>,
        asked: Asked,
        arrived: Instant,
        answer: &mut oneshot::Sender<Status>,
    ) -> Option<Status> {
        let (world, history) = (&self.world, &self.world.history);
        while self.worker.partitions() <= asked.partition.get() {
            if arrived.elapsed() >= world.setting.max_wait || self.worker.shutting_down() {
                return Some(Status::Refused("no-owner"));
            }
            sleep(Duration::from_millis(10)).await;
        }
        history.taken(asked.id, &self.member.process.name, self.member.process.life);
        let order = asked.key.filter(|_| !world.is_sabotaged(Sabotage::NoOrder));
        let mut held_since = None;
        let mut returned = None;
        let mut admission = match self.worker.enter(asked.partition, order, WEIGHT, arrived) {
            Ok(admission) => admission,
            Err(refusal) => return Some(self.refused(refusal)),
        };
        loop {
            let mut permit = match admission {
                Admission::Admitted(permit) => permit,
                Admission::Queued(queued) => {
                    let (began, paused) = (Instant::now(), self.member.process.paused());
                    let deadline = *held_since.get_or_insert(began) + world.setting.max_wait;
                    let turn = self.wait(queued, asked.id, answer).await?;
                    let late = Instant::now().saturating_duration_since(deadline.max(began));
                    history.took(asked.id, late.saturating_sub(self.member.process.paused() - paused), SLACK);
                    match turn {
                        Ok(permit) => permit,
                        Err(refusal) => return Some(self.refused(refusal)),
                    }
                }
            };
            history.started(asked.id);
            // Once its client has gone it need not be put back.
            let mut gone = false;
            let outcome = loop {
                let under_way = exchange(cluster, self, &permit, asked);
                tokio::pin!(under_way);
                let has_lasted = sleep(world.setting.gives_way_after);
                tokio::pin!(has_lasted);
                let outcome = loop {
                    tokio::select! {
                        biased;
                        outcome = &mut under_way => break outcome,
                        () = answer.closed(), if !gone => {
                            gone = true;
                            world.trace.seen("a client hung up on an exchange");
                            if world.is_sabotaged(Sabotage::HangUp) {
                                return None;
                            }
                            match timeout(world.setting.request_timeout, under_way).await {
                                Ok(outcome) => break outcome,
                                Err(_) => return None,
                            }
                        }
                        () = &mut has_lasted, if permit.holds_place() => {
                            world.trace.seen("a slow request gave its place in a flush away");
                            permit.give_way();
                        }
                    }
                };
                if outcome == Outcome::Broken && !gone && world.is_sabotaged(Sabotage::SendAgain) {
                    continue;
                }
                break outcome;
            };
            if gone {
                permit.delivered();
                return None;
            }
            admission = Admission::Queued(match outcome {
                Outcome::Unreachable | Outcome::Misdirected => {
                    let why = if outcome == Outcome::Misdirected { "421" } else { "unreachable" };
                    if outcome == Outcome::Misdirected && world.is_sabotaged(Sabotage::ShowBounce) {
                        return Some(Status::Bounced);
                    }
                    world.trace.seen(if why == "421" { "a 421 was put back" } else { "a pod could not be reached" });
                    history.undone(asked.id, why);
                    returned.get_or_insert_with(|| Returned::count(self, asked.partition));
                    let bounce =
                        if outcome == Outcome::Misdirected { Bounce::Misdirected } else { Bounce::Unreachable };
                    match permit.put_back(bounce) {
                        Ok(queued) => queued,
                        Err(_) => {
                            world.trace.event(format_args!("{} is refused for good", asked.id));
                            return Some(Status::Refused("no-owner"));
                        }
                    }
                }
                Outcome::Fenced => {
                    world.trace.seen("a lease ran out while a connection was made");
                    history.undone(asked.id, "fenced");
                    returned.get_or_insert_with(|| Returned::count(self, asked.partition));
                    permit.put_back_fenced()
                }
                Outcome::Done => {
                    permit.delivered();
                    return Some(Status::Done);
                }
                Outcome::Failed => {
                    permit.delivered();
                    return Some(Status::Failed);
                }
                Outcome::Broken | Outcome::TimedOut => return Some(Status::Unknown),
                Outcome::Severed => {
                    world.trace.seen("an exchange was severed");
                    return Some(Status::Unknown);
                }
            });
        }
    }

    /// Waits for its turn. `None`: its client has gone, and it with it.
    async fn wait(
        &self,
        queued: QueuedPermit,
        id: RequestId,
        answer: &mut oneshot::Sender<Status>,
    ) -> Option<Result<Permit, AdmissionError>> {
        self.world.history.held(id);
        self.world.trace.seen("a request was held");
        let turn = tokio::select! {
            biased;
            turn = queued => turn,
            () = answer.closed() => {
                self.world.trace.seen("a client hung up while held");
                return None;
            }
        };
        if turn.is_ok() {
            self.world.trace.seen("a held request was flushed");
        }
        Some(turn)
    }

    fn refused(&self, refusal: AdmissionError) -> Status {
        let trace = &self.world.trace;
        Status::Refused(match refusal {
            AdmissionError::Full => {
                trace.seen("a stash was full");
                "stash-full"
            }
            AdmissionError::Waited(HoldCause::Fenced) => {
                trace.seen("a request waited too long for a fenced router");
                "fenced"
            }
            AdmissionError::Waited(_) => {
                trace.seen("a request waited too long");
                "waited"
            }
            AdmissionError::Shutdown => "shutdown",
        })
    }
}

struct Open<'a>(&'a Cell<usize>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

struct Observer {
    world: Arc<World>,
    name: String,
}

impl RouterObserver for Observer {
    fn cutover(&self, cutover: &Cutover) {
        let (partition, target) = (cutover.partition, &cutover.target);
        let name = &self.name;
        self.world.trace.event(format_args!("{name} opens {partition} to {} at {}", target.pod, target.epoch));
        if cutover.severed > 0 {
            self.world.trace.seen("a drain was severed");
        }
    }

    fn resync(&self, cause: &StoreError) {
        self.world.trace.event(format_args!("{} resyncs: {cause}", self.name));
    }
}
