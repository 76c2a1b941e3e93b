//! The handler of the sidecar: a service that knows nothing of Segue is told by HTTP what comes and goes.
//!
//! Each hook is a `POST` with `{"keyspace","partition","epoch","handoff"}`; any 2xx means that it is done, anything else
//! that it failed and is due again, so a hook must bear being called twice. One without a URL has nothing to do. Not here:
//! the proxy in front of the service, and `drained`, which the layer can say by itself for a service that answers a
//! request only when it is done with it. Nor the lease that a service is lent ([`LentLease`](super::LentLease)).

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

use super::{HandlerError, HandoffHandler, Move};

/// How long one call may take, by what it may have to do: to copy a state, to read a short tail while requests wait, to
/// let go.
const WARM: Duration = Duration::from_secs(300);
const SYNC: Duration = Duration::from_secs(30);
const RELEASE: Duration = Duration::from_secs(60);

/// The hooks of a service.
#[derive(Debug, Clone, Default)]
pub struct Hooks {
    warm: Option<Uri>,
    sync: Option<Uri>,
    release: Option<Uri>,
}

/// Why a hook was not carried out, or cannot be called at all.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// A URL that cannot be called.
    #[error("{0} is no hook: it has to begin with http:// and a host")]
    Url(Uri),
    /// The service did not answer in time.
    #[error("{url} did not answer within {limit:?}")]
    Timeout {
        /// What was called.
        url: Uri,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The service could not be reached.
    #[error("{url} cannot be reached: {source}")]
    Connect {
        /// What was called.
        url: Uri,
        /// Why.
        source: std::io::Error,
    },
    /// The exchange broke.
    #[error("{url} did not answer: {source}")]
    Exchange {
        /// What was called.
        url: Uri,
        /// Why.
        source: hyper::Error,
    },
    /// The service did not do it.
    #[error("{url} answered {status}")]
    Answer {
        /// What was called.
        url: Uri,
        /// What it said.
        status: StatusCode,
    },
}

impl Hooks {
    /// The hooks at these URLs, each plain `http://`.
    pub fn new(warm: Option<Uri>, sync: Option<Uri>, release: Option<Uri>) -> Result<Self, HookError> {
        for url in [&warm, &sync, &release].into_iter().flatten() {
            if url.scheme_str() != Some("http") || url.host().is_none() {
                return Err(HookError::Url(url.clone()));
            }
        }
        Ok(Hooks { warm, sync, release })
    }

    /// The capabilities of a pod with these hooks: `sync` only if there is a hook for it. `fence`: something ends the service's work
    /// in time even if the sidecar is dead.
    pub fn capabilities(&self, fence: bool) -> Capabilities {
        Capabilities { sync: self.sync.is_some(), fence, ..Capabilities::ALL }
    }
}

#[async_trait]
impl HandoffHandler for Hooks {
    async fn warm(&self, part: &Move) -> Result<(), HandlerError> {
        call(self.warm.as_ref(), part, WARM).await
    }

    async fn sync(&self, part: &Move) -> Result<(), HandlerError> {
        call(self.sync.as_ref(), part, SYNC).await
    }

    async fn release(&self, part: &Move) -> Result<(), HandlerError> {
        call(self.release.as_ref(), part, RELEASE).await
    }
}

async fn call(url: Option<&Uri>, part: &Move, limit: Duration) -> Result<(), HandlerError> {
    let Some(url) = url else { return Ok(()) };
    let Move { keyspace, partition, epoch, handoff } = part;
    let body = serde_json::json!({
        "keyspace": keyspace, "partition": partition, "epoch": epoch, "handoff": handoff,
    });
    Ok(post(url, &body, limit).await?)
}

/// Has the service do what `url` stands for.
pub(super) async fn post(url: &Uri, body: &serde_json::Value, limit: Duration) -> Result<(), HookError> {
    let status = timeout(limit, exchange(url, body)).await;
    let status = status.map_err(|_| HookError::Timeout { url: url.clone(), limit })??;
    if !status.is_success() {
        return Err(HookError::Answer { url: url.clone(), status });
    }
    Ok(())
}

/// On a connection of its own: hooks are rare, and a fresh one is not one that the service has just closed.
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
    // The status is all that counts; the rest of the answer goes with the connection.
    Ok(sender.send_request(request).await.map_err(broke)?.status())
}
