//! A pod that takes part by the stream alone. It runs no service: it does each task at once, and notes it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use segue_grpc::proto::pods_client::PodsClient;
use segue_grpc::proto::task::Kind;
use segue_grpc::proto::{Ack, AckKind, AckOutcome, AckRequest, Event, Heartbeat, Hello, Holding, Task, Welcome};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

const PATIENCE: Duration = Duration::from_secs(60);
/// A busy machine may stop the test for seconds, which must not cost a lease.
const LEASE_SECONDS: u64 = 5;
const BEAT: Duration = Duration::from_millis(200);
/// Heartbeats that take longer than the lease.
pub(crate) const BEATS_OF_A_LEASE: u64 = LEASE_SECONDS * 5 + 2;

/// The record of a pod: what the service told it, and what it did.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) welcome: Option<Welcome>,
    /// The first event of the last stream.
    pub(crate) first: Option<Event>,
    pub(crate) owned: BTreeMap<u32, u64>,
    /// The state that is here, with its epoch.
    pub(crate) held: BTreeMap<u32, u64>,
    /// The tasks, in the order in which they came.
    pub(crate) tasks: Vec<Task>,
    /// The tasks `Leaving`, which nobody waits for: a quick move is over before its pod is told.
    pub(crate) left: Vec<Task>,
    pub(crate) confirmed: u64,
    pub(crate) gone_away: bool,
    /// How the stream ended.
    pub(crate) ended: Option<Code>,
    /// Checkpoints hang.
    pub(crate) makes_no_checkpoint: bool,
}

impl Known {
    pub(crate) fn token(&self) -> Vec<u8> {
        self.welcome.as_ref().unwrap().resume.clone()
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.welcome.as_ref().unwrap().incarnation
    }

    /// Returns how many tasks of each kind there were.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for task in &self.tasks {
            *counts.entry(name(task)).or_default() += 1;
        }
        counts
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        if let Some(welcome) = &event.welcome {
            self.welcome = Some(welcome.clone());
            self.first = Some(event.clone());
        }
        self.confirmed = self.confirmed.max(event.confirmed);
        self.gone_away |= event.go_away.is_some();
        if let Some(assignment) = &event.assignment {
            if assignment.full {
                self.owned.clear();
            }
            assignment.gone.iter().for_each(|partition| _ = self.owned.remove(partition));
            self.owned.extend(assignment.owned.iter().map(|owned| (owned.partition, owned.epoch)));
        }
        let (left, tasks) = event.tasks.iter().cloned().partition(|task| matches!(task.kind, Some(Kind::Leaving(_))));
        self.tasks.extend::<Vec<_>>(tasks);
        self.left.extend::<Vec<_>>(left);
    }

    /// Does a task. Returns its acknowledgement.
    pub(crate) fn run(&mut self, task: &Task) -> Option<Ack> {
        let partition = task.id.unwrap().partition;
        let (mut checkpoint, mut epoch) = (Vec::new(), 0);
        let kind = match task.kind.as_ref().unwrap() {
            Kind::Warm(_) => {
                self.held.insert(partition, task.epoch);
                AckKind::Ready
            }
            Kind::Sync(_) => AckKind::Synced,
            Kind::Drain(_) => AckKind::Drained,
            Kind::Release(_) => {
                if !(1..self.held.get(&partition).copied().unwrap_or_default()).contains(&task.epoch) {
                    self.held.remove(&partition);
                }
                AckKind::Released
            }
            Kind::Leaving(_) => return None,
            Kind::Checkpoint(_) if self.makes_no_checkpoint => return None,
            Kind::Checkpoint(_) => {
                (checkpoint, epoch) = (format!("{partition}@{}", task.epoch).into_bytes(), task.epoch);
                AckKind::Checkpointed
            }
        };
        Some(Ack { id: task.id, kind: kind.into(), checkpoint, epoch, ..Ack::default() })
    }
}

pub(crate) fn name(task: &Task) -> &'static str {
    match task.kind.as_ref().unwrap() {
        Kind::Warm(_) => "warm",
        Kind::Sync(_) => "sync",
        Kind::Drain(_) => "drain",
        Kind::Release(_) => "release",
        Kind::Checkpoint(_) => "checkpoint",
        Kind::Leaving(_) => "leaving",
    }
}

/// Returns the hello of a pod with all capabilities.
pub(crate) fn hello(keyspace: &str, pod: &str) -> Hello {
    Hello {
        protocol_min: 1,
        protocol_max: 1,
        keyspace: keyspace.to_owned(),
        pod: pod.to_owned(),
        address: "127.0.0.1:1".to_owned(),
        lease_ttl: Duration::from_secs(LEASE_SECONDS).try_into().ok(),
        capabilities: ["sync", "drained", "released", "fence"].map(str::to_owned).to_vec(),
        ..Hello::default()
    }
}

pub(crate) async fn connect(address: SocketAddr) -> PodsClient<Channel> {
    PodsClient::connect(format!("http://{address}")).await.unwrap()
}

/// A stream with its sender of heartbeats.
pub(crate) async fn register(
    address: SocketAddr,
    hello: Hello,
) -> Result<(mpsc::Sender<Heartbeat>, Streaming<Event>), Status> {
    register_with(address, Heartbeat { seq: 1, hello: Some(hello), ..Heartbeat::default() }).await
}

/// A stream that begins with this heartbeat.
pub(crate) async fn register_with(
    address: SocketAddr,
    first: Heartbeat,
) -> Result<(mpsc::Sender<Heartbeat>, Streaming<Event>), Status> {
    let (beats, received) = mpsc::channel(16);
    beats.send(first).await.unwrap();
    let events = connect(address).await.register(ReceiverStream::new(received)).await?;
    Ok((beats, events.into_inner()))
}

