//! `/events`: the stream of server-sent events that keeps the live page up to date.
//!
//! A reader first gets an event `state`, then an event `change` whenever something has changed, at most four a second.
//! Both are JSON: `keyspace` as in `/status`, and what `/status` does not have. An event `beat` shows that the stream
//! lives. Every event is made once for all readers, on the admin endpoint's thread.
//!
//! # Invariants
//!
//! * No event is built without a reader, and frequent requests do not build events more often.
//! * A reader that presents the id of a kept event gets the events after it. Any other reader gets a full state.
//! * A reader that falls behind gets a full state in place of a backlog.
//! * An id belongs to one event of one process. Another process never continues from it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use futures_util::Stream;
use segue_coordination::session::unix_millis;
use serde_json::{Value, json};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::board::{Board, BoardChanges, BoardVersion};
use super::journal::{Cutover, JournalEntry};

/// Most readers at a time.
const MAX_READERS: usize = 32;
/// Most events that wait for a reader.
const QUEUE: usize = 8;
/// Shortest time between two events.
const INTERVAL: Duration = Duration::from_millis(250);
/// Building events takes at most a twentieth of the thread's time.
const INTERVAL_FACTOR: u32 = 20;
/// How often the figures of the process's roles are read while the keyspace does not change.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a change after which a beat is sent.
const BEAT: Duration = Duration::from_secs(5);
/// How long a stream lasts. The browser reconnects by itself and continues from the last event. The time is shorter
/// than the longest life of a connection, so that a stream ends between two events.
const MAX_STREAM: Duration = Duration::from_secs(45);
/// Most bytes, and most events, that are kept for readers that reconnect.
const KEPT_BYTES: usize = 1 << 20;
const KEPT_EVENTS: usize = 64;
/// Most names of pods before their numbering starts again.
const MAX_NAMES: usize = 1024;
/// Stands for the owner of a partition without one.
const NOBODY: i32 = -1;
/// Most cutovers and log entries in a full state.
const STATE_CUTOVERS: usize = 1000;
const STATE_ENTRIES: usize = 200;

/// Reads the figures of this process's roles.
pub(crate) type Summary = Box<dyn Fn() -> Value + Send + Sync>;

/// Has what the board shows only to those who look brought up to date.
pub(crate) type Look = Box<dyn Fn() + Send + Sync>;

/// The stream of one admin endpoint.
pub(crate) struct Feed {
    board: Arc<Board>,
    summary: Summary,
    look: Look,
    /// Distinguishes this process's events from those of others.
    instance: u32,
    published: Mutex<PublishedState>,
    events: broadcast::Sender<Bytes>,
    readers: Arc<Semaphore>,
    arrived: Notify,
    end: CancellationToken,
}

/// The state that the readers have been told.
#[derive(Default)]
struct PublishedState {
    sequence: u64,
    /// Until when the process and the keyspace are not read again.
    fresh_until: Option<Instant>,
    version: Option<BoardVersion>,
    keyspace: Value,
    lost: Option<String>,
    process: Value,
    shares: BTreeMap<String, f64>,
    /// The names of the pods. `owners` contains indices into this list.
    names: Vec<String>,
    numbers: HashMap<String, i32>,
    owners: Vec<i32>,
    journal: u64,
    cutovers: VecDeque<Cutover>,
    entries: VecDeque<JournalEntry>,
    kept: VecDeque<(u64, Bytes)>,
    state: Option<Bytes>,
}

impl Feed {
    /// Returns the stream of changes of `board` and `summary`. `look` is called while there are readers. The streams of all
    /// readers end at `end`.
    pub(crate) fn new(board: Arc<Board>, summary: Summary, look: Look, end: CancellationToken) -> Self {
        Feed {
            board,
            summary,
            look,
            instance: rand::random(),
            published: Mutex::default(),
            events: broadcast::Sender::new(QUEUE),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
            arrived: Notify::new(),
            end,
        }
    }

    /// Builds events while there are readers.
    pub(crate) async fn run(&self) {
        let mut summarised = Instant::now();
        let mut sent = Instant::now();
        loop {
            let arrived = self.arrived.notified();
            if self.readers.available_permits() == MAX_READERS {
                arrived.await;
            }
            (self.look)();
            let began = Instant::now();
            let with_summary = began.duration_since(summarised) >= SUMMARY_INTERVAL;
            if with_summary {
                summarised = began;
            }
            if self.refresh(&mut self.lock(), with_summary) {
                sent = began;
            } else if sent.elapsed() >= BEAT {
                let _ = self.events.send(Bytes::from_static(b"event: beat\ndata: {}\n\n"));
                sent = began;
            }
            let fresh_until = began + INTERVAL.max(began.elapsed() * INTERVAL_FACTOR);
            self.lock().fresh_until = Some(fresh_until);
            tokio::time::sleep_until(fresh_until).await;
        }
    }

