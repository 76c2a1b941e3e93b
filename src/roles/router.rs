//! The router's role: the router of `segue-proxy` with its metrics and its part of the admin endpoint.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use segue_config::{self as config, Config};
use segue_coordination::router::{DataPlane as _, RouterStatus};
use segue_coordination::session::lease_now;
use segue_coordination::store::Store;
use segue_protocol::handoff::router::GateStage;
use segue_protocol::ids::PartitionId;
use segue_proxy::metrics::{Metrics, PodSeries};
use segue_proxy::router::{BoundRouter, JoiningRouter, Membership, Router, RouterState};
use segue_proxy::routing::key_limit::KeyLimiter;
use segue_proxy::routing::keyspace_choice::KeyspaceChoice;
use segue_proxy::routing::table::{ExchangeAges, StashLimits, Table};
use segue_proxy::settings::{CommonSettings, ForwardSettings, LoggedRequests};
use segue_proxy::spans::Tracer;
use segue_proxy::tls::ClientTls;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::admin::StatusSource;
use crate::operator::top::OwnRouter;
use crate::process::certificates::Certificates;
use crate::roles::keyspace::RoleKeyspace;
use crate::roles::{exchanges, progress, refusal_log};
use crate::telemetry::handoff_traces::HandoffTraces;
use crate::telemetry::metrics::RouterMetrics;

/// The role with bound sockets, before it runs.
#[derive(Debug)]
pub(crate) struct BoundRouterRole {
    router: BoundRouter,
    /// One for each keyspace.
    key_limiters: Vec<Option<KeyLimiter>>,
    is_labelled: bool,
    section: config::Router,
    admin: Option<String>,
    pods: Option<ClientTls>,
    tracer: Option<Tracer>,
    requests: LoggedRequests,
}

/// The role while it takes part in the protocol and has no clients yet.
#[derive(Debug)]
pub(crate) struct JoiningRouterRole {
    router: JoiningRouter,
    forward: Vec<ForwardSettings>,
    is_labelled: bool,
    sources: Vec<Arc<RouterStatusSource>>,
    drain_timeout: Duration,
    refusals: Vec<AbortOnDropHandle<()>>,
}

/// The running role.
#[derive(Debug)]
pub(crate) struct RouterRole {
    router: Router,
    sources: Vec<Arc<RouterStatusSource>>,
    drain_timeout: Duration,
    /// The tasks that tell of refusals.
    _refusals: Vec<AbortOnDropHandle<()>>,
}

impl BoundRouterRole {
    /// Binds the address that clients connect to, or adopts listeners that have it. `admin` is the address that others use for
    /// this process's admin endpoint.
    pub(crate) fn bind(
        config: &Config,
        section: &config::Router,
        admin: Option<String>,
        certificates: &Certificates,
        listeners: Vec<TcpListener>,
    ) -> anyhow::Result<Self> {
        let settings = section.server_settings(certificates.router.clone());
        let routings: Vec<_> = config.keyspaces.iter().filter_map(|keyspace| keyspace.routing.as_ref()).collect();
        let stashes: Vec<StashLimits> = routings.iter().map(|routing| routing.stash).collect();
        let matches = || routings.iter().map(|routing| routing.matching.clone()).collect();
        let choice = if config.lists_keyspaces { KeyspaceChoice::Among(matches()) } else { KeyspaceChoice::Only };
        Ok(BoundRouterRole {
            router: BoundRouter::adopt(settings, listeners, choice, &stashes)?,
            key_limiters: routings.iter().map(|routing| routing.key_limits.as_ref().map(KeyLimiter::new)).collect(),
            is_labelled: config.lists_keyspaces,
            section: section.clone(),
            admin,
            pods: certificates.upstream.clone(),
            tracer: None,
            requests: config.log.requests,
        })
    }

    /// Records requests and cutovers by this tracer.
    pub(crate) fn traced(self, tracer: Option<&Tracer>) -> Self {
        BoundRouterRole { tracer: tracer.cloned(), ..self }
    }

