//! The router's role: the server and its table, and the shell of `segue-coordination` that controls them.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use segue_config as config;
use segue_coordination::router::{
    DataPlane as _, RouterObserver, RouterPorts, RouterSettings, RouterStatus, run_router,
};
use segue_coordination::session::lease_now;
use segue_coordination::store::Store;
use segue_protocol::handoff::router::Stage;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_proxy::metrics::Metrics;
use segue_proxy::routing::table::Table;
use segue_proxy::server::{Server, ServerHandle};
use segue_proxy::settings::{ForwardSettings, ServerSettings, UPLOAD_GRACE};
use segue_proxy::tls::ClientTls;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admin::Part;
use crate::certificates::Certificates;
use crate::metrics::{ResyncMetrics, RouterMetrics};

/// A router with bound sockets that does not run yet.
#[derive(Debug)]
pub struct BoundRouter {
    server: Server,
    section: config::Router,
    admin: Option<String>,
    pods: Option<ClientTls>,
}

/// A router that takes part in the protocol and has no clients yet.
#[derive(Debug)]
pub struct JoiningRouter {
    server: Server,
    forward: ForwardSettings,
    forwarded: Metrics,
    part: Arc<RouterPart>,
    control: Control,
    drain_timeout: Duration,
}

/// A running router.
#[derive(Debug)]
pub struct RouterRole {
    server: ServerHandle,
    part: Arc<RouterPart>,
    control: Control,
    drain_timeout: Duration,
}

/// The router's side of the protocol.
#[derive(Debug)]
struct Control {
    shutdown: CancellationToken,
    shell: JoinHandle<()>,
}

impl Control {
    /// Deregisters.
    async fn end(self) {
        self.shutdown.cancel();
        // The task ends by itself now. The runtime has reported any panic in it.
        let _ = self.shell.await;
    }
}

impl BoundRouter {
    /// Binds the address that clients connect to, or adopts listeners that have it. `admin` is the address that others
    /// use for this process's admin endpoint.
    pub fn bind(
        section: &config::Router,
        admin: Option<String>,
        certificates: &Certificates,
        listeners: Vec<TcpListener>,
    ) -> anyhow::Result<Self> {
        let settings = ServerSettings {
            listen: section.listen.to_string(),
            workers: section.workers.map_or(0, usize::from),
            tls: certificates.router.clone(),
        };
        Ok(BoundRouter {
            server: Server::adopt(settings, listeners)?,
            section: section.clone(),
            admin,
            pods: certificates.upstream.clone(),
        })
    }

    /// Returns duplicates of the listeners, for a process that takes them over.
    pub fn duplicates(&self) -> std::io::Result<Vec<TcpListener>> {
        self.server.duplicates()
    }

    /// Starts the router's side of the protocol. `hot_restart` is the text about a hot restart in its status.
    pub fn start(
        self,
        store: Arc<dyn Store>,
        keyspace: &str,
        keys: Keyspace,
        registry: &mut Registry,
        resyncs: ResyncMetrics,
        hot_restart: watch::Receiver<Option<String>>,
    ) -> anyhow::Result<JoiningRouter> {
        let section = self.section;
        let (table, notices) = Table::new(self.server.workers(), section.stash);
        let forwarded = Metrics::new(self.server.workers());
        forwarded.register(registry);
        let metrics = Arc::new(RouterMetrics::new(registry, resyncs));
        let (stash_requests, stash_bytes, outliers) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register("stash_requests", "Requests that wait", stash_requests.clone());
        registry.register("stash_bytes", "Memory that waiting requests take", stash_bytes.clone());
        let help = "Pods that take nothing they are sent; /status names them";
        registry.register("outlier_pods", help, outliers.clone());
        let forward = forward_settings(&section, self.pods, keyspace);
        let (sender, status) = watch::channel(RouterStatus::default());
        let shutdown = CancellationToken::new();
        let observer: Arc<dyn RouterObserver> = metrics.clone();
        let settings = router_settings(&section, self.admin);
        let ports = RouterPorts { plane: table.clone(), notices, observer, status: sender };
        let shell = tokio::spawn(run_router(store, keys, settings, ports, shutdown.clone()));
        let part = RouterPart {
            name: section.name,
            table,
            status,
            metrics,
            stash_requests,
            stash_bytes,
            outliers,
            hot_restart,
        };
        let control = Control { shutdown, shell };
        let drain_timeout = section.drain.timeout;
        Ok(JoiningRouter { server: self.server, forward, forwarded, part: Arc::new(part), control, drain_timeout })
    }
}

impl JoiningRouter {
    /// Waits until the router could serve: it is registered, has seen the keyspace since, and its routes are open.
    pub async fn ready(&self) {
        while self.part.ready().is_err() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Returns why the router could not serve now.
    pub fn not_ready(&self) -> Option<String> {
        self.part.ready().err()
    }

    /// Accepts clients. Requests that arrive before the router is ready wait.
    pub async fn accept(self) -> anyhow::Result<RouterRole> {
        match self.server.start(&self.forward, &self.part.table, &self.forwarded) {
            Ok(server) => {
                Ok(RouterRole { server, part: self.part, control: self.control, drain_timeout: self.drain_timeout })
            }
            Err(error) => {
                self.control.end().await;
                Err(error.into())
            }
        }
    }

    /// Ends without having served.
    pub async fn give_up(self) {
        self.control.end().await;
    }
}

/// Time between two checks whether a router could serve.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The process that serves the router's clients from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// None: idle connections are closed.
    Ends,
    /// Another process, which has the listeners: a connection is closed with its next response, not before.
    Replaced,
}

