//! A worker: accepts clients on one thread, serves them there, and drains when the server stops.
//!
//! Not here: binding sockets and starting threads ([`server`](super)), serving one connection
//! ([`connection`](super::connection)).
//!
//! # Invariants
//!
//! * An accepted connection is served, also while the server shuts down, until the deadline.
//! * No client is left in the listen backlog: a worker without room refuses it at once.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::join_all;
use http::HeaderValue;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::client::ClientTerms;
use super::data_path::{DataPath, Layers};
use super::keyspaces::{ServedKeyspaces, WorkerChanges};
use super::overload::Overload;
use super::registry::ConnectionRegistry;
use crate::forward::Forward;
use crate::forward::tunnel::WEBSOCKET_CLOSE_TIMEOUT;
use crate::metrics::WorkerMetrics;
use crate::runtime::shortage::is_shortage;

/// Pause after a failed accept. It ends early when a client disconnects, which frees a file descriptor.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Shortest interval between two log lines about failed accepts.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How long a new client waits for the connection that is evicted in its favour.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(20);

/// How often a worker checks its clients while it stops.
const STOPPING_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How a server stops.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopMode {
    pub(super) deadline: Instant,
    /// How long an idle HTTP/1.1 connection is kept for a request that may be on its way.
    pub(super) idle: Duration,
}

impl StopMode {
    /// Stops at once.
    pub(super) fn now() -> Self {
        StopMode { deadline: Instant::now(), idle: Duration::ZERO }
    }
}

/// The parts that one worker thread runs with.
pub(super) struct Worker<M> {
    pub(super) index: usize,
    pub(super) listeners: Vec<std::net::TcpListener>,
    /// Those that it starts with.
    pub(super) keyspaces: ServedKeyspaces,
    pub(super) changes: WorkerChanges,
    /// The layers around its data path.
    pub(super) layers: M,
    /// The counters of the listener.
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) max_connections: usize,
    pub(super) max_requests: usize,
    pub(super) terms: ClientTerms,
    pub(super) stop: watch::Receiver<Option<StopMode>>,
}

/// A worker that was started.
#[derive(Debug)]
pub(super) struct RunningWorker {
    end: oneshot::Receiver<()>,
    /// `None` for one that is a task of a thread with others.
    thread: Option<JoinHandle<()>>,
}

impl RunningWorker {
    /// Waits for its end.
    pub(super) async fn ended(self) {
        let _ = self.end.await;
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}

impl<M: Layers> Worker<M> {
    /// Starts it on a thread of its own.
    pub(super) fn run_on_a_thread(self) -> std::io::Result<RunningWorker> {
        let (ended, end) = oneshot::channel();
        let thread = std::thread::Builder::new().name(format!("segue-worker-{}", self.index)).spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
            match runtime {
                Ok(runtime) => runtime.block_on(self.run()),
                Err(error) => tracing::error!(%error, "worker cannot start"),
            }
            let _ = ended.send(());
        })?;
        Ok(RunningWorker { end, thread: Some(thread) })
    }

    /// Starts it as a task of the caller's thread.
    #[cfg(feature = "fuzzing")]
    pub(super) fn run_here(self) -> RunningWorker {
        let (ended, end) = oneshot::channel();
        tokio::task::spawn_local(async move {
            self.run().await;
            let _ = ended.send(());
        });
        RunningWorker { end, thread: None }
    }

    /// Serves until the server stops and everything in flight has ended, or its deadline has passed.
    pub(super) async fn run(self) {
        let forward = self.keyspaces.data_path(self.index);
        // What the worker keeps of a keyspace must go with that keyspace.
        drop(self.keyspaces);
        let listeners: std::io::Result<Vec<_>> = self.listeners.into_iter().map(TcpListener::from_std).collect();
        let (forward, listeners) = match (forward, listeners) {
            (Ok(forward), Ok(listeners)) => (forward, listeners),
            (Err(error), _) => return tracing::error!(%error, "worker cannot start"),
            (_, Err(error)) => return tracing::error!(%error, "worker cannot listen"),
        };
        tokio::task::spawn_local(self.changes.follow(forward.clone(), self.index));
        let path = DataPath { forward, layers: self.layers };
        let look_every = (self.terms.header_read_timeout / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let secure = self.terms.tls.is_some();
        let limit =
            ConnectionLimit { most: self.max_connections, idle: look_every, secure, metrics: self.metrics.clone() };
        let clients = Rc::new(ConnectionRegistry::new(self.terms, self.max_requests, self.metrics.clone()));
        let running = WorkerGuard(self.metrics);
        tokio::task::spawn_local(check_every(look_every, clients.clone(), running.0.clone()));
        accept_all(listeners, &clients, &path, &limit, &self.stop).await;
        let stop = *self.stop.borrow();
        let StopMode { deadline, idle } = stop.unwrap_or_else(StopMode::now);
        clients.finish(idle);
        let look_every = look_every.min(STOPPING_CHECK_INTERVAL);
        tokio::task::spawn_local(check_every(look_every, clients.clone(), running.0.clone()));
        // WebSockets never end by themselves, and closing them takes a moment.
        let notice = deadline.checked_sub(WEBSOCKET_CLOSE_TIMEOUT).unwrap_or(deadline);
        if tokio::time::timeout_at(notice, drained(&clients, &path.forward)).await.is_ok() {
            return;
        }
        path.forward.end_websockets();
        if tokio::time::timeout_at(deadline, drained(&clients, &path.forward)).await.is_err() {
            clients.close();
            // Each connection task needs one turn to close properly.
            tokio::task::yield_now().await;
        }
    }
}

