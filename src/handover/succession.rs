//! A serving process and those who may take over from it, and the one that it has taken over from.
//!
//! What must stay true: its socket is at the path only once no other process can be asked there; whatever a newcomer says
//! or leaves unsaid before `ready` costs nothing but a line in the log.

use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::Entry;
use super::message::Message;
use super::place::Place;
use super::talk::{AT_ONCE, Talk};
use crate::metrics::HandoverMetrics;

/// No newcomer is waited for longer, whatever it asks for.
const LONGEST_PATIENCE: Duration = Duration::from_secs(600);

/// How long nobody is heard after one could not be.
const REST: Duration = Duration::from_millis(100);

/// What a serving process has to do next.
#[derive(Debug)]
pub enum Turn {
    /// Leave: another process accepts. It is told when this one is done.
    HandedOver(Successor),
    /// Leave: the process that it was to succeed goes on, for this reason.
    Withdrawn(String),
}

/// The process that has taken over.
#[derive(Debug)]
pub struct Successor {
    talk: Talk,
}

impl Successor {
    /// This process is done.
    pub async fn ended(mut self) {
        // If it is gone, nobody needs to know.
        let _ = self.talk.say(&Message::Ended).await;
    }
}

type Asking = Pin<Box<dyn Future<Output = anyhow::Result<Successor>> + Send>>;

/// What a serving process has for its successor.
pub struct Succession {
    /// `None`: nobody takes over.
    path: Option<PathBuf>,
    name: String,
    /// `None` while the predecessor has it.
    place: Option<Place>,
    predecessor: Option<Talk>,
    sockets: Arc<Vec<TcpListener>>,
    /// The newcomer that is being prepared for.
    newcomer: Option<Asking>,
    said: watch::Sender<Option<String>>,
    metrics: HandoverMetrics,
}

impl std::fmt::Debug for Succession {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Succession").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Succession {
    pub(super) fn new(entry: Entry, sockets: Vec<TcpListener>, metrics: HandoverMetrics) -> Self {
        let Entry { path, name, place, predecessor, said, .. } = entry;
        // Kept for nobody, they would only be one more thing to close in time.
        let sockets = Arc::new(if path.is_some() { sockets } else { Vec::new() });
        Succession { path, name, place, predecessor, sockets, newcomer: None, said, metrics }
    }

    /// Answers whoever asks, until there is something to do. Can be given up and called again.
    pub async fn turn(&mut self) -> Turn {
        loop {
            tokio::select! {
                word = heard(&mut self.predecessor) => {
                    if let Some(reason) = self.predecessor_said(word) {
                        return Turn::Withdrawn(reason);
                    }
                }
                talk = came(self.place.as_ref()) => match talk {
                    Ok(talk) => self.asked(talk),
                    Err(error) => {
                        warn!("somebody could not be heard at the hand-over's socket: {error:#}");
                        // No file descriptors left, perhaps: that does not change at once.
                        tokio::time::sleep(REST).await;
                    }
                },
                outcome = prepared(&mut self.newcomer) => {
                    self.newcomer = None;
                    match outcome {
                        Ok(successor) => {
                            let pid = successor.talk.pid;
                            info!(pid, sockets = self.sockets.len(), "handed over: finishing requests");
                            self.said.send_replace(Some(format!("handed over to process {pid}; finishes its requests")));
                            return Turn::HandedOver(successor);
                        }
                        Err(error) => {
                            warn!("not handed over; going on: {error:#}");
                            self.metrics.failed();
                            self.said.send_replace(None);
                        }
                    }
                }
            }
        }
    }

    /// This process ends and nobody takes over; one that is getting ready to learns of it, and goes on alone.
    pub fn leave(self) {
        // Before the newcomer hears of the end, as it puts a file of its own there then.
        if let Some(place) = self.place {
            place.leave();
        }
        drop(self.newcomer);
    }

