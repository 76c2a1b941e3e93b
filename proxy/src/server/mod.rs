//! The sockets that clients connect to, and the threads that serve them.
//!
//! Each worker is a thread with a runtime, a listener and connections to pods of its own, so that a request never leaves
//! its thread; the kernel spreads connections over the listeners (`SO_REUSEPORT`).
//! In a hot restart the listeners come from another process; a worker may have several then.
//! What must stay true: an address that cannot be had is reported before anything runs; what was accepted is answered,
//! also while shutting down, up to the deadline; nobody connects to a listener that nobody accepts from.

mod client;
mod io;
mod surplus;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::join_all;
use http::HeaderValue;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::forward::tunnel::CLOSING_WEBSOCKETS;
use crate::forward::{self, Forward, InvalidName};
use crate::metrics::{Metrics, WorkerMetrics};
use crate::routing::table::Table;
use crate::runtime::shortage::is_shortage;
use crate::settings::{ClientLimits, ForwardSettings, ServerSettings};
use crate::tls::ServerTls;
use client::{ClientTerms, Clients};
use surplus::Surplus;

/// Connections that the kernel has accepted and no worker has yet.
const BACKLOG: i32 = 4096;
/// How long accepting rests after an error, or until a client leaves if there are no files left.
const REST: Duration = Duration::from_millis(10);
/// How often such an error is logged at most.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// How long a newcomer waits for a place that is being made for it.
const MAKING_ROOM: Duration = Duration::from_millis(20);

