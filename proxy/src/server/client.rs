//! One client's connection as its worker sees it: what it is doing, and what it is told to do.
//!
//! Not here: the clients of a worker together ([`registry`](super::registry)), and how one is served
//! ([`connection`](super::connection)).
//!
//! # Invariants
//!
//! * A head has to arrive in time.
//! * A connection between two requests is closed only when it is old, or to make room.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::io::Arrived;
use crate::routing::client_share::Connection;
use crate::tls::ServerTls;

/// How long a connection may be idle between requests. Longer than clients and load balancers keep theirs (60 to 90 s
/// mostly), so that it is they who close: a request on its way to a connection being closed is lost.
const MAX_IDLE: Duration = Duration::from_secs(180);

/// What a worker asks of its clients.
#[derive(Debug, Clone)]
pub(super) struct ClientLimits {
    pub(super) header_read_timeout: Duration,
    pub(super) max_header_bytes: usize,
    pub(super) max_streams: u32,
    /// How long a client may read nothing of what it was sent.
    pub(super) unread_timeout: Duration,
    pub(super) tls: Option<ServerTls>,
}

pub(super) struct Client {
    pub(super) arrived: Arc<Arrived>,
    pub(super) serving: Cell<u32>,
    /// It has been served since the clock was looked at for it.
    pub(super) served: Cell<bool>,
    /// It has sent a request, or at least its head.
    pub(super) asked: Cell<bool>,
    /// It speaks another protocol by now.
    pub(super) upgraded: Cell<bool>,
    /// It was answered before the end of what it sent.
    pub(super) unread: Cell<bool>,
    pub(super) address: Connection,
    /// Since when it has been idle, or sending a head.
    pub(super) since: Cell<Instant>,
    pub(super) in_head: Cell<bool>,
    /// Bytes outside of any stream are no head then.
    pub(super) http2: Cell<bool>,
    pub(super) command: Cell<ConnectionCommand>,
    pub(super) waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionCommand {
    /// Nothing changes.
    Continue,
    /// Close after the next response, which says so.
    CloseAfterResponse,
    /// Close once the requests that have begun are answered.
    DrainAndClose,
    /// Close because a head takes too long; an HTTP/1.1 client is told so.
    HeaderTimeout,
    /// Close at once.
    CloseNow,
}

impl Client {
    pub(super) fn tell(&self, command: ConnectionCommand) {
        self.command.set(command);
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    pub(super) fn poll_command(&self, context: &mut Context<'_>) -> ConnectionCommand {
        match &mut *self.waker.borrow_mut() {
            Some(waker) if waker.will_wake(context.waker()) => {}
            waker => *waker = Some(context.waker().clone()),
        }
        self.command.get()
    }

    pub(super) fn has_been_idle(&self, now: Instant, least: Duration) -> bool {
        let idle = self.serving.get() == 0 && !self.served.get() && !self.upgraded.get();
        let stays = matches!(self.command.get(), ConnectionCommand::Continue | ConnectionCommand::CloseAfterResponse);
        idle && stays && now.saturating_duration_since(self.since.get()) > least
    }

    /// The least goes first when room is made.
    pub(super) fn eviction_rank(&self) -> impl Ord + use<> {
        (Reverse(self.address.of_address()), self.since.get())
    }

    /// Looks at the clock for it.
    pub(super) fn check(&self, now: Instant, limits: &ClientLimits) {
        let in_head = self.serving.get() == 0 && self.arrived.is_in_head() && !self.http2.get();
        if self.served.take() || self.serving.get() > 0 || self.upgraded.get() || in_head != self.in_head.get() {
            self.since.set(now);
            self.in_head.set(in_head);
        }
        let lasted = now.saturating_duration_since(self.since.get());
        if in_head && lasted > limits.header_read_timeout {
            self.tell(ConnectionCommand::HeaderTimeout);
        } else if !in_head
            && lasted > MAX_IDLE
            && matches!(self.command.get(), ConnectionCommand::Continue | ConnectionCommand::CloseAfterResponse)
        {
            self.tell(ConnectionCommand::DrainAndClose);
        }
    }
}
