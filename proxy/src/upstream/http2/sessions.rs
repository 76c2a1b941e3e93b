//! The HTTP/2 connections of one worker to one pod.
//!
//! Pods bound what one connection may do to them, and end it past that: `h2` after some twenty streams that were reset
//! before it looked at them, Netty after two hundred resets in half a minute. Clients cause resets at will, and what ends
//! with a connection is everybody's. So requests that have all arrived and requests whose bodies are still arriving have
//! connections of their own, those of the second kind carry few exchanges at a time, and a connection that has carried
//! some resets gets no further exchanges. Not here: one connection ([`session`](super::session)) and exchanges
//! ([`http2`](super)).
//!
//! # Invariants
//!
//! * No connection carries more resets than its [`Bounds`] say, with all that was under way when the last one was counted.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::session::{Bounds, Session, StreamLease, open_session};
use crate::tls::Stream;
use crate::upstream::error::{BackingOff, is_backing_off};
use crate::upstream::sharing::OddResponses;
use crate::upstream::wanted::Which;

/// For requests that have all arrived. Few servers allow fewer than 100 streams (RFC 9113 asks for no less). Their resets
/// are of responses that have begun or were waited for long; 116 of them are within what Jetty (128 in a second) and
/// Netty allow.
pub(in crate::upstream) const WHOLE: Bounds = Bounds { streams: 100, resets: 16 };
/// For requests whose bodies are still arriving, which a client can break off at once: together within the twenty of `h2`.
pub(in crate::upstream) const UPLOADING: Bounds = Bounds { streams: 16, resets: 4 };

/// The connections of one kind.
pub(in crate::upstream) struct Sessions {
    bounds: Bounds,
    odd: Rc<OddResponses>,
    open: RefCell<Vec<Rc<Session>>>,
    connecting: Cell<bool>,
    changed: Notify,
    failures: Cell<u64>,
    /// The last failure's error.
    failed_by: Cell<SharedError>,
    /// The pod has chosen HTTP/1.1.
    declined: Cell<bool>,
}

/// The error of a failed connection for all requests that waited for it, because errors cannot be copied.
#[derive(Debug, Clone, Copy, Default)]
enum SharedError {
    /// The system's number.
    System(i32),
    /// It was not tried.
    BackingOff,
    #[default]
    Other,
}

impl From<&io::Error> for SharedError {
    fn from(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => SharedError::System(number),
            None if is_backing_off(error) => SharedError::BackingOff,
            None => SharedError::Other,
        }
    }
}

impl From<SharedError> for io::Error {
    fn from(failure: SharedError) -> Self {
        match failure {
            SharedError::System(number) => io::Error::from_raw_os_error(number),
            SharedError::BackingOff => BackingOff.into(),
            SharedError::Other => io::ErrorKind::ConnectionRefused.into(),
        }
    }
}

/// A connection on which HTTP/2 was offered, by what the pod has chosen.
pub(in crate::upstream) enum NegotiatedConnection {
    Http1(Stream),
    Http2(Stream),
}

/// The outcome of a request for a lease.
pub(in crate::upstream) enum LeaseOutcome {
    Lease(StreamLease),
    /// The pod has chosen HTTP/1.1: the connection on which it did, if this request is the one that made it.
    Declined(Option<Stream>),
}

impl Sessions {
    pub(in crate::upstream) fn new(bounds: Bounds, odd: Rc<OddResponses>) -> Self {
        Sessions {
            bounds,
            odd,
            open: RefCell::default(),
            connecting: Cell::default(),
            changed: Notify::default(),
            failures: Cell::default(),
            failed_by: Cell::default(),
            declined: Cell::default(),
        }
    }

    /// Returns a lease of a stream on an open connection.
    pub(in crate::upstream) fn open(&self) -> Option<StreamLease> {
        let mut open = self.open.borrow_mut();
        open.retain(|session| session.is_usable(self.bounds));
        open.iter().rev().find(|session| session.has_room(self.bounds)).map(|session| StreamLease::of(session, false))
    }

    /// Returns whether the pod has chosen HTTP/1.1.
    pub(in crate::upstream) fn is_declined(&self) -> bool {
        self.declined.get()
    }

