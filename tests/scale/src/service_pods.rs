//! Pods by the pods' service, all in this process: what they cost the store while nothing happens, and while some leave.
//!
//! Each pod calls the instances of the coordinator in turn, as behind a load balancer, and does its tasks at once. A pod with a
//! stream stays where it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use segue_coordination::session::{Update, Watcher};
use segue_coordination::store::{EtcdOptions, EtcdStore, Store};
use segue_grpc::proto::pods_client::PodsClient;
use segue_grpc::proto::task::Kind;
use segue_grpc::proto::{
    Ack, AckKind, AckOutcome, AckRequest, Event, Heartbeat, Hello, Holding, LeaveRequest, PollRequest,
};
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::Keys;
use segue_protocol::view::View;
use segue_tests::cluster::TestCluster;
use segue_tests::etcd::Etcd;
use segue_tests::http;
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::{interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::meters::cpu;

const KEYSPACE: &str = "default";
const PARTITIONS_PER_POD: u32 = 4;
/// A pod calls its instance every sixth of it.
const LEASE: Duration = Duration::from_secs(15);
/// How long nothing happens.
const REST: Duration = Duration::from_secs(60);
/// How long a pod takes to come back to an instance that refused it.
const PAUSE: Duration = Duration::from_millis(500);
/// One in so many pods leaves.
const LEAVERS: u32 = 20;

/// The calls by which the pods take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParticipationMode {
    Poll,
    Stream,
}

/// Starts the pods, lets them rest, has some leave, and prints what that costs.
pub(crate) async fn measure(
    way: ParticipationMode,
    pods: u32,
    instances: u32,
    patience: Duration,
) -> anyhow::Result<()> {
    let segue = std::env::current_exe()?.with_file_name("segue");
    ensure!(segue.is_file(), "{} is missing: build it in the same profile", segue.display());
    let cluster = TestCluster::new(segue, TempDir::new()?, Etcd::start_on_disk());
    let keys = Keyspace::new("/segue/", KEYSPACE);
    let partitions = pods * PARTITIONS_PER_POD;
    let mut site = Site::start(cluster, keys, partitions, instances)?;
    println!("step                    time, s   moves   revisions     polls  CPU, s: coordinators     etcd");

    let begin = site.reading().await?;
    let running: Vec<Pod> = (0..pods).map(|number| Pod::start(way, number, &site.listens)).collect::<Result<_, _>>()?;
    site.settled(partitions, pods as usize, patience).await?;
    let placed = site.show("first placement", &begin, partitions).await?;

    let begin = site.reading().await?;
    sleep(REST).await;
    let rest = site.show("nothing happens", &begin, 0).await?;

    let begin = site.reading().await?;
    let (leavers, rest_of_them): (Vec<&Pod>, Vec<&Pod>) =
        running.iter().partition(|pod| pod.number % LEAVERS == LEAVERS - 1);
    for pod in &leavers {
        pod.leaves.cancel();
    }
    let moves = leavers.len() as u32 * PARTITIONS_PER_POD;
    site.settled(partitions, rest_of_them.len(), patience).await?;
    let left = site.show("a twentieth leaves", &begin, moves).await?;
    let again: usize = running.iter().map(|pod| pod.registrations.load(Relaxed)).sum();
    println!(
        "service-pods: way={} pods={pods} instances={instances} placed_s={:.1} rest_revisions={} polls_at_rest_per_s={:.0} \
         leave_s={:.1} polls_per_move={:.1} lost_registrations={}",
        if way == ParticipationMode::Poll { "poll" } else { "stream" },
        placed.took.as_secs_f64(),
        rest.revisions,
        rest.polls / REST.as_secs_f64(),
        left.took.as_secs_f64(),
        left.polls / f64::from(moves.max(1)),
        again - running.len(),
    );
    Ok(())
}

/// An etcd, coordinators that answer pods, and a view of the keyspace.
struct Site {
    cluster: TestCluster,
    keys: Keyspace,
    store: Arc<dyn Store>,
    watcher: Watcher,
    view: View,
    coordinators: Vec<Process>,
    admins: Vec<SocketAddr>,
    /// Where each answers pods.
    listens: Vec<SocketAddr>,
}

/// A reading of the meters.
struct MeterReading {
    at: Instant,
    revision: u64,
    polls: f64,
    coordinators: Duration,
    etcd: f64,
}

/// The cost of a step.
struct StepCost {
    took: Duration,
    revisions: u64,
    polls: f64,
}