    /// Returns the events for a reader that has seen the event with the id `last`.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        last: Option<&str>,
    ) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + Send + use<>, String> {
        let place = self.readers.clone().try_acquire_owned();
        let place = place.map_err(|_| format!("{MAX_READERS} readers have this stream open already"))?;
        let mut published = self.lock();
        if published.fresh_until.is_none_or(|until| until <= Instant::now()) {
            self.refresh(&mut published, true);
            published.fresh_until = Some(Instant::now() + INTERVAL);
        }
        let events = self.events.subscribe();
        let mut waiting: VecDeque<Bytes> = self.after(&published, last).unwrap_or_default();
        if waiting.is_empty() {
            waiting.push_back(self.state(&mut published));
        }
        drop(published);
        self.arrived.notify_one();
        let reader =
            FeedReader { feed: self.clone(), until: Instant::now() + MAX_STREAM, waiting, events, _place: place };
        Ok(futures_util::stream::unfold(reader, |mut reader| async move {
            let event = reader.next().await?;
            Some((Ok(event), reader))
        }))
    }

    /// Returns the events after the one with the id `last`, beginning with a beat, if all of them are kept.
    fn after(&self, published: &PublishedState, last: Option<&str>) -> Option<VecDeque<Bytes>> {
        let (instance, sequence) = last?.split_once('-')?;
        let sequence: u64 = sequence.parse().ok()?;
        let is_kept = sequence == published.sequence || published.kept.iter().any(|(kept, _)| *kept == sequence);
        if instance != self.instance.to_string() || !is_kept {
            return None;
        }
        let missed = published.kept.iter().filter(|(kept, _)| *kept > sequence).map(|(_, event)| event.clone());
        Some(std::iter::once(Bytes::from_static(b"retry: 500\nevent: beat\ndata: {}\n\n")).chain(missed).collect())
    }

    /// Publishes the changes. Returns whether there were any.
    fn refresh(&self, published: &mut PublishedState, with_summary: bool) -> bool {
        let version = self.board.version();
        let is_new = published.version != Some(version);
        let summary = (with_summary || published.process.is_null()).then(|| (self.summary)());
        let process = summary.filter(|summary| *summary != published.process);
        if !is_new && process.is_none() {
            return false;
        }
        let mut event = json!({ "now": unix_millis() });
        if let Some(process) = process {
            event["process"] = process.clone();
            published.process = process;
        }
        let mut is_whole = true;
        if is_new {
            let all = published.names.len() > MAX_NAMES;
            let changes = self.board.take(published.journal, all, unix_millis());
            published.version = Some(version);
            is_whole = published.take(changes, all, &mut event);
        }
        published.sequence += 1;
        published.state = None;
        if is_whole {
            let id = self.id(published.sequence);
            let event = Bytes::from(format!("id: {id}\nevent: change\ndata: {event}\n\n"));
            let _ = self.events.send(event.clone());
            published.keep(event);
        } else {
            // The earlier numbers are invalid now.
            published.kept.clear();
            let state = self.state(published);
            let _ = self.events.send(state);
        }
        true
    }

    /// Returns the full state as an event.
    fn state(&self, published: &mut PublishedState) -> Bytes {
        let PublishedState { keyspace, lost, process, shares, names, owners, cutovers, entries, .. } = &*published;
        let made = published.state.clone().unwrap_or_else(|| {
            let state = json!({
                "now": unix_millis(), "keyspace": keyspace, "lost": lost, "process": process, "shares": shares,
                "names": names, "owners": owners, "cutovers": cutovers, "log": entries,
            });
            let id = self.id(published.sequence);
            Bytes::from(format!("retry: 500\nid: {id}\nevent: state\ndata: {state}\n\n"))
        });
        published.state = Some(made.clone());
        made
    }

    fn id(&self, sequence: u64) -> String {
        format!("{}-{sequence}", self.instance)
    }

    fn lock(&self) -> MutexGuard<'_, PublishedState> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PublishedState {
    /// Takes the changes over and adds them to `event`. Returns whether the event contains all that has changed: not if
    /// the numbers of partitions or pods have changed.
    fn take(&mut self, changes: BoardChanges, renumber: bool, event: &mut Value) -> bool {
        let BoardChanges { status, owners, shares, entries, cutovers, next, lost } = changes;
        let count = status.partitions as usize;
        let is_whole = !renumber && count == self.owners.len();
        if renumber {
            self.names.clear();
            self.numbers.clear();
        }
        self.owners.resize(count, NOBODY);
        let mut changed = Vec::new();
        for (partition, owner) in owners {
            let number = owner.map_or(NOBODY, |owner| self.number(owner));
            let known = &mut self.owners[partition.index()];
            if *known != number {
                *known = number;
                changed.push((partition, number));
            }
        }
        event["log"] = json!(entries);
        event["cutovers"] = json!(cutovers);
        self.entries.extend(entries);
        self.entries.drain(..self.entries.len().saturating_sub(STATE_ENTRIES));
        self.cutovers.extend(cutovers);
        self.cutovers.drain(..self.cutovers.len().saturating_sub(STATE_CUTOVERS));
        self.journal = next;
        self.keyspace = json!(status);
        self.shares = shares;
        self.lost = lost;
        event["keyspace"] = self.keyspace.clone();
        event["lost"] = json!(self.lost);
        event["shares"] = json!(self.shares);
        event["names"] = json!(self.names);
        event["owners"] = json!(changed);
        is_whole
    }

    fn number(&mut self, owner: String) -> i32 {
        let next = self.names.len() as i32;
        *self.numbers.entry(owner).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }

    fn keep(&mut self, event: Bytes) {
        self.kept.push_back((self.sequence, event));
        let mut bytes: usize = self.kept.iter().map(|(_, event)| event.len()).sum();
        while bytes > KEPT_BYTES || self.kept.len() > KEPT_EVENTS {
            bytes -= self.kept.pop_front().map_or(bytes, |(_, event)| event.len());
        }
    }
}

/// One open stream.
struct FeedReader {
    feed: Arc<Feed>,
    until: Instant,
    waiting: VecDeque<Bytes>,
    events: broadcast::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl FeedReader {
    /// Returns the next event, or `None` at the end of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(event) = self.waiting.pop_front() {
            return Some(event);
        }
        let event = tokio::select! {
            event = self.events.recv() => event,
            () = tokio::time::sleep_until(self.until) => return None,
            () = self.feed.end.cancelled() => return None,
        };
        match event {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(_)) => {
                let mut published = self.feed.lock();
                self.events = self.feed.events.subscribe();
                Some(self.feed.state(&mut published))
            }
            Err(RecvError::Closed) => None,
        }
    }
}
