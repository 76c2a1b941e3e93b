//! Takes part in Segue's handoffs through the gRPC service of its coordinators.
//!
//! [`Membership`] keeps the stream open, runs the service's callbacks for tasks, and decides which requests may be
//! accepted. It is independent of HTTP and of the service's state, so other services can copy it unchanged.
//!
//! # Invariants
//!
//! * A request is accepted only at the epoch that the pod owns, and only while the lease clock runs.
//! * A request writes only in the life (the incarnation) that accepted it: others may have owned its partition in between.
//! * The lease clock counts from when a confirmed heartbeat was *sent*, by a clock that counts suspended time.
//! * The token stays in this process. A restarted process is a new incarnation.

// Fields and kinds that a later version of the protocol adds have no effect here.
#![allow(clippy::needless_update, unreachable_patterns)]

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::clock::lease_now;
use crate::proto::pods_client::PodsClient;
use crate::proto::task::Kind;
use crate::proto::{
    Ack, AckKind, AckOutcome, AckRequest, Event, Heartbeat, Hello, Holding, LeaveRequest, Progress, Task, TaskId,
    Welcome,
};
use crate::token::Token;

const RETRY: Duration = Duration::from_millis(100);
/// How long a call may take. The coordinator may hang.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most acknowledgements that one call may carry.
const MAX_ACKS: usize = 4096;
const CATCH_UP: Duration = Duration::from_millis(250);

/// The callbacks of a handoff. A callback that fails is called again while it is due.
pub(crate) trait Service: Send + Sync + 'static {
    /// Copies the state while the old owner still serves, from the newest checkpoint on if there is one.
    fn warm(&self, partition: u32, checkpoint: Option<String>) -> impl Future<Output = io::Result<()>> + Send;
    /// Reads what the old owner has written since.
    fn sync(&self, partition: u32) -> impl Future<Output = io::Result<()>> + Send;
    /// Frees the state.
    fn release(&self, partition: u32);
    /// Makes a checkpoint while the pod serves. Returns its name, from which `warm` starts in the next owner.
    fn checkpoint(&self, partition: u32, epoch: u64) -> io::Result<String>;
}

/// What a pod registers.
pub(crate) struct Identity {
    pub(crate) keyspace: String,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) lease_ttl: Duration,
    pub(crate) token: Token,
}

type Client = PodsClient<InterceptedService<Channel, Token>>;

/// A pod's part in the keyspace.
pub(crate) struct Membership<S> {
    identity: Identity,
    service: Arc<S>,
    state: Mutex<State>,
    changed: watch::Sender<()>,
    acks_due: Notify,
}

#[derive(Default)]
struct State {
    incarnation: u64,
    resume: Vec<u8>,
    /// By partition: the epoch.
    owned: HashMap<u32, u64>,
    /// By partition: the epoch of the state that the pod has.
    held: HashMap<u32, u64>,
    in_flight: HashMap<u32, usize>,
    trusted_until: Duration,
    stands_until: Duration,
    trust: Duration,
    lease_ttl: Duration,
    running: HashMap<u32, Running>,
    /// By partition: locked while one of its tasks runs.
    turns: HashMap<u32, Arc<tokio::sync::Mutex<()>>>,
    acks: HashMap<(u32, u64, i32), Ack>,
    client: Option<Client>,
    leaving: bool,
    left: bool,
}

struct Running {
    kind: AckKind,
    handoff: u64,
    task: JoinHandle<()>,
}

impl State {
    /// Stops all requests: the registration is over.
    fn fence(&mut self) {
        self.owned.clear();
        (self.trusted_until, self.stands_until) = (Duration::ZERO, Duration::ZERO);
    }

    /// Aborts the partition's task and forgets it: it may take a while to end, and if it is due again meanwhile, it has to
    /// begin anew. Returns its kind.
    fn cancel(&mut self, partition: u32) -> Option<AckKind> {
        let running = self.running.remove(&partition)?;
        running.task.abort();
        Some(running.kind)
    }

    fn accepts(&self, partition: u32, epoch: u64) -> bool {
        self.owned.get(&partition) == Some(&epoch) && lease_now() < self.trusted_until
    }