/// A worker that runs, to those who look whether it hangs.
struct WorkerGuard(Arc<WorkerMetrics>);

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        self.0.last_turn.end();
    }
}

/// Notes that the worker has turns, and closes clients whose time is up, for ever.
async fn check_every(interval: Duration, clients: Rc<ConnectionRegistry>, metrics: Arc<WorkerMetrics>) {
    loop {
        metrics.last_turn.note();
        tokio::time::sleep(interval).await;
        clients.check();
    }
}

/// Bounds how many clients a worker serves at a time.
struct ConnectionLimit {
    /// Most clients at a time.
    most: usize,
    /// A client that has been idle for longer may be evicted. Idleness is measured no finer than this.
    idle: Duration,
    secure: bool,
    metrics: Arc<WorkerMetrics>,
}

impl ConnectionLimit {
    /// Returns whether there is room for one more client, evicting an idle one if need be. Clients never wait in the listen
    /// backlog instead: there, those who keep a worker full would keep all others waiting, without a response.
    async fn has_room(&self, clients: &ConnectionRegistry) -> bool {
        if clients.count() < self.most {
            return true;
        }
        if clients.close_one(self.idle, self.most) {
            let leaves = async {
                while clients.count() >= self.most {
                    clients.left.notified().await;
                }
            };
            let _ = tokio::time::timeout(EVICTION_TIMEOUT, leaves).await;
        }
        clients.count() < self.most
    }
}

/// Closes a listener after the connections in its queue have been accepted: to their clients they are established. tokio does
/// not know of those that have come since it last waited for events, so the kernel is asked.
fn accept_backlog<M: Layers>(
    listener: TcpListener,
    clients: &Rc<ConnectionRegistry>,
    path: &DataPath<M>,
) -> std::io::Result<()> {
    let listener = listener.into_std()?;
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(true)?;
                serve(clients, path, TcpStream::from_std(stream)?, peer);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns once no client is connected and no request is in flight.
async fn drained(clients: &ConnectionRegistry, forward: &Forward) {
    while clients.count() > 0 || forward.requests_in_flight() > 0 {
        // An exchange whose client has gone ends without a notification.
        tokio::select! {
            () = clients.left.notified() => {}
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
}

/// Accepts from all listeners until the server stops, and closes them.
async fn accept_all<M: Layers>(
    listeners: Vec<TcpListener>,
    clients: &Rc<ConnectionRegistry>,
    path: &DataPath<M>,
    limit: &ConnectionLimit,
    stop: &watch::Receiver<Option<StopMode>>,
) {
    let overload = Overload::default();
    join_all(listeners.into_iter().map(async |listener| {
        accept(&listener, clients, path, limit, &overload, stop.clone()).await;
        if let Err(error) = accept_backlog(listener, clients, path) {
            tracing::warn!(%error, "cannot accept the last connections");
        }
    }))
    .await;
    // A worker may have no listener.
    let _ = stop.clone().wait_for(Option::is_some).await;
}

/// Accepts from one listener within the limit until the server stops.
async fn accept<M: Layers>(
    listener: &TcpListener,
    clients: &Rc<ConnectionRegistry>,
    path: &DataPath<M>,
    limit: &ConnectionLimit,
    overload: &Overload,
    mut stop: watch::Receiver<Option<StopMode>>,
) {
    let mut logged: Option<Instant> = None;
    loop {
        // Only here: a connection that has been accepted is served, also if it waits for room.
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(Option::is_some) => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                if limit.has_room(clients).await {
                    serve(clients, path, stream, peer);
                } else {
                    overload.send_away(stream, limit.secure, &limit.metrics);
                }
            }
            Err(error) => {
                // Neither a client's failure nor a lack of file descriptors ends the server.
                if error.kind() == ErrorKind::ConnectionAborted {
                    continue;
                }
                let closes_idle = is_shortage(&error);
                if logged.is_none_or(|logged| logged.elapsed() > LOG_INTERVAL) {
                    logged = Some(Instant::now());
                    tracing::warn!(%error, closes_idle, "cannot accept connections; retrying");
                }
                if closes_idle && path.forward.close_idle() == 0 {
                    clients.close_one(Duration::ZERO, 0);
                }
                let _ = tokio::time::timeout(ACCEPT_RETRY_PAUSE, clients.left.notified()).await;
            }
        }
    }
}

fn serve<M: Layers>(clients: &Rc<ConnectionRegistry>, path: &DataPath<M>, stream: TcpStream, peer: SocketAddr) {
    let served = clients.seat(peer.ip()).serve(stream, address_of(peer.ip()), path.clone());
    tokio::task::spawn_local(served);
}

/// Returns the client's address for `x-forwarded-for`. An IPv4-mapped IPv6 address is written as IPv4.
pub(super) fn address_of(ip: IpAddr) -> HeaderValue {
    HeaderValue::try_from(ip.to_canonical().to_string()).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}
