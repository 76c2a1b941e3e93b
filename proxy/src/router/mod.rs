//! A whole router: the server, the routing tables that its workers share, and the control sides that take part in the
//! protocol and drive the tables, one for each keyspace.
//!
//! A router starts in three steps. A [`BoundRouter`] has its sockets. A [`JoiningRouter`] takes part in the protocol and
//! has no clients. A [`Router`] accepts clients. In a hot restart a new process waits between the last two until it could
//! serve, while the old one still does.
//!
//! Most routers have one keyspace. Several share the listener, the limits of clients, one lease, and the total of what is held.
//! Each has a table, connections to pods and counters of its own. A running router with a list of keyspaces, which may be empty,
//! takes further ones and gives them up ([`Router::add`], [`Router::remove`]).
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
//!     ClientLimits, CommonSettings, ForwardSettings, LoggedRequests, OwnerExceptions, ServerSettings, UPLOAD_GRACE,
//!     UpstreamSettings,
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
//! let router = router.accept(CommonSettings::from(&forward), vec![forward]).await?;
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
//! * A router that stops deregisters only when the last request of all its keyspaces is done, and in a keyspace that it gives up
//!   when the last request of that one is, so that handoffs wait for it until then.
//! * A router that is dropped is one that crashed: its connections close, and its registration ends with its lease.
//! * A keyspace that is not ready delays or refuses its own requests only, until what it holds takes up what they share.

mod membership;
mod running;

use std::net::TcpListener;
use std::sync::Arc;

use segue_coordination::session::Leases;
use tower::Layer;

use self::membership::ControlTask;
pub use self::membership::{Membership, Notices, RouterControl, RouterState};
use self::running::leave;
pub use self::running::{AddError, Router};
use crate::forward::KeyspaceLife;
use crate::forward::service::ClientService;
use crate::metrics::Metrics;
use crate::routing::keyspace_choice::KeyspaceChoice;
use crate::routing::table::{StashLimits, StashTotal, Table};
use crate::server::{AroundDataPath, ListedKeyspace, ServedKeyspace, ServedKeyspaces, Server, ServerError};
use crate::settings::{CommonSettings, ForwardSettings, ServerSettings};

/// A router whose sockets are bound. It takes no part in the protocol and accepts no clients.
#[derive(Debug)]
pub struct BoundRouter {
    server: Server,
    choice: KeyspaceChoice,
    listener: Metrics,
    stash_total: StashTotal,
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

impl BoundKeyspace {
    fn new(workers: usize, stash: StashLimits, total: &StashTotal) -> Self {
        let (table, notices) = Table::sharing(workers, stash, total);
        BoundKeyspace { table, notices, metrics: Metrics::new(workers) }
    }
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
    ///
    /// # Panics
    ///
    /// If there is not an element of `stashes` for each keyspace of `choice`.
    pub fn of(server: Server, choice: KeyspaceChoice, stashes: &[StashLimits]) -> Self {
        let count = match &choice {
            KeyspaceChoice::Only => 1,
            KeyspaceChoice::Among(matches) => matches.len(),
        };
        assert_eq!(stashes.len(), count, "limits for each keyspace");
        let (workers, stash_total) = (server.workers(), StashTotal::default());
        let keyspaces = stashes.iter().map(|stash| BoundKeyspace::new(workers, *stash, &stash_total));
        let keyspaces: Vec<_> = keyspaces.collect();
        let only = keyspaces.first().filter(|_| choice == KeyspaceChoice::Only);
        let listener = only.map_or_else(|| Metrics::new(workers), |only| only.metrics.clone());
        BoundRouter { server, choice, listener, stash_total, keyspaces }
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
    /// If there is not a membership for each keyspace.
    pub fn join(self, leases: impl Into<Leases>, memberships: Vec<Membership>) -> JoiningRouter {
        let BoundRouter { server, choice, listener, stash_total, keyspaces } = self;
        assert_eq!(memberships.len(), keyspaces.len(), "a membership for each keyspace");
        let leases = leases.into();
        let join = |(bound, membership): (BoundKeyspace, Membership)| {
            let BoundKeyspace { table, notices, metrics } = bound;
            (ControlTask::begin(table, notices, leases.clone(), membership), metrics)
        };
        let joined = keyspaces.into_iter().zip(memberships).map(join).collect();
        JoiningRouter { server, choice, listener, leases, stash_total, joined }
    }
}

/// A router that takes part in the protocol and accepts no clients yet.
#[derive(Debug)]
pub struct JoiningRouter {
    server: Server,
    choice: KeyspaceChoice,
    listener: Metrics,
    leases: Leases,
    stash_total: StashTotal,
    joined: Vec<(ControlTask, Metrics)>,
}

/// The parts of a joining router that a running one goes on with.
struct JoiningParts {
    leases: Leases,
    stash_total: StashTotal,
    /// Whether the router has one keyspace, which gets every request.
    is_only: bool,
    joined: Vec<(ListedKeyspace, ControlTask)>,
}

impl JoiningRouter {
    /// Returns the router's state in its first keyspace, which is the only one of most routers.
    ///
    /// # Panics
    ///
    /// If the router has no keyspace.
    pub fn state(&self) -> &RouterState {
        self.joined[0].0.state()
    }

