//! A whole router: the server, the routing tables that its workers share, and the control sides that take part in the
//! protocol and drive the tables, one for each keyspace.
//!
//! A router starts in three steps. A [`BoundRouter`] has its sockets. A [`JoiningRouter`] takes part in the protocol and
//! has no clients. A [`Router`] accepts clients. In a hot restart a new process waits between the last two until it could
//! serve, while the old one still does.
//!
//! Most routers have one keyspace. Several share the listener, the limits of clients, one lease, and the total of what is held.
//! Each has a table, connections to pods and counters of its own.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use segue_coordination::router::{DrainSettings, RouterSettings};
//! use segue_coordination::store::{EtcdOptions, EtcdStore};
//! use segue_protocol::handoff::router::OnStoreLoss;
//! use segue_protocol::keys::Keyspace;
//! use segue_proxy::router::{BoundRouter, Membership};
//! use segue_proxy::routing::keyspace_choice::KeyspaceChoice;
//! use segue_proxy::routing::partition_key::PartitionSource;
//! use segue_proxy::routing::table::StashLimits;
//! use segue_proxy::settings::{
//!     ClientLimits, ForwardSettings, LoggedRequests, OwnerExceptions, ServerSettings, UPLOAD_GRACE, UpstreamSettings,
//! };
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
//!     exceptions: OwnerExceptions::default(),
//!     limits: ClientLimits::default(),
//!     key_limit: None,
//!     upload_grace: UPLOAD_GRACE,
//!     tracer: None,
//!     requests: LoggedRequests::default(),
//!     upstream,
//! };
//!
//! let server = ServerSettings { listen: "127.0.0.1:8080".to_owned(), workers: 0, tls: None };
//! let router = BoundRouter::bind(server, KeyspaceChoice::Only, &[stash])?.join(store, vec![Membership::new(keys, settings)]);
//! router.state().ready().await;
//! let router = router.accept(vec![forward]).await?;
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
//! * A router deregisters only when the last request of all its keyspaces is done, so that handoffs wait for it until then.
//! * A router that is dropped is one that crashed: its connections close, and its registration ends with its lease.
//! * A keyspace that is not ready delays or refuses its own requests only, until what it holds takes up what they share.

mod membership;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use futures_util::future::join_all;
use segue_coordination::session::Leases;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tower::Layer;

use self::membership::ControlTask;
pub use self::membership::{Membership, Notices, RouterControl, RouterState};
use crate::forward::service::ClientService;
use crate::metrics::Metrics;
use crate::routing::keyspace_choice::KeyspaceChoice;
use crate::routing::table::{StashLimits, StashTotal, Table};
use crate::server::{AroundDataPath, ServedKeyspace, ServedKeyspaces, Server, ServerError, ServerHandle};
use crate::settings::{ForwardSettings, ServerSettings};

/// A router whose sockets are bound. It takes no part in the protocol and accepts no clients.
#[derive(Debug)]
pub struct BoundRouter {
    server: Server,
    choice: KeyspaceChoice,
    listener: Metrics,
    keyspaces: Vec<BoundKeyspace>,
}

/// A keyspace of a router that takes no part in the protocol yet.
#[derive(Debug)]
pub struct BoundKeyspace {
    /// The table that the server's workers share.
    pub table: Arc<Table>,
    /// The partitions in which the table has seen an event.
    pub notices: Notices,
    /// The counters of the data path.
    pub metrics: Metrics,
}

impl BoundRouter {
    /// Binds the address that clients connect to. `choice` finds the keyspace of a request. Each keyspace has an element of
    /// `stashes`.
    ///
    /// # Errors
    ///
    /// Fails if the address cannot be resolved or bound.
    pub fn bind(
        settings: ServerSettings,
        choice: KeyspaceChoice,
        stashes: &[StashLimits],
    ) -> Result<Self, ServerError> {
        Ok(Self::of(Server::bind(settings)?, choice, stashes))
    }

    /// Takes over listeners that were bound by [`bind`](Self::bind) in another process. Without any, binds the address.
    ///
    /// # Errors
    ///
    /// Fails if a listener is of no use, or the address cannot be bound.
    pub fn adopt(
        settings: ServerSettings,
        listeners: Vec<TcpListener>,
        choice: KeyspaceChoice,
        stashes: &[StashLimits],
    ) -> Result<Self, ServerError> {
        Ok(Self::of(Server::adopt(settings, listeners)?, choice, stashes))
    }

    /// Makes the tables and the counters for a bound server.
    pub fn of(server: Server, choice: KeyspaceChoice, stashes: &[StashLimits]) -> Self {
        let (workers, total) = (server.workers(), StashTotal::default());
        let keyspaces = stashes.iter().map(|stash| {
            let (table, notices) = Table::sharing(workers, *stash, &total);
            BoundKeyspace { table, notices, metrics: Metrics::new(workers) }
        });
        let keyspaces: Vec<_> = keyspaces.collect();
        let only = keyspaces.first().filter(|_| choice == KeyspaceChoice::Only);
        let listener = only.map_or_else(|| Metrics::new(workers), |only| only.metrics.clone());
        BoundRouter { server, choice, listener, keyspaces }
    }

    /// Duplicates the listeners for a process that takes them over.
    ///
    /// # Errors
    ///
    /// Fails if the process may not open as many files.
    pub fn duplicates(&self) -> std::io::Result<Vec<TcpListener>> {
        self.server.duplicates()
    }

