//! Whether a running pod conforms: sends it requests with right and wrong stamps, or plays handoffs with it.
//!
//! The store shows what the pod owns. A result of stamps counts only if the pod owned the same before and after.

mod cases;
mod process;
mod scenes;
mod service;
mod stage;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::body::Body;
use http::Request;
use http::header::HOST;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use segue_coordination::store::Store;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::view::View;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

use self::cases::{Case, ExpectedResponse, ObservedResponse, TestedOwnership, cases, fault};
use self::process::PodProcess;
pub(crate) use self::scenes::{HandoffReport, PodUnderTest};
use self::service::ServiceUnderTest;
use self::stage::TestKeyspace;

/// How long a pod may take to respond. A pod that gets a future epoch waits a quarter of a second for its own view.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the test starts again because the partition has moved meanwhile.
const MAX_ATTEMPTS: usize = 3;
/// How late a pod may learn of its ownership, and the pause between two attempts meanwhile.
const LATE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// How handoffs are played with a pod.
#[derive(Debug)]
pub(crate) struct HandoffTest {
    /// Where to serve the gRPC service for pods, if the pod uses it.
    pub(crate) listen: Option<SocketAddr>,
    /// The file of a token that the pod has to present.
    pub(crate) token_file: Option<PathBuf>,
    /// The command that starts the pod, if its process is to be killed.
    pub(crate) command: Option<String>,
    /// How long the pod may take for each step.
    pub(crate) patience: Duration,
}

/// The result of requests with stamps.
#[derive(Debug, Serialize)]
pub(crate) struct StampReport {
    pod: String,
    partition: PartitionId,
    requests: Vec<CaseOutcome>,
    pub(crate) conforms: bool,
}

/// The outcome of one request.
#[derive(Debug, Serialize)]
struct CaseOutcome {
    request: &'static str,
    expected: String,
    /// What is wrong with the response; `None` if it conforms.
    fault: Option<String>,
}

/// Plays handoffs with the pod, in a keyspace without a coordinator and routers.
pub(crate) async fn play(
    store: Arc<dyn Store>,
    keys: Keyspace,
    pod: PodUnderTest,
    test: HandoffTest,
) -> anyhow::Result<HandoffReport> {
    let stage = TestKeyspace::take(store, keys, test.patience).await?;
    let service = match test.listen {
        Some(listen) => Some(ServiceUnderTest::start(&stage, listen, test.token_file).await),
        None => None,
    };
    let played = async {
        let service = service.transpose()?;
        let process = test.command.as_deref().map(PodProcess::start).transpose()?;
        scenes::play(&stage, service, process, pod).await
    };
    let played = tokio::select! {
        played = played => played,
        // The process that was started has to be killed.
        signal = signalled() => signal.and_then(|name| Err(anyhow!("ended by {name}"))),
    };
    stage.clear().await?;
    played
}

/// Returns the signal that asks this program to end.
async fn signalled() -> anyhow::Result<&'static str> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok("SIGINT"),
        _ = terminate.recv() => Ok("SIGTERM"),
    }
}

/// Sends the pod requests with right and wrong stamps.
pub(crate) async fn send_stamps(store: &dyn Store, keys: &Keyspace, pod: &PodUnderTest) -> anyhow::Result<StampReport> {
    let PodUnderTest { authority, path, name } = pod;
    for _ in 0..MAX_ATTEMPTS {
        let (pod, owned) = subject(&view(store, keys).await?, authority, name.as_deref())?;
        let mut requests = Vec::new();
        for case in cases(&owned) {
            let fault = fault(case.expected, &try_case(authority, path, &case).await);
            requests.push(CaseOutcome { request: case.name, expected: case.expected.to_string(), fault });
        }
        let after = subject(&view(store, keys).await?, authority, name.as_deref());
        if after.is_ok_and(|(_, after)| after == owned) {
            let conforms = requests.iter().all(|outcome| outcome.fault.is_none());
            return Ok(StampReport { pod, partition: owned.partition, requests, conforms });
        }
    }
    Err(anyhow!("the pod's partition moved {MAX_ATTEMPTS} times during the test; repeat it when nothing moves"))
}

