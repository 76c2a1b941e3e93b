//! `segue conformance --handoffs` against pods by gRPC that each break one rule on purpose, and against a correct one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use segue_coordination::store::Store as _;
use segue_grpc::proto::pods_client::PodsClient;
use segue_grpc::proto::task::Kind;
use segue_grpc::proto::{Ack, AckKind, AckOutcome, AckRequest, Event, Heartbeat, Hello, Holding, Task};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Participant, Round, encode};
use segue_protocol::txn::{Op, Txn};
use segue_tests::cluster::TestCluster;
use segue_tests::examples::example;
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Request};

use crate::site::service::{serve_routes, serve_text};
use crate::site::{SEGUE, store};

/// More than a dozen programs play at the same time. None of them may starve a pod for so long.
const LEASE: Duration = Duration::from_secs(6);
const PATIENCE: &str = "8s";

/// The token that the service of the program requires.
const TOKEN: &str = "a token";

const PLACED: &str = "a partition is placed on the pod";
const LEAVES: &str = "a partition moves to another pod";
const COMES: &str = "a partition comes from another pod";
const CHECKPOINT: &str = "the pod makes a checkpoint before a partition moves";
const LEAVING_CANCELLED: &str = "a handoff from the pod is cancelled after it has drained";
const COMING_CANCELLED: &str = "a handoff to the pod is cancelled, and planned again";
const RESTART: &str = "the service is restarted";
const SILENCE: &str = "the service is gone for longer than the lease";
const LEASE_LOST: &str = "the pod's lease is revoked";
const ALL: [&str; 9] =
    [PLACED, LEAVES, COMES, CHECKPOINT, LEAVING_CANCELLED, COMING_CANCELLED, RESTART, SILENCE, LEASE_LOST];

/// What is wrong with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    Nothing,
    ServesWhatItWarms,
    IsNeverReady,
    NeverReadsTheTail,
    NeverDrains,
    NeverReleases,
    MakesNoCheckpoints,
    PresentsNoToken,
    ServesAfterItsDrain,
    StaysClosedAfterACancel,
    AcceptsAnyEpoch,
    IgnoresTheLeaseClock,
    ServesAfterItsRegistration,
    ForgetsItsToken,
    NeverRegistersAgain,
}

/// A pod that keeps no state.
struct Pod {
    flaw: Flaw,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    owned: BTreeMap<u32, u64>,
    held: BTreeMap<u32, u64>,
    /// Epochs that a drain has closed.
    closed: BTreeMap<u32, u64>,
    resume: Vec<u8>,
    trusted_until: Option<Instant>,
}

impl Pod {
    fn accepts(&self, headers: &HeaderMap) -> bool {
        let number = |name| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
        let (Some(partition), Some(epoch)) = (number("segue-partition"), number("segue-epoch")) else { return false };
        let known = self.known.lock().unwrap();
        let trusts = known.trusted_until.is_some_and(|until| Instant::now() < until);
        let owned = known.owned.get(&(partition as u32));
        let is_owner = owned.is_some_and(|own| *own == epoch || self.flaw == Flaw::AcceptsAnyEpoch);
        is_owner && (trusts || matches!(self.flaw, Flaw::IgnoresTheLeaseClock | Flaw::ServesAfterItsRegistration))
    }

    fn apply(&self, event: &Event, sent: &BTreeMap<u64, Instant>) -> Vec<Ack> {
        let mut known = self.known.lock().unwrap();
        if let Some(welcome) = &event.welcome {
            known.resume = welcome.resume.clone();
            if !welcome.resumed && self.flaw != Flaw::ServesAfterItsRegistration {
                (known.owned, known.held) = Default::default();
            }
        }
        if let Some(begun) = sent.get(&event.confirmed) {
            known.trusted_until = Some(*begun + LEASE * 2 / 3);
        }
        if let Some(assignment) = &event.assignment {
            if assignment.full && self.flaw != Flaw::ServesAfterItsRegistration {
                known.owned.clear();
            }
            for gone in &assignment.gone {
                if self.flaw != Flaw::ServesAfterItsDrain
                    && let Some(epoch) = known.owned.remove(gone)
                {
                    known.closed.insert(*gone, epoch);
                }
            }
            for owned in &assignment.owned {
                let is_closed = known.closed.get(&owned.partition) == Some(&owned.epoch);
                if !(is_closed && self.flaw == Flaw::StaysClosedAfterACancel) {
                    known.owned.insert(owned.partition, owned.epoch);
                }
            }
        }
        event.tasks.iter().filter_map(|task| self.run(&mut known, task)).collect()
    }

