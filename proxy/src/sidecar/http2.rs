//! The connection to a service by HTTP/2: one, which all exchanges share and which is made anew when it has closed.
//!
//! hyper-util's client would do, were the host that a request names not also its address there: services refuse a request
//! whose `host` differs from its `:authority`. What must stay true: a request is sent again only if hyper hands it back.

use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::expect::RequestBody;
use super::{BoxError, CONNECT_TIMEOUT};
use crate::upstream::{CONNECTION_WINDOW, says_unprocessed};

/// A service that does not answer a ping for so long while it owes answers is gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub(super) struct Http2 {
    upstream: Authority,
    session: Arc<Mutex<Option<SendRequest<RequestBody>>>>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Nothing was sent.
    #[error("cannot connect to the service: {0}")]
    Unreachable(BoxError),
    /// The service says itself that it has not looked at it.
    #[error("the service has not processed the request")]
    Unprocessed,
    /// The service may have acted on the request.
    #[error(transparent)]
    Broken(BoxError),
}

impl Http2 {
    pub(super) fn new(upstream: Authority) -> Self {
        Http2 { upstream, session: Arc::default() }
    }

    pub(super) async fn request(self, mut request: Request<RequestBody>) -> Result<Response<Incoming>, Failure> {
        loop {
            let (mut sender, fresh) = self.sender().await.map_err(Failure::Unreachable)?;
            let mut error = match sender.try_send_request(request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match error.take_message() {
                Some(unsent) if !fresh => request = unsent,
                Some(_) => return Err(Failure::Unreachable(error.into_error().into())),
                None if says_unprocessed(error.error()) => return Err(Failure::Unprocessed),
                None => return Err(Failure::Broken(error.into_error().into())),
            }
        }
    }

    /// Whether it was made for this request stands beside it.
    async fn sender(&self) -> Result<(SendRequest<RequestBody>, bool), BoxError> {
        let mut session = self.session.lock().await;
        if let Some(open) = session.as_ref().filter(|open| !open.is_closed()) {
            return Ok((open.clone(), false));
        }
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(self.upstream.as_str())).await??;
        stream.set_nodelay(true)?;
        let mut builder = Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).initial_connection_window_size(CONNECTION_WINDOW);
        builder.keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_WITHIN);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the service has ended");
            }
        });
        *session = Some(sender.clone());
        Ok((sender, true))
    }
}
