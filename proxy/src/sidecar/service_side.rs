//! The service's side of an exchange: how the service learns that its router has gone, and when it has ended its work.
//!
//! # Invariants
//!
//! * The service learns that its router has gone by a half-closed connection (HTTP/1.1) or by a reset (HTTP/2). One that goes on
//!   with a response which may have no end, or with another protocol, is reset by HTTP/1.1 too.
//! * An exchange that broke counts until the service has closed its connection, which no other partition uses, or until its
//!   bound has passed. By HTTP/1.1 a reset ends it, unless there is a bound.

use std::future::{Future, pending};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use hyper_util::client::legacy::connect::CaptureConnection;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::connection::ServiceConnection;
use super::expect::Upload;
use super::http2::{self, Http2};
use super::upstream::Upstream;

/// How long a response that may have no end, or another protocol, is read on after its router has gone, before it is reset.
pub const UNREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// The service's side of an exchange.
pub(super) enum ServiceSide {
    Http1(CaptureConnection),
    Http2(Http2, Arc<http2::UsedConnection>),
}

impl ServiceSide {
    /// Returns whether the service can only be told by a reset, after which the end of its work on the stream cannot be seen.
    pub(super) fn is_told_by_reset(&self) -> bool {
        matches!(self, ServiceSide::Http2(..))
    }

    /// Returns whether anything can have been sent to the service.
    pub(super) fn is_used(&self) -> bool {
        match self {
            ServiceSide::Http1(captured) => captured.connection_metadata().is_some(),
            ServiceSide::Http2(_, used) => used.lock().unwrap_or_else(PoisonError::into_inner).is_some(),
        }
    }

    /// Returns whether the connection was idle before `begun`, and the service has sent nothing on it since. Not by HTTP/2,
    /// where a server says what it has not processed.
    pub(super) fn was_idle_and_is_unanswered(&self, begun: Instant) -> bool {
        let ServiceSide::Http1(captured) = self else { return false };
        ServiceConnection::of(captured).is_some_and(|connection| connection.was_idle_and_is_unanswered(begun))
    }

    /// Returns whether the service has answered HTTP/1.1 in HTTP/2.
    pub(super) fn speaks_http2(&self) -> bool {
        let ServiceSide::Http1(captured) = self else { return false };
        ServiceConnection::of(captured).is_some_and(|connection| connection.speaks_http2())
    }

    /// Sends no other request on the connection. By HTTP/2 it stays, because a server says when it ends one.
    pub(super) fn retire(&self) {
        if let ServiceSide::Http1(captured) = self
            && let Some(connected) = &*captured.connection_metadata()
        {
            connected.poison();
        }
    }

    /// Tells the service that its router has gone, if the end of its work can still be seen afterwards.
    pub(super) fn finish(&self) {
        self.retire();
        if let ServiceSide::Http1(captured) = self
            && let Some(connection) = ServiceConnection::of(captured)
        {
            connection.finish();
        }
    }

    /// Ends a response, or a switched connection, that has gone on since its router has gone. `reader` is what reads it. Returns
    /// once the service has ended its work, as far as that can be seen: a connection by HTTP/1.1 has ended with its reset.
    pub(super) async fn reset(self, reader: impl Send, upstream: &Upstream, until: Option<Instant>) {
        let ServiceSide::Http1(captured) = &self else {
            drop(reader);
            return self.closed(upstream, until).await;
        };
        // Before the connection is dropped because nobody reads it.
        if let Some(connection) = ServiceConnection::of(captured) {
            connection.reset();
        }
        drop(reader);
        if until.is_some() {
            within(until, pending::<()>()).await;
        }
    }

    /// Returns once the upload of an exchange with a response has ended as well. A service that resets its stream then has ended its
    /// work; one whose upload was cut off on this side may still work on what it has. A router that has gone is noticed only
    /// when the service reads on, because until then hyper does not ask for more of the upload.
    pub(super) async fn has_all(self, upload: oneshot::Receiver<Upload>, upstream: &Upstream, until: Option<Instant>) {
        match within(until, upload).await {
            None | Some(Ok(Upload::Whole)) => {}
            Some(Ok(Upload::Refused)) if self.is_told_by_reset() => {}
            Some(_) => self.closed(upstream, until).await,
        }
    }

    /// Returns once the service has closed the connection of an exchange that broke, or its bound has passed. Nothing else
    /// shows that its work has ended.
    pub(super) async fn closed(self, upstream: &Upstream, until: Option<Instant>) {
        let connection = match self {
            ServiceSide::Http1(captured) => ServiceConnection::of(&captured),
            ServiceSide::Http2(client, used) => client.retire(&used).await,
        };
        let until = until.or_else(|| upstream.work_ends_within.map(|bound| Instant::now() + bound));
        if let Some(connection) = connection {
            within(until, connection.closed()).await;
        }
    }
}

/// Returns the output of `future`, or `None` if it is not there in time.
pub(super) async fn within<T>(until: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(future.await),
        Some(until) => timeout_at(until, future).await.ok(),
    }
}
