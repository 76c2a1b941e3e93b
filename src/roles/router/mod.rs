//! The router's role: the router of `segue-proxy` with its metrics and its part of the admin endpoint.

mod series;
mod status;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use prometheus_client::registry::Registry;
use segue_config::{self as config, Config};
use segue_coordination::store::Store;
use segue_proxy::metrics::{Metrics, PodSeries};
use segue_proxy::router::{BoundKeyspace, BoundRouter, JoiningRouter, Membership, Router, RouterState};
use segue_proxy::routing::key_limit::KeyLimiter;
use segue_proxy::routing::keyspace_choice::KeyspaceChoice;
use segue_proxy::routing::table::{StashLimits, Table};
use segue_proxy::settings::{CommonSettings, ForwardSettings, LoggedRequests};
use segue_proxy::spans::Tracer;
use segue_proxy::tls::ClientTls;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use self::series::Series;
use self::status::RouterStatusSource;
pub(crate) use self::status::table_summary;
use crate::admin::StatusSource;
use crate::process::certificates::Certificates;
use crate::roles::keyspace::RoleKeyspace;
use crate::roles::refusal_log;

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
    site: RouterSite,
    keyspaces: Vec<KeyspaceRouter>,
}

/// The running role.
#[derive(Debug)]
pub(crate) struct RouterRole {
    router: Router,
    site: RouterSite,
    keyspaces: Vec<KeyspaceRouter>,
    drain_timeout: Duration,
}

/// The common part of the router in all keyspaces.
#[derive(Debug)]
struct RouterSite {
    section: config::Router,
    admin: Option<String>,
    pods: Option<ClientTls>,
    tracer: Option<Tracer>,
    requests: LoggedRequests,
    is_labelled: bool,
    /// The counters of the listener.
    workers: Metrics,
    /// The text about a hot restart in the status.
    hot_restart: watch::Receiver<Option<String>>,
}

/// The router in one keyspace.
#[derive(Debug)]
struct KeyspaceRouter {
    keyspace: String,
    source: Arc<RouterStatusSource>,
    /// Tells of refusals.
    _refusals: AbortOnDropHandle<()>,
}

/// A keyspace of the router that begins.
struct JoinedKeyspace {
    membership: Membership,
    forward: ForwardSettings,
    series: Series,
    refusals: AbortOnDropHandle<()>,
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
        keyspaces: &mut [RoleKeyspace],
        registry: &mut Registry,
        hot_restart: &watch::Receiver<Option<String>>,
    ) -> JoiningRouterRole {
        let BoundRouterRole { router, key_limiters, is_labelled, section, admin, pods, tracer, requests } = self;
        if is_labelled {
            router.listener_metrics().register_listener(registry);
        }
        let (workers, hot_restart) = (router.listener_metrics().clone(), hot_restart.clone());
        let site = RouterSite { section, admin, pods, tracer, requests, is_labelled, workers, hot_restart };
        let routed = keyspaces.iter_mut().filter_map(|keyspace| Some((keyspace.section.routing.clone()?, keyspace)));
        let each = routed.zip(key_limiters).zip(router.keyspaces());
        let joined = each.map(|(((routing, keyspace), key_limit), bound)| {
            site.begin((keyspace, &routing), bound, key_limit, registry)
        });
        let (mut memberships, mut forward, mut begun) = (Vec::new(), Vec::new(), Vec::new());
        for joined in joined.collect::<Vec<_>>() {
            memberships.push(joined.membership);
            begun.push((joined.forward.keyspace.clone(), joined.series, joined.refusals));
            forward.push(joined.forward);
        }
        let router = router.join(store.clone(), memberships);
        let keyspaces = begun.into_iter().zip(router.states());
        let keyspaces = keyspaces.map(|((keyspace, series, refusals), state)| KeyspaceRouter {
            keyspace,
            source: site.source(series, state),
            _refusals: refusals,
        });
        JoiningRouterRole { keyspaces: keyspaces.collect(), router, forward, site }
    }
}

