//! The service's side of an exchange: how the service is told that nobody waits for it, and when it has ended its work.
//!
//! # Invariants
//!
//! * By HTTP/1.1 a service is told by a half-closed connection, by HTTP/2 by a reset.
//! * An exchange that broke has ended when the service has closed its connection, or when its bound has passed.

use std::future::Future;
use std::sync::{Arc, PoisonError};

use hyper_util::client::legacy::connect::CaptureConnection;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::connection::ServiceConnection;
use super::expect::Upload;
use super::http2::{self, Http2};
use super::upstream::Upstream;

/// The service's side of an exchange.
pub(super) enum Side {
    Http1(CaptureConnection),
    Http2(Http2, Arc<http2::Used>),
}

impl Side {
    /// By HTTP/2 a service can only be told by a reset, after which its end of the stream cannot be seen.
    pub(super) fn is_told_by_reset(&self) -> bool {
        matches!(self, Side::Http2(..))
    }

    /// Whether anything can have been sent to it.
    pub(super) fn is_used(&self) -> bool {
        match self {
            Side::Http1(captured) => captured.connection_metadata().is_some(),
            Side::Http2(_, used) => used.lock().unwrap_or_else(PoisonError::into_inner).is_some(),
        }
    }

    /// Lets the service know that nobody waits for its answer, if that can be done without losing sight of it.
    pub(super) fn finish(&self) {
        if let Side::Http1(captured) = self {
            if let Some(connected) = &*captured.connection_metadata() {
                connected.poison();
            }
            if let Some(connection) = ServiceConnection::of(captured) {
                connection.finish();
            }
        }
    }

    /// Returns once the upload of an answered exchange has ended as well. A service that resets its stream then is done with
    /// it; one whose upload was cut off on this side may work on what it has. A router that is gone is noticed here once the
    /// service reads on: until then hyper does not ask for more of the upload.
    pub(super) async fn has_all(self, upload: oneshot::Receiver<Upload>, upstream: &Upstream, until: Option<Instant>) {
        match within(until, upload).await {
            None | Some(Ok(Upload::Whole)) => {}
            Some(Ok(Upload::Refused)) if self.is_told_by_reset() => {}
            Some(_) => self.closed(upstream, until).await,
        }
    }

    /// Returns once the service has closed the connection of an exchange that broke: nothing else tells that it works on it
    /// no more. At most for its bound.
    pub(super) async fn closed(self, upstream: &Upstream, until: Option<Instant>) {
        let connection = match self {
            Side::Http1(captured) => ServiceConnection::of(&captured),
            Side::Http2(client, used) => client.retire(&used).await,
        };
        let until = until.or_else(|| upstream.work_ends_within.map(|bound| Instant::now() + bound));
        if let Some(connection) = connection {
            within(until, connection.closed()).await;
        }
    }
}

pub(super) async fn within<T>(until: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(future.await),
        Some(until) => timeout_at(until, future).await.ok(),
    }
}
