//! The server that clients connect to: binds its sockets, starts its workers, and stops them.
//!
//! Each worker is a thread with its own runtime, listener and connections to pods, so that a request never leaves its
//! thread. The kernel spreads connections over the listeners (`SO_REUSEPORT`). In a hot restart the listeners come from
//! another process, and a worker may have several.
//! Elsewhere: accepting and draining (`worker`), the clients of a worker (`registry`), one connection (`connection`).
//!
//! # Invariants
//!
//! * An address that cannot be bound is reported before anything runs.
//! * Nobody can connect to a listener that no worker accepts from.

mod active_request;
mod client;
mod connection;
mod data_path;
mod http1;
mod io;
mod keyspaces;
mod linger;
mod overload;
mod proxy_protocol;
mod registry;
mod resets;
mod scratch;
mod unfinished_head;
mod worker;

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::Layer;

use crate::forward::InvalidName;
use crate::forward::service::ClientService;
use crate::settings::{ClientLimits, ServerSettings};
use client::ClientTerms;
pub use data_path::AroundDataPath;
use data_path::{Bare, Layers, TowerLayers};
use keyspaces::KeyspaceChanges;
pub(crate) use keyspaces::{KeyspaceChange, ListedKeyspace};
pub use keyspaces::{ServedKeyspace, ServedKeyspaces};
use worker::{RunningWorker, StopMode, Worker};

/// Connections that the kernel has completed and no worker has accepted yet.
const BACKLOG: i32 = 4096;

