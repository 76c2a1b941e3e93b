//! The clients of one worker: who is connected, who has been idle, and who gives way to a newcomer.
//!
//! hyper has a timer for heads, but it also runs between requests and is made anew for each of them. Here the worker
//! looks over its clients a few times a second instead.
//! Not here: one client ([`client`](super::client)), and when there is no room ([`worker`](super::worker)).
//!
//! # Invariants
//!
//! * A connection with a request is never closed before that is answered, except at the deadline of a shutdown.
//! * Those that have not asked anything yet go first.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::client::{Client, ClientLimits, ConnectionCommand};
use crate::metrics::WorkerMetrics;
use crate::routing::client_share::Addresses;

/// How many clients are looked at to find one that has been idle: all of them for each newcomer would be a way to keep a
/// worker busy.
const EVICTION_SAMPLE: usize = 64;

/// The part of all places, one in so many, that clients may have which have not asked anything yet before even a young one
/// of them gives way to the next.
const NEWCOMERS_SHARE: usize = 8;

/// What becomes of connections of HTTP/1.1 on which nothing is asked just then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdlePolicy {
    /// Closed. A request that is on its way to one of them is lost, as it would be a moment later.
    Close,
    /// Closed after one more answer, which says so.
    CloseAfterNextResponse,
}

/// The clients of one worker.
pub(super) struct ConnectionRegistry {
    open: RefCell<Slab<Rc<Client>>>,
    /// Where the search for one that has been idle goes on.
    cursor: Cell<usize>,
    /// Those that have not asked anything yet, the oldest first, among some that are gone or have asked meanwhile.
    newcomers: RefCell<VecDeque<Weak<Client>>>,
    /// How many of the former there are.
    silent: Cell<usize>,
    addresses: Addresses,
    pub(super) left: Notify,
    pub(super) limits: ClientLimits,
    /// What newcomers are told.
    command: Cell<ConnectionCommand>,
    metrics: Arc<WorkerMetrics>,
}

/// The client, if it is there and has not asked anything yet.
fn silent(client: &Weak<Client>) -> Option<Rc<Client>> {
    client.upgrade().filter(|client| !client.asked.get())
}

impl ConnectionRegistry {
    /// `most_requests`: of one client address at a time; 0: no limit.
    pub(super) fn new(limits: ClientLimits, most_requests: usize, metrics: Arc<WorkerMetrics>) -> Self {
        ConnectionRegistry {
            open: RefCell::default(),
            cursor: Cell::new(0),
            newcomers: RefCell::default(),
            silent: Cell::new(0),
            addresses: Addresses::new(most_requests),
            left: Notify::new(),
            limits,
            command: Cell::new(ConnectionCommand::Continue),
            metrics,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Looks at the clock for all of them.
    pub(super) fn check(&self) {
        let now = Instant::now();
        self.open.borrow().iter().for_each(|(_, client)| client.check(now, &self.limits));
        self.newcomers.borrow_mut().retain(|client| silent(client).is_some());
        self.addresses.sweep();
    }

    /// The client is no newcomer any more: it has asked something, or is gone.
    pub(super) fn forget_newcomer(&self, client: &Client) {
        if !client.asked.replace(true) {
            self.silent.set(self.silent.get() - 1);
        }
    }

    /// Closes one that has been idle, or sending a head, for longer than `least`, to make room among `most`; returns
    /// whether one of those looked at has been. Those that have not asked anything yet go first, then those whose address
    /// has most connections, then those that have been idle for longest.
    pub(super) fn close_one(&self, least: Duration, most: usize) -> bool {
        let now = Instant::now();
        // A flood of newcomers, each too young to go, would otherwise take the places of all who are between two requests.
        let crowded = self.silent.get() > most / NEWCOMERS_SHARE;
        let least_of_newcomers = if crowded { Duration::ZERO } else { least };
        let client = self.newcomer(now, least_of_newcomers).or_else(|| self.idle(now, least));
        let Some(client) = client else { return false };
        client.tell(match (client.in_head.get(), client.http2.get()) {
            (true, _) => ConnectionCommand::HeaderTimeout,
            (false, false) => ConnectionCommand::DrainAndClose,
            // It would wait for the client's word first.
            (false, true) => ConnectionCommand::CloseNow,
        });
        true
    }

    /// Of the oldest that have not asked anything yet, one that may go.
    fn newcomer(&self, now: Instant, least: Duration) -> Option<Rc<Client>> {
        let mut newcomers = self.newcomers.borrow_mut();
        while newcomers.front().is_some_and(|first| silent(first).is_none()) {
            newcomers.pop_front();
        }
        let some = newcomers.iter().take(EVICTION_SAMPLE).filter_map(silent);
        some.filter(|client| client.has_been_idle(now, least)).min_by_key(|client| client.eviction_rank())
    }

    /// Of some, one that may go.
    fn idle(&self, now: Instant, least: Duration) -> Option<Rc<Client>> {
        let open = self.open.borrow();
        let slots = open.capacity();
        let first = self.cursor.get();
        self.cursor.set((first + EVICTION_SAMPLE) % slots.max(1));
        let some = (first..first + EVICTION_SAMPLE.min(slots)).filter_map(|key| open.get(key % slots));
        some.filter(|client| client.has_been_idle(now, least)).min_by_key(|client| client.eviction_rank()).cloned()
    }

    /// Those who are idle are closed, now or with their next answer, the others once they have been answered.
    pub(super) fn finish(&self, idle: IdlePolicy) {
        let command = match idle {
            IdlePolicy::Close => ConnectionCommand::DrainAndClose,
            IdlePolicy::CloseAfterNextResponse => ConnectionCommand::CloseAfterResponse,
        };
        self.command.set(command);
        self.open.borrow().iter().for_each(|(_, client)| client.tell(command));
    }

    pub(super) fn close(&self) {
        self.open.borrow().iter().for_each(|(_, client)| client.tell(ConnectionCommand::CloseNow));
    }

    pub(super) fn seat(self: &Rc<Self>, address: IpAddr) -> ConnectionGuard {
        let client = Rc::new(Client {
            arrived: Arc::default(),
            serving: Cell::new(0),
            served: Cell::new(false),
            asked: Cell::new(false),
            upgraded: Cell::new(false),
            unread: Cell::new(false),
            address: self.addresses.connect(address),
            since: Cell::new(Instant::now()),
            in_head: Cell::new(false),
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

/// A client's place among those of its worker, taken when it is accepted.
pub(super) struct ConnectionGuard {
    pub(super) clients: Rc<ConnectionRegistry>,
    pub(super) client: Rc<Client>,
    pub(super) key: usize,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.clients.open.borrow_mut().remove(self.key);
        self.clients.forget_newcomer(&self.client);
        self.clients.metrics.disconnected();
        self.clients.left.notify_one();
    }
}
