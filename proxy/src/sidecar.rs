//! The proxy in front of a writer pod: one listener, an [`OwnershipLayer`], and the service behind it.
//!
//! The layer decides what is let through; this passes it on. What must stay true: a request that the service has begun
//! counts as in flight until the service has answered it to the end, even when the router that sent it is gone; only the
//! loss of the pod's lease cuts it off. Not here: registration and hand-over (`segue_coordination::pod`).

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use http_body_util::channel::Channel;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use segue_coordination::pod::{InFlight, Owned, OwnershipLayer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tower::Service;
use tower::layer::Layer as _;

use crate::tls::{ServerTls, Stream};

/// How long the service may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a router may take to shake hands.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an exchange goes on whose router is gone.
const ABANDONED: Duration = Duration::from_secs(60);
/// Frames of an answer that are read ahead of the router.
const AHEAD: usize = 4;
const HOP_BY_HOP: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A sidecar that has its socket and does not run yet.
#[derive(Debug)]
pub struct Sidecar {
    listener: TcpListener,
    tls: Option<ServerTls>,
}

impl Sidecar {
    /// Binds the address that routers reach; without `tls` they are served in clear text.
    pub async fn bind(listen: SocketAddr, tls: Option<ServerTls>) -> std::io::Result<Self> {
        Ok(Sidecar { listener: TcpListener::bind(listen).await?, tls })
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Passes what `layer` lets through on to the service at `upstream`, until `shutdown`; then lets what is under way end
    /// for at most `grace`.
    pub async fn serve(self, layer: OwnershipLayer, upstream: Authority, shutdown: CancellationToken, grace: Duration) {
        let service = layer.layer(PassOn::new(upstream));
        let connections = GracefulShutdown::new();
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        builder.http2().timer(TokioTimer::new());
        loop {
            let stream = tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        // Out of file descriptors, most likely: it passes when some are closed.
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                () = shutdown.cancelled() => break,
            };
            let _ = stream.set_nodelay(true);
            let (builder, service) = (builder.clone(), TowerToHyperService::new(service.clone()));
            let (tls, watcher, ending) = (self.tls.clone(), connections.watcher(), shutdown.clone());
            tokio::spawn(async move {
                let Some(stream) = secured(stream, tls, ending).await else { return };
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                if let Err(error) = watcher.watch(connection.into_owned()).await {
                    tracing::debug!(%error, "a router's connection has ended");
                }
            });
        }
        drop(self.listener);
        let _ = timeout(grace, connections.shutdown()).await;
    }
}

/// The connection, in TLS if that is asked for; none if the two do not agree, or not in time.
async fn secured(stream: TcpStream, tls: Option<ServerTls>, ending: CancellationToken) -> Option<Stream> {
    let Some(tls) = tls else {
        return Some(Stream::Plain(stream));
    };
    let shaken = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream));
    match ending.run_until_cancelled(shaken).await? {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::warn!(%error, "no TLS with a router");
            None
        }
        Err(_) => None,
    }
}

/// Passes requests on to the service.
#[derive(Debug, Clone)]
struct PassOn {
    upstream: Authority,
    http1: Client<HttpConnector, Incoming>,
    http2: Client<HttpConnector, Incoming>,
}

impl PassOn {
    fn new(upstream: Authority) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let client = |http2_only| {
            let mut builder = Client::builder(TokioExecutor::new());
            // A request may have been applied although its connection broke: only the layer in front may say "not mine".
            builder.http2_only(http2_only).retry_canceled_requests(false).timer(TokioTimer::new());
            builder.build(connector.clone())
        };
        PassOn { upstream, http1: client(false), http2: client(true) }
    }
}

impl Service<Request<Incoming>> for PassOn {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let hold = request.extensions().get::<Owned>().and_then(Owned::hold);
        let Some(hold) = hold else {
            // The layer lets nothing through without it.
            return Box::pin(std::future::ready(Ok(own_answer(StatusCode::INTERNAL_SERVER_ERROR, "not owned"))));
        };
        let client = if request.version() == Version::HTTP_2 { &self.http2 } else { &self.http1 };
        prepare(&mut request, &self.upstream);
        let exchange = client.request(request);
        let (answered, answer) = tokio::sync::oneshot::channel();
        // In a task of its own: a router that hangs up does not end what the service has begun.
        tokio::spawn(async move {
            let lost = pin!(hold.lost());
            let exchange = pin!(see_through(exchange, answered));
            if let Either::Left(_) = select(lost, exchange).await {
                tracing::warn!("the pod's lease is lost: an exchange was cut off");
            }
            drop::<InFlight>(hold);
        });
        Box::pin(async move {
            let broken = |_| own_answer(StatusCode::BAD_GATEWAY, "the service broke the exchange");
            Ok(answer.await.unwrap_or_else(broken))
        })
    }
}

/// Makes a request of a router one of the service's.
fn prepare(request: &mut Request<Incoming>, upstream: &Authority) {
    let path = request.uri().path_and_query().cloned();
    let host = request.uri().authority().map(ToString::to_string);
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(upstream.clone());
    parts.path_and_query = Some(path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/")));
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    if request.version() != Version::HTTP_2 {
        *request.version_mut() = Version::HTTP_11;
    }
    let headers = request.headers_mut();
    if let Some(host) = host.and_then(|host| HeaderValue::try_from(host).ok()) {
        headers.entry(HOST).or_insert(host);
    }
    strip_hop_by_hop(headers);
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    named.iter().chain(&HOP_BY_HOP).for_each(|name| drop(headers.remove(name)));
    if headers.get(TE).is_some_and(|value| value != "trailers") {
        headers.remove(TE);
    }
}

/// Has the exchange answered and reads the answer to its end, also when nobody listens any more.
async fn see_through(
    exchange: hyper_util::client::legacy::ResponseFuture,
    answered: tokio::sync::oneshot::Sender<Response<AnswerBody>>,
) {
    let response = match exchange.await {
        Ok(response) => response,
        Err(error) if error.is_connect() => {
            tracing::warn!(%error, "cannot reach the service");
            return drop(answered.send(own_answer(StatusCode::BAD_GATEWAY, "the service cannot be reached")));
        }
        Err(error) => {
            tracing::debug!(%error, "the service broke an exchange");
            return drop(answered.send(own_answer(StatusCode::BAD_GATEWAY, "the service broke the exchange")));
        }
    };
    let (mut head, mut body) = response.into_parts();
    strip_hop_by_hop(&mut head.headers);
    if body.is_end_stream() {
        return drop(answered.send(Response::from_parts(head, empty())));
    }
    let (mut sender, channel) = Channel::<Bytes, BoxError>::new(AHEAD);
    let mut abandoned_until = None;
    if answered.send(Response::from_parts(head, channel.boxed_unsync())).is_err() {
        abandoned_until = Some(Instant::now() + ABANDONED);
    }
    loop {
        let frame = match abandoned_until {
            None => body.frame().await,
            Some(until) => match timeout_at(until, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => return,
            },
        };
        let Some(frame) = frame else { return };
        let passed = match (frame, abandoned_until) {
            (Err(error), _) => return sender.abort(error.into()),
            (Ok(_), Some(_)) => continue,
            (Ok(frame), None) => sender.send(frame).await,
        };
        if passed.is_err() {
            abandoned_until = Some(Instant::now() + ABANDONED);
        }
    }
}

fn own_answer(status: StatusCode, error: &'static str) -> Response<AnswerBody> {
    let mut response =
        Response::new(Full::new(Bytes::from_static(error.as_bytes())).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

fn empty() -> AnswerBody {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync()
}
