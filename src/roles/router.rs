//! The router's role: the router of `segue-proxy` with its metrics and its part of the admin endpoint.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use segue_config as config;
use segue_coordination::router::{DataPlane as _, RouterStatus};
use segue_coordination::session::lease_now;
use segue_coordination::store::Store;
use segue_protocol::handoff::router::Stage;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_proxy::router::{BoundRouter, JoiningRouter, Router, RouterState};
use segue_proxy::routing::table::Table;
use segue_proxy::settings::ForwardSettings;
use segue_proxy::spans::Tracer;
use segue_proxy::tls::ClientTls;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::admin::StatusSource;
use crate::certificates::Certificates;
use crate::handoff_traces::HandoffTraces;
use crate::metrics::{ParticipantMetrics, RouterMetrics};

/// The role with bound sockets, before it runs.
#[derive(Debug)]
pub struct BoundRouterRole {
    router: BoundRouter,
    section: config::Router,
    admin: Option<String>,
    pods: Option<ClientTls>,
    tracer: Option<Tracer>,
}

/// The role while it takes part in the protocol and has no clients yet.
#[derive(Debug)]
pub struct JoiningRouterRole {
    router: JoiningRouter,
    forward: ForwardSettings,
    source: Arc<RouterStatusSource>,
    drain_timeout: Duration,
}

/// The running role.
#[derive(Debug)]
pub struct RouterRole {
    router: Router,
    source: Arc<RouterStatusSource>,
    drain_timeout: Duration,
}

impl BoundRouterRole {
    /// Binds the address that clients connect to, or adopts listeners that have it. `admin` is the address that others
    /// use for this process's admin endpoint.
    pub fn bind(
        section: &config::Router,
        admin: Option<String>,
        certificates: &Certificates,
        listeners: Vec<TcpListener>,
    ) -> anyhow::Result<Self> {
        let settings = section.server_settings(certificates.router.clone());
        Ok(BoundRouterRole {
            router: BoundRouter::adopt(settings, listeners, section.stash)?,
            section: section.clone(),
            admin,
            pods: certificates.upstream.clone(),
            tracer: None,
        })
    }

    /// Records requests and cutovers by this tracer.
    pub fn traced(self, tracer: Option<&Tracer>) -> Self {
        BoundRouterRole { tracer: tracer.cloned(), ..self }
    }

    /// Returns duplicates of the listeners, for a process that takes them over.
    pub fn duplicates(&self) -> std::io::Result<Vec<TcpListener>> {
        self.router.duplicates()
    }

    /// Starts the router's side of the protocol. `hot_restart` is the text about a hot restart in its status.
    pub fn start(
        self,
        store: Arc<dyn Store>,
        keyspace: &str,
        keys: Keyspace,
        registry: &mut Registry,
        participants: ParticipantMetrics,
        hot_restart: watch::Receiver<Option<String>>,
    ) -> JoiningRouterRole {
        let section = self.section;
        self.router.metrics().register(registry);
        let name = &section.name;
        let traces = self.tracer.clone().map(|tracer| HandoffTraces::new(tracer, keys.clone(), name.clone()));
        let metrics = Arc::new(RouterMetrics::new(registry, participants).with_traces(traces));
        let (stash_requests, stash_bytes, outliers) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register("stash_requests", "Requests that wait", stash_requests.clone());
        registry.register("stash_bytes", "Memory that waiting requests take", stash_bytes.clone());
        let help = "Pods that take nothing they are sent; /status names them";
        registry.register("outlier_pods", help, outliers.clone());
        let forward = ForwardSettings { tracer: self.tracer, ..section.forward_settings(keyspace, self.pods) };
        let settings = section.control_settings(self.admin);
        let router = self.router.join(store, keys, settings, metrics.clone());
        let source = Arc::new(RouterStatusSource {
            name: section.name,
            state: router.state().clone(),
            metrics,
            stash_requests,
            stash_bytes,
            outliers,
            hot_restart,
        });
        JoiningRouterRole { router, forward, source, drain_timeout: section.drain.timeout }
    }
}