    /// Returns the table of each keyspace, in the order of the configuration.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.router.keyspaces().iter().map(|keyspace| &keyspace.table)
    }

    /// Returns what limits the keys of each keyspace, in the order of the configuration.
    pub(crate) fn key_limiters(&self) -> impl Iterator<Item = Option<KeyLimiter>> {
        self.key_limiters.iter().cloned()
    }

    /// Returns duplicates of the listeners, for a process that takes them over.
    pub(crate) fn duplicates(&self) -> std::io::Result<Vec<TcpListener>> {
        self.router.duplicates()
    }

    /// Starts the router's side of the protocol in these keyspaces, those of the configuration. `hot_restart` is the text about
    /// a hot restart in its status.
    pub(crate) fn start(
        self,
        store: &Arc<dyn Store>,
        keyspaces: &[RoleKeyspace],
        registry: &mut Registry,
        hot_restart: &watch::Receiver<Option<String>>,
    ) -> JoiningRouterRole {
        let routings: Vec<_> = keyspaces.iter().filter_map(|keyspace| keyspace.section.routing.as_ref()).collect();
        let is_labelled = self.is_labelled;
        if is_labelled {
            self.router.listener_metrics().register_listener(registry);
        }
        let (mut metrics, mut memberships, mut forward) = (Vec::new(), Vec::new(), Vec::new());
        let mut refusals = Vec::new();
        let each = keyspaces.iter().zip(&routings).zip(&self.key_limiters);
        for (((keyspace, routing), key_limit), bound) in each.zip(self.router.keyspaces()) {
            let series =
                Series::new(keyspace, registry, &bound.metrics, !is_labelled, self.tracer.as_ref(), &self.section);
            PodSeries::register(bound.table.clone(), keyspace.registry(registry));
            memberships.push(Membership {
                keys: keyspace.keys.clone(),
                settings: self.section.control_settings(routing, self.admin.clone()),
                observer: series.metrics.clone(),
                plane: None,
                span: keyspace.span(),
            });
            let told = refusal_log::tell_refusals(bound.metrics.clone()).instrument(keyspace.span());
            refusals.push(AbortOnDropHandle::new(tokio::spawn(told)));
            let settings = self.section.forward_settings(&keyspace.section.name, routing, self.pods.clone());
            let (tracer, requests, key_limit) = (self.tracer.clone(), self.requests, key_limit.clone());
            forward.push(ForwardSettings { tracer, requests, key_limit, ..settings });
            metrics.push(series);
        }
        let workers = self.router.listener_metrics().clone();
        let router = self.router.join(store.clone(), memberships);
        let source = |(series, state): (Series, &RouterState)| {
            Arc::new(RouterStatusSource {
                name: self.section.name.clone(),
                state: state.clone(),
                workers: workers.clone(),
                series,
                hot_restart: hot_restart.clone(),
            })
        };
        let sources = metrics.into_iter().zip(router.states()).map(source).collect();
        let drain_timeout = self.section.drain.timeout;
        JoiningRouterRole { router, forward, is_labelled, sources, drain_timeout, refusals }
    }
}

impl JoiningRouterRole {
    /// Waits until the router could serve every keyspace: it is registered, has seen the keyspace since, and its routes are
    /// open.
    pub(crate) async fn ready(&self) {
        join_all(self.router.states().map(RouterState::ready)).await;
    }

    /// Returns why the router could not serve now.
    pub(crate) fn not_ready(&self) -> Option<String> {
        let states = self.router.states().zip(&self.forward);
        let mut reasons = states.filter_map(|(state, forward)| Some((&forward.keyspace, state.not_ready()?)));
        let (keyspace, reason) = reasons.next()?;
        Some(if self.is_labelled { format!("keyspace {keyspace}: {reason}") } else { reason })
    }

    /// Accepts clients. Requests that arrive before their keyspace is ready wait.
    pub(crate) async fn accept(self) -> anyhow::Result<RouterRole> {
        let common = CommonSettings::from(&self.forward[0]);
        let router = self.router.accept(common, self.forward).await?;
        let (sources, drain_timeout, _refusals) = (self.sources, self.drain_timeout, self.refusals);
        Ok(RouterRole { router, sources, drain_timeout, _refusals })
    }

    /// Ends without having served.
    pub(crate) async fn give_up(self) {
        self.router.give_up().await;
    }
}

/// The process that serves the router's clients from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Succession {
    /// None: idle connections are closed.
    Ends,
    /// Another process, which has the listeners: a connection is closed with its next response, not before.
    Replaced,
}

impl RouterRole {
    /// Returns the router's part of the admin endpoint for each keyspace.
    pub(crate) fn status_sources(&self) -> impl Iterator<Item = Arc<dyn StatusSource>> {
        self.sources.iter().map(|source| source.clone() as Arc<dyn StatusSource>)
    }

    /// Bounds how long the requests in progress may take at the end.
    pub(crate) fn ending_within(self, most: Duration) -> Self {
        RouterRole { drain_timeout: self.drain_timeout.min(most), ..self }
    }

    /// Stops accepting, finishes the requests in progress, refuses those that are still held, and only then
    /// deregisters.
    pub(crate) async fn stop(self, leaving: Succession) {
        let deadline = Instant::now() + self.drain_timeout;
        match leaving {
            Succession::Ends => self.router.stop(deadline).await,
            Succession::Replaced => self.router.stop_replaced(deadline).await,
        }
    }
}