    /// Does a task. Returns its acknowledgement.
    fn run(&self, known: &mut Known, task: &Task) -> Option<Ack> {
        let partition = task.id.unwrap().partition;
        let (kind, flaw) = match task.kind.as_ref().unwrap() {
            Kind::Warm(_) => {
                known.held.insert(partition, task.epoch);
                if self.flaw == Flaw::ServesWhatItWarms {
                    known.owned.insert(partition, task.epoch);
                }
                (AckKind::Ready, Flaw::IsNeverReady)
            }
            Kind::Sync(_) => (AckKind::Synced, Flaw::NeverReadsTheTail),
            Kind::Drain(_) => (AckKind::Drained, Flaw::NeverDrains),
            Kind::Release(_) => {
                known.held.remove(&partition);
                (AckKind::Released, Flaw::NeverReleases)
            }
            Kind::Checkpoint(_) => (AckKind::Checkpointed, Flaw::MakesNoCheckpoints),
            // Nobody waits for it.
            Kind::Leaving(_) => return None,
        };
        let (checkpoint, epoch) = match kind {
            AckKind::Checkpointed => (b"here".to_vec(), task.epoch),
            _ => Default::default(),
        };
        (self.flaw != flaw).then(|| Ack { id: task.id, kind: kind.into(), checkpoint, epoch, ..Ack::default() })
    }

    fn hello(&self, keyspace: &str, address: SocketAddr) -> Hello {
        let known = self.known.lock().unwrap();
        let resume = if self.flaw == Flaw::ForgetsItsToken { Vec::new() } else { known.resume.clone() };
        Hello {
            protocol_min: 1,
            protocol_max: 1,
            keyspace: keyspace.to_owned(),
            pod: "w".to_owned(),
            address: address.to_string(),
            lease_ttl: LEASE.try_into().ok(),
            capabilities: ["sync", "drained", "released", "fence", "checkpoint"].map(str::to_owned).to_vec(),
            resume,
            holdings: known.held.iter().map(|(&partition, &epoch)| Holding { partition, epoch }).collect(),
            ..Hello::default()
        }
    }

    /// Takes part until the test ends.
    async fn take_part(self: Arc<Self>, service: SocketAddr, keyspace: String, address: SocketAddr) {
        loop {
            let had_stream = !self.known.lock().unwrap().resume.is_empty();
            if had_stream && self.flaw == Flaw::NeverRegistersAgain {
                return;
            }
            let ended = self.stream(service, self.hello(&keyspace, address)).await;
            if ended == Some(Code::NotFound) && self.flaw != Flaw::ServesAfterItsRegistration {
                self.known.lock().unwrap().owned.clear();
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Serves one stream. Returns how it ended.
    async fn stream(&self, service: SocketAddr, hello: Hello) -> Option<Code> {
        let channel = Endpoint::from_shared(format!("http://{service}")).unwrap().connect().await.ok()?;
        let has_token = self.flaw != Flaw::PresentsNoToken;
        let mut client = PodsClient::with_interceptor(channel, move |mut call: Request<()>| {
            let token = Some(format!("Bearer {TOKEN}").parse().unwrap()).filter(|_| has_token);
            token.map(|token| call.metadata_mut().insert("authorization", token));
            Ok(call)
        });
        let (beats, received) = mpsc::channel(16);
        let mut sent = BTreeMap::from([(1, Instant::now())]);
        beats.send(Heartbeat { seq: 1, hello: Some(hello), ..Heartbeat::default() }).await.unwrap();
        let mut events = match client.register(ReceiverStream::new(received)).await {
            Ok(events) => events.into_inner(),
            Err(status) => return Some(status.code()),
        };
        let (mut ticks, mut seq, mut seen) = (interval(Duration::from_millis(300)), 1, 0);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    seq += 1;
                    sent.insert(seq, Instant::now());
                    let _ = beats.try_send(Heartbeat { seq, seen, ..Heartbeat::default() });
                }
                event = events.message() => {
                    let event = match event {
                        Ok(event) => event?,
                        Err(status) => return Some(status.code()),
                    };
                    seen = event.seq;
                    let acks = self.apply(&event, &sent);
                    let resume = self.known.lock().unwrap().resume.clone();
                    let mut client = client.clone();
                    tokio::spawn(async move {
                        let mut acks = acks;
                        while !acks.is_empty() {
                            let request = AckRequest { resume: resume.clone(), acks: acks.clone() };
                            let Ok(answer) = client.ack(request).await else { return };
                            let mut outcomes = answer.into_inner().outcomes.into_iter();
                            acks.retain(|_| outcomes.next() == Some(AckOutcome::Again.into()));
                        }
                    });
                }
            }
        }
    }
}