impl JoiningRouterRole {
    /// Waits until the router could serve: it is registered, has seen the keyspace since, and its routes are open.
    pub async fn ready(&self) {
        self.router.state().ready().await;
    }

    /// Returns why the router could not serve now.
    pub fn not_ready(&self) -> Option<String> {
        self.router.state().not_ready()
    }

    /// Accepts clients. Requests that arrive before the router is ready wait.
    pub async fn accept(self) -> anyhow::Result<RouterRole> {
        let router = self.router.accept(&self.forward).await?;
        Ok(RouterRole { router, source: self.source, drain_timeout: self.drain_timeout })
    }

    /// Ends without having served.
    pub async fn give_up(self) {
        self.router.give_up().await;
    }
}

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
    pub fn status_source(&self) -> Arc<dyn StatusSource> {
        self.source.clone()
    }

    /// Stops accepting, finishes the requests in progress, refuses those that are still held, and only then
    /// deregisters.
    pub async fn stop(self, leaving: Leaving) {
        let deadline = Instant::now() + self.drain_timeout;
        match leaving {
            Leaving::Ends => self.router.stop(deadline).await,
            Leaving::Replaced => self.router.stop_replaced(deadline).await,
        }
    }
}

#[derive(Debug)]
struct RouterStatusSource {
    name: String,
    hot_restart: watch::Receiver<Option<String>>,
    state: RouterState,
    metrics: Arc<RouterMetrics>,
    stash_requests: Gauge,
    stash_bytes: Gauge,
    outliers: Gauge,
}

impl StatusSource for RouterStatusSource {
    fn name(&self) -> &'static str {
        "router"
    }

    fn ready(&self) -> Result<(), String> {
        self.state.not_ready().map_or(Ok(()), Err)
    }

    fn status(&self) -> Value {
        let (status, table) = (self.state.status(), self.state.table());
        let partitions = PartitionId::all(table.partitions()).map(|partition| {
            let (stage, _) = table.stage(partition);
            let (stashed, stashed_bytes) = table.stashed(partition);
            let (stage, target) = match stage {
                Stage::Open(target) => ("open", Some(target)),
                Stage::Draining(target) => ("draining", Some(target)),
                Stage::Flushing(target) => ("flushing", Some(target)),
                Stage::Closed => ("held", None),
            };
            json!({
                "partition": partition,
                "stage": stage,
                "pod": target.as_ref().map(|target| &target.pod),
                "epoch": target.as_ref().map(|target| target.epoch),
                "in_flight": table.in_flight(partition),
                "stashed": stashed,
                "stashed_bytes": stashed_bytes,
            })
        });
        let outliers = table.outliers().into_iter().map(|pod| {
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

    fn summary(&self) -> Option<Value> {
        let mut summary = table_summary(&self.name, self.state.table());
        summary["not_ready"] = json!(self.state.status().not_ready);
        Some(summary)
    }

    fn refresh(&self) {
        let table = self.state.table();
        let (depth, bytes) = PartitionId::all(table.partitions())
            .map(|partition| table.stashed(partition))
            .fold((0, 0), |(depth, bytes), (waiting, size)| (depth + waiting, bytes + size));
        self.stash_requests.set(depth as i64);
        self.stash_bytes.set(bytes as i64);
        self.outliers.set(table.outliers().len() as i64);
        self.metrics.set_trusted_until(self.state.status().trusted_until);
    }
}

/// Returns the figures of a router, summed over all its partitions.
pub(crate) fn table_summary(name: &str, table: &Table) -> Value {
    let (mut in_flight, mut stashed, mut stashed_bytes) = (0, 0, 0);
    for partition in PartitionId::all(table.partitions()) {
        let (waiting, bytes) = table.stashed(partition);
        in_flight += table.in_flight(partition);
        stashed += waiting;
        stashed_bytes += bytes;
    }
    json!({ "name": name, "in_flight": in_flight, "stashed": stashed, "stashed_bytes": stashed_bytes })
}

fn lease_remaining(status: &RouterStatus) -> Duration {
    status.trusted_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(lease_now()))
}
