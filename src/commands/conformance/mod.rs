//! `segue conformance`: sends requests with right and wrong stamps to a running pod, or plays handoffs with it, and
//! prints what does not conform.
//!
//! The store shows what the pod owns. A result of stamps counts only if the pod owned the same before and after.

mod cases;
mod process;
mod scenes;
mod service;
mod stage;

use std::fmt;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::body::Body;
use http::header::HOST;
use http::{Request, Uri};
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

use self::cases::{Case, Expected, Observed, Owned, cases, fault};
use self::process::PodProcess;
use self::scenes::PodUnderTest;
use self::service::Service;
use self::stage::Stage;
use super::store::StoreArgs;
use super::{Failure, runtime};

/// How long a pod may take to respond. A pod that gets a future epoch waits a quarter of a second for its own view.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the test starts again because the partition has moved meanwhile.
const MAX_ATTEMPTS: usize = 3;
/// How late a pod may learn of its ownership, and the pause between two attempts meanwhile.
const LATE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// The pod under test.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// URL of the pod, such as http://10.0.0.7:8181: the address that it registered, not that of a router.
    #[arg(long, value_name = "URL")]
    pod: Uri,
    /// Name of the pod, if --pod is not the address that it registered.
    #[arg(long)]
    name: Option<String>,
    /// Path of the requests, each a GET.
    #[arg(long, default_value = "/")]
    path: String,
    /// Play handoffs, cancels and the loss of the lease with the pod, in a keyspace without a coordinator and routers.
    #[arg(long)]
    handoffs: bool,
    /// With --handoffs: serve the gRPC service for pods here, and play its restart and its silence.
    #[arg(long, value_name = "ADDRESS", requires = "handoffs")]
    listen: Option<SocketAddr>,
    /// With --listen: the file of a token that the pod has to present.
    #[arg(long, value_name = "FILE", requires = "listen")]
    token_file: Option<PathBuf>,
    /// With --handoffs: start the pod by this command of the shell, kill its process with SIGKILL and start it again.
    #[arg(long, value_name = "COMMAND", requires = "handoffs")]
    command: Option<String>,
    /// With --handoffs: how long the pod may take for each step.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = segue_config::parse_duration)]
    patience: Duration,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// The result.
#[derive(Debug, Serialize)]
struct Report {
    pod: String,
    partition: PartitionId,
    requests: Vec<Outcome>,
    conforms: bool,
}

/// The outcome of one request.
#[derive(Debug, Serialize)]
struct Outcome {
    request: &'static str,
    expected: String,
    /// What is wrong with the response; `None` if it conforms.
    fault: Option<String>,
}

pub(super) fn conformance(args: &Args) -> Result<(), Failure> {
    let runtime = runtime()?;
    if args.handoffs {
        let report = runtime.block_on(play(args))?;
        return print(&report, report.conforms, args.json);
    }
    let report = runtime.block_on(run(args))?;
    print(&report, report.conforms, args.json)
}

fn print<T: Serialize + fmt::Display>(report: &T, conforms: bool, json: bool) -> Result<(), Failure> {
    let text = if json { serde_json::to_string(report) } else { Ok(report.to_string()) };
    let text = text.map_err(anyhow::Error::new)?;
    writeln!(std::io::stdout().lock(), "{}", text.trim_end()).map_err(anyhow::Error::new)?;
    // The report has already been printed.
    if conforms { Ok(()) } else { Err(Failure::AlreadyReported) }
}

async fn play(args: &Args) -> Result<scenes::Report, Failure> {
    let authority = authority(args)?;
    let (store, keys) = args.store.connect().await?;
    let stage = Stage::take(store, keys, args.patience).await?;
    let service = match args.listen {
        Some(listen) => Some(Service::start(&stage, listen, args.token_file.clone()).await),
        None => None,
    };
    let pod = PodUnderTest { authority, path: args.path.clone(), name: args.name.clone() };
    let played = async {
        let service = service.transpose()?;
        let process = args.command.as_deref().map(PodProcess::start).transpose()?;
        scenes::play(&stage, service, process, pod).await
    };
    let played = tokio::select! {
        played = played => played,
        // The process that was started has to be killed.
        signal = signalled() => signal.and_then(|name| Err(anyhow!("ended by {name}"))),
    };
    stage.clear().await?;
    Ok(played?)
}

