//! A serving process, its predecessor while that finishes, and the processes that ask to take over.
//!
//! # Invariants
//!
//! * Its socket is at the path only once no other process can be asked there.
//! * Nothing that a new process sends or fails to send before `ready` costs more than a log line.

use std::future::Future;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::channel::{Channel, STEP_TIMEOUT};
use super::message::Message;
use super::{SOCKET_KEY, Startup};
use crate::process::socket_path::SocketPath;
use crate::telemetry::metrics::HotRestartMetrics;

/// The longest wait for a new process, whatever it asks for.
const MAX_PATIENCE: Duration = Duration::from_secs(600);

/// The pause after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Why a serving process has to leave.
#[derive(Debug)]
pub(crate) enum Exit {
    /// Another process accepts. It is told when this one is done.
    Replaced(Successor),
    /// The predecessor keeps serving, for this reason.
    Withdrawn(String),
}

/// The process that has taken over.
#[derive(Debug)]
pub(crate) struct Successor {
    channel: Channel,
}

impl Successor {
    /// Tells the successor that this process is done.
    pub(crate) async fn ended(mut self) {
        // A successor that is gone need not be told.
        let _ = self.channel.send(&Message::Ended).await;
    }
}

type Preparation = Pin<Box<dyn Future<Output = anyhow::Result<Successor>> + Send>>;

/// The hot restart side of a serving process.
pub(crate) struct HotRestartServer {
    /// `None` if no process can take over from this one.
    path: Option<PathBuf>,
    name: String,
    /// `None` while the predecessor has it.
    socket: Option<SocketPath>,
    predecessor: Option<Channel>,
    listeners: Arc<Vec<TcpListener>>,
    /// What the predecessor writes its log to, until this process does so.
    log: Option<OwnedFd>,
    /// The process that prepares to take over.
    preparing: Option<Preparation>,
    status: watch::Sender<Option<String>>,
    metrics: HotRestartMetrics,
}

impl std::fmt::Debug for HotRestartServer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Server").field("path", &self.path).finish_non_exhaustive()
    }
}

impl HotRestartServer {
    pub(super) fn new(startup: Startup, listeners: Vec<TcpListener>, metrics: HotRestartMetrics) -> Self {
        let Startup { path, name, socket, predecessor, status, log, .. } = startup;
        // Listeners that no process can ask for would only have to be closed in time.
        let listeners = Arc::new(if path.is_some() { listeners } else { Vec::new() });
        HotRestartServer { path, name, socket, predecessor, listeners, log, preparing: None, status, metrics }
    }

    /// Waits until the old process has left, if there is one, so that this one can take its other paths. Returns the exit
    /// if this process must not continue. An old process that does not respond is not waited for.
    pub(crate) async fn succeed(&mut self) -> Option<Exit> {
        let pid = self.predecessor.as_ref()?.pid;
        match timeout(STEP_TIMEOUT, receive(&mut self.predecessor)).await {
            Ok(message) => self.on_predecessor(message).map(Exit::Withdrawn),
            Err(_) => {
                warn!(pid, "hot restart: the old process does not respond; serving beside it");
                None
            }
        }
    }

    /// Writes the log from now on where the predecessor writes its own, if this process has asked for that. Standard
    /// error so far is closed: whoever reads it to its end need not wait for the end of this process.
    pub(crate) fn continue_log(&mut self) {
        if let Some(log) = self.log.take()
            && let Err(error) = rustix::stdio::dup2_stderr(log)
        {
            warn!(%error, "hot restart: cannot continue the log of the old process");
        }
    }

    /// Responds to other processes until this one has to leave. Cancel-safe: it may be called again.
    pub(crate) async fn run(&mut self) -> Exit {
        loop {
            tokio::select! {
                message = receive(&mut self.predecessor) => {
                    if let Some(reason) = self.on_predecessor(message) {
                        return Exit::Withdrawn(reason);
                    }
                }
                channel = accept(self.socket.as_mut()) => match channel {
                    Ok(channel) => self.on_request(channel),
                    Err(error) => {
                        warn!("hot restart: cannot accept a connection; retrying: {error:#}");
                        // The cause may be a lack of file descriptors, which does not change at once.
                        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    }
                },
                outcome = prepared(&mut self.preparing) => {
                    self.preparing = None;
                    match outcome {
                        Ok(successor) => {
                            let pid = successor.channel.pid;
                            info!(pid, sockets = self.listeners.len(), "hot restart: the new process serves; finishing requests");
                            self.status.send_replace(Some(format!("replaced by process {pid}; finishing requests")));
                            return Exit::Replaced(successor);
                        }
                        Err(error) => {
                            warn!("hot restart failed; this process keeps serving: {error:#}");
                            self.metrics.failed();
                            self.status.send_replace(None);
                        }
                    }
                }
            }
        }
    }

    /// Ends without a successor. A process that is preparing to take over notices, and starts alone.
    pub(crate) fn shutdown(self) {
        // Released before the new process learns of the end, because it then puts its own socket there.
        if let Some(socket) = self.socket {
            socket.release();
        }
        drop(self.preparing);
    }