/// How long a server that stops keeps an idle HTTP/1.1 connection for a request that may be on its way.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a server cannot be bound or started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be resolved.
    #[error("cannot listen on {address:?} ([router] listen): {source}; it should be host:port")]
    Address {
        /// As configured.
        address: String,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// The address cannot be bound.
    #[error("cannot listen on {address} ([router] listen): {source}")]
    Bind {
        /// Which one.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A name cannot be stamped on requests.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A worker's thread or runtime could not be made.
    #[error("cannot start a worker thread: {0}")]
    Worker(std::io::Error),
}

/// A server whose sockets are bound and that does not run yet.
#[derive(Debug)]
pub struct Server {
    settings: ServerSettings,
    address: SocketAddr,
    workers: usize,
    listeners: Vec<std::net::TcpListener>,
    /// Bound beside the listeners of another process. They listen once this server runs.
    silent: Vec<Socket>,
}

impl Server {
    /// Binds the address once for each worker.
    ///
    /// # Errors
    ///
    /// Fails if the address cannot be resolved or bound.
    pub fn bind(settings: ServerSettings) -> Result<Self, ServerError> {
        let bad = |source| ServerError::Address { address: settings.listen.clone(), source };
        let mut addresses = settings.listen.to_socket_addrs().map_err(bad)?;
        let mut address = addresses.next().ok_or_else(|| bad(std::io::ErrorKind::AddrNotAvailable.into()))?;
        let failed = |address, source| ServerError::Bind { address, source };
        if address.port() != 0 {
            // A shared port could be bound by another process of the same user as well, unnoticed.
            drop(listen(address, false).map_err(|source| failed(address, source))?);
        }
        let mut listeners = Vec::new();
        let workers = workers(&settings);
        for _ in 0..workers {
            let listener = listen(address, true).map_err(|source| failed(address, source))?;
            address = listener.local_addr().map_err(|source| failed(address, source))?;
            listeners.push(listener);
        }
        Ok(Server { settings, address, workers, listeners, silent: Vec::new() })
    }

    /// Takes over listeners of one address that were bound by [`bind`](Self::bind) in another process. Workers beyond their
    /// number get sockets of their own.
    ///
    /// # Errors
    ///
    /// Fails if a listener has no address or cannot be used without blocking, or further sockets cannot be bound.
    pub fn adopt(settings: ServerSettings, listeners: Vec<std::net::TcpListener>) -> Result<Self, ServerError> {
        let Some(first) = listeners.first() else { return Self::bind(settings) };
        let bad = |source| ServerError::Address { address: settings.listen.clone(), source };
        let address = first.local_addr().map_err(bad)?;
        let failed = |source| ServerError::Bind { address, source };
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true)).map_err(failed)?;
        let workers = workers(&settings);
        let silent = (listeners.len()..workers).map(|_| socket(address, true));
        let silent = silent.collect::<std::io::Result<_>>().map_err(failed)?;
        Ok(Server { settings, address, workers, listeners, silent })
    }

    /// Duplicates the listeners for a process that takes them over. Clients can connect as long as any of them is open.
    ///
    /// # Errors
    ///
    /// Fails if the process may not open as many files.
    pub fn duplicates(&self) -> std::io::Result<Vec<std::net::TcpListener>> {
        let silent = self.silent.iter().map(|socket| Ok(socket.try_clone()?.into()));
        self.listeners.iter().map(std::net::TcpListener::try_clone).chain(silent).collect()
    }

    /// Returns the address that clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of workers, for which the table and the metrics have to be made.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Starts the workers. Tables and metrics must have been made for as many.
    ///
    /// # Errors
    ///
    /// Fails if a name cannot be the value of a header, a socket cannot listen, or a thread cannot be started.
    pub fn start(self, keyspaces: ServedKeyspaces) -> Result<ServerHandle, ServerError> {
        self.start_workers(keyspaces, Bare)
    }

    /// Starts the workers with `layer` around the data path. The layer is cloned for each worker, and makes a service for
    /// each connection, which is cloned for each request. It sees all responses to clients, the router's own
    /// responses included.
    ///
    /// ```no_run
    /// # use segue_proxy::server::{ServedKeyspaces, Server, ServerError, ServerHandle};
    /// # use http::{HeaderName, HeaderValue};
    /// # fn start(server: Server, keyspaces: ServedKeyspaces) -> Result<ServerHandle, ServerError> {
    /// use tower_http::set_header::SetResponseHeaderLayer;
    ///
    /// let name = HeaderName::from_static("x-site");
    /// let layer = SetResponseHeaderLayer::overriding(name, HeaderValue::from_static("north"));
    /// server.start_with_layer(keyspaces, layer)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails as [`start`](Self::start) does.
    pub fn start_with_layer<L>(self, keyspaces: ServedKeyspaces, layer: L) -> Result<ServerHandle, ServerError>
    where
        L: Layer<ClientService, Service: AroundDataPath> + Clone + Send + 'static,
    {
        self.start_workers(keyspaces, TowerLayers(layer))
    }

    fn start_workers(self, keyspaces: ServedKeyspaces, layers: impl Layers) -> Result<ServerHandle, ServerError> {
        self.start_each(keyspaces, layers, |worker| worker.run_on_a_thread().map_err(ServerError::Worker))
    }

    /// Starts the workers as tasks of the caller's thread. To be called inside a set of local tasks.
    ///
    /// # Errors
    ///
    /// Fails as [`start`](Self::start) does.
    #[cfg(feature = "fuzzing")]
    pub fn start_here(self, keyspaces: ServedKeyspaces) -> Result<ServerHandle, ServerError> {
        self.start_each(keyspaces, Bare, |worker| Ok(worker.run_here()))
    }

    fn start_each<L: Layers>(
        mut self,
        keyspaces: ServedKeyspaces,
        layers: L,
        start: impl Fn(Worker<L>) -> Result<RunningWorker, ServerError>,
    ) -> Result<ServerHandle, ServerError> {
        keyspaces.check()?;
        for socket in self.silent {
            socket.listen(BACKLOG).map_err(|source| ServerError::Bind { address: self.address, source })?;
            self.listeners.push(socket.into());
        }
        let (stop, stopped) = watch::channel(None);
        let common = &keyspaces.common;
        let most = common.limits.max_connections.div_ceil(self.workers).max(1);
        let most_requests = max_requests(&common.limits, self.workers);
        let (mut workers, mut changes) = (Vec::new(), KeyspaceChanges::default());
        for (index, listeners) in deal(self.listeners, self.workers).into_iter().enumerate() {
            workers.push(start(Worker {
                index,
                listeners,
                layers: layers.clone(),
                metrics: keyspaces.listener.worker(index),
                keyspaces: keyspaces.clone(),
                changes: changes.next_worker(),
                max_connections: most,
                max_requests: most_requests,
                terms: terms(&common.limits, &self.settings, common.unread_timeout),
                stop: stopped.clone(),
            })?);
        }
        Ok(ServerHandle { address: self.address, stop, changes, workers })
    }
}

