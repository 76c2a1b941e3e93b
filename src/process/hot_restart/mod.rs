//! Hot restart of a router: a new process takes over the listening sockets of the running one, and no request is lost.
//!
//! ```text
//!  old process                                    new process (`segue run` once more)
//!     │ ◄───────────────── hello ─────────────────── │ connects to `router.hot_restart_socket`
//!     │ ── offer: its name, then the sockets ──────► │ registers (by another name), snapshot, opens its routes
//!     │ accepts                                      │
//!     │ ◄───────────────── ready ─────────────────── │ accepts
//!     │ ─────────────────  leaving ────────────────► │ puts its own sockets at `router.hot_restart_socket` and
//!     │                                              │ `admin.socket`
//!     │ drains, deregisters last                     │
//!     │ ─────────────────  ended ──────────────────► │
//! ```
//!
//! # Invariants
//!
//! * Until `ready` the old process serves as if nothing had happened, whatever the new one does.
//! * After `ready` the new process serves, whatever happens to the old one.
//! * There is one hot restart at a time, and every wait is bounded.
//!
//! Elsewhere: how a server drains (`segue_proxy::server`), and in which order roles start and end (`commands::run`).

mod adopt;
mod channel;
mod message;
mod server;
#[cfg(test)]
mod tests;

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use segue_config::Config;
use tokio::sync::watch;
use tracing::info;

use self::adopt::{AdoptedSockets, adopt};
use self::channel::Channel;
use self::message::Message;
use crate::process::socket_path::{self, SocketPath};
use crate::telemetry::metrics::HotRestartMetrics;

pub(crate) use self::server::{Exit, HotRestartServer};

/// The configuration key of the socket's path.
const SOCKET_KEY: &str = "router.hot_restart_socket";
/// Most attempts to reach a running process that vanishes just as it is asked.
const MAX_ATTEMPTS: usize = 20;
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// How long the store may take, beyond the leases that have to end, before a new process gives up.
const STORE_MARGIN: Duration = Duration::from_secs(20);

/// A starting process, possibly the successor of a running one.
#[derive(Debug)]
pub(crate) struct Startup {
    /// `None` if this process takes part in no hot restart.
    path: Option<PathBuf>,
    /// How long this process may take to become ready.
    patience: Duration,
    name: String,
    predecessor: Option<Channel>,
    socket: Option<SocketPath>,
    listeners: AdoptedSockets<TcpListener>,
    /// What the running process writes its log to, if this one asked for that.
    log: Option<OwnedFd>,
    /// The text in `/status`.
    status: watch::Sender<Option<String>>,
}

impl Startup {
    /// Looks for a running process. If there is one, receives its sockets and gives the router of the configuration a
    /// name that can be registered beside it. If `continues_log`, this process also asks for that one's standard error.
    pub(crate) async fn begin(config: &mut Config, continues_log: bool) -> anyhow::Result<Self> {
        let admin = config.admin.as_ref().map(|admin| admin.listen);
        let mut startup = Startup {
            path: None,
            patience: Duration::ZERO,
            name: String::new(),
            predecessor: None,
            socket: None,
            listeners: AdoptedSockets { router: Vec::new(), admin: None },
            log: None,
            status: watch::Sender::default(),
        };
        let Some(router) = &mut config.router else { return Ok(startup) };
        let Some(path) = &router.hot_restart_socket else { return Ok(startup) };
        startup.path = Some(path.clone());
        startup.patience = patience(router.lease_ttl);
        let offer = request_sockets(path, startup.patience, continues_log).await?;
        if let Some(HandoverOffer { channel, name, sockets, log }) = offer {
            router.name = adopt::name(&router.name, &name);
            let offered: std::io::Result<Vec<_>> =
                sockets.into_iter().map(|socket| Ok((socket.local_addr()?, socket))).collect();
            startup.listeners = adopt(offered.context("received a socket that is not TCP")?, router.listen, admin);
            let (sockets, admin) = (startup.listeners.router.len(), startup.listeners.admin.is_some());
            info!(
                pid = channel.pid,
                predecessor = name,
                name = router.name,
                sockets,
                admin,
                "hot restart: taking over from the running process"
            );
            startup.predecessor = Some(channel);
            startup.log = log;
        }
        startup.name.clone_from(&router.name);
        Ok(startup)
    }

