//! Sees one exchange with the service through: the request, the response, and what is left of either.
//!
//! Not here: beginning an exchange ([`forwarder`](super::forwarder)), and when the service has ended one
//! ([`service_side`](super::service_side)).
//!
//! # Invariants
//!
//! * An exchange lasts until the service has ended it, whether its router is still there or not.
//! * A request of which nothing was sent gets `421` with the mark.
//! * A request that may have been processed is sent again only if its method is safe and it has no body, and only once.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::future::{Either, select};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::capture_connection;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::body::{SidecarBody, empty};
use super::by_partition::PartitionLease;
use super::connection::ServiceConnector;
use super::expect::{ServiceRequestBody, Upload};
use super::heads::{settle_framing, strip_hop_by_hop};
use super::http2::ConnectFailure;
use super::local_reply::LocalReplies;
use super::relayed_body::relayed_body;
use super::service_side::{ServiceSide, UNREAD_TIMEOUT, within};
use super::tunnel::join;
use super::upstream::Upstream;
use crate::message::frames::poll_telling_frame;
use crate::message::header_names::SEGUE_REASON;
use crate::message::stream_kind::says_stream;

/// Frames of a response that are read ahead of the router.
const READ_AHEAD_FRAMES: usize = 4;

/// A request that is about to be sent.
pub(super) struct Exchange {
    pub(super) upstream: Upstream,
    pub(super) replies: LocalReplies,
    /// Whether the request's method is safe: its response is all that its service does for it.
    pub(super) is_safe: bool,
    /// Ends when the router is gone.
    pub(super) abandoned: WaitForCancellationFutureOwned,
    pub(super) upload: oneshot::Receiver<Upload>,
    pub(super) to_router: oneshot::Sender<Response<SidecarBody>>,
}

/// The clients of a service by HTTP/1.1.
#[derive(Debug)]
pub(super) struct Http1Clients {
    /// The client that uses idle connections.
    pub(super) reused: Client<ServiceConnector, ServiceRequestBody>,
    /// The client that makes a connection for each request.
    pub(super) anew: Client<ServiceConnector, ServiceRequestBody>,
}

/// A request that can be sent once more: it asks for nothing but a response.
struct RepeatableRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    begun: Instant,
}

impl RepeatableRequest {
    /// Returns what can be sent once more of a request with a safe method and without a body, unless it asks for another
    /// protocol.
    fn of(request: &Request<ServiceRequestBody>, asks_for_switch: bool) -> Option<Self> {
        let may_be_repeated = request.method().is_safe() && !asks_for_switch && request.body().is_end_stream();
        may_be_repeated.then(|| RepeatableRequest {
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
            begun: Instant::now(),
        })
    }

    /// Returns the request, if the service has closed an idle connection without a byte of a response.
    fn if_unanswered(self, failure: &ConnectFailure, service: &ServiceSide) -> Option<Request<ServiceRequestBody>> {
        let RepeatableRequest { method, uri, headers, begun } = self;
        if !matches!(failure, ConnectFailure::Broken(_)) || !service.was_idle_and_is_unanswered(begun) {
            return None;
        }
        tracing::debug!("the service closed an idle connection; sending a request once more");
        let mut request = Request::new(ServiceRequestBody::none());
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers);
        Some(request)
    }
}

/// Sends a request by HTTP/1.1.
async fn send(
    client: &Client<ServiceConnector, ServiceRequestBody>,
    request: Request<ServiceRequestBody>,
) -> Result<Response<Incoming>, ConnectFailure> {
    client.request(request).await.map_err(|error| {
        let unsent = |error: &hyper_util::client::legacy::Error| {
            let source = std::error::Error::source(error)?;
            Some(source.downcast_ref::<hyper::Error>()?.is_canceled())
        };
        match error.is_connect() {
            true => ConnectFailure::Unreachable(error.into()),
            false if unsent(&error) == Some(true) => ConnectFailure::Unprocessed,
            false => ConnectFailure::Broken(error.into()),
        }
    })
}