/// Sends heartbeats of a stream for ever, for a test that reads its events itself. All of them count as applied.
pub(crate) async fn beat(beats: mpsc::Sender<Heartbeat>) {
    let mut every = interval(BEAT);
    for seq in 3.. {
        every.tick().await;
        if beats.send(Heartbeat { seq, seen: u64::MAX, ..Heartbeat::default() }).await.is_err() {
            return;
        }
    }
}

pub(crate) async fn ack(address: SocketAddr, token: Vec<u8>, acks: Vec<Ack>) -> Result<Vec<AckOutcome>, Status> {
    let client = PodsClient::connect(format!("http://{address}")).await;
    let mut client = client.map_err(|error| Status::unavailable(error.to_string()))?;
    let answer = client.ack(AckRequest { resume: token, acks }).await?.into_inner();
    Ok(answer.outcomes.into_iter().map(|outcome| AckOutcome::try_from(outcome).unwrap()).collect())
}

/// A pod whose stream a task serves.
pub(crate) struct Pod {
    known: watch::Receiver<Known>,
    beats: watch::Sender<bool>,
    _task: AbortOnDropHandle<()>,
}

impl Pod {
    /// Registers, and again while the name is taken.
    pub(crate) async fn start(address: SocketAddr, hello: Hello) -> Self {
        Self::resume(address, hello, Known::default()).await
    }

    /// Goes on with what is known, through this instance.
    pub(crate) async fn resume(address: SocketAddr, mut hello: Hello, known: Known) -> Self {
        if let Some(welcome) = &known.welcome {
            hello.resume = welcome.resume.clone();
            hello.holdings = known.held.iter().map(|(&partition, &epoch)| Holding { partition, epoch }).collect();
        }
        let begun = Instant::now();
        let (sender, events) = loop {
            match register(address, hello.clone()).await {
                Ok(stream) => break stream,
                Err(status) if status.code() == Code::AlreadyExists && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(status) => panic!("{status:?}"),
            }
        };
        let known = Known { first: None, ended: None, gone_away: false, ..known };
        let ((state, known), (beats, beating)) = (watch::channel(known), watch::channel(true));
        let task = AbortOnDropHandle::new(tokio::spawn(serve(address, sender, events, state, beating)));
        let pod = Pod { known, beats, _task: task };
        pod.until("the first event", |known| known.first.is_some() || known.ended.is_some()).await;
        pod
    }

    pub(crate) fn known(&self) -> Known {
        self.known.borrow().clone()
    }

    /// Sends no heartbeat any more; the stream stays open.
    pub(crate) fn fall_silent(&self) {
        self.beats.send_replace(false);
    }

    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Known) -> bool) -> Known {
        let mut known = self.known.clone();
        let waited = timeout(PATIENCE, known.wait_for(|known| holds(known))).await.map(|known| known.unwrap().clone());
        waited.unwrap_or_else(|_| panic!("not in time: {what}: {:#?}", self.known()))
    }

    pub(crate) async fn owns(&self, count: usize) -> Known {
        self.until(&format!("it owns {count}"), |known| known.owned.len() == count).await
    }
}

async fn serve(
    address: SocketAddr,
    beats: mpsc::Sender<Heartbeat>,
    mut events: Streaming<Event>,
    state: watch::Sender<Known>,
    beating: watch::Receiver<bool>,
) {
    let mut ticks = interval(BEAT);
    let (mut seq, mut seen) = (1, 0);
    loop {
        tokio::select! {
            _ = ticks.tick() => if *beating.borrow() {
                seq += 1;
                let _ = beats.send(Heartbeat { seq, seen, ..Heartbeat::default() }).await;
            },
            event = events.message() => {
                let event = match event {
                    Ok(Some(event)) => event,
                    Ok(None) => return state.send_modify(|known| known.ended = Some(Code::Ok)),
                    Err(status) => return state.send_modify(|known| known.ended = Some(status.code())),
                };
                assert_eq!(event.seq, seen + 1);
                seen = event.seq;
                let mut known = state.borrow().clone();
                known.apply(&event);
                let acks: Vec<Ack> = event.tasks.iter().filter_map(|task| known.run(task)).collect();
                let token = known.token();
                state.send_replace(known);
                if !acks.is_empty() {
                    tokio::spawn(acknowledge(address, token, acks));
                }
            }
        }
    }
}

/// Acknowledges until no outcome is "again".
pub(crate) async fn acknowledge(address: SocketAddr, token: Vec<u8>, mut acks: Vec<Ack>) {
    while !acks.is_empty() {
        let Ok(outcomes) = ack(address, token.clone(), acks.clone()).await else { return };
        let mut outcomes = outcomes.into_iter();
        acks.retain(|_| outcomes.next() == Some(AckOutcome::Again));
    }
}

/// Returns the other pod of a task's handoff, as the task names it.
pub(crate) fn other_side(task: &Task) -> (&str, &str) {
    let (pod, address) = match task.kind.as_ref().unwrap() {
        Kind::Warm(warm) => (&warm.from_pod, &warm.from_address),
        Kind::Sync(sync) => (&sync.from_pod, &sync.from_address),
        Kind::Leaving(leaving) => (&leaving.to_pod, &leaving.to_address),
        Kind::Drain(drain) => (&drain.to_pod, &drain.to_address),
        Kind::Release(release) => (&release.to_pod, &release.to_address),
        Kind::Checkpoint(_) => return ("", ""),
    };
    (pod, address)
}
