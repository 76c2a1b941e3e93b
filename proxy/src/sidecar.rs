//! The proxy in front of a writer pod: one listener, an [`OwnershipLayer`], and the service behind it.
//!
//! The layer decides what is let through; this passes it on. What must stay true: a request that the service has begun
//! counts as in flight until the service has answered it, even when the router that sent it is gone, and an answer that
//! nobody reads any more for a while longer; a connection that has switched protocols counts until both sides have closed
//! it; only the loss of the pod's lease cuts them off. A client that asks before it sends is told to go on by the
//! service, not from here. Not here: registration and hand-over (`segue_coordination::pod`).

mod expect;
mod http2;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryFutureExt as _;
use futures_util::future::{Either, select};
use http::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use http_body_util::channel::Channel;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use segue_coordination::pod::{InFlight, Owned, OwnershipLayer};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tower::Service;
use tower::layer::Layer as _;

use self::expect::RequestBody;
use self::http2::{Failure, Http2};
use crate::frames::poll_telling_frame;
use crate::headers::{SEGUE_MISDIRECTED, wants_upgrade};
use crate::respond::is_grpc;
use crate::tls::{ServerTls, Stream};
use crate::upstream::CONNECTION_WINDOW;

/// How long the service may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a router may take to shake hands.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer goes on that nobody reads any more. A stream without end has had the drain's time when its router
/// severs it; what counts here holds `drained` back, and the coordinator gives up on a phase after a minute by default.
const UNREAD: Duration = Duration::from_secs(5);
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
        builder.http2().timer(TokioTimer::new()).initial_connection_window_size(CONNECTION_WINDOW);
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
                let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
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
    http1: Client<HttpConnector, RequestBody>,
    http2: Http2,
}

impl PassOn {
    fn new(upstream: Authority) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        // A request may have been applied although its connection broke: only the layer in front may say "not mine".
        let http1 = Client::builder(TokioExecutor::new())
            .retry_canceled_requests(false)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        let http2 = Http2::new(upstream.clone());
        PassOn { upstream, http1, http2 }
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
            return Box::pin(std::future::ready(Ok(own_answer(StatusCode::INTERNAL_SERVER_ERROR, "not owned", None))));
        };
        let grpc = is_grpc(request.headers());
        let switch = wants_upgrade(request.version(), request.headers()).then(|| hyper::upgrade::on(&mut request));
        prepare(&mut request, &self.upstream, switch.is_some());
        let by_http2 = request.version() == Version::HTTP_2;
        let request = RequestBody::of(request);
        let exchange = if by_http2 {
            Either::Left(self.http2.clone().request(request))
        } else {
            Either::Right(self.http1.request(request).map_err(|error| match error.is_connect() {
                true => Failure::Unreachable(error.into()),
                false => Failure::Broken(error.into()),
            }))
        };
        let (answered, answer) = tokio::sync::oneshot::channel();
        // In a task of its own: a router that hangs up does not end what the service has begun.
        tokio::spawn(async move {
            let lost = pin!(hold.lost());
            let exchange = pin!(see_through(exchange, answered, grpc, switch));
            if let Either::Left(_) = select(lost, exchange).await {
                tracing::warn!("the pod's lease is lost: an exchange was cut off");
            }
            drop::<InFlight>(hold);
        });
        Box::pin(async move { Ok(answer.await.unwrap_or_else(|_| broken(grpc))) })
    }
}