/// The series of a router in one keyspace.
#[derive(Debug)]
struct Series {
    metrics: Arc<RouterMetrics>,
    stash_requests: Gauge,
    stash_bytes: Gauge,
}

impl Series {
    /// Registers the series. `counters` are those of the data path, including connections if `is_only`.
    fn new(
        keyspace: &RoleKeyspace,
        registry: &mut Registry,
        counters: &Metrics,
        is_only: bool,
        tracer: Option<&Tracer>,
        section: &config::Router,
    ) -> Self {
        let registry = keyspace.registry(registry);
        if is_only {
            counters.register(registry);
        } else {
            counters.register_keyspace(registry);
        }
        let traces =
            tracer.map(|tracer| HandoffTraces::new(tracer.clone(), keyspace.keys.clone(), section.name.clone()));
        let metrics = RouterMetrics::new(registry, keyspace.participants.clone()).with_traces(traces);
        let (stash_requests, stash_bytes) = (Gauge::default(), Gauge::default());
        registry.register("stash_requests", "Requests that wait", stash_requests.clone());
        registry.register("stash_bytes", "Memory that waiting requests take", stash_bytes.clone());
        Series { metrics: Arc::new(metrics), stash_requests, stash_bytes }
    }
}

#[derive(Debug)]
struct RouterStatusSource {
    name: String,
    hot_restart: watch::Receiver<Option<String>>,
    state: RouterState,
    workers: Metrics,
    series: Series,
}

impl StatusSource for RouterStatusSource {
    fn name(&self) -> &'static str {
        "router"
    }

    fn ready(&self) -> Result<(), String> {
        let trusted_until = self.state.status().trusted_until;
        let not_ready = self.state.not_ready().map_or(Ok(()), Err);
        not_ready
            .and_then(|()| progress::of_lease(trusted_until))
            .and_then(|()| progress::of_workers(self.workers.longest_silence()))
    }

    fn status(&self) -> Value {
        let (status, table) = (self.state.status(), self.state.table());
        let partitions = PartitionId::all(table.partitions()).map(|partition| partition_status(table, partition));
        let outliers = table.outliers().into_iter().map(|pod| {
            let (unreachable, misdirected) = pod.health.refusals();
            json!({
                "pod": pod.name,
                "incarnation": pod.incarnation,
                "address": pod.address,
                "refused_in_a_row": pod.health.in_a_row(),
                "unreachable": unreachable,
                "misdirected": misdirected,
                "responses_broken_off": pod.health.broken_responses(),
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

    fn routers(&self) -> Vec<OwnRouter> {
        vec![(self.name.clone(), self.state.table().clone())]
    }

    fn refresh(&self) {
        let table = self.state.table();
        let (depth, bytes) = PartitionId::all(table.partitions())
            .map(|partition| table.stashed(partition))
            .fold((0, 0), |(depth, bytes), (waiting, size)| (depth + waiting, bytes + size));
        self.series.stash_requests.set(depth as i64);
        self.series.stash_bytes.set(bytes as i64);
        self.series.metrics.set_trusted_until(self.state.status().trusted_until);
    }
}

fn partition_status(table: &Table, partition: PartitionId) -> Value {
    let (stage, _) = table.stage(partition);
    let (stashed, stashed_bytes) = table.stashed(partition);
    let (stage, target) = match stage {
        GateStage::Open(target) => ("open", Some(target)),
        GateStage::Draining(target) => ("draining", Some(target)),
        GateStage::Flushing(target) => ("flushing", Some(target)),
        GateStage::Closed => ("held", None),
    };
    let in_flight = table.in_flight(partition);
    let ExchangeAges { streams, oldest } =
        if in_flight > 0 { table.lasting_of(partition) } else { ExchangeAges::default() };
    let end = if in_flight > 0 { table.drain_end(partition) } else { None };
    json!({
        "partition": partition,
        "stage": stage,
        "pod": target.as_ref().map(|target| &target.pod),
        "epoch": target.as_ref().map(|target| target.epoch),
        "in_flight": in_flight,
        "streams": streams,
        "oldest_ms": oldest.as_ref().map(|oldest| oldest.since.elapsed().as_millis() as u64),
        "oldest": oldest.as_ref().and_then(|oldest| oldest.request.as_deref()).map(exchanges::request),
        "severs_streams_in_ms": end.and_then(|end| exchanges::time_left(end.severs_streams)),
        "severs_in_ms": end.and_then(|end| exchanges::time_left(end.severs)),
        "gives_up_in_ms": end.and_then(|end| exchanges::time_left(end.gives_up)),
        "stashed": stashed,
        "stashed_bytes": stashed_bytes,
    })
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
