//! The state of one client's connection, shared by the worker that watches it and the task that serves it.
//!
//! Not here: all clients of a worker ([`registry`](super::registry)), and serving one ([`connection`](super::connection)).
//!
//! # Invariants
//!
//! * A request head that takes longer than `header_read_timeout` ends the connection.
//! * A connection between two requests is closed only after the time of an [`IdleLimit`], to make room, or at the deadline
//!   of a server that stops.
//! * A request by HTTP/1.1 outlives its client by little more than [`SEEK_INTERVAL`].
//! * A connection that has reached its age serves the requests that have begun.

use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Reverse;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::io::UnreadInput;
use crate::routing::client_share::AddressGuard;
use crate::tls::{SealedBytes, ServerTls};

/// How long a connection may be idle.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleLimit {
    /// The time before does not count.
    from: Instant,
    time: Duration,
}

impl IdleLimit {
    /// Between requests. Most clients and load balancers keep their connections for 60 to 90 s, so they close first: a
    /// request that meets a closing connection is lost.
    const BETWEEN_REQUESTS: Duration = Duration::from_secs(180);

    /// Returns the limit of a server that serves.
    pub(super) fn serving() -> Self {
        IdleLimit { from: Instant::now(), time: Self::BETWEEN_REQUESTS }
    }

    /// Returns the limit of a server that stops now. A request that is on its way meanwhile is served.
    pub(super) fn stopping(time: Duration) -> Self {
        IdleLimit { from: Instant::now(), time: time.min(Self::BETWEEN_REQUESTS) }
    }

    fn is_exceeded(&self, idle_since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(idle_since.max(self.from)) > self.time
    }
}

/// Shortest interval at which the client of a request is sought.
const SEEK_INTERVAL: Duration = Duration::from_secs(1);

/// The limits that a worker sets its clients.
#[derive(Debug, Clone)]
pub(super) struct ClientTerms {
    pub(super) header_read_timeout: Duration,
    pub(super) max_header_bytes: usize,
    pub(super) max_streams: u32,
    pub(super) max_age: Option<Duration>,
    pub(super) proxy_protocol: bool,
    /// How long a client may read nothing of what was sent to it.
    pub(super) unread_timeout: Duration,
    pub(super) tls: Option<ServerTls>,
}

/// One client's connection.
pub(super) struct Client {
    pub(super) arrived: Rc<UnreadInput>,
    /// The bytes that TLS cannot open yet, where TLS is spoken.
    pub(super) sealed: OnceCell<SealedBytes>,
    /// How many of its requests are being served.
    pub(super) serving: Cell<u32>,
    /// Whether a request has been served since the last check.
    pub(super) served: Cell<bool>,
    /// Whether it has sent the head of a request.
    pub(super) asked: Cell<bool>,
    /// Whether it has switched to another protocol.
    pub(super) upgraded: Cell<bool>,
    /// Whether more of it may arrive behind its last response: the rest of that request, or a request that it had sent
    /// before it was told that the connection closes.
    pub(super) unread: Cell<bool>,
    /// The address that the connection comes from.
    pub(super) peer: AddressGuard,
    /// The client that a balancer has named.
    pub(super) named: OnceCell<AddressGuard>,
    /// When it has reached the age of [`ClientTerms::max_age`].
    pub(super) retires_at: Option<Instant>,
    /// When it became idle, or began to send a head.
    pub(super) since: Cell<Instant>,
    pub(super) in_head: Cell<bool>,
    /// About how many bytes a head of its that has not ended takes up in memory.
    pub(super) head_bytes: Cell<usize>,
    /// When its connection was last made to ask for it, or was between requests.
    pub(super) sought: Cell<Instant>,
    /// Whether its connection has to ask the kernel whether it is still there.
    pub(super) is_sought: Cell<bool>,
    /// Whether it speaks HTTP/2, where bytes outside a stream are not a head.
    pub(super) http2: Cell<bool>,
    pub(super) command: Cell<ConnectionCommand>,
    pub(super) waker: RefCell<Option<Waker>>,
}

