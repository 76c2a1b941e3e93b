//! A running router: takes keyspaces and gives them up while it serves, and stops.
//!
//! Not here: how a router starts ([`router`](super)), and how a worker changes its list (`forward::keyspaces`).
//!
//! # Invariants
//!
//! * A keyspace is deregistered only when no worker has anything left of it: no request in flight, none held, no connection.
//! * No other keyspace waits for one that is added or removed, and none of its requests is touched.
//! * A change that is no longer awaited has been told to all workers or to none. Another [`remove`](Router::remove), or a stop,
//!   completes one that was not awaited to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use segue_coordination::session::Leases;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::membership::{ControlTask, Membership, RouterState};
use super::{BoundKeyspace, JoiningParts};
use crate::forward::tunnel::WEBSOCKET_CLOSE_TIMEOUT;
use crate::forward::{InvalidName, KeyspaceLife, check};
use crate::routing::keyspace_choice::KeyspaceMatch;
use crate::routing::table::{StashLimits, StashTotal, Table};
use crate::server::{KeyspaceChange, ListedKeyspace, ServedKeyspace, ServerError, ServerHandle};
use crate::settings::ForwardSettings;

/// How often the exchanges of a removed keyspace are severed once its time is up.
const SEVER_INTERVAL: Duration = Duration::from_millis(100);

/// A running router.
#[derive(Debug)]
pub struct Router {
    server: ServerHandle,
    leases: Leases,
    stash_total: StashTotal,
    /// Whether it has one keyspace, which gets every request.
    is_only: bool,
    routed: Vec<RoutedKeyspace>,
}

/// A keyspace of a running router, until the router has left it.
#[derive(Debug)]
struct RoutedKeyspace {
    name: String,
    matching: Option<KeyspaceMatch>,
    task: ControlTask,
    life: KeyspaceLife,
}

/// Why a running router cannot take a keyspace.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The router was started with an only keyspace.
    #[error("the router has one keyspace, which gets every request")]
    OnlyKeyspace,
    /// The router has a keyspace of this name, or has not left it yet.
    #[error("the router has keyspace {0} already")]
    Present(String),
    /// The keyspace would get the same requests as another one.
    #[error("keyspace {keyspace} would get the same requests as keyspace {other}")]
    SameMatch {
        /// The one that cannot be taken.
        keyspace: String,
        /// The one that the router has.
        other: String,
    },
    /// A name cannot be stamped on requests.
    #[error(transparent)]
    Name(#[from] InvalidName),
}

impl Router {
    pub(super) async fn started(
        server: Result<ServerHandle, ServerError>,
        joining: JoiningParts,
    ) -> Result<Self, ServerError> {
        let JoiningParts { leases, stash_total, is_only, joined } = joining;
        match server {
            Ok(server) => {
                let routed = joined.into_iter().map(|(listed, task)| RoutedKeyspace::new(listed, task)).collect();
                Ok(Router { server, leases, stash_total, is_only, routed })
            }
            Err(error) => {
                leave(joined.into_iter().map(|(_, task)| task)).await;
                Err(error)
            }
        }
    }

    /// Returns the address that clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Returns the router's state in its first keyspace.
    ///
    /// # Panics
    ///
    /// If the router has no keyspace.
    pub fn state(&self) -> &RouterState {
        self.routed[0].task.state()
    }

    /// Makes the table and the counters of one more keyspace, which [`add`](Self::add) takes.
    pub fn bind_keyspace(&self, stash: StashLimits) -> BoundKeyspace {
        BoundKeyspace::new(self.server.workers(), stash, &self.stash_total)
    }

