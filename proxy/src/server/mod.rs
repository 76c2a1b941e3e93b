//! The sockets that clients connect to, and the threads that serve them.
//!
//! Each worker is a thread with a runtime, a listener and connections to pods of its own, so that a request never leaves
//! its thread; the kernel spreads connections over the listeners (`SO_REUSEPORT`).
//! What must stay true: an address that cannot be had is reported before anything runs; what was accepted is answered,
//! also while shutting down, up to the deadline.

mod client;
mod io;
mod surplus;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http::HeaderValue;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::forward::{self, Forward, InvalidName};
use crate::metrics::{Metrics, WorkerMetrics};
use crate::settings::{ForwardSettings, ServerSettings};
use crate::table::Table;
use client::{ClientTerms, Clients};
use surplus::Surplus;

/// Connections that the kernel has accepted and no worker has yet.
const BACKLOG: i32 = 4096;
/// How long accepting rests after an error such as "too many open files"; doubles up to the second.
const FIRST_REST: Duration = Duration::from_millis(10);
const LONGEST_REST: Duration = Duration::from_secs(1);
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
    listeners: Vec<std::net::TcpListener>,
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
        for _ in 0..workers(&settings) {
            let listener = listen(address, true).map_err(|source| failed(address, source))?;
            address = listener.local_addr().map_err(|source| failed(address, source))?;
            listeners.push(listener);
        }
        Ok(Server { settings, address, listeners })
    }

    /// Where clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How many workers there will be: what the table and the metrics have to be made for.
    pub fn workers(&self) -> usize {
        self.listeners.len()
    }

    /// Begins to serve. The table and the metrics must have been made for as many workers.
    pub fn start(
        self,
        forward: &ForwardSettings,
        table: &Arc<Table>,
        metrics: &Metrics,
    ) -> Result<ServerHandle, ServerError> {
        forward::check(forward)?;
        let (stop, stopped) = watch::channel(None);
        let most = self.settings.max_connections.div_ceil(self.listeners.len()).max(1);
        let mut workers = Vec::new();
        for (index, listener) in self.listeners.into_iter().enumerate() {
            let (ended, end) = oneshot::channel();
            let plan = WorkerPlan {
                index,
                listener,
                forward: forward.clone(),
                table: table.clone(),
                metrics: metrics.worker(index),
                max_connections: most,
                terms: terms(&self.settings, forward.upstream.idle_timeout),
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

fn terms(settings: &ServerSettings, unread_timeout: Duration) -> ClientTerms {
    ClientTerms {
        header_read_timeout: settings.header_read_timeout,
        max_header_bytes: settings.max_header_bytes,
        unread_timeout,
        tls: settings.tls.clone(),
    }
}

fn workers(settings: &ServerSettings) -> usize {
    match settings.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    }
}

fn listen(address: SocketAddr, shared: bool) -> std::io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A server that runs. Dropped, it closes everything at once.
#[derive(Debug)]
pub struct ServerHandle {
    address: SocketAddr,
    stop: watch::Sender<Option<Instant>>,
    workers: Vec<(JoinHandle<()>, oneshot::Receiver<()>)>,
}

impl ServerHandle {
    /// Where clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing more, lets what is under way end, and at the deadline closes the rest. Returns when all workers
    /// have ended.
    pub async fn shutdown(mut self, deadline: Instant) {
        self.stop.send_replace(Some(deadline));
        for (thread, end) in std::mem::take(&mut self.workers) {
            let _ = end.await;
            let _ = thread.join();
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        if !self.workers.is_empty() {
            self.stop.send_replace(Some(Instant::now()));
        }
    }
}

struct WorkerPlan {
    index: usize,
    listener: std::net::TcpListener,
    forward: ForwardSettings,
    table: Arc<Table>,
    metrics: Arc<WorkerMetrics>,
    max_connections: usize,
    terms: ClientTerms,
    stop: watch::Receiver<Option<Instant>>,
}

impl WorkerPlan {
    async fn run(mut self) {
        let forward = Forward::new(&self.forward, self.table.worker(self.index), self.metrics.clone());
        let (forward, listener) = match (forward, TcpListener::from_std(self.listener)) {
            (Ok(forward), Ok(listener)) => (forward, listener),
            (Err(error), _) => return tracing::error!(%error, "a worker cannot run"),
            (_, Err(error)) => return tracing::error!(%error, "a worker cannot listen"),
        };
        let look_every = (self.terms.header_read_timeout / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let secure = self.terms.tls.is_some();
        let door = Door { most: self.max_connections, idle: look_every, secure, metrics: self.metrics.clone() };
        let clients = Rc::new(Clients::new(self.terms, self.metrics.clone()));
        let watched = clients.clone();
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(look_every).await;
                watched.check();
            }
        });
        tokio::select! {
            () = accept(&listener, &clients, &forward, &door) => {}
            _ = self.stop.wait_for(Option::is_some) => {}
        }
        // Who is in the queue has connected already, as far as he can tell.
        while let Some(Ok((stream, peer))) = std::future::poll_fn(|context| match listener.poll_accept(context) {
            std::task::Poll::Ready(accepted) => std::task::Poll::Ready(Some(accepted)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
        {
            serve(&clients, &forward, stream, peer);
        }
        drop(listener);
        clients.finish();
        let deadline = (*self.stop.borrow()).unwrap_or_else(Instant::now);
        let done = async {
            loop {
                if clients.count() == 0 && self.metrics.in_flight() == 0 {
                    break;
                }
                // Exchanges without a client end without a sign.
                tokio::select! {
                    () = clients.left.notified() => {}
                    () = tokio::time::sleep(Duration::from_millis(5)) => {}
                }
            }
        };
        if tokio::time::timeout_at(deadline, done).await.is_err() {
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
        if clients.close_one(self.idle) {
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

/// Accepts for ever, at most so many at once.
async fn accept(listener: &TcpListener, clients: &Rc<Clients>, forward: &Forward, door: &Door) {
    let mut rest = FIRST_REST;
    let surplus = Surplus::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                rest = FIRST_REST;
                if door.has_room(clients).await {
                    serve(clients, forward, stream, peer);
                } else {
                    surplus.send_away(stream, door.secure, &door.metrics);
                }
            }
            Err(error) => {
                // One client's trouble, or ours (no file descriptors left): neither ends the server.
                if error.kind() != std::io::ErrorKind::ConnectionAborted {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(rest).await;
                    rest = (2 * rest).min(LONGEST_REST);
                }
            }
        }
    }
}

fn serve(clients: &Rc<Clients>, forward: &Forward, stream: TcpStream, peer: SocketAddr) {
    let served = clients.seat().serve(stream, address_of(peer.ip()), forward.clone());
    tokio::task::spawn_local(served);
}

/// The client's address as `x-forwarded-for` has it; one of IPv4 that came over IPv6 is written as IPv4.
fn address_of(ip: IpAddr) -> HeaderValue {
    HeaderValue::try_from(ip.to_canonical().to_string()).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// Serves one client to its end on the caller's thread, without a listener. To be called inside a set of local tasks.
#[cfg(feature = "fuzzing")]
pub async fn serve_client(
    stream: TcpStream,
    peer: HeaderValue,
    forward: Forward,
    metrics: Arc<WorkerMetrics>,
    settings: &ServerSettings,
) {
    Rc::new(Clients::new(terms(settings, forward.idle_timeout()), metrics)).seat().serve(stream, peer, forward).await;
}
