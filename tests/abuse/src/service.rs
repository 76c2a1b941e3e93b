//! The pod behind the router: a service that records the requests that reach it and responds as their path says.
//!
//! It runs in this process, so that its records can be compared with what clients sent. It is no model of a good
//! service: `/big` never ends and `/limited` is slow on purpose.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use segue_coordination::pod::{HandoffHandler, PodHandle, PodSettings};
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;
use tower::Layer as _;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// How large an answer of `/big` is.
pub(crate) const BIG: usize = 64 << 20;
/// What `/limited` works on at a time, and how long each takes.
pub(crate) const AT_A_TIME: usize = 16;
pub(crate) const WORK: Duration = Duration::from_millis(20);
/// How long `/poll` takes.
const POLL: Duration = Duration::from_secs(3);

/// What has reached the pods.
#[derive(Debug)]
pub(crate) struct Seen {
    /// How often each request of a well-behaved client was applied.
    applied: Mutex<HashMap<u64, u32>>,
    pub(crate) smuggled: AtomicUsize,
    pub(crate) requests: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    limited: Semaphore,
    refusing: AtomicBool,
    refused: AtomicUsize,
    gone: AtomicUsize,
}

impl Seen {
    fn new() -> Self {
        Seen {
            applied: Mutex::default(),
            smuggled: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            most_in_flight: AtomicUsize::new(0),
            limited: Semaphore::new(AT_A_TIME),
            refusing: AtomicBool::new(false),
            refused: AtomicUsize::new(0),
            gone: AtomicUsize::new(0),
        }
    }

    /// How many requests were applied more than once; forgets them.
    pub(crate) fn take_applied_twice(&self) -> usize {
        let applied = std::mem::take(&mut *self.applied.lock().unwrap_or_else(PoisonError::into_inner));
        applied.values().filter(|times| **times > 1).count()
    }

    /// From here on every request is refused, or not any more; how many have been.
    pub(crate) fn refuse(&self, refusing: bool) -> usize {
        self.refusing.store(refusing, Relaxed);
        self.refused.swap(0, Relaxed)
    }

    /// Returns the number of requests that reached a pod after their client had hung up.
    pub(crate) fn gone(&self) -> usize {
        self.gone.load(Relaxed)
    }

    /// The most requests that pods worked on at a time since the last call.
    pub(crate) fn take_most_in_flight(&self) -> usize {
        self.most_in_flight.swap(self.in_flight.load(Relaxed), Relaxed)
    }
}

struct InFlight<'seen>(&'seen Seen);

impl<'seen> InFlight<'seen> {
    fn begin(seen: &'seen Seen) -> Self {
        let now = seen.in_flight.fetch_add(1, Relaxed) + 1;
        seen.most_in_flight.fetch_max(now, Relaxed);
        InFlight(seen)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug, Clone)]
struct Service(Arc<Seen>);

impl tower::Service<Request<Incoming>> for Service {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let seen = self.0.clone();
        Box::pin(async move { Ok(answer(&seen, request).await) })
    }
}

async fn answer(seen: &Seen, request: Request<Incoming>) -> Response<Body> {
    let _in_flight = InFlight::begin(seen);
    seen.requests.fetch_add(1, Relaxed);
    let (head, incoming) = request.into_parts();
    if head.uri.path().contains("smuggled") || head.headers.contains_key("x-smuggled") {
        seen.smuggled.fetch_add(1, Relaxed);
    }
    if head.uri.path() == "/gone" {
        seen.gone.fetch_add(1, Relaxed);
    }
    let id = head.headers.get("x-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let Ok(body) = incoming.collect().await else {
        return status(400);
    };
    if let Some(id) = id {
        *seen.applied.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default() += 1;
    }
    match head.uri.path() {
        "/big" => Response::new(big()),
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            status(200)
        }
        "/poll" => {
            tokio::time::sleep(POLL).await;
            status(200)
        }
        "/limited" => match seen.limited.acquire().await {
            Ok(_permit) => {
                tokio::time::sleep(WORK).await;
                status(200)
            }
            Err(_) => status(500),
        },
        _ => Response::new(Full::new(body.to_bytes()).boxed_unsync()),
    }
}

/// Says in front of everything that it is not the owner, while the test wants that, and of `/poison` always.
#[derive(Clone)]
struct Refusing<S> {
    seen: Arc<Seen>,
    inner: S,
}

impl<S, B> tower::Service<Request<Incoming>> for Refusing<S>
where
    S: tower::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let refusing = self.seen.refusing.load(Relaxed);
        if refusing || request.uri().path() == "/poison" {
            self.seen.refused.fetch_add(usize::from(refusing), Relaxed);
            let refusal = status(421).map(|body| body.map_err(|never| match never {}).boxed_unsync());
            return Box::pin(std::future::ready(Ok(refusal)));
        }
        let answered = self.inner.call(request);
        Box::pin(async move { Ok(answered.await?.map(|body| body.map_err(Into::into).boxed_unsync())) })
    }
}

fn status(status: u16) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::new()).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    response
}

fn big() -> Body {
    const PIECE: usize = 64 << 10;
    static ZEROS: [u8; PIECE] = [0; PIECE];
    let pieces = stream::iter(0..BIG / PIECE).map(|_| Ok(Frame::data(Bytes::from_static(&ZEROS))));
    StreamBody::new(pieces).boxed_unsync()
}

struct NoState;

#[async_trait]
impl HandoffHandler for NoState {}

/// A pod that serves and takes part.
#[derive(Debug)]
pub(crate) struct Pod {
    handle: PodHandle,
    server: tokio::task::JoinHandle<()>,
}

/// Where pods take part, and what they note.
#[derive(Clone)]
pub(crate) struct Pods {
    store: Arc<dyn Store>,
    keyspace: &'static str,
    pub(crate) seen: Arc<Seen>,
}

impl Pods {
    pub(crate) fn new(store: Arc<dyn Store>, keyspace: &'static str) -> Self {
        Pods { store, keyspace, seen: Arc::new(Seen::new()) }
    }

    /// Those of another keyspace, which note what they see in the same place.
    pub(crate) fn in_keyspace(&self, keyspace: &'static str) -> Self {
        Pods { keyspace, ..self.clone() }
    }

    pub(crate) async fn start(&self, name: &str) -> anyhow::Result<Pod> {
        // As servers have it; with std's 128, a pod that shares two cores with its attackers loses newcomers.
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let listener = socket.listen(4096)?;
        let settings = PodSettings::new(name, listener.local_addr()?.to_string());
        let keys = Keyspace::new("/segue/", self.keyspace);
        let handle = PodHandle::start(self.store.clone(), self.keyspace, keys, settings, Arc::new(NoState));
        let service = Refusing { seen: self.seen.clone(), inner: handle.layer().layer(Service(self.seen.clone())) };
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    let mut builder = auto::Builder::new(TokioExecutor::new());
                    builder.http2().max_concurrent_streams(1000);
                    let _ = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
                });
            }
        });
        Ok(Pod { handle, server })
    }
}

impl Pod {
    /// Hands over what it has, if there is somebody, and leaves.
    pub(crate) async fn shut_down(self, at_most: Duration) {
        self.handle.shutdown(at_most).await;
        self.server.abort();
    }
}