async fn serve(State(pod): State<Arc<Pod>>, headers: HeaderMap) -> (StatusCode, [(&'static str, &'static str); 1]) {
    if pod.accepts(&headers) {
        (StatusCode::OK, [("x-served", "yes")])
    } else {
        (StatusCode::MISDIRECTED_REQUEST, [("segue-misdirected", "1")])
    }
}

/// Starts a pod that takes part in a keyspace of its own as soon as the service listens.
async fn start(flaw: Flaw) -> (SocketAddr, SocketAddr, String) {
    let (service, keyspace) = (free_address(), format!("{flaw:?}"));
    let pod = Arc::new(Pod { flaw, known: Mutex::default() });
    let address = serve_routes(axum::Router::new().fallback(serve).with_state(pod.clone())).await;
    tokio::spawn(pod.take_part(service, keyspace.clone(), address));
    (address, service, keyspace)
}

fn token_file(cluster: &TestCluster) -> PathBuf {
    cluster.path().join("token")
}

/// Starts an etcd. The token is there before any program reads it.
fn start_cluster() -> TestCluster {
    let cluster = TestCluster::start(SEGUE);
    std::fs::write(token_file(&cluster), TOKEN).unwrap();
    cluster
}

fn conformance(cluster: &TestCluster, pod: SocketAddr, service: SocketAddr, keyspace: &str) -> Output {
    let (url, etcd, service) = (format!("http://{pod}"), cluster.etcd().endpoint(), service.to_string());
    let mut command = crate::cli::segue();
    command.args(["conformance", "--handoffs", "--patience", PATIENCE, "--pod", &url, "--etcd", &etcd]);
    command.args(["--keyspace", keyspace, "--listen", &service, "--token-file"]).arg(token_file(cluster));
    command.output().unwrap()
}

/// The scenes that a run of the program says the pod got wrong.
fn wrong(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let wrong = text.lines().filter_map(|line| line.strip_prefix("WRONG  ")?.split_once(": "));
    let wrong: Vec<String> = wrong.map(|(scene, _)| scene.to_owned()).collect();
    let last = format!(" wrong={}", wrong.len());
    assert!(text.trim_end().ends_with(&last), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(i32::from(!wrong.is_empty())), "{text}");
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_flaw_of_a_pod_in_handoffs_is_found_and_nothing_else_is() {
    let cluster = start_cluster();
    let flaws: [(Flaw, &[&str]); 14] = [
        (Flaw::Nothing, &[]),
        (Flaw::ServesWhatItWarms, &[COMES, COMING_CANCELLED]),
        (Flaw::IsNeverReady, &ALL),
        (Flaw::NeverReadsTheTail, &[COMES, LEASE_LOST]),
        (Flaw::NeverDrains, &[LEAVES, LEAVING_CANCELLED]),
        (Flaw::NeverReleases, &[LEAVES]),
        (Flaw::MakesNoCheckpoints, &[CHECKPOINT]),
        (Flaw::ServesAfterItsDrain, &[LEAVES, LEAVING_CANCELLED]),
        (Flaw::StaysClosedAfterACancel, &[LEAVING_CANCELLED]),
        (Flaw::AcceptsAnyEpoch, &[COMES, LEAVING_CANCELLED]),
        (Flaw::IgnoresTheLeaseClock, &[SILENCE]),
        (Flaw::ServesAfterItsRegistration, &[SILENCE, LEASE_LOST]),
        (Flaw::ForgetsItsToken, &[RESTART]),
        (Flaw::NeverRegistersAgain, &[RESTART, SILENCE, LEASE_LOST]),
    ];
    let mut pods = Vec::new();
    for (flaw, expected) in flaws {
        pods.push((flaw, start(flaw).await, expected));
    }
    let results = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let runs: Vec<_> = pods
                .iter()
                .map(|(flaw, (address, service, keyspace), expected)| {
                    let cluster = &cluster;
                    let run = scope.spawn(move || conformance(cluster, *address, *service, keyspace));
                    (flaw, run, expected)
                })
                .collect();
            runs.into_iter().map(|(flaw, run, expected)| (flaw, run.join().unwrap(), expected)).collect::<Vec<_>>()
        })
    });
    for (flaw, output, expected) in results {
        assert_eq!(wrong(&output), **expected, "{flaw:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_without_the_token_of_the_service_does_not_get_registered() {
    let cluster = start_cluster();
    let (address, service, keyspace) = start(Flaw::PresentsNoToken).await;
    let output = tokio::task::block_in_place(|| conformance(&cluster, address, service, &keyspace));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("no pod registered at"), "{text}");
}