/// Returns the signal that asks this program to end.
async fn signalled() -> anyhow::Result<&'static str> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok("SIGINT"),
        _ = terminate.recv() => Ok("SIGTERM"),
    }
}

/// Returns host and port of the pod.
fn authority(args: &Args) -> Result<String, Failure> {
    let authority = args.pod.authority().filter(|_| args.pod.scheme_str() == Some("http"));
    let Some(authority) = authority.filter(|authority| authority.port().is_some()) else {
        let text = format!("segue: --pod {}: expected http://HOST:PORT, the address that the pod registered", args.pod);
        return Err(Failure::BadInput(text));
    };
    if !args.path.starts_with('/') {
        return Err(Failure::BadInput(format!("segue: --path {}: expected a path, such as /healthz", args.path)));
    }
    Ok(authority.to_string())
}

async fn run(args: &Args) -> Result<Report, Failure> {
    let authority = authority(args)?;
    let (store, keys) = args.store.connect().await?;
    for _ in 0..MAX_ATTEMPTS {
        let (name, owned) = subject(&view(&*store, &keys).await?, &authority, args.name.as_deref())?;
        let mut requests = Vec::new();
        for case in cases(&owned) {
            let fault = fault(case.expected, &try_case(&authority, &args.path, &case).await);
            requests.push(Outcome { request: case.name, expected: case.expected.to_string(), fault });
        }
        let after = subject(&view(&*store, &keys).await?, &authority, args.name.as_deref());
        if after.is_ok_and(|(_, after)| after == owned) {
            let conforms = requests.iter().all(|outcome| outcome.fault.is_none());
            return Ok(Report { pod: name, partition: owned.partition, requests, conforms });
        }
    }
    Err(anyhow!("the pod's partition moved {MAX_ATTEMPTS} times during the test; repeat it when nothing moves").into())
}

/// Sends the request of a case. Repeats one that the pod refuses and should not, as a router does: a pod may learn of its
/// ownership after the handoff has ended.
async fn try_case(authority: &str, path: &str, case: &Case) -> Observed {
    let began = Instant::now();
    loop {
        let observed = send(authority, path, case).await;
        let may_be_late = case.expected == Expected::Accepted && observed.is_refusal();
        if !may_be_late || began.elapsed() >= LATE {
            return observed;
        }
        sleep(PAUSE).await;
    }
}

async fn view(store: &dyn Store, keys: &Keyspace) -> anyhow::Result<View> {
    let snapshot = store.snapshot(&keys.followed()).await.context("cannot read the keyspace")?;
    Ok(View::from_snapshot(keys.clone(), snapshot))
}

/// Returns the name of the pod under test and a partition that it owns and that does not move.
fn subject(view: &View, authority: &str, name: Option<&str>) -> anyhow::Result<(String, Owned)> {
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
    Ok((name.clone(), Owned { keyspace, partition: own.partition, epoch: own.epoch, foreign }))
}

async fn send(authority: &str, path: &str, case: &Case) -> Observed {
    let exchanged = timeout(RESPONSE_TIMEOUT, exchange(authority, path, case)).await;
    exchanged.map_or(Observed::Silence(RESPONSE_TIMEOUT.as_secs()), |result| {
        result.unwrap_or_else(|error| Observed::Broken(format!("{error:#}")))
    })
}

/// Sends a request on a connection of its own.
async fn exchange(authority: &str, path: &str, case: &Case) -> anyhow::Result<Observed> {
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
    Ok(Observed::Response { status: response.status(), misdirected })
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Outcome { request, expected, fault } in &self.requests {
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
