//! The HTTP/2 connection to a service. All exchanges share it, and it is made anew once it has closed.
//!
//! hyper-util's client does not fit: it takes the host that a request names for the address too, and services refuse a
//! request whose `host` differs from its `:authority`.
//!
//! # Invariants
//!
//! * A request is sent again only if hyper hands it back.
//! * Nothing of a request has been sent while it has no [`Used`] connection.
//! * One attempt to connect serves all exchanges that wait for it, even if it fails.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::uri::Authority;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::body::BoxError;
use super::connection::{CONNECT_TIMEOUT, ServiceConnection, ServiceStream};
use super::expect::RequestBody;
use super::traffic::Traffic;
use crate::upstream::{CONNECTION_WINDOW_BYTES, MAX_HEAD_BYTES, says_unprocessed};

/// Interval between two pings while responses are awaited. A service that leaves one unacknowledged for
/// [`PING_TIMEOUT`] is taken for gone.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub(super) struct Http2 {
    upstream: Authority,
    traffic: Arc<Traffic>,
    session: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    open: Option<Session>,
    /// When the last attempt to connect failed, and why.
    failed: Option<(Instant, String)>,
}

/// A connection that exchanges share.
#[derive(Debug, Clone)]
struct Session {
    sender: SendRequest<RequestBody>,
    handle: Arc<ServiceConnection>,
    /// Whether it was made for the exchange that holds this.
    fresh: bool,
}

/// The connection that an exchange may have been sent on.
pub(super) type Used = std::sync::Mutex<Option<Arc<ServiceConnection>>>;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Nothing was sent.
    #[error("cannot connect to the service: {0}")]
    Unreachable(BoxError),
    /// The service reports that it has not processed the request.
    #[error("the service has not processed the request")]
    Unprocessed,
    /// The service may have acted on the request.
    #[error(transparent)]
    Broken(BoxError),
}

impl Http2 {
    pub(super) fn new(upstream: Authority, traffic: Arc<Traffic>) -> Self {
        Http2 { upstream, traffic, session: Arc::default() }
    }

    pub(super) async fn request(
        &self,
        mut request: Request<RequestBody>,
        used: &Used,
    ) -> Result<Response<Incoming>, Failure> {
        loop {
            let mut session = self.session().await.map_err(Failure::Unreachable)?;
            *used.lock().unwrap_or_else(PoisonError::into_inner) = Some(session.handle.clone());
            let mut error = match session.sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            match error.take_message() {
                Some(unsent) if !session.fresh => {
                    used.lock().unwrap_or_else(PoisonError::into_inner).take();
                    request = unsent;
                }
                Some(_) => return Err(Failure::Unprocessed),
                None if says_unprocessed(error.error()) => return Err(Failure::Unprocessed),
                None => return Err(Failure::Broken(error.into_error().into())),
            }
        }
    }

    /// Returns the open connection, or a new one.
    async fn session(&self) -> Result<Session, BoxError> {
        let asked = Instant::now();
        let mut shared = self.session.lock().await;
        if let Some(open) = shared.open.as_ref().filter(|open| !open.sender.is_closed()) {
            return Ok(open.clone());
        }
        if let Some((_, why)) = shared.failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(why.clone().into());
        }
        let made = self.connect().await;
        match &made {
            Ok(made) => shared.open = Some(Session { fresh: false, ..made.clone() }),
            Err(error) => shared.failed = Some((Instant::now(), error.to_string())),
        }
        made
    }

    async fn connect(&self) -> Result<Session, BoxError> {
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(self.upstream.as_str())).await??;
        stream.set_nodelay(true)?;
        let stream = ServiceStream::http2(stream, self.traffic.clone());
        let handle = stream.handle();
        let mut builder = Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        builder.max_header_list_size(MAX_HEAD_BYTES as u32);
        builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the service has ended");
            }
        });
        Ok(Session { sender, handle, fresh: true })
    }

    /// Makes later exchanges use another connection than this one, so that it closes when its last exchange has ended.
    /// Returns it.
    pub(super) async fn retire(&self, used: &Used) -> Option<Arc<ServiceConnection>> {
        let handle = used.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let mut shared = self.session.lock().await;
        if shared.open.as_ref().is_some_and(|open| Arc::ptr_eq(&open.handle, &handle)) {
            shared.open = None;
        }
        Some(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sidecar::tests::deaf;

    #[tokio::test(start_paused = true)]
    async fn an_attempt_to_connect_fails_for_all_who_wait_for_it() {
        let (_listener, _queued, address) = deaf().await;
        let client = Http2::new(address.to_string().parse().unwrap(), Arc::default());
        let begun = Instant::now();
        let all = futures_util::future::join_all((0..5).map(|_| client.session())).await;
        assert!(all.iter().all(Result::is_err));
        assert_eq!(begun.elapsed().as_secs(), CONNECT_TIMEOUT.as_secs());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(client.session().await.is_err());
        assert_eq!(begun.elapsed().as_secs(), 2 * CONNECT_TIMEOUT.as_secs(), "a later one is another attempt");
    }
}