fn terms(limits: &ClientLimits, settings: &ServerSettings, unread_timeout: Duration) -> ClientTerms {
    ClientTerms {
        header_read_timeout: limits.header_read_timeout,
        max_header_bytes: limits.max_header_bytes,
        max_streams: limits.max_streams_per_connection,
        max_age: limits.max_connection_age,
        proxy_protocol: limits.proxy_protocol,
        unread_timeout,
        tls: settings.tls.clone(),
    }
}

/// Returns how many requests of one client address a worker takes: its share, but at least what one connection may carry, as
/// a connection stays with its worker. 0 means no limit.
fn max_requests(limits: &ClientLimits, workers: usize) -> usize {
    match limits.max_in_flight_per_client {
        0 => 0,
        most => most.div_ceil(workers).max(most.min(limits.max_streams_per_connection as usize)),
    }
}

fn workers(settings: &ServerSettings) -> usize {
    match settings.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    }
}

/// Deals the listeners out to the workers in turn.
fn deal<T>(listeners: Vec<T>, workers: usize) -> Vec<Vec<T>> {
    let mut dealt: Vec<Vec<T>> = (0..workers).map(|_| Vec::new()).collect();
    for (index, listener) in listeners.into_iter().enumerate() {
        dealt[index % workers].push(listener);
    }
    dealt
}

fn listen(address: SocketAddr, shared: bool) -> std::io::Result<std::net::TcpListener> {
    let socket = socket(address, shared)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Returns a bound socket that does not listen yet.
fn socket(address: SocketAddr, shared: bool) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A running server. Dropping it closes everything at once.
#[derive(Debug)]
pub struct ServerHandle {
    address: SocketAddr,
    stop: watch::Sender<Option<StopMode>>,
    changes: KeyspaceChanges,
    workers: Vec<RunningWorker>,
}

impl ServerHandle {
    /// Returns the address that clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.changes.workers()
    }

    /// Changes the keyspaces of a server that may have several: tells all workers at once. The future completes when each of
    /// them has made the change.
    pub(crate) fn change(&self, change: &KeyspaceChange) -> impl Future<Output = ()> + use<> {
        self.changes.tell(change)
    }

    /// Stops accepting, lets requests in flight end, and closes the rest at the deadline. An idle connection stays open for
    /// a second or until its next response, because its client's next request may be on the way. Returns when all workers
    /// have ended.
    pub async fn shutdown(self, deadline: Instant) {
        self.end(StopMode { deadline, idle: LAST_REQUEST_TIMEOUT }).await;
    }

    /// Does the same for a server whose listeners another process serves by now. An idle connection stays open until its
    /// next response.
    pub async fn shutdown_replaced(self, deadline: Instant) {
        self.end(StopMode { deadline, idle: Duration::MAX }).await;
    }

    async fn end(mut self, stop: StopMode) {
        self.stop.send_replace(Some(stop));
        for worker in std::mem::take(&mut self.workers) {
            worker.ended().await;
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        if !self.workers.is_empty() {
            self.stop.send_replace(Some(StopMode::now()));
        }
    }
}

/// Checks that hyper reads these bytes as requests in the same way as this server.
///
/// # Panics
///
/// If it does not.
#[cfg(feature = "fuzzing")]
pub fn compare_with_hyper(pieces: &[&[u8]]) {
    http1::twin::compare(pieces, ClientLimits::default().max_header_bytes);
}

/// Serves one client on the caller's thread, without a listener. To be called inside a set of local tasks.
#[cfg(feature = "fuzzing")]
pub async fn serve_client(
    stream: tokio::net::TcpStream,
    peer: http::HeaderValue,
    forward: crate::forward::Forward,
    metrics: std::sync::Arc<crate::metrics::WorkerMetrics>,
    limits: &ClientLimits,
) {
    let settings = ServerSettings { listen: String::new(), workers: 1, tls: None };
    let terms = terms(limits, &settings, forward.idle_timeout());
    let clients = std::rc::Rc::new(registry::ConnectionRegistry::new(terms, 0, metrics));
    let path = data_path::DataPath { forward, layers: Bare };
    clients.seat(std::net::Ipv4Addr::UNSPECIFIED.into()).serve(stream, peer, path).await;
}
