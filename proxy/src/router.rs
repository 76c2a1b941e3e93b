//! A whole router: the server, the routing table that its workers share, and the control side that takes part in the
//! protocol and drives the table.
//!
//! A router starts in three steps. A [`BoundRouter`] has its sockets. A [`JoiningRouter`] takes part in the protocol and
//! has no clients. A [`Router`] accepts clients. In a hot restart a new process waits between the last two until it could
//! serve, while the old one still does.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use segue_coordination::router::{DrainSettings, RouterSettings};
//! use segue_coordination::store::{EtcdOptions, EtcdStore};
//! use segue_protocol::handoff::router::OnStoreLoss;
//! use segue_protocol::keys::Keyspace;
//! use segue_proxy::router::BoundRouter;
//! use segue_proxy::routing::partition_key::PartitionSource;
//! use segue_proxy::routing::table::StashLimits;
//! use segue_proxy::settings::{ClientLimits, ForwardSettings, Http1Server, ServerSettings, UPLOAD_GRACE, UpstreamSettings};
//! use tokio::time::Instant;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(EtcdStore::connect(EtcdOptions::new(["http://127.0.0.1:2379".to_owned()]))?);
//! let keys = Keyspace::new("/segue/", "default");
//! let partition = PartitionSource::Number { header: PartitionSource::DEFAULT_HEADER, order_by: None };
//! let upstream = UpstreamSettings::default();
//! let stash = StashLimits::default();
//! let settings = RouterSettings {
//!     name: "router-0".to_owned(),
//!     lease_ttl: Duration::from_secs(15),
//!     on_store_loss: OnStoreLoss::Auto,
//!     drain: DrainSettings::default(),
//!     admin: None,
//!     partitioner: Some(partition.partitioner()),
//!     request_timeout: upstream.request_timeout,
//!     max_wait: stash.max_wait,
//! };
//! let forward = ForwardSettings {
//!     router: settings.name.clone(),
//!     keyspace: "default".to_owned(),
//!     partition,
//!     trust_forwarded: false,
//!     limits: ClientLimits::default(),
//!     upload_grace: UPLOAD_GRACE,
//!     tracer: None,
//!     upstream,
//! };
//!
//! let server = ServerSettings { listen: "127.0.0.1:8080".to_owned(), workers: 0, tls: None, http1: Http1Server::default() };
//! let router = BoundRouter::bind(server, stash)?.join(store, keys, settings, Arc::new(()));
//! router.state().ready().await;
//! let router = router.accept(&forward).await?;
//!
//! tokio::signal::ctrl_c().await?;
//! router.stop(Instant::now() + Duration::from_secs(20)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! * An address that cannot be bound is reported before the router takes part in the protocol.
//! * A router deregisters only when its last request is done, so that handoffs wait for it until then.
//! * A router that is dropped is one that crashed: its connections close, and its registration ends with its lease.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use segue_coordination::router::{DataPlane, RouterObserver, RouterPorts, RouterSettings, RouterStatus, run_router};
use segue_coordination::session::Leases;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::{BoxError, Layer, Service};
use tracing::{Instrument as _, Span};

use crate::forward::service::ClientService;
use crate::metrics::Metrics;
use crate::routing::table::{StashLimits, Table};
use crate::server::{Server, ServerError, ServerHandle};
use crate::settings::{ForwardSettings, ServerSettings};

/// Time between two checks whether a router could serve.
const READY_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// A router whose sockets are bound. It takes no part in the protocol and accepts no clients.
#[derive(Debug)]
pub struct BoundRouter {
    parts: RouterParts,
}

/// The parts of a router, for a program that drives the table itself.
#[derive(Debug)]
pub struct RouterParts {
    /// The server. Its number of workers is that of the table and of the metrics.
    pub server: Server,
    /// The table that the server's workers share.
    pub table: Arc<Table>,
    /// The partitions in which the table has seen an event.
    pub notices: mpsc::UnboundedReceiver<PartitionId>,
    /// The counters of the data path.
    pub metrics: Metrics,
}

impl BoundRouter {
    /// Binds the address that clients connect to.
    pub fn bind(settings: ServerSettings, stash: StashLimits) -> Result<Self, ServerError> {
        Ok(Self::of(Server::bind(settings)?, stash))
    }