/// Plays handoffs with a pod that is no client of the program's service. Returns what it got wrong.
fn played(cluster: &TestCluster, name: &str, address: SocketAddr, keyspace: &str) -> Vec<String> {
    let (url, etcd) = (format!("http://{address}"), cluster.etcd().endpoint());
    let mut command = crate::cli::segue();
    command.args(["conformance", "--handoffs", "--pod", &url, "--name", name, "--etcd", &etcd, "--keyspace", keyspace]);
    wrong(&command.output().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_and_the_axum_example_conform_in_handoffs() {
    let (cluster, upstream) = (TestCluster::start(SEGUE), serve_text("hello").await);
    let (sidecar, direct) = (free_address(), free_address());
    let config = cluster.config().pod("sidecar", sidecar, upstream).lease("pod", "6s");
    let _sidecar = cluster.run("sidecar", &config);
    tokio::task::block_in_place(|| {
        let mut command = Command::new(example("axum_pod"));
        command.args([&*cluster.etcd().endpoint(), "axum", &direct.to_string()]).arg(cluster.path());
        let _axum = Process::start("axum", cluster.path(), &mut command);
        for (name, address) in [("sidecar", sidecar), ("axum", direct)] {
            assert_eq!(played(&cluster, name, address, "default"), [""; 0], "{name}");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_with_hooks_conforms_in_handoffs_and_each_hook_is_called() {
    let (cluster, called) = (TestCluster::start(SEGUE), Arc::<Mutex<BTreeSet<String>>>::default());
    let calls = called.clone();
    let upstream = crate::site::service::serve(move |call| {
        let hook = call.path.strip_prefix("/hooks/").unwrap_or_default();
        let answer = if hook == "checkpoint" { r#"{"checkpoint":"here"}"# } else { "" };
        calls.lock().unwrap().extend((!hook.is_empty()).then(|| hook.to_owned()));
        async move { (200, answer.to_owned()) }
    });
    let (upstream, listen) = (upstream.await, free_address());
    let hooks = ["warm", "sync", "drain", "release", "checkpoint", "lease"];
    let config = cluster.config().pod("hooked", listen, upstream).hooks(&format!("http://{upstream}/hooks"), &hooks);
    let _sidecar = cluster.run("hooked", &config.lease("pod", "6s").quick());
    assert_eq!(tokio::task::block_in_place(|| played(&cluster, "hooked", listen, "default")), [""; 0]);
    assert_eq!(*called.lock().unwrap(), hooks.map(str::to_owned).into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_with_a_stream_conforms_in_handoffs() {
    let (cluster, listen) = (TestCluster::start(SEGUE), free_address());
    let (upstream, stream, keyspace) = start(Flaw::Nothing).await;
    let config = cluster.config().set("keyspace", &*keyspace).pod("w", listen, upstream);
    let config = config.set("pod.stream", stream.to_string()).lease("pod", "6s");
    let _sidecar = cluster.run("w", &config.quick());
    assert_eq!(tokio::task::block_in_place(|| played(&cluster, "w", listen, &keyspace)), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyspace_in_use_is_left_alone() {
    let cluster = start_cluster();
    let config = cluster.config().router("r-0", free_address()).coordinator("c-0", 4).quick();
    let _control = cluster.run("control", &config);
    let says = |text: &str| {
        let service = free_address();
        let output = conformance(&cluster, free_address(), service, "default");
        String::from_utf8_lossy(&output.stderr).contains(text)
    };
    tokio::task::block_in_place(|| until("it is in use", || says("in keyspace default; handoffs are played in")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyspace_with_assignment_rounds_is_left_alone() {
    let cluster = start_cluster();
    let store = store(cluster.etcd());
    let keys = Keyspace::new("/segue/", "rounds");
    let round = encode(&Round { number: 1, participants: BTreeMap::new(), closed_by: "c-0".to_owned() });
    let participant = encode(&Participant::new("c-0", Some(1)));
    for (key, value, says) in [
        (keys.round(), round, "another program takes part in keyspace rounds"),
        (keys.participant("c-0"), participant, "coordinator c-0 takes part in assignment rounds in keyspace rounds"),
    ] {
        let then = vec![Op::Put { key, value, lease: None }];
        store.commit(Txn { then, ..Txn::default() }).await.unwrap();
        let run = || conformance(&cluster, free_address(), free_address(), "rounds");
        let output = tokio::task::block_in_place(run);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(says), "{text}");
    }
}