    /// Returns the counters of connections and of requests for no keyspace. An only keyspace has the same ones.
    pub fn listener_metrics(&self) -> &Metrics {
        &self.listener
    }

    /// Returns the keyspaces, in the order in which they were bound.
    pub fn keyspaces(&self) -> &[BoundKeyspace] {
        &self.keyspaces
    }

    /// Takes the router apart, for a program that drives the tables itself.
    pub fn into_parts(self) -> (Server, Vec<BoundKeyspace>) {
        (self.server, self.keyspaces)
    }

    /// Begins to take part in the protocol, in each keyspace and under one lease for all. Requires a runtime.
    ///
    /// # Panics
    ///
    /// If there is not a membership for each keyspace, or no keyspace.
    pub fn join(self, leases: impl Into<Leases>, memberships: Vec<Membership>) -> JoiningRouter {
        assert!(!memberships.is_empty() && memberships.len() == self.keyspaces.len(), "a membership for each keyspace");
        let leases = leases.into();
        let join = |(bound, membership): (BoundKeyspace, Membership)| {
            let BoundKeyspace { table, notices, metrics } = bound;
            (ControlTask::begin(table, notices, leases.clone(), membership), metrics)
        };
        let joined = self.keyspaces.into_iter().zip(memberships).map(join).collect();
        JoiningRouter { server: self.server, choice: self.choice, listener: self.listener, joined }
    }
}

/// A router that takes part in the protocol and accepts no clients yet.
#[derive(Debug)]
pub struct JoiningRouter {
    server: Server,
    choice: KeyspaceChoice,
    listener: Metrics,
    joined: Vec<(ControlTask, Metrics)>,
}

impl JoiningRouter {
    /// Returns the router's state in its first keyspace, which is the only one of most routers.
    pub fn state(&self) -> &RouterState {
        self.joined[0].0.state()
    }

    /// Returns the router's state in each keyspace.
    pub fn states(&self) -> impl Iterator<Item = &RouterState> {
        self.joined.iter().map(|(joined, _)| joined.state())
    }

    /// Accepts clients. `forward` has the settings of each keyspace; the limits of clients are those of the first. Requests that
    /// arrive before their keyspace is ready wait. If the workers cannot be started, the router deregisters.
    ///
    /// # Errors
    ///
    /// Fails if a name cannot be the value of a header, or a worker cannot be started. The router has deregistered
    /// then.
    ///
    /// # Panics
    ///
    /// If there are not settings for each keyspace.
    pub async fn accept(self, forward: Vec<ForwardSettings>) -> Result<Router, ServerError> {
        let (server, keyspaces, joined) = self.served(forward);
        Router::started(server.start(keyspaces), joined).await
    }

    /// Accepts clients as [`accept`](Self::accept) does, with `layer` around the data path ([`Server::start_with_layer`]).
    ///
    /// # Errors
    ///
    /// Fails as [`accept`](Self::accept) does.
    ///
    /// # Panics
    ///
    /// If there are not settings for each keyspace.
    pub async fn accept_with_layer<L>(self, forward: Vec<ForwardSettings>, layer: L) -> Result<Router, ServerError>
    where
        L: Layer<ClientService, Service: AroundDataPath> + Clone + Send + 'static,
    {
        let (server, keyspaces, joined) = self.served(forward);
        Router::started(server.start_with_layer(keyspaces, layer), joined).await
    }

    fn served(self, forward: Vec<ForwardSettings>) -> (Server, ServedKeyspaces, Vec<ControlTask>) {
        let JoiningRouter { server, choice, listener, joined } = self;
        assert_eq!(forward.len(), joined.len(), "settings for each keyspace");
        let (joined, served) = joined
            .into_iter()
            .zip(forward)
            .map(|((joined, metrics), forward)| {
                let table = joined.state().table().clone();
                (joined, ServedKeyspace { forward, table, metrics })
            })
            .unzip();
        (server, ServedKeyspaces { choice, each: served, listener }, joined)
    }

    /// Deregisters without having served.
    pub async fn give_up(self) {
        leave(self.joined.into_iter().map(|(joined, _)| joined)).await;
    }
}

/// A running router.
#[derive(Debug)]
pub struct Router {
    server: ServerHandle,
    joined: Vec<ControlTask>,
}

impl Router {
    async fn started(server: Result<ServerHandle, ServerError>, joined: Vec<ControlTask>) -> Result<Self, ServerError> {
        match server {
            Ok(server) => Ok(Router { server, joined }),
            Err(error) => {
                leave(joined).await;
                Err(error)
            }
        }
    }

    /// Returns the address that clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Returns the router's state in its first keyspace.
    pub fn state(&self) -> &RouterState {
        self.joined[0].state()
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
        let tables = self.joined.iter().map(|joined| joined.state().table().clone()).collect();
        let refusing = refuse_held_at_last(tables, deadline);
        shut_down(self.server, deadline).await;
        drop(refusing);
        leave(self.joined).await;
    }
}

/// Refuses the requests that still wait when a tenth of the time until the deadline is left.
fn refuse_held_at_last(tables: Vec<Arc<Table>>, deadline: Instant) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        tokio::time::sleep_until(deadline - (deadline - Instant::now()) / 10).await;
        tables.iter().for_each(|table| table.shut_down());
    }))
}

async fn leave(joined: impl IntoIterator<Item = ControlTask>) {
    join_all(joined.into_iter().map(ControlTask::leave)).await;
}