impl Exchange {
    pub(super) async fn over_http1(
        self,
        clients: Arc<Http1Clients>,
        mut request: Request<ServiceRequestBody>,
        switch: Option<OnUpgrade>,
    ) {
        let service = ServiceSide::Http1(capture_connection(&mut request));
        let repeatable = RepeatableRequest::of(&request, switch.is_some());
        let mut abandoned = pin!(self.abandoned);
        let sending = send(&clients.reused, request);
        let Some(mut head) = response_head(sending, abandoned.as_mut(), &service, &self.upstream).await else { return };
        let mut service = service;
        if let ((Err(failure), None), Some(repeatable)) = (&head, repeatable)
            && let Some(mut request) = repeatable.if_unanswered(failure, &service)
        {
            service = ServiceSide::Http1(capture_connection(&mut request));
            let sending = send(&clients.anew, request);
            let again = response_head(sending, abandoned, &service, &self.upstream).await;
            let Some((result, until)) = again else { return };
            head = (result.map_err(ConnectFailure::after_another), until);
        }
        let Exchange { upstream, replies, is_safe, upload, to_router, .. } = self;
        let (result, until) = head;
        let responding = ExchangeResponse { upstream, replies, is_safe, to_router, service, until };
        responding.go_on(result, upload, switch).await;
    }

    pub(super) async fn over_http2(self, connection: PartitionLease, request: Request<ServiceRequestBody>) {
        let Exchange { upstream, replies, is_safe, abandoned, upload, to_router } = self;
        let used = Arc::default();
        let service = ServiceSide::Http2(connection.http2.clone(), Arc::clone(&used));
        let sending = connection.http2.request(request, &used);
        let Some((result, until)) = response_head(sending, pin!(abandoned), &service, &upstream).await else { return };
        let responding = ExchangeResponse { upstream, replies, is_safe, to_router, service, until };
        responding.go_on(result, upload, None).await;
    }
}

/// Waits for the head of the response. Returns it along with the time at which the service stops being waited for, if its
/// router has gone. Returns `None` if the exchange is over.
async fn response_head(
    sending: impl Future<Output = Result<Response<Incoming>, ConnectFailure>>,
    abandoned: Pin<&mut WaitForCancellationFutureOwned>,
    service: &ServiceSide,
    upstream: &Upstream,
) -> Option<(Result<Response<Incoming>, ConnectFailure>, Option<Instant>)> {
    let mut sending = pin!(sending);
    match select(sending.as_mut(), abandoned).await {
        Either::Left((result, _)) => Some((result, None)),
        // The service was sent nothing, and will be sent nothing.
        Either::Right(_) if !service.is_used() => None,
        // The router has gone, so the service has only as long as its bound.
        Either::Right(_) => {
            service.finish();
            let until = upstream.work_ends_within.map(|bound| Instant::now() + bound);
            within(until, sending).await.map(|result| (result, until))
        }
    }
}

/// An exchange whose response has begun, or that has failed.
struct ExchangeResponse {
    upstream: Upstream,
    replies: LocalReplies,
    is_safe: bool,
    to_router: oneshot::Sender<Response<SidecarBody>>,
    service: ServiceSide,
    /// When the service stops being waited for, if its router has gone.
    until: Option<Instant>,
}

