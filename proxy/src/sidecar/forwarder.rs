//! Takes a router's requests and begins an exchange with the service for each.
//!
//! Not here: how an exchange goes on ([`exchange`](super::exchange)).
//!
//! # Invariants
//!
//! * An exchange outlives its router: it runs in a task of its own, which only the loss of the pod's lease cuts off.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, select};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use segue_coordination::pod::{InFlight, KeylessRequest, Owned};
use tokio::sync::oneshot;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::Service;

use super::body::SidecarBody;
use super::by_partition::ByPartition;
use super::connection::{CONNECT_TIMEOUT, ServiceConnector};
use super::exchange::{Exchange, Http1Clients};
use super::expect::ServiceRequestBody;
use super::heads::{ServiceTarget, client, prepare};
use super::local_reply::LocalReplies;
use super::upstream::Upstream;
use crate::message::headers::wants_upgrade;
use crate::message::local_reply::is_grpc;
use crate::routing::request_summary::RequestSummary;

/// Most headers of a service's response by HTTP/1.1: as many as a router takes of a pod without a sidecar.
const MAX_RESPONSE_HEADERS: usize = 128;

/// Forwards requests to the service.
#[derive(Debug, Clone)]
pub(super) struct Forwarder {
    upstream: Upstream,
    http1: Arc<Http1Clients>,
    http2: ByPartition,
}

impl Forwarder {
    pub(super) fn new(upstream: Upstream) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = ServiceConnector { tcp, upstream: Arc::new(upstream.clone()) };
        // Retries only requests that hyper hands back unsent because the service has just closed the connection.
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .retry_canceled_requests(true)
            .http1_max_headers(MAX_RESPONSE_HEADERS)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new());
        let reused = builder.build(connector.clone());
        let anew = builder.pool_max_idle_per_host(0).build(connector);
        let http1 = Arc::new(Http1Clients { reused, anew });
        let http2 = ByPartition::new(upstream.clone());
        Forwarder { upstream, http1, http2 }
    }

    /// Begins an exchange and returns it along with its response. `abandoned` completes when the router has gone, and `lost`
    /// when the pod has lost its lease.
    pub(super) fn exchange(
        &self,
        mut request: Request<Incoming>,
        replies: LocalReplies,
        abandoned: WaitForCancellationFutureOwned,
        lost: WaitForCancellationFutureOwned,
    ) -> (impl Future<Output = ()> + Send + 'static, oneshot::Receiver<Response<SidecarBody>>) {
        let switch = wants_upgrade(request.version(), request.headers()).then(|| hyper::upgrade::on(&mut request));
        let came_by_http2 = request.version() == Version::HTTP_2;
        let by_http2 = switch.is_none() && self.upstream.protocol.is_http2(|| is_grpc(request.headers()));
        let target = ServiceTarget { address: &self.upstream.address, is_secure: self.upstream.tls.is_some() };
        prepare(&mut request, target, by_http2, switch.is_some());
        let (request, upload) = ServiceRequestBody::of(request, came_by_http2, lost);
        let partition = replies.partition;
        let (to_router, response) = oneshot::channel();
        let is_safe = request.method().is_safe();
        let exchange = Exchange { upstream: self.upstream.clone(), replies, is_safe, abandoned, upload, to_router };
        let sending = match by_http2 {
            true => Either::Left(exchange.over_http2(self.http2.lease(partition), request)),
            false => Either::Right(exchange.over_http1(self.http1.clone(), request, switch)),
        };
        (sending, response)
    }
}

impl Service<Request<Incoming>> for Forwarder {
    type Response = Response<SidecarBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let owned = request.extensions().get::<Owned>();
        let partition = owned.map(|owned| owned.partition);
        let replies = LocalReplies { partition, grpc: is_grpc(request.headers()) };
        let accepted = match owned {
            Some(owned) => owned.hold().map(|hold| (hold, owned.abandoned())),
            None => request.extensions().get::<KeylessRequest>().and_then(|it| Some((it.hold()?, it.abandoned()))),
        };
        let Some((hold, abandoned)) = accepted else {
            // The layer gives every request that it accepts one of the two, but the pod may have given the partition up since.
            return Box::pin(std::future::ready(Ok(replies.not_owned())));
        };
        let summary = RequestSummary::new(request.method(), request.uri(), client(request.headers()));
        let under_way = self.upstream.traffic.enter(partition, summary);
        let (sending, response) = self.exchange(request, replies, abandoned, hold.lost());
        // A task of its own, so that a router that disconnects does not end what the service has begun.
        tokio::spawn(async move {
            let lost = pin!(hold.lost());
            if let Either::Left(_) = select(lost, pin!(sending)).await {
                tracing::warn!("pod lease lost; exchange aborted");
            }
            drop(under_way);
            drop::<InFlight>(hold);
        });
        Box::pin(async move { Ok(response.await.unwrap_or_else(|_| replies.broken())) })
    }
}
