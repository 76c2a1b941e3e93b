//! The data path under random clients, pods and handoffs, in one thread and from one seed.
//!
//! Production's server, request path, table and connections to pods run over real sockets, under a clock that moves only when
//! nothing can go on ([`drive`]). Scripted are the clients, the pods and the control side. Unlike the rest of the simulation it
//! has no store, and the kernel may delay bytes: of a thousand seeds a few do not repeat their history.
//!
//! # Invariants
//!
//! * Each request is served at most once, by the owner, with its own body, and its client gets the response to it.
//! * Requests of a key that have waited are served in their order.
//! * A request fails only for a fault of its pod, a severed exchange, a body that is not kept whole, or a router that stops.
//! * At the end nothing waits and nothing is in flight.

mod client;
mod control;
mod drive;
mod http2_client;
mod http2_pod;
mod judge;
mod pod;
mod sweep;
mod wire;
mod world;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use http::HeaderName;
use segue_coordination::jitter;
use segue_proxy::metrics::Metrics;
use segue_proxy::routing::partition_key::PartitionSource;
use segue_proxy::routing::table::{StashLimits, Table};
use segue_proxy::server::{ServedKeyspace, ServedKeyspaces, Server, ServerHandle};
use segue_proxy::settings::{
    ClientLimits, ForwardSettings, LoggedRequests, OwnerExceptions, ServerSettings, UPLOAD_GRACE, UpstreamProtocol,
    UpstreamSettings,
};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, sleep};

use self::control::Control;
pub use self::sweep::{DataPathTotal, sweep_data_path};
use self::world::{Scenario, World};
use crate::rng::Rng;

/// Each has connections, buffers and counters of its own.
const WORKERS: usize = 2;

/// Longer than any request takes.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a run.
#[derive(Debug, Default)]
pub struct DataPathOutcome {
    /// The number of requests that clients have sent.
    pub requests: u64,
    /// The number of faults that pods have made.
    pub faults: u64,
    /// The number of handoffs.
    pub cutovers: u64,
    /// The number of pairs of requests whose order was judged.
    pub held_pairs: u64,
    /// The violations, in words.
    pub violations: Vec<String>,
    /// The history, if it was asked for.
    pub lines: Vec<String>,
}

/// Runs one seed.
///
/// # Errors
///
/// Fails if no runtime or no socket can be made.
pub fn run_data_path(seed: u64, keeps_lines: bool) -> io::Result<DataPathOutcome> {
    drive::run(run(seed, keeps_lines))?
}

async fn run(seed: u64, keeps_lines: bool) -> io::Result<DataPathOutcome> {
    jitter::seed(seed);
    let rng = Rng::new(seed);
    let scenario = Scenario::new(&rng);
    let limits = StashLimits {
        max_requests: 1000,
        max_bytes: 64 << 20,
        max_total_bytes: 64 << 20,
        max_wait: Duration::from_secs(30),
        flush_concurrency: rng.among(1..=16) as usize,
    };
    let (table, _notices) = Table::new(WORKERS, limits);
    table.trust_until(Instant::now() + Duration::from_secs(1 << 20));
    let world = Rc::new(World::new(rng, scenario, table, keeps_lines));
    world.note(|| format!("{:?}", world.scenario));
    let mut addresses = Vec::new();
    for pod in 0..world.scenario.pods {
        let socket = pod::silent_socket((own_address(), 0).into())?;
        addresses.push(socket.local_addr()?.to_string());
        spawn_local(pod::serve(world.clone(), pod, socket));
    }
    let mut control = Control::new(world.clone(), addresses);
    let (router, fronts) = serve(&world)?;
    let mut clients = JoinSet::new();
    for client in 0..world.scenario.clients {
        clients.spawn_local(client::run(world.clone(), client, fronts.clone()));
    }
    spawn_local(stop(world.clone(), router));
    tokio::select! {
        biased;
        () = control.run() => {}
        () = async { while clients.join_next().await.is_some() {} } => {}
    }
    control.settle().await;
    judge::judge(&world);
    Ok(DataPathOutcome {
        requests: world.requests.borrow().len() as u64,
        faults: world.faults.get(),
        cutovers: world.cutovers.get(),
        held_pairs: world.held.borrow().len() as u64,
        violations: world.violations.take(),
        lines: world.lines(),
    })
}

/// Returns an address of this thread alone. Otherwise a port that one run has freed would soon be another one's, and late
/// clients and routers of the first would connect to it.
fn own_address() -> Ipv4Addr {
    static THREADS: AtomicU8 = AtomicU8::new(1);
    thread_local! {
        static NUMBER: u8 = THREADS.fetch_add(1, Relaxed);
    }
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, NUMBER.with(|number| *number))
}

/// Starts the router, which serves once there are tasks. Returns the address of each worker: by an address of all the kernel
/// would choose the worker of a connection, and no seed would repeat that.
fn serve(world: &World) -> io::Result<(ServerHandle, Vec<SocketAddr>)> {
    let protocol = if world.scenario.pods_speak_http2 { UpstreamProtocol::Http2 } else { UpstreamProtocol::Http1 };
    let keyspace =
        ServedKeyspace { forward: settings(protocol), table: world.table.clone(), metrics: Metrics::new(WORKERS) };
    let listeners: Vec<_> = (0..WORKERS).map(|_| TcpListener::bind((own_address(), 0))).collect::<io::Result<_>>()?;
    let fronts = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
    let server = ServerSettings { listen: "127.0.0.1:0".to_owned(), workers: WORKERS, tls: None };
    let server = Server::adopt(server, listeners).map_err(io::Error::other)?;
    let router = server.start_here(ServedKeyspaces::only(keyspace)).map_err(io::Error::other)?;
    Ok((router, fronts))
}

/// Stops the router at some time, if the scenario says so. Dropping this ends the router.
async fn stop(world: Rc<World>, router: ServerHandle) {
    let Some(after) = world.scenario.stops_after else { return std::future::pending().await };
    sleep(after).await;
    world.stops();
    router.shutdown(Instant::now() + STOP_TIMEOUT).await;
    world.note(|| "the router has stopped".to_owned());
}

fn settings(protocol: UpstreamProtocol) -> ForwardSettings {
    ForwardSettings {
        router: "router-0".to_owned(),
        keyspace: "default".to_owned(),
        partition: PartitionSource::Number {
            header: HeaderName::from_static("x-partition"),
            order_by: Some(HeaderName::from_static("x-key")),
        },
        trust_forwarded: false,
        exceptions: OwnerExceptions::default(),
        limits: ClientLimits { max_in_flight_per_client: 0, min_upload_rate: 0, ..ClientLimits::default() },
        key_limit: None,
        upload_grace: UPLOAD_GRACE,
        upstream: UpstreamSettings { protocol, request_timeout: Duration::from_secs(5), ..UpstreamSettings::default() },
        tracer: None,
        requests: LoggedRequests::None,
    }
}
