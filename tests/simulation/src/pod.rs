//! A simulated pod: production's pod side and ownership layer around a writer that keeps state and appends to the log.
//!
//! Only the writer is simulated: how long it takes to warm, to work, and to append. It does what
//! `segue_coordination::pod` asks of a service: state per handoff, and the tail read before the first request of an
//! epoch.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use segue_coordination::pod::{
    HandlerError, HandoffContext, HandoffHandler, LoadReport, Owned, OwnershipService, PodHandle, PodSettings,
};
use segue_protocol::ids::{Epoch, HandoffId, PartitionId};
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::sleep;
use tower::{Layer as _, Service};

use crate::history::{Owner, RequestId};
use crate::log::Writer;
use crate::process::Process;
use crate::sabotage::Sabotage;
use crate::setting::Setting;
use crate::site::Member;
use crate::world::World;

/// One life of a pod in a keyspace.
pub(crate) struct Pod {
    pub(crate) member: Member,
    pub(crate) handle: PodHandle,
    service: OwnershipService<WriterService>,
    bare: WriterService,
    writer: Arc<Writing>,
}

/// What a pod answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// 421: nothing was done.
    Misdirected,
    Failed,
}

/// A request on its way: its number, and how long it is worked on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) id: RequestId,
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    pub(crate) work: Duration,
}

impl Pod {
    /// A pod's part of a process, and its work.
    pub(crate) fn start(world: &Arc<World>, member: &Member) -> (Pod, impl Future<Output = ()> + use<>) {
        let (process, name) = (member.process.clone(), member.process.name.as_str());
        let writer = Arc::new(Writing { world: world.clone(), process: process.clone(), states: Mutex::default() });
        let mut settings = PodSettings::new(name, format!("{name}:80"));
        settings.lease_ttl = world.setting.lease_ttl;
        settings.capabilities = world.setting.capabilities;
        let (leases, keys) = (member.leases.clone(), world.keys.clone());
        let (handle, run) = PodHandle::prepare(leases, world.keys.name(), keys, settings, writer.clone());
        let bare = WriterService { writer: writer.clone(), handle: handle.clone() };
        let service = handle.layer().layer(bare.clone());
        if world.is_sabotaged(Sabotage::EarlyDrained) {
            spawn_local(process.run(crate::byzantine::say_drained(world.clone(), name.to_owned())));
        }
        (Pod { member: member.clone(), handle, service, bare, writer }, run)
    }

    /// Ends at once. What it had on the way to the log arrives.
    pub(crate) fn crash(&self) {
        self.handle.crash();
        self.member.process.kill();
        self.writer.states().clear();
    }

    /// Serves a request that has arrived. `None`: the process is gone.
    pub(crate) fn serve(&self, job: Job) -> impl Future<Output = Option<Answer>> + use<> {
        let mut request = Request::new(());
        let headers = request.headers_mut();
        headers.insert("segue-partition", job.partition.get().into());
        headers.insert("segue-epoch", job.epoch.get().into());
        request.extensions_mut().insert(job);
        let writer = &self.writer;
        let any = writer.world.is_sabotaged(Sabotage::AnyEpoch);
        let (mut service, mut bare) = (self.service.clone(), self.bare.clone());
        self.member.process.run(async move {
            let (status, whole) = if any {
                let Ok(response) = bare.call(request).await;
                (response.status(), true)
            } else {
                let Ok(response) = service.call(request).await;
                let status = response.status();
                (status, response.into_body().collect().await.is_ok())
            };
            match status {
                StatusCode::MISDIRECTED_REQUEST => Answer::Misdirected,
                StatusCode::OK if whole => Answer::Done,
                _ => Answer::Failed,
            }
        })
    }
}

/// The writer inside a pod.
struct Writing {
    world: Arc<World>,
    process: Arc<Process>,
    states: Mutex<BTreeMap<PartitionId, Arc<State>>>,
}

/// What it holds of a partition.
struct State {
    /// Told apart from any other state of the partition.
    id: u64,
    epoch: Epoch,
    handoff: HandoffId,
    /// How much of the log it has read, or written itself.
    known: Mutex<Known>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    length: usize,
    with_tail: bool,
}