    /// Takes over listeners that were bound by [`bind`](Self::bind) in another process. Without any, binds the address.
    pub fn adopt(
        settings: ServerSettings,
        listeners: Vec<TcpListener>,
        stash: StashLimits,
    ) -> Result<Self, ServerError> {
        Ok(Self::of(Server::adopt(settings, listeners)?, stash))
    }

    /// Makes the table and the counters for a bound server.
    pub fn of(server: Server, stash: StashLimits) -> Self {
        let (table, notices) = Table::new(server.workers(), stash);
        let metrics = Metrics::new(server.workers());
        BoundRouter { parts: RouterParts { server, table, notices, metrics } }
    }

    /// Duplicates the listeners for a process that takes them over.
    pub fn duplicates(&self) -> std::io::Result<Vec<TcpListener>> {
        self.parts.server.duplicates()
    }

    /// Returns the address that clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.parts.server.local_addr()
    }

    /// Returns the routing table.
    pub fn table(&self) -> &Arc<Table> {
        &self.parts.table
    }

    /// Returns the counters of the data path.
    pub fn metrics(&self) -> &Metrics {
        &self.parts.metrics
    }

    /// Takes the router apart.
    pub fn into_parts(self) -> RouterParts {
        self.parts
    }

    /// Begins to take part in the protocol. Requires a runtime.
    pub fn join(
        self,
        leases: impl Into<Leases>,
        keys: Keyspace,
        settings: RouterSettings,
        observer: Arc<dyn RouterObserver>,
    ) -> JoiningRouter {
        let plane = self.parts.table.clone();
        self.join_through(plane, leases, keys, settings, observer)
    }

    /// Begins to take part in the protocol with `plane` between the control side and the table.
    pub fn join_through(
        self,
        plane: Arc<dyn DataPlane>,
        leases: impl Into<Leases>,
        keys: Keyspace,
        settings: RouterSettings,
        observer: Arc<dyn RouterObserver>,
    ) -> JoiningRouter {
        let RouterParts { server, table, notices, metrics } = self.parts;
        let membership = Membership { keys, settings, observer, span: Span::none() };
        let joined = Joined::begin(plane, table, notices, leases.into(), membership);
        JoiningRouter { server, metrics, joined }
    }
}

/// The control side of a router, whose work someone else runs.
#[derive(Debug, Clone)]
pub struct Control {
    status: watch::Receiver<RouterStatus>,
    shutdown: CancellationToken,
}

impl Control {
    /// Returns the control side of `plane` and the future that does its work. For programs that carry requests
    /// themselves, such as a simulation; a router with a server has its own ([`BoundRouter::join`]).
    pub fn new(
        plane: Arc<dyn DataPlane>,
        notices: mpsc::UnboundedReceiver<PartitionId>,
        leases: impl Into<Leases> + 'static,
        keys: Keyspace,
        settings: RouterSettings,
        observer: Arc<dyn RouterObserver>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, status) = watch::channel(RouterStatus::default());
        let shutdown = CancellationToken::new();
        let ports = RouterPorts { plane, notices, observer, status: sender };
        let run = run_router(leases.into(), keys, settings, ports, shutdown.clone());
        (Control { status, shutdown }, run)
    }

    /// Lets the work end: the router deregisters. By then it must have stopped forwarding.
    pub fn shut_down(&self) {
        self.shutdown.cancel();
    }
}

/// The state of a router, for those who watch it.
#[derive(Debug, Clone)]
pub struct RouterState {
    table: Arc<Table>,
    status: watch::Receiver<RouterStatus>,
}

impl RouterState {
    /// Returns the routing table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Returns the state of the control side.
    pub fn status(&self) -> watch::Ref<'_, RouterStatus> {
        self.status.borrow()
    }

    /// Returns why the router could not serve now. `None` if it is registered, has seen the keyspace since, may trust its
    /// lease, and knows the partitions.
    pub fn not_ready(&self) -> Option<String> {
        let not_ready = self.status.borrow().not_ready.clone();
        let is_empty = self.table.partitions() == 0;
        not_ready.or_else(|| is_empty.then(|| "the keyspace has no settings yet: no coordinator has led".to_owned()))
    }

    /// Waits until the router could serve.
    pub async fn ready(&self) {
        while self.not_ready().is_some() {
            tokio::time::sleep(READY_CHECK_INTERVAL).await;
        }
    }
}

/// A router's part in the protocol.
#[derive(Debug)]
pub(crate) struct Joined {
    state: RouterState,
    control: Control,
    run: AbortOnDropHandle<()>,
}