    /// Returns the router's state in each keyspace.
    pub fn states(&self) -> impl Iterator<Item = &RouterState> {
        self.joined.iter().map(|(joined, _)| joined.state())
    }

    /// Accepts clients. `common` holds for all keyspaces, and `forward` has the settings of each. Requests that arrive before
    /// their keyspace is ready wait. If the workers cannot be started, the router deregisters.
    ///
    /// # Errors
    ///
    /// Fails if a name cannot be the value of a header, or a worker cannot be started. The router has deregistered
    /// then.
    ///
    /// # Panics
    ///
    /// If there are not settings for each keyspace.
    pub async fn accept(self, common: CommonSettings, forward: Vec<ForwardSettings>) -> Result<Router, ServerError> {
        let (server, keyspaces, parts) = self.served(common, forward);
        Router::started(server.start(keyspaces), parts).await
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
    pub async fn accept_with_layer<L>(
        self,
        common: CommonSettings,
        forward: Vec<ForwardSettings>,
        layer: L,
    ) -> Result<Router, ServerError>
    where
        L: Layer<ClientService, Service: AroundDataPath> + Clone + Send + 'static,
    {
        let (server, keyspaces, parts) = self.served(common, forward);
        Router::started(server.start_with_layer(keyspaces, layer), parts).await
    }

    fn served(self, common: CommonSettings, forward: Vec<ForwardSettings>) -> (Server, ServedKeyspaces, JoiningParts) {
        let JoiningRouter { server, choice, listener, leases, stash_total, joined } = self;
        assert_eq!(forward.len(), joined.len(), "settings for each keyspace");
        let (is_only, matches) = match choice {
            KeyspaceChoice::Only => (true, vec![None]),
            KeyspaceChoice::Among(matches) => (false, matches),
        };
        let joined = joined.into_iter().zip(forward).zip(matches).map(|(((task, metrics), forward), matching)| {
            let table = task.state().table().clone();
            let served = ServedKeyspace { forward, table, metrics };
            (ListedKeyspace { served, matching, life: KeyspaceLife::default() }, task)
        });
        let joined: Vec<_> = joined.collect();
        let keyspaces = match &*joined {
            [(only, _)] if is_only => ServedKeyspaces::only_with(common, only.served.clone()),
            _ => {
                let each = joined.iter().map(|(keyspace, _)| keyspace.clone()).collect();
                ServedKeyspaces::among(common, each, listener, server.workers())
            }
        };
        (server, keyspaces, JoiningParts { leases, stash_total, is_only, joined })
    }

    /// Deregisters without having served.
    pub async fn give_up(self) {
        leave(self.joined.into_iter().map(|(joined, _)| joined)).await;
    }
}