    /// Takes one more keyspace: begins to take part in its protocol, under the same lease as in the others, and then routes the
    /// requests that match. Those that arrive before the keyspace is ready wait. Returns the router's state in it once all
    /// workers route to it.
    ///
    /// # Errors
    ///
    /// Fails if the router was started with an only keyspace, has one of this name or with this match, or a name cannot be
    /// the value of a header. Nothing has changed then.
    pub async fn add(
        &mut self,
        bound: BoundKeyspace,
        membership: Membership,
        forward: ForwardSettings,
        matching: Option<KeyspaceMatch>,
    ) -> Result<RouterState, AddError> {
        self.may_add(&forward, matching.as_ref())?;
        let BoundKeyspace { table, notices, metrics } = bound;
        let task = ControlTask::begin(table.clone(), notices, self.leases.clone(), membership);
        let state = task.state().clone();
        let served = ServedKeyspace { forward, table, metrics };
        let listed = ListedKeyspace { served, matching, life: KeyspaceLife::default() };
        self.routed.push(RoutedKeyspace::new(listed.clone(), task));
        self.server.change(&KeyspaceChange::Add(Box::new(listed))).await;
        Ok(state)
    }

    fn may_add(&self, forward: &ForwardSettings, matching: Option<&KeyspaceMatch>) -> Result<(), AddError> {
        if self.is_only {
            return Err(AddError::OnlyKeyspace);
        }
        check(forward)?;
        let keyspace = forward.keyspace.clone();
        if self.routed.iter().any(|routed| routed.name == keyspace) {
            return Err(AddError::Present(keyspace));
        }
        match self.routed.iter().find(|routed| routed.matching.as_ref() == matching) {
            Some(routed) => Err(AddError::SameMatch { keyspace, other: routed.name.clone() }),
            None => Ok(()),
        }
    }

    /// Gives a keyspace up. From now on its requests are for no keyspace. Those in progress have until the deadline to end,
    /// and those that are still held when a tenth of the time is left are refused. Then the router deregisters in that
    /// keyspace and keeps nothing of it. Returns whether the router had it. An only keyspace stays.
    pub async fn remove(&mut self, keyspace: &str, deadline: Instant) -> bool {
        let routed = self.routed.iter().position(|routed| routed.name == keyspace && !self.is_only);
        let Some(index) = routed else { return false };
        self.server.change(&KeyspaceChange::Remove(keyspace.to_owned())).await;
        let routed = &mut self.routed[index];
        routed.finish(deadline).await;
        routed.task.leave().await;
        self.routed.remove(index);
        true
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
        let tables = self.routed.iter().map(|routed| routed.table().clone()).collect();
        let refusing = refuse_held_at_last(tables, deadline);
        shut_down(self.server, deadline).await;
        drop(refusing);
        leave(self.routed.into_iter().map(|routed| routed.task)).await;
    }
}

impl RoutedKeyspace {
    fn new(listed: ListedKeyspace, task: ControlTask) -> Self {
        let ListedKeyspace { served, matching, life } = listed;
        RoutedKeyspace { name: served.forward.keyspace, matching, task, life }
    }

    fn table(&self) -> &Arc<Table> {
        self.task.state().table()
    }

    /// Finishes the requests of a keyspace that gets no further ones, until the deadline, and breaks off the others.
    async fn finish(&self, deadline: Instant) {
        let _refusing = refuse_held_at_last(vec![self.table().clone()], deadline);
        // WebSockets never end by themselves, and closing them takes a moment.
        let notice = deadline.checked_sub(WEBSOCKET_CLOSE_TIMEOUT).unwrap_or(deadline);
        if timeout_at(notice, self.life.over()).await.is_ok() {
            return;
        }
        self.life.end_websockets();
        if timeout_at(deadline, self.life.over()).await.is_ok() {
            return;
        }
        self.table().shut_down();
        loop {
            // Again: a request that has just been let in belongs to no exchange that was severed.
            self.table().sever_all();
            if timeout(SEVER_INTERVAL, self.life.over()).await.is_ok() {
                return;
            }
        }
    }
}

/// Refuses the requests that still wait when a tenth of the time until the deadline is left.
fn refuse_held_at_last(tables: Vec<Arc<Table>>, deadline: Instant) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        tokio::time::sleep_until(deadline - (deadline - Instant::now()) / 10).await;
        tables.iter().for_each(|table| table.shut_down());
    }))
}

/// Deregisters in all keyspaces together.
pub(super) async fn leave(tasks: impl IntoIterator<Item = ControlTask>) {
    join_all(tasks.into_iter().map(async |mut task: ControlTask| task.leave().await)).await;
}