    fn on_request(&mut self, channel: Channel) {
        let pid = channel.pid;
        let refusal = match (&self.predecessor, &self.preparing) {
            (Some(predecessor), _) => {
                Some(format!("its predecessor, process {}, has not ended yet; try again then", predecessor.pid))
            }
            (None, Some(_)) => Some("another hot restart is in progress".to_owned()),
            (None, None) => None,
        };
        match refusal {
            None => {
                info!(pid, "hot restart: another process prepares to take over");
                self.status.send_replace(Some(format!("process {pid} prepares to take over")));
                self.preparing = Some(Box::pin(prepare(channel, self.name.clone(), self.listeners.clone())));
            }
            Some(reason) => {
                warn!(pid, reason, "hot restart refused");
                self.metrics.refused();
                tokio::spawn(refuse(channel, reason));
            }
        }
    }

    /// Returns the reason if this process must not continue.
    fn on_predecessor(&mut self, message: anyhow::Result<Option<Message>>) -> Option<String> {
        let pid = self.predecessor.as_ref().map_or(0, |predecessor| predecessor.pid);
        match message {
            Ok(Some(Message::Leaving)) => {
                info!(pid, "hot restart: took over; the old process finishes its requests");
                self.status.send_replace(Some(format!("took over from process {pid}, which finishes its requests")));
                self.claim_path();
                return None;
            }
            Ok(Some(Message::Refusal { reason })) => return Some(reason),
            Ok(Some(Message::Ended)) => info!(pid, "hot restart complete: the old process has finished its requests"),
            Ok(Some(other)) => {
                warn!(pid, sent = other.as_str(), "hot restart: the old process sent a message out of turn")
            }
            Ok(None) => warn!(pid, "hot restart: the old process is gone before it reported its end"),
            Err(error) => warn!(pid, "hot restart: the old process sent what cannot be read: {error:#}"),
        }
        self.predecessor = None;
        self.status.send_replace(None);
        self.claim_path();
        None
    }

    fn claim_path(&mut self) {
        if let (Some(path), None) = (&self.path, &self.socket) {
            match SocketPath::claim(SOCKET_KEY, path) {
                Ok(socket) => self.socket = Some(socket),
                Err(error) => error!("hot restart is unavailable; end this process with SIGTERM instead: {error:#}"),
            }
        }
    }
}

async fn receive(predecessor: &mut Option<Channel>) -> anyhow::Result<Option<Message>> {
    match predecessor {
        Some(channel) => channel.receive().await,
        None => std::future::pending().await,
    }
}

async fn accept(socket: Option<&mut SocketPath>) -> anyhow::Result<Channel> {
    match socket {
        Some(socket) => Channel::new(socket.accept().await?),
        None => std::future::pending().await,
    }
}

async fn prepared(preparing: &mut Option<Preparation>) -> anyhow::Result<Successor> {
    match preparing {
        Some(preparing) => preparing.await,
        None => std::future::pending().await,
    }
}

/// Sends the sockets to a new process and waits until it accepts.
async fn prepare(mut channel: Channel, name: String, sockets: Arc<Vec<TcpListener>>) -> anyhow::Result<Successor> {
    let pid = channel.pid;
    let refused = match offer(&mut channel, name, &sockets).await {
        Ok(()) => {
            // If the new process has died since, the connections that it accepted are lost with it, but this process
            // still accepts.
            channel.send(&Message::Leaving).await?;
            return Ok(Successor { channel });
        }
        Err(error) => error,
    };
    let _ = channel.send(&Message::Refusal { reason: format!("{refused:#}") }).await;
    Err(refused.context(format!("process {pid} does not take over")))
}

async fn offer(channel: &mut Channel, name: String, sockets: &[TcpListener]) -> anyhow::Result<()> {
    let (patience, log) = match channel.receive_soon().await? {
        Some(Message::Hello { patience_ms, log }) => (Duration::from_millis(patience_ms).min(MAX_PATIENCE), log),
        Some(other) => bail!("it sent {other:?} instead of hello"),
        None => bail!("it closed the connection without a message"),
    };
    // Standard error may be closed.
    let log = log.then(|| std::io::stderr().as_fd().try_clone_to_owned().ok()).flatten();
    channel.send(&Message::Offer { name, sockets: sockets.len(), log: log.is_some() }).await?;
    channel.send_files(sockets).await?;
    channel.send_files(log.as_slice()).await?;
    let message = timeout(patience + STEP_TIMEOUT, channel.receive()).await;
    match message.with_context(|| format!("it was not ready within {patience:?}"))?? {
        Some(Message::Ready) => Ok(()),
        Some(other) => bail!("it sent {other:?} instead of ready"),
        None => bail!("it was gone before it was ready"),
    }
}

async fn refuse(mut channel: Channel, reason: String) {
    // Closing with a message unread would reset the connection, and the reason would be lost.
    let _ = channel.receive_soon().await;
    let _ = channel.send(&Message::Refusal { reason }).await;
}