    fn asked(&mut self, talk: Talk) {
        let pid = talk.pid;
        let refusal = match (&self.predecessor, &self.newcomer) {
            (Some(predecessor), _) => {
                Some(format!("process {}, from which it took over, has not ended yet; try again then", predecessor.pid))
            }
            (None, Some(_)) => Some("another process is getting ready to take over already".to_owned()),
            (None, None) => None,
        };
        match refusal {
            None => {
                info!(pid, "another process asks to take over");
                self.said.send_replace(Some(format!("process {pid} gets ready to take over")));
                self.newcomer = Some(Box::pin(prepare(talk, self.name.clone(), self.sockets.clone())));
            }
            Some(reason) => {
                warn!(pid, reason, "another process asked in vain to take over");
                self.metrics.refused();
                tokio::spawn(refuse(talk, reason));
            }
        }
    }

    /// Returns the reason if this process must not go on.
    fn predecessor_said(&mut self, word: anyhow::Result<Option<Message>>) -> Option<String> {
        let pid = self.predecessor.as_ref().map_or(0, |predecessor| predecessor.pid);
        match word {
            Ok(Some(Message::Leaving)) => {
                info!(pid, "took over: the process from before finishes its requests");
                self.said.send_replace(Some(format!("took over from process {pid}, which finishes its requests")));
                self.take_place();
                return None;
            }
            Ok(Some(Message::Refusal { reason })) => return Some(reason),
            Ok(Some(Message::Ended)) => info!(pid, "the process from before has ended, with all its requests done"),
            Ok(Some(other)) => warn!(pid, ?other, "the process from before said something out of turn"),
            Ok(None) => warn!(pid, "the process from before is gone without a word"),
            Err(error) => warn!(pid, "the process from before is not understood: {error:#}"),
        }
        self.predecessor = None;
        self.said.send_replace(None);
        self.take_place();
        None
    }

    fn take_place(&mut self) {
        if let (Some(path), None) = (&self.path, &self.place) {
            match Place::take(path) {
                Ok(place) => self.place = Some(place),
                Err(error) => error!("no process will be able to take over from this one: {error:#}"),
            }
        }
    }
}

async fn heard(predecessor: &mut Option<Talk>) -> anyhow::Result<Option<Message>> {
    match predecessor {
        Some(talk) => talk.next().await,
        None => std::future::pending().await,
    }
}

async fn came(place: Option<&Place>) -> anyhow::Result<Talk> {
    match place {
        Some(place) => place.accept().await,
        None => std::future::pending().await,
    }
}

async fn prepared(newcomer: &mut Option<Asking>) -> anyhow::Result<Successor> {
    match newcomer {
        Some(newcomer) => newcomer.await,
        None => std::future::pending().await,
    }
}

/// Gives a newcomer the sockets and waits until it accepts.
async fn prepare(mut talk: Talk, name: String, sockets: Arc<Vec<TcpListener>>) -> anyhow::Result<Successor> {
    let pid = talk.pid;
    let refused = match get_ready(&mut talk, name, &sockets).await {
        Ok(()) => {
            // One that died in between has accepted from the same queue, and this process still does.
            talk.say(&Message::Leaving).await?;
            return Ok(Successor { talk });
        }
        Err(error) => error,
    };
    let _ = talk.say(&Message::Refusal { reason: format!("{refused:#}") }).await;
    Err(refused.context(format!("process {pid} does not take over")))
}

async fn get_ready(talk: &mut Talk, name: String, sockets: &[TcpListener]) -> anyhow::Result<()> {
    let patience = match talk.soon().await? {
        Some(Message::Hello { patience_ms }) => Duration::from_millis(patience_ms).min(LONGEST_PATIENCE) + AT_ONCE,
        Some(other) => bail!("it said {other:?} instead of hello"),
        None => bail!("it said nothing and is gone"),
    };
    talk.say(&Message::Offer { name, sockets: sockets.len() }).await?;
    talk.give(sockets).await?;
    match timeout(patience, talk.next()).await.with_context(|| format!("it was not ready within {patience:?}"))?? {
        Some(Message::Ready) => Ok(()),
        Some(other) => bail!("it said {other:?} instead of ready"),
        None => bail!("it is gone before it was ready"),
    }
}

async fn refuse(mut talk: Talk, reason: String) {
    // Closed with a word unread, the connection would be reset, and the reason with it.
    let _ = talk.soon().await;
    let _ = talk.say(&Message::Refusal { reason }).await;
}