impl RouterRole {
    /// Returns the router's part of the admin endpoint.
    pub fn part(&self) -> Arc<dyn Part> {
        self.part.clone()
    }

    /// Stops accepting, finishes the requests in progress, refuses those that are still held, and only then
    /// deregisters. Handoffs must wait for this router until its last request is done.
    pub async fn stop(self, leaving: Leaving) {
        let deadline = Instant::now() + self.drain_timeout;
        let table = self.part.table.clone();
        let refusing = tokio::spawn(async move {
            tokio::time::sleep_until(deadline - (deadline - Instant::now()) / 10).await;
            table.shut_down();
        });
        match leaving {
            Leaving::Ends => self.server.shutdown(deadline).await,
            Leaving::Replaced => self.server.shutdown_replaced(deadline).await,
        }
        refusing.abort();
        self.control.end().await;
    }
}

fn router_settings(section: &config::Router, admin: Option<String>) -> RouterSettings {
    RouterSettings {
        name: section.name.clone(),
        lease_ttl: section.lease_ttl,
        on_store_loss: section.on_store_loss,
        drain: section.drain.clone(),
        admin,
        partitioner: Some(section.partition.partitioner()),
        request_timeout: section.upstream.request_timeout,
    }
}

fn forward_settings(section: &config::Router, pods: Option<ClientTls>, keyspace: &str) -> ForwardSettings {
    ForwardSettings {
        router: section.name.clone(),
        keyspace: keyspace.to_owned(),
        partition: section.partition.clone(),
        trust_forwarded: section.trust_forwarded,
        limits: section.limits.clone(),
        upload_grace: UPLOAD_GRACE,
        upstream: section.upstream.clone().with_tls(pods),
    }
}

#[derive(Debug)]
struct RouterPart {
    name: String,
    hot_restart: watch::Receiver<Option<String>>,
    table: Arc<Table>,
    status: watch::Receiver<RouterStatus>,
    metrics: Arc<RouterMetrics>,
    stash_requests: Gauge,
    stash_bytes: Gauge,
    outliers: Gauge,
}

impl Part for RouterPart {
    fn name(&self) -> &'static str {
        "router"
    }

    fn ready(&self) -> Result<(), String> {
        let status = self.status.borrow();
        match &status.not_ready {
            Some(reason) => Err(reason.clone()),
            None if self.table.partitions() == 0 => {
                Err("the keyspace has no settings yet: no coordinator has led".into())
            }
            None => Ok(()),
        }
    }

    fn status(&self) -> Value {
        let status = self.status.borrow();
        let partitions = PartitionId::all(self.table.partitions()).map(|partition| {
            let (stage, _) = self.table.stage(partition);
            let (stashed, stashed_bytes) = self.table.stashed(partition);
            let (stage, target) = match stage {
                Stage::Open(target) => ("open", Some(target)),
                Stage::Draining(target) => ("draining", Some(target)),
                Stage::Flushing(target) => ("flushing", Some(target)),
                Stage::Held => ("held", None),
            };
            json!({
                "partition": partition,
                "stage": stage,
                "pod": target.as_ref().map(|target| &target.pod),
                "epoch": target.as_ref().map(|target| target.epoch),
                "in_flight": self.table.in_flight(partition),
                "stashed": stashed,
                "stashed_bytes": stashed_bytes,
            })
        });
        let outliers = self.table.outliers().into_iter().map(|pod| {
            let (unreachable, misdirected) = pod.health.refusals();
            json!({
                "pod": pod.name,
                "incarnation": pod.incarnation,
                "address": pod.address,
                "refused_in_a_row": pod.health.in_a_row(),
                "unreachable": unreachable,
                "misdirected": misdirected,
            })
        });
        json!({
            "name": self.name,
            "hot_restart": *self.hot_restart.borrow(),
            "outliers": outliers.collect::<Vec<_>>(),
            "not_ready": status.not_ready,
            "incarnation": status.incarnation,
            "lease_remaining_ms": lease_remaining(&status).as_millis() as u64,
            "resyncs": status.resyncs,
            "partitions": partitions.collect::<Vec<_>>(),
        })
    }

    fn refresh(&self) {
        let (depth, bytes) = PartitionId::all(self.table.partitions())
            .map(|partition| self.table.stashed(partition))
            .fold((0, 0), |(depth, bytes), (waiting, size)| (depth + waiting, bytes + size));
        self.stash_requests.set(depth as i64);
        self.stash_bytes.set(bytes as i64);
        self.outliers.set(self.table.outliers().len() as i64);
        self.metrics.set_lease_trusted_until(lease_trusted_until(&self.status.borrow()));
    }
}

/// Returns until when the lease may be trusted, in seconds of Unix time; 0 before the first lease.
fn lease_trusted_until(status: &RouterStatus) -> f64 {
    let Some(until) = status.trusted_until else { return 0.0 };
    let (lease, unix) = (lease_now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    match until.checked_duration_since(lease) {
        Some(left) => unix + left.as_secs_f64(),
        None => unix - lease.saturating_duration_since(until).as_secs_f64(),
    }
}

fn lease_remaining(status: &RouterStatus) -> Duration {
    status.trusted_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(lease_now()))
}
