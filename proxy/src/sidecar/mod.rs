//! The proxy in front of a writer pod: one listener, an [`OwnershipLayer`](segue_coordination::pod::OwnershipLayer) for each
//! keyspace, and the service behind it.
//!
//! The layer decides which requests are accepted, and the sidecar forwards those. This file binds the listener and accepts
//! routers; `pods` finds the keyspace of a request, `forwarder` takes it and `exchange` sees it through.
//! Not here: registration and handoffs (`segue_coordination::pod`), and what ends a service that must stop.
//!
//! # Invariants
//! * A request that the service was sent counts as in flight until the service has ended it, even when its router is
//!   gone: it has responded to it and taken all of it, or closed the connection. A connection that has switched
//!   protocols counts until the service has closed it. Only the loss of the pod's lease, a declared end of all work, and the
//!   reset of a response that may have no end cut them off.
//! * A service is told of a router that is gone, and is read on: by HTTP/1.1 it is told by a half-closed connection, by HTTP/2
//!   by a reset, once its response has begun and gone on for a second. An event stream by HTTP/1.1, or the response to a GET,
//!   is reset then too.
//! * A client that asks before it sends is told to go on by the service, not from here.
//! * A request that the service was not sent gets `421` with the mark, so that its router holds it.

mod body;
mod by_partition;
mod connection;
mod count_answers;
mod exchange;
mod expect;
mod faults;
mod forwarder;
mod heads;
mod health;
mod http2;
mod local_reply;
mod pods;
mod relayed_body;
mod router_connection;
mod service_address;
mod service_side;
mod service_socket;
mod shared_histogram;
mod traffic;
mod tunnel;
mod under_way;
mod upstream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use self::health::{Checks, HealthCheck};
use self::pods::ServePods;
pub use self::pods::SidecarPods;
use self::router_connection::{ROUTER_IDLE_TIMEOUT, bounded, recognising, secured};
pub use self::service_address::{ServiceAddress, ServiceAddressError};
pub use self::service_side::UNREAD_TIMEOUT;
pub use self::shared_histogram::SharedHistogram;
pub use self::traffic::Traffic;
pub use self::upstream::Upstream;
use crate::tls::ServerTls;
use crate::upstream::{CONNECTION_WINDOW_BYTES, MAX_HEAD_BYTES};

/// A router that leaves pings unacknowledged is taken for gone, and so are the clients that it served.
const ROUTER_PING_INTERVAL: Duration = Duration::from_secs(10);
const ROUTER_PING_TIMEOUT: Duration = Duration::from_secs(10);
const ROUTER_PINGS: u32 = 2;
/// Most headers of a request by HTTP/1.1: a router takes 100 from its client and adds some, and what it has taken must not be
/// refused here.
const MAX_HEADERS: usize = 128;
/// Most bytes of a request's head by HTTP/1.1: a router takes up to 512 KiB from its client and adds some.
const MAX_REQUEST_HEAD_BYTES: usize = 640 << 10;

/// A sidecar whose socket is bound and that does not run yet.
#[derive(Debug)]
pub struct Sidecar {
    listener: TcpListener,
    tls: Option<ServerTls>,
    max_connections: usize,
}

impl Sidecar {
    /// Binds the address that routers connect to. Without `tls` they are served in clear text. Beyond `max_connections` they
    /// wait in the listen backlog.
    ///
    /// # Errors
    ///
    /// Fails if the address cannot be bound.
    pub async fn bind(listen: SocketAddr, tls: Option<ServerTls>, max_connections: usize) -> std::io::Result<Self> {
        Ok(Sidecar { listener: TcpListener::bind(listen).await?, tls, max_connections })
    }

    /// Returns the address that it listens on.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not tell the address of the socket.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Forwards the requests that the layer of one of the pods accepts to the service, until `shutdown`. Then requests in
    /// flight have `grace` to end. The pods may change meanwhile.
    pub async fn serve(self, pods: SidecarPods, shutdown: CancellationToken, grace: Duration) {
        let connections = GracefulShutdown::new();
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // hyper's timer also runs between requests.
        builder.http1().timer(TokioTimer::new()).header_read_timeout(ROUTER_IDLE_TIMEOUT).max_headers(MAX_HEADERS);
        builder.http1().max_buf_size(MAX_REQUEST_HEAD_BYTES);
        builder.http2().timer(TokioTimer::new()).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        builder.http2().max_header_list_size(MAX_HEAD_BYTES as u32);
        builder.http2().keep_alive_interval(ROUTER_PING_INTERVAL).keep_alive_timeout(ROUTER_PING_TIMEOUT);
        let places = Arc::new(Semaphore::new(self.max_connections));
        loop {
            let Some(Ok(place)) = shutdown.run_until_cancelled(places.clone().acquire_owned()).await else { break };
            let stream = tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        // Most likely a lack of file descriptors, which passes when some are closed.
                        tracing::warn!(%error, "cannot accept a connection; retrying");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                () = shutdown.cancelled() => break,
            };
            let _ = stream.set_nodelay(true);
            let pings = TcpKeepalive::new().with_time(ROUTER_PING_INTERVAL).with_interval(ROUTER_PING_TIMEOUT);
            let _ = SockRef::from(&stream).set_tcp_keepalive(&pings.with_retries(ROUTER_PINGS));
            let (builder, service) = (builder.clone(), ServePods(pods.clone()));
            let (tls, watcher, ending) = (self.tls.clone(), connections.watcher(), shutdown.clone());
            tokio::spawn(async move {
                let _place = place;
                let Some(stream) = secured(stream, tls, ending).await else { return };
                let recognised = Arc::new(AtomicBool::new(false));
                let stream = TokioIo::new(recognising(stream, recognised.clone()));
                let connection = builder.serve_connection_with_upgrades(stream, service).into_owned();
                bounded(watcher.watch(connection), &recognised).await;
            });
        }
        drop(self.listener);
        let _ = timeout(grace, connections.shutdown()).await;
    }
}

#[cfg(test)]
pub(crate) mod tests;