/// Sends the request of a case. Repeats one that the pod refuses and should not, as a router does: a pod may learn of its
/// ownership after the handoff has ended.
async fn try_case(authority: &str, path: &str, case: &Case) -> ObservedResponse {
    let began = Instant::now();
    loop {
        let observed = send(authority, path, case).await;
        let may_be_late = case.expected == ExpectedResponse::Accepted && observed.is_refusal();
        if !may_be_late || began.elapsed() >= LATE {
            return observed;
        }
        sleep(PAUSE).await;
    }
}

async fn view(store: &dyn Store, keys: &Keyspace) -> anyhow::Result<View> {
    let snapshot = store.snapshot(&keys.planned()).await.context("cannot read the keyspace")?;
    Ok(View::from_snapshot(keys.clone(), snapshot))
}

/// Returns the name of the pod under test and a partition that it owns and that does not move.
fn subject(view: &View, authority: &str, name: Option<&str>) -> anyhow::Result<(String, TestedOwnership)> {
    let is_meant = |pod: &str, address: &str| name.map_or(address == authority, |name| name == pod);
    let mut pods = view.pods.iter().map(|(pod, record)| (pod, record.value.address.as_str()));
    let Some((name, _)) = pods.clone().find(|(pod, address)| is_meant(pod, address)) else {
        let registered = pods.by_ref().map(|(pod, address)| format!("{pod} at {address}")).collect::<Vec<_>>();
        let registered = if registered.is_empty() { "none".to_owned() } else { registered.join(", ") };
        let wanted = name.map_or_else(|| format!("at {authority}"), |name| format!("with the name {name}"));
        return Err(anyhow!("no pod {wanted} is registered; registered: {registered}"));
    };
    let owner = |partition: &PartitionId| view.live_owner(*partition).map(|(assignment, _)| assignment);
    let rests = |partition: &&PartitionId| !view.handoffs.contains_key(partition) && !view.is_malformed(**partition);
    let own =
        view.assignments.keys().filter(rests).find_map(|partition| owner(partition).filter(|it| it.owner == *name));
    let own = own.with_context(|| format!("pod {name} owns no partition at rest; `segue status` shows what moves"))?;
    let of_others = view.assignments.keys().filter(rests).find(|it| owner(it).is_some_and(|at| at.owner != *name));
    // Without another pod, a partition that the keyspace does not have.
    let foreign =
        of_others.copied().unwrap_or_else(|| PartitionId::new(view.partitions().max(own.partition.get() + 1)));
    let keyspace = view.keys().name().to_owned();
    Ok((name.clone(), TestedOwnership { keyspace, partition: own.partition, epoch: own.epoch, foreign }))
}

async fn send(authority: &str, path: &str, case: &Case) -> ObservedResponse {
    let exchanged = timeout(RESPONSE_TIMEOUT, exchange(authority, path, case)).await;
    exchanged.map_or(ObservedResponse::Silence(RESPONSE_TIMEOUT.as_secs()), |result| {
        result.unwrap_or_else(|error| ObservedResponse::Broken(format!("{error:#}")))
    })
}

/// Sends a request on a connection of its own.
async fn exchange(authority: &str, path: &str, case: &Case) -> anyhow::Result<ObservedResponse> {
    let stream = TcpStream::connect(authority).await.context("cannot connect")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header(HOST, authority);
    let request = case.stamps.iter().fold(request, |request, (name, value)| request.header(*name, value));
    let response = sender.send_request(request.body(Body::empty())?).await;
    connection.abort();
    let response = response?;
    let misdirected = response.headers().get(segue_protocol::headers::SEGUE_MISDIRECTED);
    let misdirected = misdirected.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    Ok(ObservedResponse::Response { status: response.status(), misdirected })
}

impl fmt::Display for StampReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for CaseOutcome { request, expected, fault } in &self.requests {
            match fault {
                None => writeln!(out, "ok     {request}: {expected}")?,
                Some(fault) => writeln!(out, "WRONG  {request}: {fault}")?,
            }
        }
        let wrong = self.requests.iter().filter(|outcome| outcome.fault.is_some()).count();
        let (pod, partition, sent) = (&self.pod, self.partition, self.requests.len());
        writeln!(out, "conformance: pod={pod} partition={partition} requests={sent} wrong={wrong}")
    }
}