    /// Returns a lease of a stream on an open connection, or on a new one. One connection is made at a time. Requests that
    /// wait for it share its outcome, except for those that want a connection of their own.
    pub(in crate::upstream) async fn lease(
        &self,
        connect: impl AsyncFn() -> io::Result<NegotiatedConnection>,
        which: Which,
    ) -> io::Result<LeaseOutcome> {
        let mut new_only = which == Which::New;
        loop {
            if self.declined.get() {
                return Ok(LeaseOutcome::Declined(None));
            }
            if which == Which::Exclusive {
                return match self.made(connect().await).await? {
                    ConnectOutcome::Session(session) => Ok(LeaseOutcome::Lease(StreamLease::of(&session, true))),
                    ConnectOutcome::Declined(stream) => Ok(LeaseOutcome::Declined(Some(stream))),
                };
            }
            if !new_only && let Some(lease) = self.open() {
                return Ok(LeaseOutcome::Lease(lease));
            }
            if self.connecting.get() {
                let failures = self.failures.get();
                self.changed.notified().await;
                if self.failures.get() != failures {
                    return Err(self.failed_by.get().into());
                }
                // Made while this one waited, so as good as its own.
                new_only = false;
                continue;
            }
            let _connecting = ConnectionAttempt::begin(self);
            return match self.made(connect().await).await {
                Ok(ConnectOutcome::Session(session)) => {
                    let lease = StreamLease::of(&session, true);
                    self.open.borrow_mut().push(session);
                    Ok(LeaseOutcome::Lease(lease))
                }
                Ok(ConnectOutcome::Declined(stream)) => Ok(LeaseOutcome::Declined(Some(stream))),
                Err(error) => {
                    self.failures.set(self.failures.get() + 1);
                    self.failed_by.set(SharedError::from(&error));
                    Err(error)
                }
            };
        }
    }

    async fn made(&self, agreed: io::Result<NegotiatedConnection>) -> io::Result<ConnectOutcome> {
        match agreed? {
            NegotiatedConnection::Http1(stream) => {
                self.declined.set(true);
                Ok(ConnectOutcome::Declined(stream))
            }
            NegotiatedConnection::Http2(stream) => {
                Ok(ConnectOutcome::Session(Rc::new(open_session(stream, self.odd.clone()).await?)))
            }
        }
    }

    /// Drops connections that have been idle for `age`.
    pub(in crate::upstream) fn sweep(&self, now: Instant, age: Duration) {
        self.open.borrow_mut().retain(|session| session.is_usable(self.bounds) && !session.is_idle(now, age));
    }

    /// Forgets the pod's choice of version, which the next connection negotiates again.
    pub(in crate::upstream) fn forget_choice(&self) {
        self.declined.set(false);
    }

    pub(in crate::upstream) fn is_empty(&self) -> bool {
        self.open.borrow().is_empty() && !self.connecting.get()
    }
}

enum ConnectOutcome {
    Session(Rc<Session>),
    Declined(Stream),
}

/// The request that makes the connection; the others wait until this is dropped, in whatever way.
struct ConnectionAttempt<'sessions>(&'sessions Sessions);

impl<'sessions> ConnectionAttempt<'sessions> {
    fn begin(sessions: &'sessions Sessions) -> Self {
        sessions.connecting.set(true);
        ConnectionAttempt(sessions)
    }
}

impl Drop for ConnectionAttempt<'_> {
    fn drop(&mut self) {
        self.0.connecting.set(false);
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_who_wait_for_a_connection_that_is_not_tried_are_told_so() {
        let sessions = Sessions::new(WHOLE, Rc::new(OddResponses::of("pod")));
        let backing_off = async || {
            tokio::task::yield_now().await;
            Err(BackingOff.into())
        };
        let (makes, waits) =
            tokio::join!(sessions.lease(backing_off, Which::Any), sessions.lease(backing_off, Which::Any));
        assert!(makes.is_err_and(|error| is_backing_off(&error)));
        assert!(waits.is_err_and(|error| is_backing_off(&error)));
    }
}