/// Makes a request of a router one of the service's; `upgrade`: it asks for another protocol.
fn prepare(request: &mut Request<Incoming>, upstream: &Authority, upgrade: bool) {
    let path = request.uri().path_and_query().cloned();
    let authority = request.uri().authority().cloned();
    let by_http2 = request.version() == Version::HTTP_2;
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    // By HTTP/1.1 it is the address; there the host is a header.
    parts.authority = authority.clone().filter(|_| by_http2).or_else(|| Some(upstream.clone()));
    parts.path_and_query = Some(path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/")));
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    if !by_http2 {
        *request.version_mut() = Version::HTTP_11;
    }
    let headers = request.headers_mut();
    match authority.and_then(|authority| HeaderValue::try_from(authority.as_str()).ok()) {
        Some(_) if by_http2 => drop(headers.remove(HOST)),
        Some(host) => drop(headers.entry(HOST).or_insert(host)),
        None => {}
    }
    strip_hop_by_hop(headers, upgrade);
}

/// `upgrade`: but for what a change of protocols is agreed on with.
fn strip_hop_by_hop(headers: &mut HeaderMap, upgrade: bool) {
    let to = headers.get(UPGRADE).cloned().filter(|_| upgrade);
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
    if let Some(to) = to {
        headers.insert(UPGRADE, to);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Has the exchange answered and reads the answer to its end, also when nobody listens any more.
async fn see_through(
    exchange: impl Future<Output = Result<Response<Incoming>, Failure>>,
    answered: tokio::sync::oneshot::Sender<Response<AnswerBody>>,
    grpc: bool,
    switch: Option<OnUpgrade>,
) {
    let mut response = match exchange.await {
        Ok(response) => response,
        Err(Failure::Unreachable(error)) => {
            tracing::warn!(%error, "cannot reach the service");
            return drop(answered.send(unreachable(grpc)));
        }
        Err(Failure::Unprocessed) => return drop(answered.send(unprocessed(grpc))),
        Err(Failure::Broken(error)) => {
            tracing::debug!(%error, "the service broke an exchange");
            return drop(answered.send(broken(grpc)));
        }
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(router) = switch else { return drop(answered.send(broken(grpc))) };
        let service = hyper::upgrade::on(&mut response);
        strip_hop_by_hop(response.headers_mut(), true);
        if answered.send(response.map(|_| empty())).is_ok() {
            join(router, service).await;
        }
        return;
    }
    let (mut head, mut body) = response.into_parts();
    strip_hop_by_hop(&mut head.headers, false);
    if body.is_end_stream() {
        return drop(answered.send(Response::from_parts(head, empty())));
    }
    let (mut sender, channel) = Channel::<Bytes, BoxError>::new(AHEAD);
    let mut abandoned_until = None;
    if answered.send(Response::from_parts(head, channel.boxed_unsync())).is_err() {
        abandoned_until = Some(Instant::now() + UNREAD);
    }
    loop {
        let next = poll_fn(|context| poll_telling_frame(&mut body, context));
        let frame = match abandoned_until {
            None => next.await,
            Some(until) => match timeout_at(until, next).await {
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
            abandoned_until = Some(Instant::now() + UNREAD);
        }
    }
}

/// Passes bytes both ways until both sides have ended, and for at most [`UNREAD`] once the router has: what the service
/// has begun it may end, but nobody will ever speak to it again here.
async fn join(router: OnUpgrade, service: OnUpgrade) {
    let Ok((router, service)) = futures_util::future::try_join(router, service).await else { return };
    let (mut from_router, mut to_router) = tokio::io::split(TokioIo::new(router));
    let (mut from_service, mut to_service) = tokio::io::split(TokioIo::new(service));
    let up = async {
        let _ = tokio::io::copy(&mut from_router, &mut to_service).await;
        let _ = to_service.shutdown().await;
        tokio::time::sleep(UNREAD).await;
    };
    let down = async {
        let _ = tokio::io::copy(&mut from_service, &mut to_router).await;
        let _ = to_router.shutdown().await;
    };
    // The service's end is the end: what the router still sends has no reader.
    select(pin!(up), pin!(down)).await;
}

/// `INTERNAL`, because the service may have acted on it and clients take `UNAVAILABLE` as leave to send again.
fn broken(grpc: bool) -> Response<AnswerBody> {
    own_answer(StatusCode::BAD_GATEWAY, "the service broke the exchange", grpc.then_some("13"))
}

/// The service has closed its connection with requests on their way, as servers do after so many: nothing was done, which a
/// router is told as it would be by the layer, and sends the request again.
fn unprocessed(grpc: bool) -> Response<AnswerBody> {
    let mut answer =
        own_answer(StatusCode::MISDIRECTED_REQUEST, "the service has not processed it", grpc.then_some("9"));
    answer.headers_mut().insert(SEGUE_MISDIRECTED, HeaderValue::from_static("1"));
    answer
}

/// Nothing was sent.
fn unreachable(grpc: bool) -> Response<AnswerBody> {
    own_answer(StatusCode::BAD_GATEWAY, "the service cannot be reached", grpc.then_some("14"))
}

fn own_answer(status: StatusCode, error: &'static str, grpc_status: Option<&'static str>) -> Response<AnswerBody> {
    if let Some(grpc_status) = grpc_status {
        let mut response = Response::new(empty());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static(grpc_status));
        headers.insert("grpc-message", HeaderValue::from_static(error));
        return response;
    }
    let mut response =
        Response::new(Full::new(Bytes::from_static(error.as_bytes())).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

fn empty() -> AnswerBody {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync()
}