impl ExchangeResponse {
    /// Responds to the router, and returns once the service has ended the exchange.
    async fn go_on(
        self,
        result: Result<Response<Incoming>, ConnectFailure>,
        upload: oneshot::Receiver<Upload>,
        switch: Option<OnUpgrade>,
    ) {
        match result {
            Err(failure) => self.fail(failure).await,
            Ok(mut response) => {
                response.headers_mut().remove(SEGUE_REASON);
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    self.switch_protocols(response, switch).await;
                } else {
                    self.relay(response, upload).await;
                }
            }
        }
    }

    /// Responds in place of the service, and returns once the service has ended what it was sent.
    async fn fail(self, failure: ConnectFailure) {
        let ExchangeResponse { upstream, replies, to_router, service, until, .. } = self;
        if service.speaks_http2() || (!service.is_told_by_reset() && failure.is_refused_protocol()) {
            upstream.traffic.speaks_http2(&upstream.address);
            return drop(to_router.send(replies.speaks_http2()));
        }
        let response = match failure {
            ConnectFailure::Unreachable(error) => {
                tracing::debug!(%error, "the service cannot be reached; the request is given back");
                upstream.traffic.refused();
                return drop(to_router.send(replies.unreachable()));
            }
            ConnectFailure::Unprocessed => return drop(to_router.send(replies.unprocessed())),
            ConnectFailure::HeadTooLarge => return drop(to_router.send(replies.head_too_large())),
            ConnectFailure::Rejected => return drop(to_router.send(replies.rejected())),
            ConnectFailure::Broken(error) => {
                tracing::debug!(%error, "an exchange with the service broke");
                replies.broken()
            }
        };
        let _ = to_router.send(response);
        service.closed(&upstream, until).await;
    }

    /// Forwards the response, and then bytes both ways.
    async fn switch_protocols(self, mut response: Response<Incoming>, switch: Option<OnUpgrade>) {
        let ExchangeResponse { upstream, replies, to_router, service, until, .. } = self;
        let Some(router) = switch else {
            // The request did not ask for it.
            drop(response);
            let _ = to_router.send(replies.broken());
            return service.closed(&upstream, until).await;
        };
        let switched = hyper::upgrade::on(&mut response);
        strip_hop_by_hop(response.headers_mut(), true);
        // If the router has gone, its side of the upgrade fails.
        let _ = to_router.send(response.map(|_| empty()));
        join(router, switched, service, &upstream, until).await;
    }

    /// Forwards the response, reads it to its end whether its router does or not, and returns once the upload has ended.
    async fn relay(self, response: Response<Incoming>, upload: oneshot::Receiver<Upload>) {
        let ExchangeResponse { upstream, replies, is_safe, to_router, service, mut until } = self;
        let (mut head, mut body) = response.into_parts();
        let framing = settle_framing(head.version, &mut head.headers);
        strip_hop_by_hop(&mut head.headers, false);
        if head.status == StatusCode::INTERNAL_SERVER_ERROR || !framing.is_certain() {
            // Many servers close a connection behind an exception, without a word. The next request on it would be lost.
            service.retire();
        }
        if body.is_end_stream() && framing.is_readable() {
            let _ = to_router.send(Response::from_parts(head, empty()));
            return service.has_all(upload, &upstream, until).await;
        }
        // By HTTP/1.1 a service may overlook that its router has gone, and write on. It is not reset in the middle of a response
        // about its own work, such as to a POST: that it ends is the sign that the work has.
        let may_be_reset = service.is_told_by_reset() || is_safe || says_stream(&head.headers);
        let (sender, relayed) = relayed_body(READ_AHEAD_FRAMES);
        let mut read = framing.is_readable();
        if read {
            read = to_router.send(Response::from_parts(head, relayed.boxed_unsync())).is_ok();
        } else {
            tracing::debug!("the service's response has a transfer coding other than chunked");
            let _ = to_router.send(replies.broken());
        }
        let (mut told, mut reset_at) = (false, None);
        loop {
            if !read && !std::mem::replace(&mut told, true) {
                service.finish();
                until = until.or_else(|| upstream.work_ends_within.map(|bound| Instant::now() + bound));
                reset_at = may_be_reset.then(|| Instant::now() + UNREAD_TIMEOUT);
            }
            let next = async {
                tokio::select! {
                    biased;
                    frame = poll_fn(|context| poll_telling_frame(&mut body, context)) => Some(frame),
                    () = sender.closed(), if read => None,
                }
            };
            let Some(next) = within(until.into_iter().chain(reset_at).min(), next).await else {
                if until.is_none_or(|until| Instant::now() < until) {
                    // The response does not end, so it is reset: there is no other way to tell the service.
                    service.reset(body, &upstream, until).await;
                }
                return;
            };
            match next {
                // The router has gone while the service says nothing.
                None => read = false,
                Some(None) => {
                    sender.end();
                    return service.has_all(upload, &upstream, until).await;
                }
                Some(Some(Err(error))) => {
                    upstream.traffic.count_cut_off();
                    sender.abort(error.into());
                    drop(body);
                    return service.closed(&upstream, until).await;
                }
                Some(Some(Ok(frame))) if read => read = sender.send(frame).await,
                Some(Some(Ok(_))) => {}
            }
        }
    }
}
