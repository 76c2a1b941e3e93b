//! A fixture for tests of the data path: a table that the test switches, a server over it, pods and clients with real
//! sockets.
//!
//! Scripted pods and raw clients send what the test writes, when it writes it. [`Fixture::exchange`] brings a request from
//! such a client to such a pod; the test decides what follows.

#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

pub mod client;
pub mod pod;
pub mod raw_http2;
pub mod wire;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use hyper::body::Incoming;
use segue_coordination::router::DataPlane;
use segue_protocol::handoff::router::{GateStage, HoldCause, Target};
use segue_protocol::ids::{Incarnation, PartitionId, Revision};
use segue_protocol::records::PodRecord;
use segue_proxy::metrics::Metrics;
use segue_proxy::router::{BoundKeyspace, BoundRouter};
use segue_proxy::routing::keyspace_choice::KeyspaceChoice;
use segue_proxy::routing::partition_key::PartitionSource;
use segue_proxy::routing::table::{StashLimits, Table};
use segue_proxy::server::{ServedKeyspace, ServedKeyspaces, Server, ServerError, ServerHandle};
use segue_proxy::settings::{
    ClientLimits, ForwardSettings, LoggedRequests, OwnerExceptions, ServerSettings, UPLOAD_GRACE, UpstreamProtocol,
    UpstreamSettings,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use client::{Answer, Body, Http2Client, RawHttp1Client, empty};
use pod::{Connection, Pod, ScriptedPod, Speaks};

const I1: Incarnation = Incarnation::registered_at(Revision::new(1));

/// Longer than anything here takes; only a test that fails waits for it.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The partition of all requests below.
pub const P0: PartitionId = PartitionId::new(0);
pub const P1: PartitionId = PartitionId::new(1);
pub const P2: PartitionId = PartitionId::new(2);

pub const GET: &str = "GET / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n";
pub const POST: &str = "POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ncontent-length: 5\r\n\r\nhello";
/// A request whose body of five bytes the client sends once it is told to.
pub const POST_THAT_EXPECTS: &str =
    "POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
/// A `200` without a body.
pub const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// What a pod speaks, and the setting by which a router speaks it to pods.
pub const BOTH_VERSIONS: [(Speaks, UpstreamProtocol); 2] =
    [(Speaks::Http1, UpstreamProtocol::Http1), (Speaks::Http2, UpstreamProtocol::Http2)];

/// Returns [`GET`] for this partition, with more lines of its head if there are any.
pub fn get_at(partition: PartitionId, more: &str) -> String {
    GET.replace("x-partition: 0\r\n", &format!("x-partition: {partition}\r\n{more}"))
}

/// Returns a `POST` to partition 0 with these lines in its head.
pub fn post(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n{fields}\r\n\r\n{body}")
}

pub struct Settings {
    pub forward: ForwardSettings,
    pub server: ServerSettings,
    pub stash: StashLimits,
    pub partitions: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            forward: ForwardSettings {
                router: "router-0".to_owned(),
                keyspace: "default".to_owned(),
                partition: PartitionSource::Number {
                    header: "x-partition".parse().unwrap(),
                    order_by: Some("x-key".parse().unwrap()),
                },
                trust_forwarded: false,
                exceptions: OwnerExceptions::default(),
                // All clients of a test have one address, and some upload slowly.
                limits: ClientLimits { max_in_flight_per_client: 0, min_upload_rate: 0, ..ClientLimits::default() },
                key_limit: None,
                upload_grace: UPLOAD_GRACE,
                tracer: None,
                requests: LoggedRequests::default(),
                upstream: UpstreamSettings::default(),
            },
            server: ServerSettings { listen: "127.0.0.1:0".to_owned(), workers: 1, tls: None },
            stash: StashLimits {
                max_requests: 100,
                max_bytes: 1 << 20,
                max_total_bytes: 1 << 20,
                max_wait: TEST_TIMEOUT,
                flush_concurrency: 16,
            },
            partitions: 8,
        }
    }
}

impl Settings {
    /// Returns the defaults with this change.
    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    }

    pub fn with_upstream(change: impl FnOnce(&mut UpstreamSettings)) -> Self {
        Settings::with(|settings| change(&mut settings.forward.upstream))
    }

    pub fn with_limits(change: impl FnOnce(&mut ClientLimits)) -> Self {
        Settings::with(|settings| change(&mut settings.forward.limits))
    }

    /// Ends uploads that are slower than 1000 bytes a second after this time.
    pub fn limit_upload_rate(mut self, grace: Duration) -> Self {
        self.forward.limits.min_upload_rate = 1000;
        self.forward.upload_grace = grace;
        self
    }

    /// Speaks to pods by this protocol.
    pub fn with_protocol(protocol: UpstreamProtocol) -> Self {
        Settings::with_upstream(|upstream| upstream.protocol = protocol)
    }
}

