//! A restart of a router without a lost request: a second process takes over the listening sockets of the first.
//!
//! ```text
//!  running process                                newcomer (`segue run` once more)
//!     │ ◄───────────────── hello ─────────────────── │ connects to `router.handover`
//!     │ ── offer: its name, then the sockets ──────► │ registers (by another name), snapshot, opens its routes
//!     │ accepts                                      │
//!     │ ◄───────────────── ready ─────────────────── │ accepts
//!     │ ─────────────────  leaving ────────────────► │ puts its own socket at `router.handover`
//!     │ drains, deregisters last                     │
//!     │ ─────────────────  ended ──────────────────► │
//! ```
//!
//! Not here: how a server leaves (`segue_proxy::server`), and in which order roles start and end (`commands::run`).
//! What must stay true: until `ready` the running process goes on as if nothing had been, whatever the newcomer does;
//! from then on the newcomer does, whatever becomes of the other. One hand-over at a time, and every wait has a bound.

mod decide;
mod message;
mod place;
mod succession;
mod talk;
#[cfg(test)]
mod tests;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use segue_config::Config;
use tokio::sync::watch;
use tracing::info;

use self::decide::{Allotment, allot};
use self::message::Message;
use self::place::Place;
use self::talk::Talk;
use crate::metrics::HandoverMetrics;

pub use self::succession::{Succession, Successor, Turn};

/// How often a running process may vanish just as it is asked.
const TRIES: usize = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);
/// How long the store may take beyond leases that have to end, before a newcomer gives up.
const STORE: Duration = Duration::from_secs(20);

/// A process that begins, and perhaps takes over from another.
#[derive(Debug)]
pub struct Entry {
    /// `None`: it neither takes over nor hands over.
    path: Option<PathBuf>,
    /// How long it may take to get ready.
    patience: Duration,
    name: String,
    predecessor: Option<Talk>,
    place: Option<Place>,
    listeners: Allotment<TcpListener>,
    /// What the status says.
    said: watch::Sender<Option<String>>,
}

impl Entry {
    /// Looks whether there is a process to take over from; if so gets its sockets, and gives the router in the
    /// configuration a name that it can register with beside that one.
    pub async fn begin(config: &mut Config) -> anyhow::Result<Self> {
        let admin = config.admin.as_ref().map(|admin| admin.listen);
        let mut entry = Entry {
            path: None,
            patience: Duration::ZERO,
            name: String::new(),
            predecessor: None,
            place: None,
            listeners: Allotment { router: Vec::new(), admin: None },
            said: watch::Sender::default(),
        };
        let Some(router) = &mut config.router else { return Ok(entry) };
        let Some(path) = &router.handover else { return Ok(entry) };
        entry.path = Some(path.clone());
        // A name that is to be taken may stand until its lease ends, and so may a registration that gets lost meanwhile.
        entry.patience = 2 * router.lease_ttl + STORE;
        if let Some(Arrival { talk, name, sockets }) = arrive(path, entry.patience).await? {
            router.name = decide::name(&router.name, &name);
            let given: std::io::Result<Vec<_>> =
                sockets.into_iter().map(|socket| Ok((socket.local_addr()?, socket))).collect();
            entry.listeners = allot(given.context("what was given is no TCP socket")?, router.listen, admin);
            let (sockets, admin) = (entry.listeners.router.len(), entry.listeners.admin.is_some());
            info!(pid = talk.pid, predecessor = name, name = router.name, sockets, admin, "takes over from a process");
            entry.predecessor = Some(talk);
        }
        entry.name.clone_from(&router.name);
        Ok(entry)
    }

    /// The listeners that were taken over for the router; none: it has to bind its address.
    pub fn router_listeners(&mut self) -> Vec<TcpListener> {
        std::mem::take(&mut self.listeners.router)
    }

    /// The listener that was taken over for the admin endpoint.
    pub fn admin_listener(&mut self) -> Option<TcpListener> {
        self.listeners.admin.take()
    }

    /// Makes sure that others can ask, unless a running process is asked still. For when the addresses are bound: whoever
    /// gets those has the path as well.
    pub fn take_place(&mut self) -> anyhow::Result<()> {
        if let (Some(path), None) = (&self.path, &self.predecessor) {
            self.place = Some(Place::take(path)?);
        }
        Ok(())
    }

    /// What the status says of it.
    pub fn status(&self) -> watch::Receiver<Option<String>> {
        self.said.subscribe()
    }

    /// Waits, where another process still serves, until this one is ready to. An error: it must not serve.
    pub async fn until(&mut self, ready: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Some(predecessor) = &mut self.predecessor else { return Ok(()) };
        let pid = predecessor.pid;
        tokio::select! {
            biased;
            word = predecessor.next() => match word? {
                // It serves nobody: better to let clients wait in the stash than outside.
                None => {
                    info!(pid, "the running process is gone: going on alone");
                    self.predecessor = None;
                    self.take_place()
                }
                Some(Message::Refusal { reason }) => bail!("process {pid} goes on: {reason}"),
                Some(other) => bail!("process {pid} said {other:?} out of turn"),
            },
            () = ready => Ok(()),
            () = tokio::time::sleep(self.patience) => {
                bail!("not ready to take over from process {pid} within {} s; that goes on", self.patience.as_secs())
            }
        }
    }

    /// It accepts, and that is told. From here on others can take over from it, all of `sockets`.
    pub async fn served(mut self, sockets: Vec<TcpListener>, metrics: HandoverMetrics) -> Succession {
        if let Some(predecessor) = &mut self.predecessor {
            metrics.taken();
            self.said.send_replace(Some(format!("takes over from process {}", predecessor.pid)));
            // If it cannot be told it is gone, and its next word will be none.
            let _ = predecessor.say(&Message::Ready).await;
        }
        Succession::new(self, sockets, metrics)
    }
}

/// The process that can be taken over from, and what it gives.
struct Arrival {
    talk: Talk,
    name: String,
    sockets: Vec<TcpListener>,
}

/// The process at the path and its sockets; `None`: there is none.
async fn arrive(path: &Path, patience: Duration) -> anyhow::Result<Option<Arrival>> {
    for _ in 0..TRIES {
        let Some(mut talk) = place::ask(path).await? else { return Ok(None) };
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        // If it cannot hear, it may still have said why.
        let _ = talk.say(&Message::Hello { patience_ms }).await;
        let pid = talk.pid;
        match talk.soon().await.with_context(|| format!("cannot take over from process {pid}"))? {
            Some(Message::Offer { name, sockets }) => {
                if let Some(sockets) = talk.take(sockets).await? {
                    return Ok(Some(Arrival { talk, name, sockets }));
                }
            }
            Some(Message::Refusal { reason }) => bail!("cannot take over from process {pid}: {reason}"),
            Some(other) => bail!("cannot take over from process {pid}, which said {other:?} out of turn"),
            None => {}
        }
        // It has just ended, or has just been succeeded.
        tokio::time::sleep(BETWEEN_TRIES).await;
    }
    bail!("cannot take over: whoever is at {} vanishes whenever it is asked", path.display())
}
