//! `segue explain` and a pod that uses the gRPC service: a pod without an admin address, whose coordinator knows how far it
//! is.
use std::mem::take;
use std::net::SocketAddr;
use std::time::Duration;

use segue_grpc::proto::pods_client::PodsClient;
use segue_grpc::proto::task::Kind;
use segue_grpc::proto::{Heartbeat, Hello, Progress, TaskId};
use segue_tests::cluster::TestCluster;
use segue_tests::http::is_ready;
use segue_tests::ports::free_address;
use segue_tests::process::until;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use crate::site::SEGUE;

const BEAT: Duration = Duration::from_millis(200);

/// Returns the hello of `g-0`, whose lease outlives any pause of a busy machine.
fn hello(resume: Vec<u8>) -> Hello {
    Hello {
        protocol_min: 1,
        protocol_max: 1,
        pod: "g-0".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        lease_ttl: Duration::from_secs(30).try_into().ok(),
        resume,
        ..Hello::default()
    }
}

/// A pod that warms for ever. It opens its stream again whenever that breaks, as a busy machine makes it do.
struct Pod {
    /// The coordinator that it uses.
    at: watch::Sender<SocketAddr>,
    /// Whether it reports how far its Warm is.
    reports: watch::Sender<bool>,
    _task: AbortOnDropHandle<()>,
}

impl Pod {
    fn start(at: SocketAddr) -> Self {
        let ((at, mut moved), (reports, reporting)) = (watch::channel(at), watch::channel(false));
        let task = tokio::spawn(async move {
            let mut known = Known::default();
            loop {
                let here = *moved.borrow_and_update();
                tokio::select! {
                    ended = stream(here, &mut known, &reporting) => {
                        eprintln!("the stream at {here} ended: {ended:?}");
                        sleep(BEAT).await;
                    }
                    changed = moved.changed() => changed.unwrap(),
                }
            }
        });
        Pod { at, reports, _task: AbortOnDropHandle::new(task) }
    }
}

/// What a pod knows between two streams.
#[derive(Default)]
struct Known {
    token: Vec<u8>,
    warm: Option<TaskId>,
}

impl Known {
    fn progress(&self, reporting: &watch::Receiver<bool>) -> Vec<Progress> {
        let warm = self.warm.filter(|_| *reporting.borrow());
        let half_done = |id| Progress { id: Some(id), fraction: 0.5, detail: "7 of 14 files".to_owned() };
        warm.map(half_done).into_iter().collect()
    }
}

/// Keeps a stream at this coordinator until it breaks.
async fn stream(at: SocketAddr, known: &mut Known, reporting: &watch::Receiver<bool>) -> Result<(), Status> {
    let connected = PodsClient::connect(format!("http://{at}")).await;
    let mut client = connected.map_err(|error| Status::unavailable(error.to_string()))?;
    let (beats, received) = mpsc::channel(16);
    let (hello, progress) = (Some(hello(known.token.clone())), known.progress(reporting));
    beats.send(Heartbeat { seq: 1, hello, progress, ..Heartbeat::default() }).await.unwrap();
    let mut events = client.register(ReceiverStream::new(received)).await?.into_inner();
    let (mut every, mut seq, mut seen) = (interval(BEAT), 1, 0);
    loop {
        tokio::select! {
            event = events.message() => {
                let Some(event) = event? else { return Ok(()) };
                seen = event.seq;
                known.token = event.welcome.map_or(take(&mut known.token), |welcome| welcome.resume);
                let warm = event.tasks.iter().find(|task| matches!(task.kind, Some(Kind::Warm(_))));
                known.warm = warm.map_or(known.warm, |task| task.id);
            }
            _ = every.tick() => {
                seq += 1;
                let beat = Heartbeat { seq, seen, progress: known.progress(reporting), ..Heartbeat::default() };
                if beats.send(beat).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

/// Runs `segue explain` with these words until what it prints is as expected.
fn explains(words: &[&str], what: &str, is_as_expected: impl Fn(&str) -> bool) {
    let mut said = String::new();
    tokio::task::block_in_place(|| {
        until(&format!("{what} in the explanation by {words:?}"), || {
            let output = crate::cli::segue().arg("explain").args(words).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            if text != said {
                eprintln!("{text}{}", String::from_utf8_lossy(&output.stderr));
                said = text;
            }
            is_as_expected(&said)
        });
    });
}

/// Waits until `segue explain` with these arguments has a line that begins so.
fn explain_says(subject: &str, reach: [&str; 2], expected: &str) {
    let words = [&[subject], &reach[..]].concat();
    explains(&words, expected, |said| said.lines().any(|line| line.starts_with(expected)));
}

/// Waits until `segue explain --json` with these arguments has this value there.
fn explain_has(subject: &str, reach: [&str; 2], pointer: &str, expected: &Value) {
    let words = [&[subject, "--json"], &reach[..]].concat();
    explains(&words, &expected.to_string(), |said| {
        let explained: Value = serde_json::from_str(said).unwrap_or_default();
        explained.pointer(pointer) == Some(expected)
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_asks_the_coordinator_that_serves_a_pod_how_far_its_task_is() {
    let cluster = TestCluster::start(SEGUE);
    let etcd = cluster.etcd().endpoint();
    let listen = [free_address(), free_address()];
    let admin = free_address();
    let config = |instance: usize| {
        let config = cluster.config().coordinator(&format!("c-{instance}"), 1);
        config.set("coordinator.listen", listen[instance].to_string()).quick()
    };
    let mut first = cluster.run("c-0", &config(0).admin(admin));
    let mut second = cluster.run("c-1", &config(1));
    first.until("/ready", || is_ready(admin));
    second.until("the pods' service listens", || std::net::TcpStream::connect(listen[1]).is_ok());

    let server = format!("http://{admin}");
    let (by_store, by_process) = (["--etcd", &*etcd], ["--server", &*server]);
    let pod = Pod::start(listen[0]);
    explain_says("0", by_store, "it says     pod g-0: task warm is due, no progress reported");
    explain_says("g-0", by_store, "works on    0: task warm is due, no progress reported");
    pod.reports.send_replace(true);
    let far = "task warm is due, 50 % done (7 of 14 files)";
    let work = json!({ "partition": 0, "callback": "warm", "progress": 0.5, "detail": "7 of 14 files", "says": far });
    for reach in [by_store, by_process] {
        explain_says("0", reach, &format!("it says     pod g-0: {far}"));
        explain_says("g-0", reach, &format!("works on    0: {far}"));
        explain_has("0", reach, "/handoff/awaited/0/says", &json!(far));
        explain_has("g-0", reach, "/works_on", &json!([work]));
    }

    // The pod goes on at an instance that cannot be asked. The first one knows nothing of it any more.
    pod.at.send_replace(listen[1]);
    let unasked = "cannot be asked: the coordinator that serves it has no admin address";
    for reach in [by_store, by_process] {
        explain_says("0", reach, &format!("it says     pod g-0: {unasked}"));
        explain_says("g-0", reach, &format!("it says     {unasked}"));
        explain_has("g-0", reach, "/works_on", &json!([]));
    }
}