impl State {
    fn writer(&self, fences: bool) -> Writer {
        Writer { id: self.id, epoch: self.epoch, fences }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writing {
    fn states(&self) -> MutexGuard<'_, BTreeMap<PartitionId, Arc<State>>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self, partition: PartitionId, epoch: Epoch) -> Option<Arc<State>> {
        self.states().get(&partition).filter(|state| state.epoch == epoch).cloned()
    }

    fn fences(&self) -> bool {
        self.world.setting.capabilities.fence && !self.world.is_sabotaged(Sabotage::WorkPastLease)
    }

    /// Reads what was written since the state was copied. Fences before it reads, or an older owner's write could come
    /// after.
    fn read_tail(&self, partition: PartitionId, state: &State) -> bool {
        if self.world.is_sabotaged(Sabotage::NoTail) {
            return true;
        }
        match self.world.logs.read(partition, state.writer(self.fences())) {
            Ok(length) => {
                *state.known() = Known { length, with_tail: true };
                true
            }
            Err(_) => false,
        }
    }

    async fn takes(&self, at_most_ms: u64) {
        sleep(self.world.rng.millis(0..=at_most_ms)).await;
        self.process.awake().await;
    }
}

impl Writing {
    /// Checks that a new owner is told to start within the log.
    fn check_start(&self, part: &HandoffContext) {
        let Some(start) = &part.checkpoint else { return };
        self.world.trace.seen("a new owner started from a checkpoint");
        let length = self.world.logs.len(part.partition);
        if !start.parse().is_ok_and(|start: usize| start <= length) {
            let what = format!("partition {} is to start at {start}, and its log ends at {length}", part.partition);
            self.world.trace.violation("checkpoints", what);
        }
    }
}

#[async_trait]
impl HandoffHandler for Writing {
    async fn warm(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        let (world, name) = (&self.world, &self.process.name);
        world.trace.event(format_args!("{name} warms {} for {}", part.partition, part.epoch));
        self.check_start(part);
        let id = world.rng.among(0..=u64::MAX - 1);
        let state = State { id, epoch: part.epoch, handoff: part.handoff, known: Mutex::default() };
        let state = Arc::new(state);
        self.states().insert(part.partition, state.clone());
        self.takes(200).await;
        *state.known() = Known { length: world.logs.len(part.partition), with_tail: false };
        // Now and then longer than any time-out, or in vain.
        match world.rng.among(0..=99) {
            0..=3 => self.takes(20_000).await,
            4..=7 => return Err("the state cannot be copied".into()),
            _ => self.takes(300).await,
        }
        Ok(())
    }

    async fn sync(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.takes(20).await;
        let Some(state) = self.state(part.partition, part.epoch).filter(|state| state.handoff == part.handoff) else {
            let what = format!("{} is asked to sync partition {} and has no state", self.process.name, part.partition);
            self.world.trace.violation("callbacks", what);
            return Err("no state".into());
        };
        match self.read_tail(part.partition, &state) {
            true => Ok(()),
            false => Err("the log is a newer owner's".into()),
        }
    }

    /// A checkpoint is the length of the log that the state has. Now and then it takes too long, or is in vain.
    async fn checkpoint(&self, part: &HandoffContext) -> Result<Option<String>, HandlerError> {
        let state = self.state(part.partition, part.epoch).ok_or("no state")?;
        let length = state.known().length;
        self.takes(100).await;
        match self.world.rng.among(0..=99) {
            0..=9 => self.takes(20_000).await,
            10..=14 => return Err("the checkpoint cannot be stored".into()),
            15..=19 => return Ok(None),
            _ => {}
        }
        self.world.trace.event(format_args!("{} has a checkpoint of {}", self.process.name, part.partition));
        Ok(Some(length.to_string()))
    }

    fn load(&self, partition: PartitionId) -> LoadReport {
        let Setting { load, partitions, .. } = self.world.setting;
        LoadReport { load: load.load(partition, partitions, self.world.began.elapsed()), keys: None }
    }

    async fn drain(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.takes(10).await;
        let name = &self.process.name;
        self.world.trace.event(format_args!("{name} has drained {}", part.partition));
        Ok(())
    }

