//! The HTTP client of the hooks: HTTP/1.1 over TCP or a unix socket, with connection reuse.
//!
//! Not here: what a response means ([`answer`](super::answer)), and how long a call may take.
//!
//! # Invariants
//!
//! * No log and no error contains the secret.
//! * A response whose body matters is complete, or the call fails.

use std::error::Error;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::rt::ReadBufCursor;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_util::either::Either;
use tower_service::Service;

use super::settings::{HookUrl, SECRET_HEADER, socket_of};

/// How long an idle connection is kept. Most services close idle connections later, after two to five seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Most idle connections.
const MAX_IDLE: usize = 16;
/// Most bytes of a response that are read.
const MAX_BODY: usize = 64 << 10;
/// How long to read the rest of a response that means done, so that its connection can be reused.
const REST_TIMEOUT: Duration = Duration::from_millis(100);

/// Why a hook failed. The text contains that of the cause, which is therefore no [`source`](Error::source).
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The service did not respond in time.
    #[error("{url} did not respond within {limit:?}")]
    Timeout {
        /// The hook's address.
        url: HookUrl,
        /// The time that was waited.
        limit: Duration,
    },
    /// The service reported progress, but was not done in time.
    #[error("{url} was not done within {limit:?}; it last said {said}")]
    Unfinished {
        /// The hook's address.
        url: HookUrl,
        /// The time that was waited.
        limit: Duration,
        /// The progress that it reported last.
        said: String,
    },
    /// The service could not be reached.
    #[error("{url} cannot be reached: {}", chain(&**cause))]
    Connect {
        /// The hook's address.
        url: HookUrl,
        /// The cause.
        cause: Box<dyn Error + Send + Sync>,
    },
    /// The exchange broke.
    #[error("{url} did not respond: {}", chain(&**cause))]
    Exchange {
        /// The hook's address.
        url: HookUrl,
        /// The cause.
        cause: Box<dyn Error + Send + Sync>,
    },
    /// The service responded with a failure.
    #[error("{url} responded {status}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Status {
        /// The hook's address.
        url: HookUrl,
        /// The status of the response.
        status: StatusCode,
        /// The beginning of the response.
        detail: String,
    },
    /// The service responded with a success that cannot be read.
    #[error("{url} responded {status} with {why}")]
    Unreadable {
        /// The hook's address.
        url: HookUrl,
        /// The status of the response.
        status: StatusCode,
        /// What was wrong, and what was expected.
        why: String,
    },
    /// The service responded that it will never succeed.
    #[error("{url} cannot do it: {reason}")]
    Permanent {
        /// The hook's address.
        url: HookUrl,
        /// Why, in the service's words.
        reason: String,
    },
    /// The file with the secret cannot be used.
    #[error("pod.hooks.secret_file {path}: {cause}", path = path.display())]
    Secret {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: Box<dyn Error + Send + Sync>,
    },
}

/// Whether connections are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionReuse {
    /// Idle connections are reused.
    Reused,
    /// Each call uses a new connection. A reused connection may be closed by the service during the call, and then it
    /// is unknown whether the service has read the call.
    OnePerCall,
}

/// The client. Clones share its connections.
#[derive(Debug, Clone)]
pub(crate) struct HookClient {
    client: Client<Connector, Full<Bytes>>,
    secret_file: Option<PathBuf>,
}

impl HookClient {
    pub(crate) fn new(secret_file: Option<PathBuf>, connections: ConnectionReuse) -> Self {
        let max_idle = if connections == ConnectionReuse::Reused { MAX_IDLE } else { 0 };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(max_idle)
            .build(Connector);
        HookClient { client, secret_file }
    }

    /// Posts `body`. Returns the status of the response, with its body if `reads_all` or if the status is not one that
    /// simply means done.
    pub(crate) async fn post(
        &self,
        url: &HookUrl,
        body: &Value,
        reads_all: bool,
    ) -> Result<(StatusCode, Bytes), HookError> {
        let mut request = Request::post(url.uri().clone()).header(CONTENT_TYPE, "application/json");
        if socket_of(url.uri()).is_some() {
            request = request.header(HOST, "localhost");
        }
        if let Some(secret) = self.secret().await? {
            request = request.header(SECRET_HEADER, secret);
        }
        let broke = |cause: Box<dyn Error + Send + Sync>| HookError::Exchange { url: url.clone(), cause };
        let request = request.body(Full::new(Bytes::from(body.to_string()))).map_err(|error| broke(error.into()))?;
        let response = self.client.request(request).await.map_err(|error| match error.is_connect() {
            true => HookError::Connect { url: url.clone(), cause: error.into() },
            false => broke(error.into()),
        })?;
        let (status, body) = (response.status(), response.into_body());
        let says_more = reads_all || status == StatusCode::ACCEPTED || !status.is_success();
        if !says_more {
            // An error here does not matter, because the status decides.
            let _ = timeout(REST_TIMEOUT, read(body)).await;
            return Ok((status, Bytes::new()));
        }
        match read(body).await {
            Ok(body) => Ok((status, body)),
            // The body only explains a failure, so an error while reading it does not matter.
            Err(_) if !status.is_success() && status != StatusCode::CONFLICT => Ok((status, Bytes::new())),
            Err(error) => Err(broke(error)),
        }
    }

    async fn secret(&self) -> Result<Option<HeaderValue>, HookError> {
        let Some(path) = self.secret_file.clone() else { return Ok(None) };
        let wrong = |cause: Box<dyn Error + Send + Sync>| HookError::Secret { path: path.clone(), cause };
        let read = tokio::task::spawn_blocking({
            let path = path.clone();
            move || std::fs::read(path)
        });
        let content = read.await.map_err(|error| wrong(error.into()))?.map_err(|error| wrong(error.into()))?;
        let content = content.trim_ascii();
        if content.is_empty() {
            return Err(wrong("it is empty; expected a secret on one line".into()));
        }
        let value = HeaderValue::from_bytes(content);
        let mut value = value.map_err(|_| wrong("it cannot be a header; expected a secret on one line".into()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

async fn read(body: Incoming) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    Ok(Limited::new(body, MAX_BODY).collect().await?.to_bytes())
}

/// Returns an error with its causes, which the client's errors leave out.
fn chain(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

/// Connects to the host or socket of a hook's address.
#[derive(Debug, Clone, Copy)]
struct Connector;

impl Service<Uri> for Connector {
    type Response = HookStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<HookStream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(async move {
            let stream = match socket_of(&uri) {
                Some(socket) => Either::Right(UnixStream::connect(socket).await?),
                None => {
                    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
                    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
                    stream.set_nodelay(true)?;
                    Either::Left(stream)
                }
            };
            Ok(HookStream(TokioIo::new(stream)))
        })
    }
}

/// A connection to the service.
#[derive(Debug)]
struct HookStream(TokioIo<Either<TcpStream, UnixStream>>);

impl Connection for HookStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for HookStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl hyper::rt::Write for HookStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
