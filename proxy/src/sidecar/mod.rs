//! The proxy in front of a writer pod: one listener, an [`OwnershipLayer`], and the service behind it.
//!
//! The layer decides what is let through; this passes it on. Not here: registration and handoffs
//! (`segue_coordination::pod`), and what ends a service that must stop.
//!
//! # Invariants
//! * A request that the service was sent counts as in flight until the service has ended it, even when its router is gone:
//!   it has answered it and taken all of it, or closed the connection. A connection that has switched protocols counts until
//!   the service has closed it. Only the loss of the pod's lease, and a declared end of all work, cut them off.
//! * A service is told of a router that is gone, and is read on: by HTTP/1.1 it is told by a half-closed connection, by HTTP/2
//!   by a reset, once its answer has begun and gone on for a while.
//! * A client that asks before it sends is told to go on by the service, not from here.
//! * A request that the service was not sent is answered `421` with the mark, so that its router holds it.

mod answer;
mod connection;
mod expect;
mod health;
mod http2;
mod traffic;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{CaptureConnection, HttpConnector, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use segue_coordination::pod::{InFlight, Owned, OwnershipLayer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::io::InspectReader;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::Service;
use tower::layer::Layer as _;

use self::answer::Asked;
use self::connection::{Connector, Line};
use self::expect::{RequestBody, Upload};
pub use self::health::{Checks, Health};
use self::http2::{Failure, Http2};
pub use self::traffic::Traffic;
use crate::message::frames::poll_telling_frame;
use crate::message::header_names::SEGUE_REASON;
use crate::message::headers::wants_upgrade;
use crate::message::local_reply::is_grpc;
use crate::tls::{ServerTls, Stream};
use crate::upstream::{CONNECTION_WINDOW, MAX_HEAD_BYTES};

/// How long the service may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a router may take to shake hands, its first byte included.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a router's connection may be idle. Routers connect ahead of a cutover and keep idle connections for 50 s: it is
/// they who close, as a request that meets a close is lost.
const ROUTER_IDLE: Duration = Duration::from_secs(90);
/// A router that does not answer for so long is gone, and so is who waited for an answer there.
const ROUTER_PING_EVERY: Duration = Duration::from_secs(10);
const ROUTER_PING_WITHIN: Duration = Duration::from_secs(10);
const ROUTER_PINGS: u32 = 2;
/// How long an answer by HTTP/2 is read that nobody reads any more, before it is reset.
const UNREAD: Duration = Duration::from_secs(5);
/// Frames of an answer that are read ahead of the router.
const AHEAD: usize = 4;
/// How a connection by HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HOP_BY_HOP: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The service behind a sidecar.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Where it listens.
    pub address: Authority,
    /// No request's work lasts longer than this after the request's last byte.
    pub work_ends_within: Option<Duration>,
    /// The traffic between the two.
    pub traffic: Arc<Traffic>,
}

/// A sidecar that has its socket and does not run yet.
#[derive(Debug)]
pub struct Sidecar {
    listener: TcpListener,
    tls: Option<ServerTls>,
    max_connections: usize,
}

impl Sidecar {
    /// Binds the address that routers reach; without `tls` they are served in clear text. Beyond `max_connections` they
    /// wait to be accepted.
    pub async fn bind(listen: SocketAddr, tls: Option<ServerTls>, max_connections: usize) -> std::io::Result<Self> {
        Ok(Sidecar { listener: TcpListener::bind(listen).await?, tls, max_connections })
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Passes what `layer` lets through on to the service at `upstream`, until `shutdown`; then lets what is under way end
    /// for at most `grace`.
    pub async fn serve(self, layer: OwnershipLayer, upstream: Upstream, shutdown: CancellationToken, grace: Duration) {
        let service = layer.layer(PassOn::new(upstream));
        let connections = GracefulShutdown::new();
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // It runs between requests as well.
        builder.http1().timer(TokioTimer::new()).header_read_timeout(ROUTER_IDLE);
        builder.http2().timer(TokioTimer::new()).initial_connection_window_size(CONNECTION_WINDOW);
        builder.http2().max_header_list_size(MAX_HEAD_BYTES as u32);
        builder.http2().keep_alive_interval(ROUTER_PING_EVERY).keep_alive_timeout(ROUTER_PING_WITHIN);
        let places = Arc::new(Semaphore::new(self.max_connections));
        loop {
            let Some(Ok(place)) = shutdown.run_until_cancelled(places.clone().acquire_owned()).await else { break };
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
            let pings = TcpKeepalive::new().with_time(ROUTER_PING_EVERY).with_interval(ROUTER_PING_WITHIN);
            let _ = SockRef::from(&stream).set_tcp_keepalive(&pings.with_retries(ROUTER_PINGS));
            let (builder, service) = (builder.clone(), TowerToHyperService::new(service.clone()));
            let (tls, watcher, ending) = (self.tls.clone(), connections.watcher(), shutdown.clone());
            tokio::spawn(async move {
                let _place = place;
                let Some(stream) = secured(stream, tls, ending).await else { return };
                let recognised = Arc::new(AtomicBool::new(false));
                let stream = TokioIo::new(recognising(stream, recognised.clone()));
                let connection = builder.serve_connection_with_upgrades(stream, service).into_owned();
                bounded(watcher.watch(connection), &recognised).await;
            });
        }
        drop(self.listener);
        let _ = timeout(grace, connections.shutdown()).await;
    }
}

/// The connection, which says when it is clear which version of HTTP its client speaks.
fn recognising<S: AsyncRead>(stream: S, recognised: Arc<AtomicBool>) -> InspectReader<S, impl FnMut(&[u8])> {
    let mut awaited = PREFACE;
    InspectReader::new(stream, move |bytes| match awaited.strip_prefix(bytes) {
        Some(rest) if !rest.is_empty() => awaited = rest,
        _ => recognised.store(true, Relaxed),
    })
}

/// Serves a connection to its end; one whose client leaves it open what it speaks is dropped. It would hold a place, and
/// hyper bounds it only from then on.
async fn bounded(connection: impl Future<Output = Result<(), BoxError>>, recognised: &AtomicBool) {
    let silent = async {
        sleep(ROUTER_IDLE).await;
        if recognised.load(Relaxed) {
            std::future::pending().await
        }
    };
    if let Either::Left((Err(error), _)) = select(pin!(connection), pin!(silent)).await {
        tracing::debug!(%error, "a router's connection has ended");
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
    upstream: Upstream,
    http1: Client<Connector, RequestBody>,
    http2: Http2,
}

impl PassOn {
    fn new(upstream: Upstream) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        // Sends again what hyper hands back unsent, because the service has just closed the connection, and nothing else.
        let http1 = Client::builder(TokioExecutor::new())
            .retry_canceled_requests(true)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .build(Connector { connector, traffic: upstream.traffic.clone() });
        let http2 = Http2::new(upstream.address.clone(), upstream.traffic.clone());
        PassOn { upstream, http1, http2 }
    }

    /// Begins an exchange, and returns it with its answer. `lost`: the lease is.
    fn exchange(
        &self,
        mut request: Request<Incoming>,
        asked: Asked,
        abandoned: WaitForCancellationFutureOwned,
        lost: WaitForCancellationFutureOwned,
    ) -> (impl Future<Output = ()> + Send + 'static, oneshot::Receiver<Response<AnswerBody>>) {
        let switch = wants_upgrade(request.version(), request.headers()).then(|| hyper::upgrade::on(&mut request));
        prepare(&mut request, &self.upstream.address, switch.is_some());
        let (request, upload) = RequestBody::of(request, lost);
        let (to_router, answer) = oneshot::channel();
        let exchange = Exchange { upstream: self.upstream.clone(), asked, abandoned, upload, to_router };
        let sending = match request.version() {
            Version::HTTP_2 => Either::Left(exchange.over_http2(self.http2.clone(), request)),
            _ => Either::Right(exchange.over_http1(self.http1.clone(), request, switch)),
        };
        (sending, answer)
    }
}

impl Service<Request<Incoming>> for PassOn {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let owned = request.extensions().get::<Owned>();
        let asked = Asked { partition: owned.map(|owned| owned.partition), grpc: is_grpc(request.headers()) };
        let Some((hold, abandoned)) = owned.and_then(|owned| Some((owned.hold()?, owned.abandoned()))) else {
            // The layer lets nothing through without it.
            return Box::pin(std::future::ready(Ok(asked.not_owned())));
        };
        let under_way = self.upstream.traffic.enter();
        let (sending, answer) = self.exchange(request, asked, abandoned, hold.lost());
        // In a task of its own: a router that hangs up does not end what the service has begun.
        tokio::spawn(async move {
            let lost = pin!(hold.lost());
            if let Either::Left(_) = select(lost, pin!(sending)).await {
                tracing::warn!("the pod's lease is lost: an exchange was cut off");
            }
            drop(under_way);
            drop::<InFlight>(hold);
        });
        Box::pin(async move { Ok(answer.await.unwrap_or_else(|_| asked.broken())) })
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

/// One request's way to the service and back.
struct Exchange {
    upstream: Upstream,
    asked: Asked,
    /// The router is gone.
    abandoned: WaitForCancellationFutureOwned,
    upload: oneshot::Receiver<Upload>,
    to_router: oneshot::Sender<Response<AnswerBody>>,
}

impl Exchange {
    async fn over_http1(
        self,
        client: Client<Connector, RequestBody>,
        mut request: Request<RequestBody>,
        switch: Option<OnUpgrade>,
    ) {
        let captured = capture_connection(&mut request);
        let sending = async {
            client.request(request).await.map_err(|error| {
                let unsent = |error: &hyper_util::client::legacy::Error| {
                    let source = std::error::Error::source(error)?;
                    Some(source.downcast_ref::<hyper::Error>()?.is_canceled())
                };
                match error.is_connect() {
                    true => Failure::Unreachable(error.into()),
                    false if unsent(&error) == Some(true) => Failure::Unprocessed,
                    false => Failure::Broken(error.into()),
                }
            })
        };
        let service = Side::Http1(captured);
        self.see_through(sending, service, switch).await;
    }

