//! The handler of the sidecar: it tells a service that knows nothing of Segue over HTTP which partitions come and go.
//!
//! Each hook is a `POST` with `{"keyspace","partition","epoch","handoff"}`. Any 2xx means success. Anything else is a
//! failure and is retried, so a hook must tolerate being called twice. A hook without a URL has nothing to do.
//!
//! Not here: the proxy in front of the service; `drained`, which the layer can acknowledge for a service that responds
//! only when its work is done; the lease that a service is lent ([`LentLease`](super::LentLease)).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use segue_protocol::records::Capabilities;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::{HandlerError, HandoffContext, HandoffHandler};

/// The longest call of each hook: `warm` copies state, `sync` reads a short tail while requests are held, `release`
/// frees the state.
const WARM_TIMEOUT: Duration = Duration::from_secs(300);
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

/// The hooks of a service.
#[derive(Debug, Clone, Default)]
pub struct Hooks {
    warm: Option<Uri>,
    sync: Option<Uri>,
    release: Option<Uri>,
}

/// Why a hook failed, or cannot be called at all.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// A URL that cannot be called.
    #[error("{0} is no hook: it has to begin with http:// and a host")]
    Url(Uri),
    /// The service did not respond in time.
    #[error("{url} did not respond within {limit:?}")]
    Timeout {
        /// The hook's URL.
        url: Uri,
        /// The time that was waited.
        limit: Duration,
    },
    /// The service could not be reached.
    #[error("{url} cannot be reached: {source}")]
    Connect {
        /// The hook's URL.
        url: Uri,
        /// The cause.
        source: std::io::Error,
    },
    /// The exchange broke.
    #[error("{url} did not respond: {source}")]
    Exchange {
        /// The hook's URL.
        url: Uri,
        /// The cause.
        source: hyper::Error,
    },
    /// The service responded with a failure.
    #[error("{url} responded {status}")]
    Status {
        /// The hook's URL.
        url: Uri,
        /// The status of the response.
        status: StatusCode,
    },
}

impl Hooks {
    /// Returns the hooks at these URLs, each plain `http://`.
    pub fn new(warm: Option<Uri>, sync: Option<Uri>, release: Option<Uri>) -> Result<Self, HookError> {
        for url in [&warm, &sync, &release].into_iter().flatten() {
            if url.scheme_str() != Some("http") || url.host().is_none() {
                return Err(HookError::Url(url.clone()));
            }
        }
        Ok(Hooks { warm, sync, release })
    }

    /// Returns the capabilities of a pod with these hooks: `sync` only with a hook for it. `fence` states that
    /// something ends the service's work in time even if the sidecar is dead.
    pub fn capabilities(&self, fence: bool) -> Capabilities {
        Capabilities { sync: self.sync.is_some(), fence, ..Capabilities::ALL }
    }
}

#[async_trait]
impl HandoffHandler for Hooks {
    async fn warm(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        call(self.warm.as_ref(), context, WARM_TIMEOUT).await
    }

    async fn sync(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        call(self.sync.as_ref(), context, SYNC_TIMEOUT).await
    }

    async fn release(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        call(self.release.as_ref(), context, RELEASE_TIMEOUT).await
    }
}

async fn call(url: Option<&Uri>, context: &HandoffContext, limit: Duration) -> Result<(), HandlerError> {
    let Some(url) = url else { return Ok(()) };
    let HandoffContext { keyspace, partition, epoch, handoff } = context;
    let body = serde_json::json!({
        "keyspace": keyspace, "partition": partition, "epoch": epoch, "handoff": handoff,
    });
    Ok(post(url, &body, limit).await?)
}

/// Calls the hook at `url`.
pub(super) async fn post(url: &Uri, body: &serde_json::Value, limit: Duration) -> Result<(), HookError> {
    let status = timeout(limit, exchange(url, body)).await;
    let status = status.map_err(|_| HookError::Timeout { url: url.clone(), limit })??;
    if !status.is_success() {
        return Err(HookError::Status { url: url.clone(), status });
    }
    Ok(())
}

/// Sends the request on a connection of its own. Hooks are rare, and the service may just have closed an older
/// connection.
async fn exchange(url: &Uri, body: &serde_json::Value) -> Result<StatusCode, HookError> {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, url.port_u16().unwrap_or(80))).await;
    let stream = stream.map_err(|source| HookError::Connect { url: url.clone(), source })?;
    let broke = |source| HookError::Exchange { url: url.clone(), source };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let mut request = Request::post(url.path_and_query().map_or("/", |path| path.as_str()));
    if let Some(authority) = url.authority() {
        request = request.header(HOST, authority.as_str());
    }
    let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(Bytes::from(body.to_string())));
    let Ok(request) = request else {
        return Err(HookError::Url(url.clone()));
    };
    // Only the status counts; the rest of the response is dropped with the connection.
    Ok(sender.send_request(request).await.map_err(broke)?.status())
}