    /// Takes the adopted listeners of the router. If there are none, it has to bind its address.
    pub(crate) fn router_listeners(&mut self) -> Vec<TcpListener> {
        std::mem::take(&mut self.listeners.router)
    }

    /// Takes the adopted listener of the admin endpoint.
    pub(crate) fn admin_listener(&mut self) -> Option<TcpListener> {
        self.listeners.admin.take()
    }

    /// Returns whether this process takes over from a running one.
    pub(crate) fn takes_over(&self) -> bool {
        self.predecessor.is_some()
    }

    /// Opens the socket for hot restarts of this process, unless its predecessor still has it. Must be called once the
    /// addresses are bound: the process that has them also owns the path.
    pub(crate) fn open_socket(&mut self) -> anyhow::Result<()> {
        if let (Some(path), None) = (&self.path, &self.predecessor) {
            self.socket = Some(SocketPath::claim(SOCKET_KEY, path)?);
        }
        Ok(())
    }

    /// Returns the text about the hot restart in `/status`.
    pub(crate) fn status(&self) -> watch::Receiver<Option<String>> {
        self.status.subscribe()
    }

    /// Waits until this process is ready, if another one still serves. After an error it must not serve.
    pub(crate) async fn until(&mut self, ready: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Some(predecessor) = &mut self.predecessor else { return Ok(()) };
        let pid = predecessor.pid;
        tokio::select! {
            biased;
            message = predecessor.receive() => match message? {
                // No process serves: clients had better wait in this router's stash than in the kernel.
                None => {
                    info!(pid, "hot restart: the old process is gone; starting without it");
                    self.predecessor = None;
                    self.open_socket()
                }
                Some(Message::Refusal { reason }) => bail!("process {pid} keeps serving: {reason}"),
                Some(other) => bail!("process {pid} sent {} out of turn", other.as_str()),
            },
            () = ready => Ok(()),
            () = tokio::time::sleep(self.patience) => {
                let patience = self.patience.as_secs();
                bail!("not ready to take over from process {pid} within {patience} s; that process keeps serving")
            }
        }
    }

    /// Announces that this process accepts. From now on another process can take over `sockets` from it.
    pub(crate) async fn serving(mut self, sockets: Vec<TcpListener>, metrics: HotRestartMetrics) -> HotRestartServer {
        if let Some(predecessor) = &mut self.predecessor {
            metrics.taken();
            self.status.send_replace(Some(format!("taking over from process {}", predecessor.pid)));
            // If this fails the predecessor is gone, which the next read will show.
            let _ = predecessor.send(&Message::Ready).await;
        }
        HotRestartServer::new(self, sockets, metrics)
    }
}

/// Returns how long a new process may take to become ready.
///
/// The name to register may be taken until its lease ends, and so may one whose registration is lost meanwhile.
pub(crate) fn patience(lease_ttl: Duration) -> Duration {
    2 * lease_ttl + STORE_MARGIN
}

/// The offer of a running process.
struct HandoverOffer {
    channel: Channel,
    name: String,
    sockets: Vec<TcpListener>,
    log: Option<OwnedFd>,
}

/// Asks the process at the path for its sockets, and for its standard error if `log`. Returns `None` if there is no
/// process.
async fn request_sockets(path: &Path, patience: Duration, log: bool) -> anyhow::Result<Option<HandoverOffer>> {
    for _ in 0..MAX_ATTEMPTS {
        let Some(stream) = socket_path::connect(SOCKET_KEY, path).await? else { return Ok(None) };
        let mut channel = Channel::new(stream)?;
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        // A process that does not read may still have sent its reason.
        let _ = channel.send(&Message::Hello { patience_ms, log }).await;
        let pid = channel.pid;
        match channel.receive_soon().await.with_context(|| format!("cannot take over from process {pid}"))? {
            Some(Message::Offer { name, sockets, log }) => {
                if let Some(sockets) = channel.receive_sockets(sockets).await?
                    && let Some(mut log) = channel.receive_files(usize::from(log)).await?
                {
                    return Ok(Some(HandoverOffer { channel, name, sockets, log: log.pop() }));
                }
            }
            Some(Message::Refusal { reason }) => bail!("cannot take over from process {pid}: {reason}"),
            Some(other) => bail!("cannot take over from process {pid}, which sent {other:?} out of turn"),
            None => {}
        }
        // The process has just ended, or has just been replaced.
        tokio::time::sleep(RETRY_DELAY).await;
    }
    bail!("cannot take over: the process at {} closes every connection", path.display())
}