impl RouterSite {
    /// Registers the series of a keyspace, and returns its settings.
    fn begin(
        &self,
        (keyspace, routing): (&mut RoleKeyspace, &config::Routing),
        bound: &BoundKeyspace,
        key_limit: Option<KeyLimiter>,
        registry: &mut Registry,
    ) -> JoinedKeyspace {
        let series =
            Series::new(keyspace, registry, &bound.metrics, !self.is_labelled, self.tracer.as_ref(), &self.section);
        PodSeries::register(bound.table.clone(), keyspace.registry(registry));
        let membership = Membership {
            keys: keyspace.keys.clone(),
            settings: self.section.control_settings(routing, self.admin.clone()),
            observer: series.metrics.clone(),
            plane: None,
            span: keyspace.span(),
        };
        let told = refusal_log::tell_refusals(bound.metrics.clone()).instrument(keyspace.span());
        let refusals = AbortOnDropHandle::new(tokio::spawn(told));
        let settings = self.section.forward_settings(&keyspace.section.name, routing, self.pods.clone());
        let forward = ForwardSettings { tracer: self.tracer.clone(), requests: self.requests, key_limit, ..settings };
        JoinedKeyspace { membership, forward, series, refusals }
    }

    /// Returns the settings that hold for requests of no keyspace as well.
    fn common(&self) -> CommonSettings {
        CommonSettings {
            router: self.section.name.clone(),
            trust_forwarded: self.section.trust_forwarded,
            limits: self.section.limits.clone(),
            unread_timeout: self.section.upstream.idle_timeout,
            tracer: self.tracer.clone(),
            requests: self.requests,
        }
    }

    fn source(&self, series: Series, state: &RouterState) -> Arc<RouterStatusSource> {
        Arc::new(RouterStatusSource {
            name: self.section.name.clone(),
            state: state.clone(),
            workers: self.workers.clone(),
            series,
            hot_restart: self.hot_restart.clone(),
        })
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
        Some(if self.site.is_labelled { format!("keyspace {keyspace}: {reason}") } else { reason })
    }

    /// Accepts clients. Requests that arrive before their keyspace is ready wait.
    pub(crate) async fn accept(self) -> anyhow::Result<RouterRole> {
        let router = self.router.accept(self.site.common(), self.forward).await?;
        let drain_timeout = self.site.section.drain.timeout;
        Ok(RouterRole { router, site: self.site, keyspaces: self.keyspaces, drain_timeout })
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
    /// Returns the router's part of the admin endpoint in a keyspace.
    pub(crate) fn status_source(&self, keyspace: &str) -> Option<Arc<dyn StatusSource>> {
        let found = self.keyspaces.iter().find(|router| router.keyspace == keyspace)?;
        Some(found.source.clone())
    }

    /// Routes requests to one more keyspace.
    pub(crate) async fn add(&mut self, keyspace: &mut RoleKeyspace, registry: &mut Registry) -> anyhow::Result<()> {
        let Some(routing) = keyspace.section.routing.clone() else { return Ok(()) };
        let bound = self.router.bind_keyspace(routing.stash);
        let key_limit = routing.key_limits.as_ref().map(KeyLimiter::new);
        let JoinedKeyspace { membership, forward, series, refusals } =
            self.site.begin((keyspace, &routing), &bound, key_limit, registry);
        let state = self.router.add(bound, membership, forward, routing.matching).await?;
        let (keyspace, source) = (keyspace.section.name.clone(), self.site.source(series, &state));
        self.keyspaces.push(KeyspaceRouter { keyspace, source, _refusals: refusals });
        Ok(())
    }

    /// Ends the routing to a keyspace: refuses new requests at once, finishes those in progress, and deregisters there.
    pub(crate) async fn remove(&mut self, keyspace: &str) {
        self.router.remove(keyspace, Instant::now() + self.drain_timeout).await;
        self.keyspaces.retain(|router| router.keyspace != keyspace);
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
