//! The clients of one worker: who is connected, how long each has been idle, and which one is evicted for a new one.
//!
//! No head has a timer. The worker checks its clients a few times a second instead.
//! Not here: the state of one client ([`client`](super::client)), and when there is no room ([`worker`](super::worker)).
//!
//! # Invariants
//!
//! * A connection with a request in flight is closed only after its response, or at the deadline of a shutdown.
//! * The unfinished heads of all clients are bounded together.
//! * Clients that have not sent a request yet are evicted before all others.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use h2::Reason;
use http::header::HeaderValue;
use segue_coordination::jitter;
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::client::{Client, ClientTerms, ConnectionCommand, IdleLimit};
use super::proxy_protocol::HeaderError;
use super::scratch::Scratch;
use crate::message::local_reply::LocalReply;
use crate::metrics::WorkerMetrics;
use crate::routing::client_share::Addresses;
use crate::runtime::repeated_line::RepeatedLine;

/// Number of clients that are examined to evict one. Examining all of them per accept would let an attacker keep the worker
/// busy.
const EVICTION_SAMPLE_CLIENTS: usize = 64;

/// Most bytes that the unfinished heads of a worker's clients take up in memory together.
const MOST_HEAD_BYTES: usize = 16 << 20;

/// One in so many connections may belong to clients that have not sent a request yet. Beyond that share such a client is
/// evicted however young it is.
const NEWCOMERS_SHARE: usize = 8;

/// The clients of one worker.
pub(super) struct ConnectionRegistry {
    open: RefCell<Slab<Rc<Client>>>,
    /// Where the next search for an idle client begins.
    cursor: Cell<usize>,
    /// Clients that have not sent a request yet, oldest first. Some of them may have gone, or have sent one meanwhile.
    newcomers: RefCell<VecDeque<Weak<Client>>>,
    /// How many clients have not sent a request yet.
    silent: Cell<usize>,
    /// About how many bytes the heads that have not ended take up in memory.
    head_bytes: Cell<usize>,
    pub(super) addresses: Rc<Addresses>,
    /// The buffers of connections by HTTP/1.1.
    pub(super) scratch: Scratch,
    /// Notified when a client disconnects.
    pub(super) left: Notify,
    pub(super) terms: ClientTerms,
    /// The command that new clients start with.
    command: Cell<ConnectionCommand>,
    limit: Cell<IdleLimit>,
    metrics: Arc<WorkerMetrics>,
    /// Of lines that a connection does not begin as configured.
    misled: RepeatedLine,
    /// Of lines that requests were lost with a connection because of what its client sent.
    broke_http2: RepeatedLine,
}

/// Returns the age, give or take a tenth, so that connections which were made together are not closed together. `random`:
/// from 0 to 1.
fn with_jitter(age: Duration, random: f64) -> Duration {
    age.mul_f64(0.9 + 0.2 * random.clamp(0.0, 1.0))
}

/// Returns the client if it is still connected and has not sent a request yet.
fn silent(client: &Weak<Client>) -> Option<Rc<Client>> {
    client.upgrade().filter(|client| !client.asked.get())
}

impl ConnectionRegistry {
    /// `most_requests` bounds the requests in flight of one client address; 0 means no limit.
    pub(super) fn new(terms: ClientTerms, most_requests: usize, metrics: Arc<WorkerMetrics>) -> Self {
        ConnectionRegistry {
            open: RefCell::default(),
            cursor: Cell::new(0),
            newcomers: RefCell::default(),
            silent: Cell::new(0),
            head_bytes: Cell::new(0),
            addresses: Rc::new(Addresses::new(most_requests)),
            scratch: Scratch::default(),
            left: Notify::new(),
            terms,
            command: Cell::new(ConnectionCommand::Continue),
            limit: Cell::new(IdleLimit::serving()),
            metrics,
            misled: RepeatedLine::default(),
            broke_http2: RepeatedLine::default(),
        }
    }

    /// Returns the number of clients.
    pub(super) fn count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Closes clients whose time is up. To be called a few times a second.
    pub(super) fn check(&self) {
        let now = Instant::now();
        self.open.borrow().iter().for_each(|(_, client)| client.check(now, &self.terms, self.limit.get()));
        self.newcomers.borrow_mut().retain(|client| silent(client).is_some());
        self.addresses.sweep();
    }

    /// Notes that the client has sent a request, or is gone.
    pub(super) fn forget_newcomer(&self, client: &Client) {
        if !client.asked.replace(true) {
            self.silent.set(self.silent.get() - 1);
        }
    }

    /// Notes about how many bytes a client's head takes up that has not ended. Beyond [`MOST_HEAD_BYTES`] in all, the client
    /// with the largest head is closed as if that had taken too long.
    pub(super) fn note_head(&self, client: &Client, bytes: usize) {
        let before = client.head_bytes.replace(bytes);
        if before == bytes {
            return;
        }
        self.head_bytes.set(self.head_bytes.get() - before + bytes);
        if bytes > before && self.head_bytes.get() > MOST_HEAD_BYTES {
            let open = self.open.borrow();
            let Some((_, largest)) = open.iter().max_by_key(|(_, client)| client.head_bytes.get()) else { return };
            // `take` keeps this client from being chosen again before its task has had its turn.
            self.head_bytes.set(self.head_bytes.get() - largest.head_bytes.take());
            largest.tell(ConnectionCommand::HeaderTimeout);
        }
    }