    async fn release(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.takes(10).await;
        let is_meant = |state: &Arc<State>| (state.epoch, state.handoff) == (part.epoch, part.handoff);
        let mut states = self.states();
        if states.get(&part.partition).is_some_and(is_meant) {
            states.remove(&part.partition);
        }
        drop(states);
        let name = &self.process.name;
        self.world.trace.event(format_args!("{name} releases {}", part.partition));
        Ok(())
    }
}

/// The writer's service, inside the ownership layer.
#[derive(Clone)]
struct WriterService {
    writer: Arc<Writing>,
    handle: PodHandle,
}

impl Service<Request<()>> for WriterService {
    type Response = Response<Full<Bytes>>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let writer = self.writer.clone();
        let incarnation = self.handle.status().borrow().incarnation;
        let extensions = request.extensions();
        let Some(job) = extensions.get::<Job>().copied() else {
            return Box::pin(std::future::ready(Ok(answer(StatusCode::BAD_REQUEST))));
        };
        let epoch = extensions.get::<Owned>().map_or(job.epoch, |owned| owned.epoch);
        let process = &writer.process;
        let owner = Owner { pod: process.name.clone(), life: process.life, incarnation };
        let world = &writer.world;
        let stands =
            |owner: &Owner| world.contract.with_view(|view| view.live_pod(&owner.pod, owner.incarnation).is_some());
        world.history.accepted(job.id, epoch, &owner, stands);
        let left = Left { writer: writer.clone(), id: job.id };
        let work = async move {
            let status = work(&writer, job, epoch).await;
            drop(left);
            Ok(answer(status))
        };
        if self.writer.world.is_sabotaged(Sabotage::WorkPastLease) {
            // As if it could not be stopped.
            let (said, heard) = oneshot::channel();
            tokio::spawn(async move {
                let _ = said.send(work.await);
            });
            return Box::pin(
                async move { heard.await.unwrap_or_else(|_| Ok(answer(StatusCode::INTERNAL_SERVER_ERROR))) },
            );
        }
        Box::pin(work)
    }
}

fn answer(status: StatusCode) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from_static(b"done")));
    *answer.status_mut() = status;
    answer
}

/// A request inside a pod, until it has ended in whatever way.
struct Left {
    writer: Arc<Writing>,
    id: RequestId,
}

impl Drop for Left {
    fn drop(&mut self) {
        self.writer.world.history.left(self.id);
    }
}

async fn work(writer: &Arc<Writing>, job: Job, epoch: Epoch) -> StatusCode {
    let (world, process) = (&writer.world, &writer.process);
    let Some(state) = writer.state(job.partition, epoch) else {
        if world.sabotage.is_none() {
            let what = format!("{} serves partition {} at {epoch} without its state", process.name, job.partition);
            world.trace.violation("callbacks", what);
        }
        return StatusCode::INTERNAL_SERVER_ERROR;
    };
    // The tail has not been read: a pod without `sync` reads it before its first request.
    let with_tail = state.known().with_tail;
    if !with_tail && !writer.read_tail(job.partition, &state) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let known = state.known().length;
    world.logs.serves(job.partition, state.writer(writer.fences()), known);
    sleep(job.work).await;
    process.awake().await;
    append(writer, &state, job).await
}

/// Appends by a message to the log, which arrives whether its sender is still there or not.
async fn append(writer: &Arc<Writing>, state: &Arc<State>, job: Job) -> StatusCode {
    let (world, name) = (writer.world.clone(), writer.process.name.clone());
    let (state, entry) = (state.clone(), state.writer(writer.fences()));
    // Now and then the log is slow.
    let longest = if world.rng.percent(95) { world.setting.append_ms.min(20) } else { world.setting.append_ms };
    let delay = world.rng.millis(0..=longest);
    let (said, heard) = oneshot::channel();
    tokio::spawn(async move {
        sleep(delay).await;
        let mut known = state.known();
        let appended = world.logs.append(job.partition, entry, job.id, &mut known.length);
        drop(known);
        match appended {
            Ok(()) => world.history.applied(job.id, &name, entry.epoch),
            Err(_) => {
                world.trace.event(format_args!("the log refuses {} of {name} at {}", job.id, entry.epoch));
                world.trace.seen("the log refused an old epoch");
            }
        }
        let _ = said.send(appended);
    });
    let appended = heard.await;
    writer.process.awake().await;
    match appended {
        Ok(Ok(())) => StatusCode::OK,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