type Targets = Arc<Mutex<HashMap<PartitionId, (Target, PodRecord)>>>;

pub struct Fixture {
    pub table: Arc<Table>,
    pub metrics: Metrics,
    pub address: SocketAddr,
    pub server: Option<ServerHandle>,
    targets: Targets,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    /// Speaks to pods by HTTP/2, whatever the request.
    pub fn of_http2_pods() -> Self {
        Self::with(Settings::with_protocol(UpstreamProtocol::Http2))
    }

    pub fn with(settings: Settings) -> Self {
        let server = Server::bind(settings.server.clone()).unwrap();
        Self::over(server, settings)
    }

    pub fn over(server: Server, settings: Settings) -> Self {
        Self::started(server, settings, Server::start)
    }

    /// Returns a fixture whose server `start` starts.
    pub fn started(
        server: Server,
        settings: Settings,
        start: impl FnOnce(Server, ServedKeyspaces) -> Result<ServerHandle, ServerError>,
    ) -> Self {
        let bound = BoundRouter::of(server, KeyspaceChoice::Only, &[settings.stash]);
        let (server, mut keyspaces) = bound.into_parts();
        let BoundKeyspace { table, mut notices, metrics } = keyspaces.remove(0);
        if settings.partitions > 0 {
            table.set_partitions(settings.partitions);
        }
        table.trust_until(Instant::now() + Duration::from_secs(3600));
        let address = server.local_addr();
        let server = start(
            server,
            ServedKeyspaces::only(ServedKeyspace {
                forward: settings.forward,
                table: table.clone(),
                metrics: metrics.clone(),
            }),
        )
        .unwrap();
        let targets = Targets::default();
        // Does what the router's shell does, as far as these tests need it.
        let (told, wanted) = (table.clone(), targets.clone());
        tokio::spawn(async move {
            while let Some(partition) = notices.recv().await {
                tokio::spawn(settle(told.clone(), wanted.clone(), partition));
            }
        });
        Fixture { table, metrics, address, server: Some(server), targets }
    }