/// The part in the protocol that a router takes in one keyspace.
pub struct Membership {
    /// The keyspace.
    pub keys: Keyspace,
    /// The settings of the control side.
    pub settings: RouterSettings,
    /// What watches the control side.
    pub observer: Arc<dyn RouterObserver>,
    /// The span of the log lines about it.
    pub span: Span,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Membership").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl Joined {
    /// Begins to take part in the protocol with `plane` between the control side and the table.
    pub(crate) fn begin(
        plane: Arc<dyn DataPlane>,
        table: Arc<Table>,
        notices: mpsc::UnboundedReceiver<PartitionId>,
        leases: Leases,
        membership: Membership,
    ) -> Self {
        let Membership { keys, settings, observer, span } = membership;
        let (control, run) = Control::new(plane, notices, leases, keys, settings, observer);
        let state = RouterState { table, status: control.status.clone() };
        Joined { state, control, run: AbortOnDropHandle::new(tokio::spawn(run.instrument(span))) }
    }

    pub(crate) fn state(&self) -> &RouterState {
        &self.state
    }

    /// Deregisters.
    pub(crate) async fn leave(self) {
        self.control.shut_down();
        // The task ends by itself now. The runtime has reported any panic in it.
        let _ = self.run.await;
    }
}

/// A router that takes part in the protocol and accepts no clients yet.
#[derive(Debug)]
pub struct JoiningRouter {
    server: Server,
    metrics: Metrics,
    joined: Joined,
}

impl JoiningRouter {
    /// Returns the router's state.
    pub fn state(&self) -> &RouterState {
        &self.joined.state
    }

    /// Accepts clients. Requests that arrive before the router is ready wait. If the workers cannot be started, the router
    /// deregisters.
    pub async fn accept(self, forward: &ForwardSettings) -> Result<Router, ServerError> {
        let JoiningRouter { server, metrics, joined } = self;
        let server = server.start(forward, &joined.state.table, &metrics);
        Router::started(server, joined).await
    }

    /// Accepts clients, with `layer` around the data path ([`Server::start_with_layer`]).
    pub async fn accept_with_layer<L, S, B>(self, forward: &ForwardSettings, layer: L) -> Result<Router, ServerError>
    where
        L: Layer<ClientService, Service = S> + Clone + Send + 'static,
        S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: 'static> + Clone + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + 'static,
    {
        let JoiningRouter { server, metrics, joined } = self;
        let server = server.start_with_layer(forward, &joined.state.table, &metrics, layer);
        Router::started(server, joined).await
    }

    /// Deregisters without having served.
    pub async fn give_up(self) {
        self.joined.leave().await;
    }
}

/// A running router.
#[derive(Debug)]
pub struct Router {
    server: ServerHandle,
    joined: Joined,
}

impl Router {
    async fn started(server: Result<ServerHandle, ServerError>, joined: Joined) -> Result<Self, ServerError> {
        match server {
            Ok(server) => Ok(Router { server, joined }),
            Err(error) => {
                joined.leave().await;
                Err(error)
            }
        }
    }

    /// Returns the address that clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Returns the router's state.
    pub fn state(&self) -> &RouterState {
        &self.joined.state
    }

    /// Stops accepting, finishes the requests in progress until the deadline, and deregisters when the last one is done.
    /// Requests that are still held when a tenth of the time is left are refused.
    pub async fn stop(self, deadline: Instant) {
        self.stop_server(deadline, ServerHandle::shutdown).await;
    }

    /// Does the same for a router whose listeners another process serves by now. An idle connection stays open until its
    /// next response.
    pub async fn stop_replaced(self, deadline: Instant) {
        self.stop_server(deadline, ServerHandle::shutdown_replaced).await;
    }

    async fn stop_server(self, deadline: Instant, shut_down: impl AsyncFnOnce(ServerHandle, Instant)) {
        let refusing = refuse_held_at_last(vec![self.joined.state.table.clone()], deadline);
        shut_down(self.server, deadline).await;
        drop(refusing);
        self.joined.leave().await;
    }
}

/// Refuses the requests that still wait when a tenth of the time until the deadline is left.
pub(crate) fn refuse_held_at_last(tables: Vec<Arc<Table>>, deadline: Instant) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        tokio::time::sleep_until(deadline - (deadline - Instant::now()) / 10).await;
        tables.iter().for_each(|table| table.shut_down());
    }))
}