impl Site {
    fn start(cluster: TestCluster, keys: Keyspace, partitions: u32, instances: u32) -> anyhow::Result<Self> {
        let store: Arc<dyn Store> = Arc::new(EtcdStore::connect(EtcdOptions::new([cluster.etcd().endpoint()]))?);
        let watcher = Watcher::start(store.clone(), keys.clone());
        let (mut coordinators, mut admins, mut listens) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..instances {
            let (name, admin, listen) = (format!("coordinator-{number}"), free_address(), free_address());
            let config = cluster.config().admin(admin).coordinator(&name, partitions).set("log.level", "warn");
            let config = config.set("coordinator.listen", listen.to_string()).set("coordinator.cool_down", "0s");
            let config = config.set("coordinator.max_concurrent_handoffs", 512).set("coordinator.lease_ttl", "60s");
            coordinators.push(cluster.run(&name, &config));
            admins.push(admin);
            listens.push(listen);
        }
        let view = View::empty(keys.clone());
        Ok(Site { cluster, keys, store, watcher, view, coordinators, admins, listens })
    }

    async fn reading(&self) -> anyhow::Result<MeterReading> {
        let polls = self.admins.iter().map(|admin| {
            let page = http::get(*admin, "/metrics").map(|(_, page)| page).unwrap_or_default();
            http::metric(&page, "segue_pods_service_polls_total").unwrap_or(0.0)
        });
        Ok(MeterReading {
            at: Instant::now(),
            revision: self.store.snapshot(&Keys::One(self.keys.config())).await?.revision.get(),
            polls: polls.sum(),
            coordinators: self.coordinators.iter().map(|process| cpu(process.id())).sum(),
            etcd: self.cluster.etcd().metric("process_cpu_seconds_total").context("etcd serves no metrics")?,
        })
    }

    async fn show(&self, name: &str, before: &MeterReading, moves: u32) -> anyhow::Result<StepCost> {
        let now = self.reading().await?;
        let step = StepCost {
            took: now.at - before.at,
            revisions: now.revision - before.revision,
            polls: now.polls - before.polls,
        };
        println!(
            "{name:20}{:11.1}{moves:8}{:12}{:10}{:22.1}{:9.1}",
            step.took.as_secs_f64(),
            step.revisions,
            step.polls,
            now.coordinators.saturating_sub(before.coordinators).as_secs_f64(),
            now.etcd - before.etcd,
        );
        Ok(step)
    }

    /// Waits until so many pods have all partitions and nothing moves.
    async fn settled(&mut self, partitions: u32, pods: usize, patience: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        let settled = |view: &View| {
            view.pods.len() == pods && view.live_owners() == partitions as usize && view.handoffs.is_empty()
        };
        while !settled(&self.view) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(update) = timeout(left, self.watcher.next()).await else {
                let View { pods, handoffs, .. } = &self.view;
                bail!(
                    "not settled in {} s: {} pods, {} partitions are owned, {} move",
                    patience.as_secs(),
                    pods.len(),
                    self.view.live_owners(),
                    handoffs.len()
                );
            };
            match update {
                Update::Snapshot(view) => self.view = *view,
                Update::Batch(batch) => drop(self.view.apply(batch)),
                Update::Lost(_) => {}
            }
        }
        Ok(())
    }
}

/// A pod and the task that plays it.
struct Pod {
    number: u32,
    /// Has it leave.
    leaves: CancellationToken,
    registrations: Arc<AtomicUsize>,
}

impl Pod {
    fn start(way: ParticipationMode, number: u32, listens: &[SocketAddr]) -> anyhow::Result<Self> {
        let channels =
            listens.iter().map(|listen| Ok(Endpoint::from_shared(format!("http://{listen}"))?.connect_lazy()));
        let clients = channels.map(|channel: anyhow::Result<Channel>| Ok(PodsClient::new(channel?)));
        let clients: Vec<_> = clients.collect::<anyhow::Result<_>>()?;
        let (leaves, registrations) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let player = Player {
            clients,
            turn: number as usize,
            name: format!("pod-{number:05}"),
            resume: Vec::new(),
            held: BTreeMap::new(),
            registrations: registrations.clone(),
        };
        tokio::spawn(player.play(way, leaves.clone()));
        Ok(Pod { number, leaves, registrations })
    }
}

struct Player {
    clients: Vec<PodsClient<Channel>>,
    /// The number of the instance that is called next, modulo their number.
    turn: usize,
    name: String,
    resume: Vec<u8>,
    /// The state that is here: partitions and epochs.
    held: BTreeMap<u32, u64>,
    registrations: Arc<AtomicUsize>,
}

impl Player {
    async fn play(mut self, way: ParticipationMode, leaves: CancellationToken) {
        loop {
            let ended = {
                let playing = async {
                    match way {
                        ParticipationMode::Poll => self.polls().await,
                        ParticipationMode::Stream => self.streams().await,
                    }
                };
                tokio::select! {
                    ended = playing => ended,
                    () = leaves.cancelled() => break,
                }
            };
            if ended.code() == Code::NotFound {
                self.resume.clear();
                self.held.clear();
            }
            sleep(PAUSE).await;
        }
        self.leave(way).await;
    }

