//! Routers of several keyspaces behind one server: one part in the protocol for each keyspace, and one set of workers.
//!
//! It starts in the three steps of a [`BoundRouter`](crate::router::BoundRouter). Each keyspace has a table, connections to
//! pods and counters of its own. They share the listener, the limits of clients, and the total of what is held.
//!
//! # Invariants
//!
//! * A keyspace that is not ready delays or refuses its own requests only, until what it holds takes up what they share.
//! * The routers deregister only when the last request of all keyspaces is done.

use std::net::TcpListener;
use std::sync::Arc;

use futures_util::future::join_all;
use segue_coordination::session::Leases;
use segue_coordination::store::Store;
use segue_protocol::ids::PartitionId;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::router::{Joined, Membership, RouterState, refuse_held_at_last};
use crate::routing::keyspace_choice::KeyspaceChoice;
use crate::routing::table::{StashLimits, StashTotal, Table};
use crate::server::{ServedKeyspace, ServedKeyspaces, Server, ServerError, ServerHandle, Several};
use crate::settings::{ForwardSettings, ServerSettings};

/// Routers whose sockets are bound. They take no part in the protocol and accept no clients.
#[derive(Debug)]
pub struct BoundKeyspaces {
    server: Server,
    listener: Metrics,
    tables: Vec<BoundTable>,
}

#[derive(Debug)]
struct BoundTable {
    table: Arc<Table>,
    notices: mpsc::UnboundedReceiver<PartitionId>,
    metrics: Metrics,
}

impl BoundKeyspaces {
    /// Takes over listeners of another process, or binds the address if there are none. Makes a table for each element of
    /// `stashes`.
    pub fn adopt(
        settings: ServerSettings,
        listeners: Vec<TcpListener>,
        stashes: &[StashLimits],
    ) -> Result<Self, ServerError> {
        let server = Server::adopt(settings, listeners)?;
        let (workers, total) = (server.workers(), StashTotal::default());
        let tables = stashes.iter().map(|stash| {
            let (table, notices) = Table::sharing(workers, *stash, &total);
            BoundTable { table, notices, metrics: Metrics::new(workers) }
        });
        Ok(BoundKeyspaces { tables: tables.collect(), listener: Metrics::new(workers), server })
    }

    /// Duplicates the listeners for a process that takes them over.
    pub fn duplicates(&self) -> std::io::Result<Vec<TcpListener>> {
        self.server.duplicates()
    }

    /// Returns the counters of connections and of requests for no keyspace.
    pub fn listener_metrics(&self) -> &Metrics {
        &self.listener
    }

    /// Returns the counters of each keyspace.
    pub fn metrics(&self) -> impl Iterator<Item = &Metrics> {
        self.tables.iter().map(|bound| &bound.metrics)
    }

    /// Returns the table of each keyspace.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.iter().map(|bound| &bound.table)
    }

    /// Begins to take part in the protocol, in one keyspace for each table and under one lease. Requires a runtime.
    pub fn join(self, store: &Arc<dyn Store>, memberships: impl IntoIterator<Item = Membership>) -> JoiningKeyspaces {
        let leases = Leases::new(store.clone());
        let join = |(bound, membership): (BoundTable, Membership)| {
            let BoundTable { table, notices, metrics } = bound;
            (Joined::begin(table.clone(), table, notices, leases.clone(), membership), metrics)
        };
        let joined = self.tables.into_iter().zip(memberships).map(join).collect();
        JoiningKeyspaces { server: self.server, listener: self.listener, joined }
    }
}

/// Routers that take part in the protocol and accept no clients yet.
#[derive(Debug)]
pub struct JoiningKeyspaces {
    server: Server,
    listener: Metrics,
    joined: Vec<(Joined, Metrics)>,
}

impl JoiningKeyspaces {
    /// Returns the router's state in each keyspace.
    pub fn states(&self) -> impl Iterator<Item = &RouterState> {
        self.joined.iter().map(|(joined, _)| joined.state())
    }

    /// Accepts clients. `forward` has the settings of each keyspace, `choice` finds the keyspace of a request among them;
    /// `None`: there is one, which gets every request. Requests wait for their own keyspace to become ready. If the workers
    /// cannot be started, the routers deregister.
    ///
    /// # Panics
    ///
    /// If there is no keyspace.
    pub async fn accept(
        self,
        forward: Vec<ForwardSettings>,
        choice: Option<KeyspaceChoice>,
    ) -> Result<RunningKeyspaces, ServerError> {
        let JoiningKeyspaces { server, listener, joined } = self;
        let served = forward.into_iter().zip(&joined).map(|(forward, (joined, metrics))| ServedKeyspace {
            forward,
            table: joined.state().table().clone(),
            metrics: metrics.clone(),
        });
        let mut served = served.collect::<Vec<_>>().into_iter();
        let first = served.next().expect("a router has at least one keyspace");
        let several = choice.map(|choice| Several { others: served.collect(), choice, listener });
        let joined: Vec<_> = joined.into_iter().map(|(joined, _)| joined).collect();
        match server.start_keyspaces(ServedKeyspaces { first, several }) {
            Ok(server) => Ok(RunningKeyspaces { server, joined }),
            Err(error) => {
                leave(joined).await;
                Err(error)
            }
        }
    }

    /// Deregisters without having served.
    pub async fn give_up(self) {
        leave(self.joined.into_iter().map(|(joined, _)| joined)).await;
    }
}

/// Running routers.
#[derive(Debug)]
pub struct RunningKeyspaces {
    server: ServerHandle,
    joined: Vec<Joined>,
}

impl RunningKeyspaces {
    /// Stops accepting, finishes the requests in progress until the deadline, and deregisters when the last one is done.
    /// Requests that are still held when a tenth of the time is left are refused.
    pub async fn stop(self, deadline: Instant) {
        self.stop_server(deadline, ServerHandle::shutdown).await;
    }

    /// Does the same for routers whose listeners another process serves by now. An idle connection stays open until its
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

async fn leave(joined: impl IntoIterator<Item = Joined>) {
    join_all(joined.into_iter().map(Joined::leave)).await;
}