    async fn over_http2(self, client: Http2, request: Request<RequestBody>) {
        let used = Arc::default();
        let service = Side::Http2(client.clone(), Arc::clone(&used));
        self.see_through(client.request(request, &used), service, None).await;
    }

    /// Has the exchange answered and reads the answer to its end, also when nobody listens any more, and sees the upload end.
    async fn see_through(
        self,
        sending: impl Future<Output = Result<Response<Incoming>, Failure>>,
        service: Side,
        switch: Option<OnUpgrade>,
    ) {
        let Exchange { upstream, asked, abandoned, upload, to_router } = self;
        // Unless nobody waits for the service any more: then it has only so long.
        let mut until = None;
        let mut sending = pin!(sending);
        let result = match select(sending.as_mut(), pin!(abandoned)).await {
            Either::Left((result, _)) => result,
            // The service has nothing of it, and gets nothing.
            Either::Right(_) if !service.is_used() => return,
            Either::Right(_) => {
                service.finish();
                until = upstream.work_ends_within.map(|bound| Instant::now() + bound);
                match within(until, sending).await {
                    Some(result) => result,
                    None => return,
                }
            }
        };
        let mut response = match result {
            Ok(response) => response,
            Err(failure) => {
                let answer = match failure {
                    Failure::Unreachable(error) => {
                        tracing::debug!(%error, "the service cannot be reached; the request is given back");
                        upstream.traffic.refused();
                        return drop(to_router.send(asked.unreachable()));
                    }
                    Failure::Unprocessed => return drop(to_router.send(asked.unprocessed())),
                    Failure::Broken(error) => {
                        tracing::debug!(%error, "an exchange with the service broke");
                        asked.broken()
                    }
                };
                let _ = to_router.send(answer);
                return service.closed(&upstream, until).await;
            }
        };
        response.headers_mut().remove(SEGUE_REASON);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(router) = switch else {
                // Nobody has asked for it.
                drop(response);
                let _ = to_router.send(asked.broken());
                return service.closed(&upstream, until).await;
            };
            let switched = hyper::upgrade::on(&mut response);
            strip_hop_by_hop(response.headers_mut(), true);
            // A router that is gone is one whose connection cannot be upgraded.
            let _ = to_router.send(response.map(|_| empty()));
            return join(router, switched, &upstream).await;
        }
        let (mut head, mut body) = response.into_parts();
        strip_hop_by_hop(&mut head.headers, false);
        if body.is_end_stream() {
            let _ = to_router.send(Response::from_parts(head, empty()));
            return service.has_all(upload, &upstream, until).await;
        }
        let (mut sender, channel) = Channel::<Bytes, BoxError>::new(AHEAD);
        let mut read = to_router.send(Response::from_parts(head, channel.boxed_unsync())).is_ok();
        let (mut told, mut reset_at) = (false, None);
        loop {
            if !read && !std::mem::replace(&mut told, true) {
                service.finish();
                until = until.or_else(|| upstream.work_ends_within.map(|bound| Instant::now() + bound));
                reset_at = service.is_told_by_reset().then(|| Instant::now() + UNREAD);
            }
            let next = poll_fn(|context| poll_telling_frame(&mut body, context));
            let Some(frame) = within(until.into_iter().chain(reset_at).min(), next).await else {
                if until.is_none_or(|until| Instant::now() < until) {
                    // A stream without end: its service has to be told in the only way there is.
                    drop(body);
                    service.closed(&upstream, until).await;
                }
                return;
            };
            match frame {
                None => {
                    drop(sender);
                    return service.has_all(upload, &upstream, until).await;
                }
                Some(Err(error)) => {
                    sender.abort(error.into());
                    drop(body);
                    return service.closed(&upstream, until).await;
                }
                Some(Ok(frame)) if read => read = sender.send(frame).await.is_ok(),
                Some(Ok(_)) => {}
            }
        }
    }
}

/// The service's side of an exchange.
enum Side {
    Http1(CaptureConnection),
    Http2(Http2, Arc<http2::Used>),
}

impl Side {
    /// By HTTP/2 a service can only be told by a reset, after which its end of the stream cannot be seen.
    fn is_told_by_reset(&self) -> bool {
        matches!(self, Side::Http2(..))
    }