    /// Hands everything over, while it goes on as before.
    async fn leave(mut self, way: ParticipationMode) {
        let (mut client, resume) = (self.client(), self.resume.clone());
        let leaving = async move {
            while client.leave(LeaveRequest { resume: resume.clone(), now: false }).await.is_err() {
                sleep(PAUSE).await;
            }
        };
        let going_on = async {
            loop {
                let _: Status = match way {
                    ParticipationMode::Poll => self.polls().await,
                    ParticipationMode::Stream => self.streams().await,
                };
                sleep(PAUSE).await;
            }
        };
        tokio::select! {
            () = leaving => {}
            () = going_on => {}
        }
    }

    fn client(&self) -> PodsClient<Channel> {
        self.clients[self.turn % self.clients.len()].clone()
    }

    fn hello(&self) -> Hello {
        Hello {
            protocol_min: 1,
            protocol_max: 1,
            keyspace: KEYSPACE.to_owned(),
            pod: self.name.clone(),
            address: "127.0.0.1:1".to_owned(),
            lease_ttl: LEASE.try_into().ok(),
            capabilities: ["drained", "released", "fence"].map(str::to_owned).to_vec(),
            resume: self.resume.clone(),
            holdings: self.held.iter().map(|(&partition, &epoch)| Holding { partition, epoch }).collect(),
            ..Hello::default()
        }
    }

    /// Polls until a call fails.
    async fn polls(&mut self) -> Status {
        let mut after = 0;
        loop {
            let heartbeat = Heartbeat { seq: 1, hello: Some(self.hello()), seen: u64::MAX, ..Heartbeat::default() };
            let request =
                PollRequest { heartbeat: Some(heartbeat), after_revision: after, wait: LEASE.try_into().ok() };
            let event = match self.client().poll(request).await {
                Ok(event) => event.into_inner(),
                Err(status) => return status,
            };
            after = event.revision;
            if let Err(status) = self.apply(&event).await {
                return status;
            }
            self.turn += 1;
        }
    }

    /// Holds a stream until it ends.
    async fn streams(&mut self) -> Status {
        let (beats, received) = mpsc::channel(4);
        let first = Heartbeat { seq: 1, hello: Some(self.hello()), ..Heartbeat::default() };
        if beats.send(first).await.is_err() {
            return Status::internal("the stream has ended");
        }
        let mut events = match self.client().register(ReceiverStream::new(received)).await {
            Ok(events) => events.into_inner(),
            Err(status) => return status,
        };
        let (mut seq, mut every) = (1, interval(LEASE / 6));
        let mut seen = 0;
        loop {
            tokio::select! {
                _ = every.tick() => {
                    seq += 1;
                    if beats.send(Heartbeat { seq, seen, ..Heartbeat::default() }).await.is_err() {
                        return Status::unavailable("the stream has ended");
                    }
                }
                event = events.message() => {
                    let event = match event {
                        Ok(Some(event)) => event,
                        Ok(None) => return Status::unavailable("the stream has ended"),
                        Err(status) => return status,
                    };
                    seen = event.seq;
                    if let Err(status) = self.apply(&event).await {
                        return status;
                    }
                }
            }
        }
    }

    /// Does what an event asks for.
    async fn apply(&mut self, event: &Event) -> Result<(), Status> {
        if let Some(welcome) = &event.welcome {
            if !welcome.resumed {
                self.registrations.fetch_add(1, Relaxed);
                self.held.clear();
            }
            self.resume.clone_from(&welcome.resume);
        }
        let mut acks = Vec::new();
        for task in &event.tasks {
            let partition = task.id.unwrap_or_default().partition;
            let kind = match task.kind {
                Some(Kind::Warm(_)) => {
                    self.held.insert(partition, task.epoch);
                    AckKind::Ready
                }
                Some(Kind::Drain(_)) => AckKind::Drained,
                Some(Kind::Release(_)) => {
                    self.held.remove(&partition);
                    AckKind::Released
                }
                _ => continue,
            };
            acks.push(Ack { id: task.id, kind: kind.into(), ..Ack::default() });
        }
        while !acks.is_empty() {
            let answer = self.client().ack(AckRequest { resume: self.resume.clone(), acks: acks.clone() }).await?;
            let mut outcomes = answer.into_inner().outcomes.into_iter();
            acks.retain(|_| outcomes.next() == Some(AckOutcome::Again.into()));
            if !acks.is_empty() {
                sleep(PAUSE).await;
            }
        }
        Ok(())
    }
}