/// Why a server cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address means nothing.
    #[error("cannot listen on {address:?} ([router] listen): {source}; it should be host:port")]
    Address {
        /// As configured.
        address: String,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// The address cannot be had.
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

/// A server that has its sockets and does not run yet.
#[derive(Debug)]
pub struct Server {
    settings: ServerSettings,
    address: SocketAddr,
    workers: usize,
    listeners: Vec<std::net::TcpListener>,
    /// Bound beside listeners that another process still serves: they listen once they are served.
    silent: Vec<Socket>,
}

impl Server {
    /// Takes hold of the address, once for each worker.
    pub fn bind(settings: ServerSettings) -> Result<Self, ServerError> {
        let bad = |source| ServerError::Address { address: settings.listen.clone(), source };
        let mut addresses = settings.listen.to_socket_addrs().map_err(bad)?;
        let mut address = addresses.next().ok_or_else(|| bad(std::io::ErrorKind::AddrNotAvailable.into()))?;
        let failed = |address, source| ServerError::Bind { address, source };
        if address.port() != 0 {
            // Sharing the port would let another process of the same user share it as well, unnoticed.
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

    /// Takes over listeners of one address that were made by [`bind`](Self::bind) in another process, at least one and
    /// whatever number that had; workers beyond it get further ones.
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

    /// The listeners once more, for a process that is to take them over. As long as any of them is open the kernel lets
    /// clients connect.
    pub fn duplicates(&self) -> std::io::Result<Vec<std::net::TcpListener>> {
        let silent = self.silent.iter().map(|socket| Ok(socket.try_clone()?.into()));
        self.listeners.iter().map(std::net::TcpListener::try_clone).chain(silent).collect()
    }

    /// Where clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How many workers there will be: what the table and the metrics have to be made for.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Begins to serve. The table and the metrics must have been made for as many workers.
    pub fn start(
        mut self,
        forward: &ForwardSettings,
        table: &Arc<Table>,
        metrics: &Metrics,
    ) -> Result<ServerHandle, ServerError> {
        forward::check(forward)?;
        for socket in self.silent {
            socket.listen(BACKLOG).map_err(|source| ServerError::Bind { address: self.address, source })?;
            self.listeners.push(socket.into());
        }
        let (stop, stopped) = watch::channel(None);
        let most = forward.limits.max_connections.div_ceil(self.workers).max(1);
        let most_requests = max_requests(&forward.limits, self.workers);
        let mut workers = Vec::new();
        for (index, listeners) in deal(self.listeners, self.workers).into_iter().enumerate() {
            let (ended, end) = oneshot::channel();
            let plan = WorkerPlan {
                index,
                listeners,
                forward: forward.clone(),
                table: table.clone(),
                metrics: metrics.worker(index),
                max_connections: most,
                max_requests: most_requests,
                terms: terms(&forward.limits, self.settings.tls.clone(), forward.upstream.idle_timeout),
                stop: stopped.clone(),
            };
            let runtime = move || {
                let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
                match runtime {
                    Ok(runtime) => runtime.block_on(plan.run()),
                    Err(error) => tracing::error!(%error, "a worker cannot run"),
                }
                let _ = ended.send(());
            };
            let thread = std::thread::Builder::new()
                .name(format!("segue-worker-{index}"))
                .spawn(runtime)
                .map_err(ServerError::Worker)?;
            workers.push((thread, end));
        }
        Ok(ServerHandle { address: self.address, stop, workers })
    }
}

fn terms(limits: &ClientLimits, tls: Option<ServerTls>, unread_timeout: Duration) -> ClientTerms {
    ClientTerms {
        header_read_timeout: limits.header_read_timeout,
        max_header_bytes: limits.max_header_bytes,
        max_streams: limits.max_streams_per_connection,
        unread_timeout,
        tls,
    }
}

/// How many requests of one client address a worker takes: its share, but no less than one connection may bring, as a
/// connection stays with its worker. 0: no limit.
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

/// Gives each worker its share, in turn.
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

/// Bound; nobody can connect yet.
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

/// How a server ends.
#[derive(Debug, Clone, Copy)]
struct Stop {
    deadline: Instant,
    idle: Idle,
}

/// What becomes of connections of HTTP/1.1 on which nothing is asked just then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    /// Closed. A request that is on its way to one of them is lost, as it would be a moment later.
    Closed,
    /// Closed after one more answer, which says so.
    AnsweredOnceMore,
}

/// A server that runs. Dropped, it closes everything at once.
#[derive(Debug)]
pub struct ServerHandle {
    address: SocketAddr,
    stop: watch::Sender<Option<Stop>>,
    workers: Vec<(JoinHandle<()>, oneshot::Receiver<()>)>,
}

impl ServerHandle {
    /// Where clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing more, lets what is under way end, and at the deadline closes the rest. Returns when all workers
    /// have ended.
    pub async fn shutdown(self, deadline: Instant) {
        self.end(Stop { deadline, idle: Idle::Closed }).await;
    }

    /// The same for a server whose listeners another process serves by now: a connection on which nothing is asked just
    /// then is left open until its next answer, as its client's next request may be on the way.
    pub async fn shutdown_replaced(self, deadline: Instant) {
        self.end(Stop { deadline, idle: Idle::AnsweredOnceMore }).await;
    }

    async fn end(mut self, stop: Stop) {
        self.stop.send_replace(Some(stop));
        for (thread, end) in std::mem::take(&mut self.workers) {
            let _ = end.await;
            let _ = thread.join();
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        if !self.workers.is_empty() {
            self.stop.send_replace(Some(Stop { deadline: Instant::now(), idle: Idle::Closed }));
        }
    }
}

struct WorkerPlan {
    index: usize,
    listeners: Vec<std::net::TcpListener>,
    forward: ForwardSettings,
    table: Arc<Table>,
    metrics: Arc<WorkerMetrics>,
    max_connections: usize,
    max_requests: usize,
    terms: ClientTerms,
    stop: watch::Receiver<Option<Stop>>,
}

impl WorkerPlan {
    async fn run(mut self) {
        let forward = Forward::new(&self.forward, self.table.worker(self.index), self.metrics.clone());
        let listeners: std::io::Result<Vec<_>> = self.listeners.into_iter().map(TcpListener::from_std).collect();
        let (forward, listeners) = match (forward, listeners) {
            (Ok(forward), Ok(listeners)) => (forward, listeners),
            (Err(error), _) => return tracing::error!(%error, "a worker cannot run"),
            (_, Err(error)) => return tracing::error!(%error, "a worker cannot listen"),
        };
        let look_every = (self.terms.header_read_timeout / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let secure = self.terms.tls.is_some();
        let door = Door { most: self.max_connections, idle: look_every, secure, metrics: self.metrics.clone() };
        let clients = Rc::new(Clients::new(self.terms, self.max_requests, self.metrics.clone()));
        let watched = clients.clone();
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(look_every).await;
                watched.check();
            }
        });
        tokio::select! {
            () = accept_all(&listeners, &clients, &forward, &door) => {}
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
        let Stop { deadline, idle } = stop.unwrap_or(Stop { deadline: Instant::now(), idle: Idle::Closed });
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
struct Door {
    /// Most clients at once.
    most: usize,
    /// Who has been idle for longer may lose his place to a newcomer. Idleness is known no finer.
    idle: Duration,
    secure: bool,
    metrics: Arc<WorkerMetrics>,
}

impl Door {
    /// Whether there is room for one more, if need be by closing one that is idle. Nobody is left waiting in the kernel's
    /// queue: whoever keeps all places busy would keep all others waiting there, and they would not know for what.
    async fn has_room(&self, clients: &Clients) -> bool {
        if clients.count() < self.most {
            return true;
        }
        if clients.close_one(self.idle, self.most) {
            let leaves = async {
                while clients.count() >= self.most {
                    clients.left.notified().await;
                }
            };
            let _ = tokio::time::timeout(MAKING_ROOM, leaves).await;
        }
        clients.count() < self.most
    }
}

/// Accepts from all of them for ever.
async fn accept_all(listeners: &[TcpListener], clients: &Rc<Clients>, forward: &Forward, door: &Door) {
    let surplus = Surplus::default();
    join_all(listeners.iter().map(|listener| accept(listener, clients, forward, door, &surplus))).await;
    // Without a listener there is nothing to do until the end.
    std::future::pending().await
}

/// Accepts for ever, at most so many at once.
async fn accept(listener: &TcpListener, clients: &Rc<Clients>, forward: &Forward, door: &Door, surplus: &Surplus) {
    let mut logged: Option<Instant> = None;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if door.has_room(clients).await {
                    serve(clients, forward, stream, peer);
                } else {
                    surplus.send_away(stream, door.secure, &door.metrics);
                }
            }
            Err(error) => {
                // One client's trouble, or ours (no file descriptors left): neither ends the server.
                if error.kind() == std::io::ErrorKind::ConnectionAborted {
                    continue;
                }
                let closes_idle = is_shortage(&error);
                if logged.is_none_or(|logged| logged.elapsed() > LOG_EVERY) {
                    logged = Some(Instant::now());
                    tracing::warn!(%error, closes_idle, "cannot accept connections; trying again");
                }
                if closes_idle && forward.close_idle() == 0 {
                    clients.close_one(Duration::ZERO, 0);
                }
                let _ = tokio::time::timeout(REST, clients.left.notified()).await;
            }
        }
    }
}

fn serve(clients: &Rc<Clients>, forward: &Forward, stream: TcpStream, peer: SocketAddr) {
    let served = clients.seat(peer.ip()).serve(stream, address_of(peer.ip()), forward.clone());
    tokio::task::spawn_local(served);
}

/// The client's address as `x-forwarded-for` has it; one of IPv4 that came over IPv6 is written as IPv4.
fn address_of(ip: IpAddr) -> HeaderValue {
    HeaderValue::try_from(ip.to_canonical().to_string()).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// Serves one client to its end on the caller's thread, without a listener. To be called inside a set of local tasks.
#[cfg(fuzzing)]
pub async fn serve_client(
    stream: TcpStream,
    peer: HeaderValue,
    forward: Forward,
    metrics: Arc<WorkerMetrics>,
    limits: &ClientLimits,
) {
    let clients = Rc::new(Clients::new(terms(limits, None, forward.idle_timeout()), 0, metrics));
    clients.seat(std::net::Ipv4Addr::UNSPECIFIED.into()).serve(stream, peer, forward).await;
}
