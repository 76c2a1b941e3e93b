//! A worker: a thread that accepts clients, serves them, and ends when it is told to.
//!
//! Not here: the sockets and the threads ([`server`](super)).
//!
//! # Invariants
//!
//! * What was accepted is answered, also while shutting down, up to the deadline.
//! * No client waits in the kernel's queue: one for whom there is no room is sent away at once.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::HeaderValue;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::client::ClientLimits;
use super::overload::Overload;
use super::registry::{ConnectionRegistry, IdlePolicy};
use crate::forward::Forward;
use crate::forward::tunnel::CLOSING_WEBSOCKETS;
use crate::metrics::WorkerMetrics;
use crate::routing::table::Table;
use crate::runtime::shortage::is_shortage;
use crate::settings::ForwardSettings;

/// How long accepting rests after an error, or until a client leaves if there are no files left.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
/// How often such an error is logged at most.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How long a newcomer waits for a place that is being made for it.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(20);

/// How a server ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    pub(super) deadline: Instant,
    pub(super) idle: IdlePolicy,
}

pub(super) struct Worker {
    pub(super) index: usize,
    pub(super) listeners: Vec<std::net::TcpListener>,
    pub(super) forward: ForwardSettings,
    pub(super) table: Arc<Table>,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) max_connections: usize,
    pub(super) max_requests: usize,
    pub(super) limits: ClientLimits,
    pub(super) stop: watch::Receiver<Option<Stop>>,
}

impl Worker {
    pub(super) async fn run(mut self) {
        let forward = Forward::new(&self.forward, self.table.worker(self.index), self.metrics.clone());
        let listeners: std::io::Result<Vec<_>> = self.listeners.into_iter().map(TcpListener::from_std).collect();
        let (forward, listeners) = match (forward, listeners) {
            (Ok(forward), Ok(listeners)) => (forward, listeners),
            (Err(error), _) => return tracing::error!(%error, "a worker cannot run"),
            (_, Err(error)) => return tracing::error!(%error, "a worker cannot listen"),
        };
        let look_every = (self.limits.header_read_timeout / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let secure = self.limits.tls.is_some();
        let limit =
            ConnectionLimit { most: self.max_connections, idle: look_every, secure, metrics: self.metrics.clone() };
        let clients = Rc::new(ConnectionRegistry::new(self.limits, self.max_requests, self.metrics.clone()));
        let watched = clients.clone();
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(look_every).await;
                watched.check();
            }
        });
        tokio::select! {
            () = accept_all(&listeners, &clients, &forward, &limit) => {}
            _ = self.stop.wait_for(Option::is_some) => {}
        }
        // Who is in the queue has connected already, as far as he can tell.
        for listener in &listeners {
            while let Some(Ok((stream, peer))) = std::future::poll_fn(|context| match listener.poll_accept(context) {
                std::task::Poll::Ready(accepted) => std::task::Poll::Ready(Some(accepted)),
                std::task::Poll::Pending => std::task::Poll::Ready(None),
            })
            .await
            {
                serve(&clients, &forward, stream, peer);
            }
        }
        drop(listeners);
        let stop = *self.stop.borrow();
        let Stop { deadline, idle } = stop.unwrap_or(Stop { deadline: Instant::now(), idle: IdlePolicy::Close });
        clients.finish(idle);
        let done = async || {
            loop {
                if clients.count() == 0 && self.metrics.requests_in_flight() == 0 {
                    break;
                }
                // Exchanges without a client end without a sign.
                tokio::select! {
                    () = clients.left.notified() => {}
                    () = tokio::time::sleep(Duration::from_millis(5)) => {}
                }
            }
        };
        // WebSockets last for as long as they are let. Closing them takes a moment.
        let notice = deadline.checked_sub(CLOSING_WEBSOCKETS).unwrap_or(deadline);
        if tokio::time::timeout_at(notice, done()).await.is_ok() {
            return;
        }
        forward.end_websockets();
        if tokio::time::timeout_at(deadline, done()).await.is_err() {
            clients.close();
            // One turn for each of them to close properly.
            tokio::task::yield_now().await;
        }
    }
}

/// Who is let in.
struct ConnectionLimit {
    /// Most clients at once.
    most: usize,
    /// Who has been idle for longer may lose his place to a newcomer. Idleness is known no finer.
    idle: Duration,
    secure: bool,
    metrics: Arc<WorkerMetrics>,
}

impl ConnectionLimit {
    /// Whether there is room for one more, if need be by closing one that is idle. Nobody is left waiting in the kernel's
    /// queue: whoever keeps all places busy would keep all others waiting there, and they would not know for what.
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

/// Accepts from all of them for ever.
async fn accept_all(
    listeners: &[TcpListener],
    clients: &Rc<ConnectionRegistry>,
    forward: &Forward,
    limit: &ConnectionLimit,
) {
    let overload = Overload::default();
    join_all(listeners.iter().map(|listener| accept(listener, clients, forward, limit, &overload))).await;
    // Without a listener there is nothing to do until the end.
    std::future::pending().await
}

/// Accepts for ever, at most so many at once.
async fn accept(
    listener: &TcpListener,
    clients: &Rc<ConnectionRegistry>,
    forward: &Forward,
    limit: &ConnectionLimit,
    overload: &Overload,
) {
    let mut logged: Option<Instant> = None;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if limit.has_room(clients).await {
                    serve(clients, forward, stream, peer);
                } else {
                    overload.send_away(stream, limit.secure, &limit.metrics);
                }
            }
            Err(error) => {
                // One client's trouble, or ours (no file descriptors left): neither ends the server.
                if error.kind() == std::io::ErrorKind::ConnectionAborted {
                    continue;
                }
                let closes_idle = is_shortage(&error);
                if logged.is_none_or(|logged| logged.elapsed() > LOG_INTERVAL) {
                    logged = Some(Instant::now());
                    tracing::warn!(%error, closes_idle, "cannot accept connections; trying again");
                }
                if closes_idle && forward.close_idle() == 0 {
                    clients.close_one(Duration::ZERO, 0);
                }
                let _ = tokio::time::timeout(ACCEPT_RETRY, clients.left.notified()).await;
            }
        }
    }
}

fn serve(clients: &Rc<ConnectionRegistry>, forward: &Forward, stream: TcpStream, peer: SocketAddr) {
    let served = clients.seat(peer.ip()).serve(stream, address_of(peer.ip()), forward.clone());
    tokio::task::spawn_local(served);
}

/// The client's address as `x-forwarded-for` has it; one of IPv4 that came over IPv6 is written as IPv4.
fn address_of(ip: IpAddr) -> HeaderValue {
    HeaderValue::try_from(ip.to_canonical().to_string()).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}