    /// Starts a pod and routes partition 0 to it.
    pub async fn pod<F, R>(&self, speaks: Speaks, answer: F) -> Pod
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        let pod = Pod::start(speaks, answer).await;
        self.route(P0, pod.address, 1);
        pod
    }

    /// Starts a pod by HTTP/1.1 that answers everything with an empty `200`, and routes partition 0 to it.
    pub async fn quick_pod(&self) -> Pod {
        self.pod(Speaks::Http1, |_| async { Response::new(empty()) }).await
    }

    /// Starts a pod whose every byte the test writes, and routes partition 0 to it.
    pub async fn scripted_pod(&self) -> ScriptedPod {
        let pod = ScriptedPod::new().await;
        self.route(P0, pod.address, 1);
        pod
    }

    pub async fn client(&self) -> RawHttp1Client {
        RawHttp1Client::connect(self.address).await
    }

    pub async fn http2_client(&self) -> Http2Client {
        Http2Client::connect(self.address).await
    }

    /// Sends a request on a connection of its own.
    pub async fn send(&self, request: impl AsRef<[u8]>) -> RawHttp1Client {
        let mut client = self.client().await;
        client.write(request).await;
        client
    }

    /// Returns the response to a request on a connection of its own.
    pub async fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        self.send(request).await.answer().await
    }

    /// Brings a request, as far as it is written here, from a new client to the pod on a new connection.
    pub async fn exchange(&self, pod: &ScriptedPod, request: impl AsRef<[u8]>) -> (RawHttp1Client, Connection) {
        let mut client = self.client().await;
        let connection = pod.accept_from(&mut client, request).await;
        (client, connection)
    }

    /// Brings a WebSocket from a new client to the pod, which sends these bytes right behind its response.
    pub async fn websocket(&self, pod: &ScriptedPod, behind: &[u8]) -> (RawHttp1Client, Connection) {
        let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
        let (mut client, mut connection) = self.exchange(pod, get_at(P0, upgrade)).await;
        let head = format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\n");
        connection.write([head.as_bytes(), behind].concat()).await;
        assert_eq!(client.head().await.status, 101);
        (client, connection)
    }

    /// Returns the page of metrics.
    pub fn metrics_page(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::with_prefix("segue");
        self.metrics.register(&mut registry);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        page
    }

    /// Begins the shutdown of the server.
    pub fn shut_down(&mut self) -> JoinHandle<()> {
        tokio::spawn(self.server.take().unwrap().shutdown(Instant::now() + TEST_TIMEOUT))
    }

    /// Begins the shutdown of a server whose clients another one serves from now on.
    pub fn replace_server(&mut self) -> JoinHandle<()> {
        tokio::spawn(self.server.take().unwrap().shutdown_replaced(Instant::now() + TEST_TIMEOUT))
    }

    /// Waits until the server's address refuses connections.
    pub async fn refuses_connections(&self) {
        until(|| std::net::TcpStream::connect(self.address).is_err(), "the listener to be closed").await;
    }

    /// Announces that the pod at this address is about to get a partition.
    pub fn expect(&self, address: impl ToString, epoch: u64) {
        let (target, record) = named(&address.to_string(), epoch);
        DataPlane::expect(&*self.table, &target, &record, false);
    }

    /// Announces the pods that requests without a key may go to.
    pub fn ready(&self, addresses: &[SocketAddr]) {
        self.ready_in(&addresses.iter().map(|address| (*address, "")).collect::<Vec<_>>());
    }

    /// Does the same for pods in these zones.
    pub fn ready_in(&self, pods: &[(SocketAddr, &str)]) {
        let pods = pods.iter().map(|(address, zone)| {
            let (target, record) = named(&address.to_string(), 0);
            (target, PodRecord { zone: Some((*zone).to_owned()), ..record })
        });
        let pods: Vec<_> = pods.collect();
        let told: Vec<_> = pods.iter().map(|(target, record)| (target.clone(), record, false)).collect();
        DataPlane::set_ready_pods(&*self.table, &told);
    }

    /// Routes a partition to the pod at this address, as soon as nothing is in flight elsewhere.
    pub fn route(&self, partition: PartitionId, address: impl ToString, epoch: u64) {
        let (target, record) = named(&address.to_string(), epoch);
        self.targets.lock().unwrap().insert(partition, (target, record));
        self.table.stop(partition, HoldCause::Handoff);
        let mut settled = Box::pin(settle(self.table.clone(), self.targets.clone(), partition));
        // At once if possible: some tests act in the same moment.
        if settled.as_mut().now_or_never().is_none() {
            tokio::spawn(settled);
        }
    }

    /// Holds a partition.
    pub fn hold(&self, partition: PartitionId, cause: HoldCause) {
        self.targets.lock().unwrap().remove(&partition);
        self.table.stop(partition, cause);
        DataPlane::name_cause(&*self.table, partition, cause);
    }

    /// Severs what is in flight. An exchange can be severed only once it has lasted for a moment, so this retries until all
    /// are.
    pub fn sever(&self, partition: PartitionId) {
        let table = self.table.clone();
        tokio::spawn(async move {
            while table.sever(partition) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }

    /// Holds a partition and severs what is in flight, as a drain that times out does.
    pub fn hold_and_sever(&self, partition: PartitionId) {
        self.hold(partition, HoldCause::Handoff);
        self.sever(partition);
    }

    /// Waits until this number of requests of the partition is held.
    pub async fn held(&self, partition: PartitionId, requests: usize) {
        until(|| self.table.stashed(partition).0 == requests, "requests to be held").await;
    }

    /// Returns the stage of partition 0 that the control side sees.
    pub fn table_stage(&self) -> GateStage {
        DataPlane::stage(&*self.table, PartitionId::new(0)).0
    }

    /// Waits until this number of requests of the partition is in flight.
    pub async fn in_flight(&self, partition: PartitionId, requests: u32) {
        until(|| self.table.in_flight(partition) == requests, "requests in flight").await;
    }
}

fn named(address: &str, epoch: u64) -> (Target, PodRecord) {
    let record = serde_json::json!({"pod_name": "pod", "address": address});
    (
        Target { pod: format!("pod-{address}"), incarnation: I1, epoch: epoch.into() },
        serde_json::from_value(record).unwrap(),
    )
}

async fn settle(table: Arc<Table>, targets: Targets, partition: PartitionId) {
    loop {
        let Some((target, record)) = targets.lock().unwrap().get(&partition).cloned() else {
            return;
        };
        let (stage, retry_at) = DataPlane::stage(&*table, partition);
        if let Some(at) = retry_at.filter(|at| *at > Instant::now()) {
            tokio::time::sleep_until(at).await;
            continue;
        }
        match stage {
            GateStage::Closed => DataPlane::switch(&*table, partition, &target, &record, false),
            GateStage::Draining(at) if at == target => DataPlane::switch(&*table, partition, &target, &record, false),
            GateStage::Open(at) | GateStage::Flushing(at) if at != target => table.stop(partition, HoldCause::Handoff),
            _ => return,
        }
        return;
    }
}

/// Waits for a condition that another thread brings about without a notification.
pub async fn until(mut condition: impl FnMut() -> bool, what: &str) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Runs `work` to its end, or fails the test after [`TEST_TIMEOUT`].
pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, work).await.expect("something that should have happened has not")
}