    fn is_idle(&self, partition: u32) -> bool {
        self.in_flight.get(&partition).is_none_or(|count| *count == 0)
    }
}

/// A request that was accepted. It counts as in flight until it is dropped.
pub(crate) struct Accepted<S: Service> {
    membership: Arc<Membership<S>>,
    partition: u32,
    /// The incarnation that accepted it.
    pub(crate) life: u64,
}

impl<S: Service> Accepted<S> {
    /// Returns whether what this request writes now takes effect before its lease can have ended.
    pub(crate) fn may_write(&self) -> bool {
        let state = self.membership.state();
        self.life == state.incarnation && lease_now() < state.stands_until
    }
}

impl<S: Service> Drop for Accepted<S> {
    fn drop(&mut self) {
        if let Some(count) = self.membership.state().in_flight.get_mut(&self.partition) {
            *count -= 1;
        }
        self.membership.changed.send_replace(());
    }
}

impl<S: Service> Membership<S> {
    pub(crate) fn new(identity: Identity, service: Arc<S>) -> Arc<Self> {
        let lease_ttl = identity.lease_ttl;
        let state = Mutex::new(State { lease_ttl, trust: lease_ttl * 2 / 3, ..State::default() });
        Arc::new(Membership { identity, service, state, changed: watch::Sender::new(()), acks_due: Notify::new() })
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Accepts a request of the keyspace, or returns `None`.
    pub(crate) async fn accept(self: &Arc<Self>, partition: u32, epoch: u64) -> Option<Accepted<S>> {
        // The router may learn of the ownership before the pod does.
        let owns = |state: &State| state.owned.get(&partition).is_some_and(|owned| *owned >= epoch);
        let _ = timeout(CATCH_UP, self.until(owns)).await;
        let mut state = self.state();
        if !state.accepts(partition, epoch) {
            return None;
        }
        *state.in_flight.entry(partition).or_default() += 1;
        Some(Accepted { membership: self.clone(), partition, life: state.incarnation })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        while !holds(&self.state()) {
            // The sender is as old as `self`.
            let _ = changed.changed().await;
        }
    }

    /// Keeps a stream open to one of the coordinators until the pod has left.
    pub(crate) async fn run(self: Arc<Self>, coordinators: Vec<String>) {
        let acks = tokio::spawn(self.clone().send_acks());
        for coordinator in coordinators.iter().cycle() {
            let Err(ended) = self.follow(coordinator).await;
            tracing::info!(coordinator, %ended, "stream ended");
            if ended.code() == Code::NotFound {
                let mut state = self.state();
                state.fence();
                state.left = state.leaving;
                if state.left {
                    break;
                }
            }
            sleep(RETRY).await;
        }
        acks.abort();
    }

    async fn follow(self: &Arc<Self>, coordinator: &str) -> Result<std::convert::Infallible, Status> {
        let endpoint = Endpoint::from_shared(format!("http://{coordinator}"));
        let endpoint = endpoint.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let trust = self.state().trust;
        // A coordinator responds to every heartbeat. If it is silent, the pod leaves it while the lease is still good.
        let mut silent_at = Instant::now() + trust / 2;
        let silent = || Status::deadline_exceeded("the coordinator is silent");
        let channel = timeout_at(silent_at, endpoint.connect()).await.map_err(|_| silent())?;
        let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = PodsClient::with_interceptor(channel, self.identity.token.clone());
        self.state().client = Some(client.clone());

        let (outgoing, heartbeats) = mpsc::channel(4);
        let mut sent = HashMap::from([(1, lease_now())]);
        let gone = |_| Status::unavailable("the stream is closed");
        outgoing.send(self.first_heartbeat()).await.map_err(gone)?;
        let registered = timeout_at(silent_at, client.register(ReceiverStream::new(heartbeats))).await;
        let mut events = registered.map_err(|_| silent())??.into_inner();
        let (mut seq, mut seen) = (1, 0);
        // Set by the welcome.
        let mut ticks = interval(trust);
        loop {
            tokio::select! {
                event = events.message() => {
                    let event = event?.ok_or_else(|| Status::unavailable("the stream ended"))?;
                    silent_at = Instant::now() + self.state().trust / 2;
                    if let Some(welcome) = &event.welcome {
                        self.welcome(welcome);
                        ticks = interval(span(welcome.heartbeat_every.as_ref()).max(RETRY));
                    }
                    seen = event.seq;
                    let go_away = event.go_away.is_some();
                    self.apply(event, &mut sent);
                    if go_away {
                        return Err(Status::unavailable("the coordinator shuts down"));
                    }
                }
                _ = ticks.tick(), if seen > 0 => {
                    seq += 1;
                    sent.insert(seq, lease_now());
                    outgoing.send(Heartbeat { seq, seen, ..Heartbeat::default() }).await.map_err(gone)?;
                }
                () = sleep_until(silent_at) => return Err(silent()),
            }
        }
    }

    fn first_heartbeat(&self) -> Heartbeat {
        let state = self.state();
        // Another instance may have told them, and would wait anew for a checkpoint.
        let warms = state.running.iter().filter(|(_, it)| it.kind == AckKind::Ready && !it.task.is_finished());
        let id = |partition, handoff| Some(TaskId { partition, handoff, ..TaskId::default() });
        let progress = warms.map(|(&partition, it)| Progress { id: id(partition, it.handoff), ..Progress::default() });
        Heartbeat { seq: 1, hello: Some(self.hello(&state)), progress: progress.collect(), ..Heartbeat::default() }
    }

    fn hello(&self, state: &State) -> Hello {
        let identity = &self.identity;
        Hello {
            protocol_min: 1,
            protocol_max: 1,
            keyspace: identity.keyspace.clone(),
            pod: identity.name.clone(),
            address: identity.address.clone(),
            lease_ttl: prost_types::Duration::try_from(identity.lease_ttl).ok(),
            capabilities: ["sync", "drained", "released", "fence", "checkpoint"].map(str::to_owned).to_vec(),
            resume: state.resume.clone(),
            holdings: state
                .held
                .iter()
                .map(|(&partition, &epoch)| Holding { partition, epoch, ..Holding::default() })
                .collect(),
            ..Hello::default()
        }
    }

    fn welcome(self: &Arc<Self>, welcome: &Welcome) {
        let mut state = self.state();
        if !welcome.resumed {
            // Another life: nothing of the earlier one is owned, and its state is of no use.
            state.fence();
            state.acks.clear();
            let running: Vec<u32> = state.running.keys().copied().collect();
            running.into_iter().for_each(|partition| self.abandon(&mut state, partition));
            state.held.drain().for_each(|(partition, _)| self.service.release(partition));
        }
        state.resume.clone_from(&welcome.resume);
        state.incarnation = welcome.incarnation;
        (state.trust, state.lease_ttl) = (span(welcome.trust.as_ref()), span(welcome.lease_ttl.as_ref()));
        tracing::info!(state.incarnation, welcome.resumed, "registered");
    }

    fn apply(self: &Arc<Self>, event: Event, sent: &mut HashMap<u64, Duration>) {
        let mut state = self.state();
        if let Some(begun) = sent.get(&event.confirmed) {
            state.trusted_until = *begun + state.trust;
            // Half-way between trust and the end of the lease, because clocks may differ in speed.
            state.stands_until = *begun + (state.trust + state.lease_ttl) / 2;
            sent.retain(|seq, _| *seq > event.confirmed);
        }
        if let Some(assignment) = event.assignment {
            if assignment.full {
                state.owned.clear();
            }
            state.owned.retain(|partition, _| !assignment.gone.contains(partition));
            state.owned.extend(assignment.owned.iter().map(|owned| (owned.partition, owned.epoch)));
        }
        if event.welcome.is_some() {
            self.keep_only(&mut state, &event.tasks);
        }
        for TaskId { partition, handoff, .. } in event.dropped {
            if state.running.get(&partition).is_some_and(|it| it.handoff == handoff && it.kind != AckKind::Released) {
                state.cancel(partition);
            }
        }
        for task in event.tasks {
            self.begin(&mut state, task);
        }
        drop(state);
        self.changed.send_replace(());
    }

    /// Stops the tasks of earlier streams that the first event of a stream does not list.
    fn keep_only(self: &Arc<Self>, state: &mut State, tasks: &[Task]) {
        let due = |task: &Task| Some((task.id?.partition, task.id?.handoff, report(task.kind.as_ref()?)?));
        let due: HashSet<_> = tasks.iter().filter_map(due).collect();
        // A Release always ends. A checkpoint may be acknowledged as long as the pod owns its epoch.
        let may_go_on = |kind| matches!(kind, AckKind::Released | AckKind::Checkpointed);
        let over = state
            .running
            .iter()
            .filter(|(partition, it)| !may_go_on(it.kind) && !due.contains(&(**partition, it.handoff, it.kind)));
        let over: Vec<u32> = over.map(|(partition, _)| *partition).collect();
        over.into_iter().for_each(|partition| self.abandon(state, partition));
    }

    /// Stops a task that is due no more. Frees what a `Warm` has copied: no `Release` follows, because the holdings do not
    /// list it.
    fn abandon(self: &Arc<Self>, state: &mut State, partition: u32) {
        if state.running[&partition].task.is_finished() {
            return;
        }
        if state.cancel(partition) == Some(AckKind::Ready) {
            let (turn, membership) = (state.turns[&partition].clone(), self.clone());
            tokio::spawn(async move {
                let _turn = turn.lock().await;
                // A later Warm may have ended first.
                let is_held = membership.state().held.contains_key(&partition);
                if !is_held {
                    membership.service.release(partition);
                }
            });
        }
    }

    /// Replaces the partition's task.
    fn begin(self: &Arc<Self>, state: &mut State, task: Task) {
        let (Some(id), Some(kind)) = (task.id, task.kind.as_ref().and_then(report)) else {
            return; // a kind of a later version
        };
        if let Some(before) = state.running.get(&id.partition).filter(|before| !before.task.is_finished()) {
            if (before.kind, before.handoff) == (kind, id.handoff) {
                return; // repeated after a reconnect
            }
            if before.kind != AckKind::Released {
                before.task.abort();
            }
        }
        // What frees state is finished before the next task begins.
        let turn = state.turns.entry(id.partition).or_default().clone();
        let membership = self.clone();
        let due = tokio::spawn(async move {
            let _turn = turn.lock().await;
            membership.carry_out(id, kind, &task).await;
        });
        state.running.insert(id.partition, Running { kind, handoff: id.handoff, task: due });
    }

    async fn carry_out(&self, id: TaskId, kind: AckKind, task: &Task) {
        let life = self.state().incarnation;
        let ack = Ack { id: Some(id), kind: kind.into(), ..Ack::default() };
        let checkpoint = loop {
            match self.call(id.partition, kind, task, life).await {
                Ok(checkpoint) => break checkpoint,
                Err(error) => {
                    tracing::warn!(id.partition, ?kind, %error, "task failed; trying again");
                    self.ack(Ack { failure: error.to_string(), ..ack.clone() }, life);
                    sleep(Duration::from_secs(1)).await;
                }
            }
        };
        tracing::info!(id.partition, id.handoff, ?kind, "task done");
        self.ack(
            checkpoint.map_or(ack.clone(), |name| Ack { checkpoint: name.into(), epoch: task.epoch, ..ack }),
            life,
        );
    }

    /// Runs the callback of a task. Returns the name of a checkpoint.
    async fn call(&self, partition: u32, kind: AckKind, task: &Task, life: u64) -> io::Result<Option<String>> {
        let epoch = task.epoch;
        match kind {
            AckKind::Ready if self.state().held.get(&partition) != Some(&epoch) => {
                self.service.warm(partition, newest(task)).await?;
                let mut state = self.state();
                if state.incarnation == life {
                    state.held.insert(partition, epoch);
                }
            }
            AckKind::Synced => self.service.sync(partition).await?,
            // The service does no work beyond its requests.
            AckKind::Drained => self.until(|state| state.is_idle(partition)).await,
            AckKind::Released => {
                self.until(|state| state.is_idle(partition)).await;
                // A Warm of the stream before may have ended since this stream began: that is the state of a later epoch.
                let is_later = |held: &u64| 0 < epoch && epoch < *held;
                if !self.state().held.get(&partition).is_some_and(is_later) {
                    self.state().held.remove(&partition);
                    self.service.release(partition);
                }
            }
            AckKind::Checkpointed => return self.service.checkpoint(partition, epoch).map(Some),
            _ => {}
        }
        Ok(None)
    }

    fn ack(&self, ack: Ack, life: u64) {
        let mut state = self.state();
        if let Some(id) = ack.id.filter(|_| state.incarnation == life) {
            state.acks.insert((id.partition, id.handoff, ack.kind), ack);
            self.acks_due.notify_one();
        }
    }

    /// Sends each acknowledgement, to any instance, until it gets a response.
    async fn send_acks(self: Arc<Self>) {
        loop {
            self.acks_due.notified().await;
            let due: Vec<_> = self.state().acks.values().cloned().collect();
            let mut again = false;
            // A task that is too early must not keep the others from their turn.
            for batch in due.chunks(MAX_ACKS) {
                again |= self.send(batch).await;
            }
            if again {
                sleep(RETRY).await;
                self.acks_due.notify_one();
            }
        }
    }

    /// Sends acknowledgements once. Returns whether some have to be sent again.
    async fn send(&self, batch: &[Ack]) -> bool {
        let (client, resume) = {
            let state = self.state();
            (state.client.clone(), state.resume.clone())
        };
        let Some(mut client) = client else { return true };
        let request = AckRequest { resume, acks: batch.to_vec(), ..AckRequest::default() };
        let Ok(Ok(response)) = timeout(RESPONSE_TIMEOUT, client.ack(request)).await else { return true };
        let outcomes = response.into_inner().outcomes;
        let mut state = self.state();
        for (ack, _) in batch.iter().zip(&outcomes).filter(|(_, outcome)| **outcome != i32::from(AckOutcome::Again)) {
            let id = ack.id.unwrap_or_default();
            let key = (id.partition, id.handoff, ack.kind);
            if state.acks.get(&key) == Some(ack) {
                state.acks.remove(&key);
            }
        }
        outcomes.contains(&i32::from(AckOutcome::Again))
    }

    /// Hands all partitions over while the pod serves requests. Returns whether none was left in time.
    pub(crate) async fn leave(&self, within: Duration) -> bool {
        self.state().leaving = true;
        let handed_over = async {
            loop {
                let (client, resume, left) = {
                    let state = self.state();
                    (state.client.clone(), state.resume.clone(), state.left)
                };
                if left {
                    // The stream learnt of the end before the response arrived.
                    return self.state().owned.is_empty();
                }
                if let Some(mut client) = client {
                    // A repeated call goes on waiting. It goes to the coordinator of the present stream.
                    let call = client.leave(LeaveRequest { resume, ..LeaveRequest::default() });
                    match timeout(RESPONSE_TIMEOUT, call).await {
                        Ok(Ok(response)) => return response.into_inner().empty,
                        Ok(Err(error)) => tracing::info!(%error, "leaving"),
                        Err(_) => {}
                    }
                }
                sleep(RETRY).await;
            }
        };
        timeout(within, handed_over).await.unwrap_or(false)
    }
}

fn report(kind: &Kind) -> Option<AckKind> {
    match kind {
        Kind::Warm(_) => Some(AckKind::Ready),
        Kind::Sync(_) => Some(AckKind::Synced),
        Kind::Drain(_) => Some(AckKind::Drained),
        Kind::Release(_) => Some(AckKind::Released),
        Kind::Checkpoint(_) => Some(AckKind::Checkpointed),
        _ => None,
    }
}

/// Returns the checkpoint from which a `Warm` starts.
fn newest(task: &Task) -> Option<String> {
    match &task.kind {
        Some(Kind::Warm(warm)) if !warm.checkpoint.is_empty() => String::from_utf8(warm.checkpoint.clone()).ok(),
        _ => None,
    }
}

fn span(duration: Option<&prost_types::Duration>) -> Duration {
    duration.and_then(|duration| Duration::try_from(*duration).ok()).unwrap_or_default()
}