    /// Whether anything can have been sent to it.
    fn is_used(&self) -> bool {
        match self {
            Side::Http1(captured) => captured.connection_metadata().is_some(),
            Side::Http2(_, used) => used.lock().unwrap_or_else(PoisonError::into_inner).is_some(),
        }
    }

    /// Lets the service know that nobody waits for its answer, if that can be done without losing sight of it.
    fn finish(&self) {
        if let Side::Http1(captured) = self {
            if let Some(connected) = &*captured.connection_metadata() {
                connected.poison();
            }
            if let Some(line) = Line::of(captured) {
                line.finish();
            }
        }
    }

    /// Returns once the upload of an answered exchange has ended as well. A service that resets its stream then is done with
    /// it; one whose upload was cut off on this side may work on what it has. A router that is gone is noticed here once the
    /// service reads on: until then hyper does not ask for more of the upload.
    async fn has_all(self, upload: oneshot::Receiver<Upload>, upstream: &Upstream, until: Option<Instant>) {
        match within(until, upload).await {
            None | Some(Ok(Upload::Whole)) => {}
            Some(Ok(Upload::Refused)) if self.is_told_by_reset() => {}
            Some(_) => self.closed(upstream, until).await,
        }
    }

    /// Returns once the service has closed the connection of an exchange that broke: nothing else tells that it works on it
    /// no more. At most for its bound.
    async fn closed(self, upstream: &Upstream, until: Option<Instant>) {
        let line = match self {
            Side::Http1(captured) => Line::of(&captured),
            Side::Http2(client, used) => client.retire(&used).await,
        };
        let until = until.or_else(|| upstream.work_ends_within.map(|bound| Instant::now() + bound));
        if let Some(line) = line {
            within(until, line.closed()).await;
        }
    }
}

async fn within<T>(until: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(future.await),
        Some(until) => timeout_at(until, future).await.ok(),
    }
}

/// Passes bytes both ways until the service has ended. It is told when the router has, and has its bound from then on: what
/// it has begun it may end, but nobody will ever speak to it again here.
async fn join(router: OnUpgrade, service: OnUpgrade, upstream: &Upstream) {
    let Ok(service) = service.await else { return };
    let (mut from_service, mut to_service) = tokio::io::split(TokioIo::new(service));
    let (mut from_router, mut to_router) = match router.await {
        Ok(router) => {
            let (read, write) = tokio::io::split(TokioIo::new(router));
            (Some(read), Some(write))
        }
        Err(_) => (None, None),
    };
    let up = async {
        if let Some(from_router) = &mut from_router {
            let _ = tokio::io::copy(from_router, &mut to_service).await;
        }
        let _ = to_service.shutdown().await;
        match upstream.work_ends_within {
            Some(bound) => sleep(bound).await,
            None => std::future::pending().await,
        }
    };
    let down = async {
        if let Some(to_router) = &mut to_router {
            let _ = tokio::io::copy(&mut from_service, to_router).await;
            let _ = to_router.shutdown().await;
        }
        // What comes when the router takes no more has no reader.
        let _ = tokio::io::copy(&mut from_service, &mut tokio::io::sink()).await;
    };
    // The service's end is the end: what the router still sends has no reader.
    select(pin!(up), pin!(down)).await;
}

fn empty() -> AnswerBody {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests;