    /// Evicts a client that has been idle, or sending a head, for longer than `least`, where `most` are allowed. Returns
    /// whether one was found. Clients that have not sent a request yet go first, then clients of the address with the most
    /// connections, then those that have been idle for longest.
    pub(super) fn close_one(&self, least: Duration, most: usize) -> bool {
        let now = Instant::now();
        // A flood of clients that are each too young to be evicted would otherwise displace all that are between requests.
        let crowded = self.silent.get() > most / NEWCOMERS_SHARE;
        let least_of_newcomers = if crowded { Duration::ZERO } else { least };
        let client = self.newcomer(now, least_of_newcomers).or_else(|| self.idle(now, least));
        let Some(client) = client else { return false };
        client.tell(match (client.in_head.get(), client.http2.get()) {
            (true, _) => ConnectionCommand::HeaderTimeout,
            (false, false) => ConnectionCommand::DrainAndClose,
            // A graceful shutdown would wait for the client's acknowledgement first.
            (false, true) => ConnectionCommand::CloseNow,
        });
        true
    }

    /// Returns the client to evict among the oldest that have not sent a request yet.
    fn newcomer(&self, now: Instant, least: Duration) -> Option<Rc<Client>> {
        let mut newcomers = self.newcomers.borrow_mut();
        while newcomers.front().is_some_and(|first| silent(first).is_none()) {
            newcomers.pop_front();
        }
        let some = newcomers.iter().take(EVICTION_SAMPLE_CLIENTS).filter_map(silent);
        some.filter(|client| client.has_been_idle(now, least)).min_by_key(|client| client.eviction_rank())
    }

    /// Returns the client to evict among a sample of all clients.
    fn idle(&self, now: Instant, least: Duration) -> Option<Rc<Client>> {
        let open = self.open.borrow();
        let slots = open.capacity();
        let first = self.cursor.get();
        self.cursor.set((first + EVICTION_SAMPLE_CLIENTS) % slots.max(1));
        let some = (first..first + EVICTION_SAMPLE_CLIENTS.min(slots)).filter_map(|key| open.get(key % slots));
        some.filter(|client| client.has_been_idle(now, least)).min_by_key(|client| client.eviction_rank()).cloned()
    }

    /// Closes each client after its next response, which says so, or when a check finds it idle for longer than `idle`.
    pub(super) fn finish(&self, idle: Duration) {
        self.limit.set(IdleLimit::stopping(idle));
        self.command.set(ConnectionCommand::CloseAfterResponse);
        self.open.borrow().iter().for_each(|(_, client)| client.tell(ConnectionCommand::CloseAfterResponse));
    }

    /// Notes a connection without a usable header of the PROXY protocol.
    pub(super) fn misled(&self, error: &HeaderError) {
        if let Some(times) = self.misled.note() {
            tracing::warn!(%error, times, "closed a connection; router.limits.proxy_protocol is on");
        }
    }

    /// Notes that `h2` has ended a connection because of what its client sent there. The requests that were in flight on it may
    /// be those of other clients, behind a proxy.
    pub(super) fn broke_http2(&self, address: &HeaderValue, reason: Reason, requests: u32) {
        if reason != Reason::ENHANCE_YOUR_CALM {
            self.replied(LocalReply::Malformed);
        }
        if requests > 0
            && let Some(times) = self.broke_http2.note()
        {
            let address = address.to_str().unwrap_or_default();
            tracing::warn!(address, %reason, requests, times, "client broke the rules of HTTP/2; the requests on its connection are lost");
        }
    }

    /// Counts a reply to bytes that never became a request.
    pub(super) fn replied(&self, reply: LocalReply) {
        tracing::debug!(code = reply.status().as_u16(), reason = reply.reason(), "refused what is no request");
        self.metrics.answered(reply);
    }

    /// Closes all clients at once.
    pub(super) fn close(&self) {
        self.open.borrow().iter().for_each(|(_, client)| client.tell(ConnectionCommand::CloseNow));
    }

    /// Registers a client that has just connected.
    pub(super) fn seat(self: &Rc<Self>, address: IpAddr) -> ConnectionGuard {
        let client = Rc::new(Client {
            arrived: Rc::default(),
            sealed: OnceCell::new(),
            serving: Cell::new(0),
            served: Cell::new(false),
            asked: Cell::new(false),
            upgraded: Cell::new(false),
            unread: Cell::new(false),
            peer: self.addresses.connect(address),
            named: OnceCell::new(),
            retires_at: self.terms.max_age.map(|age| Instant::now() + with_jitter(age, jitter::unit())),
            since: Cell::new(Instant::now()),
            in_head: Cell::new(false),
            head_bytes: Cell::new(0),
            sought: Cell::new(Instant::now()),
            is_sought: Cell::new(false),
            http2: Cell::new(false),
            command: self.command.clone(),
            waker: RefCell::default(),
        });
        self.metrics.connected();
        self.newcomers.borrow_mut().push_back(Rc::downgrade(&client));
        self.silent.set(self.silent.get() + 1);
        ConnectionGuard { clients: self.clone(), key: self.open.borrow_mut().insert(client.clone()), client }
    }
}

/// A registered client, counted until this is dropped.
pub(super) struct ConnectionGuard {
    pub(super) clients: Rc<ConnectionRegistry>,
    pub(super) client: Rc<Client>,
    pub(super) key: usize,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.clients.note_head(&self.client, 0);
        self.clients.open.borrow_mut().remove(self.key);
        self.clients.forget_newcomer(&self.client);
        self.clients.metrics.disconnected();
        self.clients.left.notify_one();
    }
}