/// What the worker wants the task that serves a connection to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionCommand {
    /// Nothing changes.
    Continue,
    /// Close after the next response, which says so.
    CloseAfterResponse,
    /// Close once the requests that have begun have their responses.
    DrainAndClose,
    /// Close because a head takes too long. An HTTP/1.1 client gets a response that says so.
    HeaderTimeout,
    /// Close at once.
    CloseNow,
}

impl Client {
    /// Gives the command and wakes the task that serves the connection.
    pub(super) fn tell(&self, command: ConnectionCommand) {
        self.command.set(command);
        self.wake();
    }

    /// Returns about how many bytes of memory hold what TLS cannot open of its next request yet.
    pub(super) fn sealed(&self) -> usize {
        // While a request is served, what arrives is its body.
        if self.serving.get() > 0 { 0 } else { self.sealed.get().map_or(0, SealedBytes::memory) }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Returns the current command. The task is woken by the next one.
    pub(super) fn poll_command(&self, context: &mut Context<'_>) -> ConnectionCommand {
        match &mut *self.waker.borrow_mut() {
            Some(waker) if waker.will_wake(context.waker()) => {}
            waker => *waker = Some(context.waker().clone()),
        }
        self.command.get()
    }

    /// Returns whether it has been idle, or sending a head, for longer than `least`.
    pub(super) fn has_been_idle(&self, now: Instant, least: Duration) -> bool {
        let idle = self.serving.get() == 0 && !self.served.get() && !self.upgraded.get();
        // A connection that is to close does so by itself. By HTTP/2 the client has to acknowledge that, and may never do so.
        let stays = self.http2.get()
            || matches!(self.command.get(), ConnectionCommand::Continue | ConnectionCommand::CloseAfterResponse);
        idle && stays && now.saturating_duration_since(self.since.get()) > least
    }

    /// Returns the address that it counts for.
    pub(super) fn address(&self) -> &AddressGuard {
        self.named.get().unwrap_or(&self.peer)
    }

    /// Returns its place in the order of eviction, lowest first.
    pub(super) fn eviction_rank(&self) -> impl Ord + use<> {
        (Reverse(self.address().of_address()), self.since.get())
    }

    /// Makes the connection ask the kernel for the client of a request by HTTP/1.1, once in each [`SEEK_INTERVAL`]. Bytes that
    /// wait to be interpreted stop the reading, and with it every other way to notice a disconnect.
    fn seek(&self, now: Instant) {
        if self.serving.get() == 0 || self.http2.get() || self.upgraded.get() {
            self.sought.set(now);
        } else if now.saturating_duration_since(self.sought.get()) >= SEEK_INTERVAL {
            self.sought.set(now);
            self.is_sought.set(true);
            self.wake();
        }
    }

    /// Closes it if its time is up.
    pub(super) fn check(&self, now: Instant, terms: &ClientTerms, limit: IdleLimit) {
        if self.retires_at.is_some_and(|at| at <= now) && self.command.get() == ConnectionCommand::Continue {
            self.tell(ConnectionCommand::CloseAfterResponse);
        }
        self.seek(now);
        // Behind an early response comes the rest of its request.
        let is_unfinished = self.arrived.is_in_head() || self.sealed() > 0;
        let in_head = self.serving.get() == 0 && is_unfinished && !self.http2.get() && !self.unread.get();
        if self.served.take() || self.serving.get() > 0 || self.upgraded.get() || in_head != self.in_head.get() {
            self.since.set(now);
            self.in_head.set(in_head);
        }
        if in_head && now.saturating_duration_since(self.since.get()) > terms.header_read_timeout {
            self.tell(ConnectionCommand::HeaderTimeout);
        } else if limit.is_exceeded(self.since.get(), now)
            // A TLS handshake counts as a head, and a client that is not heard of again keeps no server from stopping.
            && (!in_head || !self.asked.get())
            && matches!(self.command.get(), ConnectionCommand::Continue | ConnectionCommand::CloseAfterResponse)
        {
            self.tell(ConnectionCommand::DrainAndClose);
        }
    }
}
