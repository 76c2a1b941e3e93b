//! One attempt: an exchange with the pod that a request was admitted to, until the response is there, it has failed
//! or it was undone.
//!
//! Not here: which pod, and what becomes of a request that was undone ([`forward`](crate::forward)); the bytes
//! (`upstream`).
//!
//! # Invariants
//!
//! * [`AttemptError::Bounced`] is returned only if it is certain that no pod acted on the request.
//! * A request on which a pod may have acted is sent again only if its method is safe and it has no body, and only once.
//! * A pod's "not mine" is never passed on to the client.

use std::any::Any;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use http::Response;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use tokio::time::Instant;

use super::context::WorkerContext;
use super::error::NoResponse;
use super::in_flight::InFlight;
use super::passage::Passage;
use super::request::ForwardRequest;
use super::response_body::ResponseBody;
use super::response_head::AwaitResponse;
use super::tunnel;
use crate::message::client_body::ClientSwitch;
use crate::message::grpc_timeout;
use crate::message::header_names::SEGUE_REASON;
use crate::message::headers::RoutingHeaders;
use crate::message::local_reply::{LocalReply, PodReason, is_grpc};
use crate::message::request_body::BodyError;
use crate::routing::table::{Bounce, Pod};
use crate::runtime::exchange_timeout::EndCause;
use crate::runtime::shortage::is_shortage;
use crate::tls::Stream;
use crate::upstream::{
    Broken, Checkout, ConnectionKind, ExchangeGuard, PodResponse, ResponseKind, ResponseStream, SendError, Which,
    is_backing_off, is_not_http2,
};

/// Why there is no response to pass on.
pub(crate) enum AttemptError {
    /// No pod acted on the request: it is queued again.
    Bounced(Passage, Bounce),
    /// The router's lease expired while a connection was being made: nothing was sent.
    Fenced(Passage),
    /// The router responds itself.
    LocalReply(LocalReply),
    ClientGone,
}

impl From<BodyError> for AttemptError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge => AttemptError::LocalReply(LocalReply::BodyTooLarge),
            BodyError::Malformed => AttemptError::LocalReply(LocalReply::MalformedBody),
            BodyError::CutOff | BodyError::TakenBack => AttemptError::ClientGone,
        }
    }
}

/// Records that the pod accepted a request.
#[inline]
fn note_acceptance(shared: &WorkerContext, pod: &Pod) {
    shared.budgets.accepted(pod.slot);
    pod.health.accepted();
}

/// Sends a request to the pod of its passage.
pub(crate) async fn send(
    shared: &WorkerContext,
    request: &mut ForwardRequest,
    mut in_flight: Box<InFlight>,
) -> Result<Response<ResponseBody>, AttemptError> {
    let is_grpc = || request.scan.content_type && is_grpc(&request.head.headers);
    let by_http2 = request.switch.is_none() && shared.upstream.by_http2(is_grpc);
    let mut which = if request.was_rejected { Which::Exclusive } else { Which::Any };
    loop {
        if let Some(trace) = &request.trace {
            let epoch = in_flight.ownership().map(|(_, epoch)| epoch);
            let attempt = trace.attempt(&mut request.head.headers, in_flight.pod(), epoch);
            in_flight.trace = Some(attempt);
        }
        let wanted = if !by_http2 {
            ConnectionKind::Http1
        } else if request.scan.expect {
            // Reading makes the connection send `100 Continue`, but the request may still be put back.
            ConnectionKind::Http2Uploading
        } else if request.body.is_here().await? {
            ConnectionKind::Http2Whole
        } else {
            ConnectionKind::Http2Uploading
        };
        // Bound to a name: the temporaries of `?` would be kept across the `await`.
        let begun = begin_at_once(shared, request, in_flight, wanted, which)?;
        let outcome;
        (outcome, in_flight) = begun.await?;
        if let Err(why) = &outcome {
            in_flight.failed(why.as_str());
        }
        return match outcome {
            Ok(outcome) => responded(shared, request, outcome, in_flight),
            // The second attempt used a new connection that another request had made, so the close may have been a
            // refusal.
            Err(NoResponse::Stale)
                if which == Which::Any || shared.budgets.may_try_again(in_flight.pod().slot, Instant::now()) =>
            {
                request.body.take_back();
                which = Which::New;
                continue;
            }
            // The pod may have closed the connection because it had been idle.
            Err(NoResponse::Unanswered) if request.may_be_repeated() => {
                tracing::debug!(pod = in_flight.pod().name, "a pod closed an idle connection; sending once more");
                request.was_repeated = true;
                which = Which::New;
                continue;
            }
            // The request may be the cause, so the one further attempt uses a connection that no other request shares.
            Err(NoResponse::Send(SendError::Rejected(error))) if !request.was_rejected => {
                tracing::debug!(pod = in_flight.pod().name, %error, "a pod ended a connection with an error; sending once more");
                request.body.take_back();
                request.was_rejected = true;
                which = Which::Exclusive;
                continue;
            }
            Err(why) => {
                request.tried = Some(in_flight.attempt());
                Err(failure(request, why, in_flight))
            }
        };
    }
}

/// An exchange, or the wait for what it needs before it may begin.
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one; a box would be one more allocation")]
enum AttemptStage<'request> {
    AwaitResponse(AwaitResponse<'request>),
    /// Boxed: otherwise every request would reserve room for it, even while its response is read.
    AwaitConnection(Pin<Box<dyn Future<Output = Result<Outcome, AttemptError>> + 'request>>),
}

type Outcome = (Result<PodResponse, NoResponse>, Box<InFlight>);

impl Future for AttemptStage<'_> {
    type Output = Result<Outcome, AttemptError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            AttemptStage::AwaitResponse(sending) => Pin::new(sending).poll(context).map(Ok),
            AttemptStage::AwaitConnection(waiting) => waiting.as_mut().poll(context),
        }
    }
}

/// Begins to send at once if a connection is open and the request need not check for its client first.
fn begin_at_once<'request>(
    shared: &'request WorkerContext,
    request: &'request ForwardRequest,
    in_flight: Box<InFlight>,
    wanted: ConnectionKind,
    which: Which,
) -> Result<AttemptStage<'request>, AttemptError> {
    if which == Which::Any
        && !in_flight.was_held()
        && let Some(checkout) = shared.upstream.take_open(in_flight.pod(), wanted)
    {
        return begin(shared, request, in_flight, checkout).map(AttemptStage::AwaitResponse);
    }
    Ok(AttemptStage::AwaitConnection(Box::pin(async move {
        Ok(begin_after_waiting(shared, request, in_flight, wanted, which).await?.await)
    })))
}

/// Begins to send once there is a connection, if the request may still be sent then.
async fn begin_after_waiting<'request>(
    shared: &WorkerContext,
    request: &'request ForwardRequest,
    in_flight: Box<InFlight>,
    wanted: ConnectionKind,
    which: Which,
) -> Result<AwaitResponse<'request>, AttemptError> {
    // Connections to one pod are made a few at a time, so waiting for one may take long.
    let severed = in_flight.lasts(request);
    let connected = tokio::select! {
        biased;
        () = severed.cancelled() => return Err(AttemptError::Bounced(in_flight.undo(), Bounce::Severed)),
        connected = connection(shared, &in_flight, wanted, which) => connected,
    };
    let checkout = match connected {
        Ok(checkout) => checkout,
        Err(error) => {
            tracing::debug!(pod = in_flight.pod().name, %error, "a pod cannot be reached");
            if is_shortage(&error) {
                return Err(AttemptError::LocalReply(LocalReply::Overload));
            }
            if request.was_repeated && which == Which::New {
                // The pod that it was sent to before may have ended because of it.
                in_flight.unanswered();
                return Err(AttemptError::LocalReply(LocalReply::UpstreamFailed));
            }
            let bounce = if is_backing_off(&error) { Bounce::BackedOff } else { Bounce::Unreachable };
            return Err(AttemptError::Bounced(in_flight.undo(), bounce));
        }
    };
    // The last check before sending: a held request may have lost its client.
    if in_flight.was_held() && request.peer.presence.is_lost().await {
        let partition = in_flight.ownership().map(|(partition, _)| partition.get());
        tracing::debug!(partition, "the client of a held request is gone");
        return Err(AttemptError::ClientGone);
    }
    // The lease may have expired while this request made a connection, waited for another request's, or asked its
    // client's connection whether the client is still there.
    if !in_flight.may_still_go() {
        return Err(AttemptError::Fenced(in_flight.undo()));
    }
    begin(shared, request, in_flight, checkout)
}

/// Returns a connection to the permit's pod. A request that holds a place in a flush gives it up if connecting takes
/// long.
async fn connection(
    shared: &WorkerContext,
    in_flight: &InFlight,
    wanted: ConnectionKind,
    which: Which,
) -> io::Result<Checkout> {
    if !in_flight.holds_place() {
        return shared.upstream.checkout(in_flight.pod(), wanted, which).await;
    }
    // Boxed: otherwise every request would reserve room for it.
    Box::pin(async {
        let mut checkout = pin!(shared.upstream.checkout(in_flight.pod(), wanted, which));
        tokio::select! {
            biased;
            checkout = &mut checkout => return checkout,
            () = tokio::time::sleep_until(in_flight.gives_way_at()) => in_flight.give_way(),
        }
        checkout.await
    })
    .await
}

/// Begins to send, unless the deadline has passed or the body can no longer be sent from its beginning.
fn begin<'request>(
    shared: &WorkerContext,
    request: &'request ForwardRequest,
    in_flight: Box<InFlight>,
    checkout: Checkout,
) -> Result<AwaitResponse<'request>, AttemptError> {
    if in_flight.is_late() {
        return Err(AttemptError::LocalReply(LocalReply::Deadline));
    }
    let Some(attempt) = request.body.attempt() else {
        return Err(AttemptError::LocalReply(LocalReply::NoOwner));
    };
    let left = in_flight.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let left = left.map(grpc_timeout::header);
    let routing = RoutingHeaders {
        reserved: &shared.reserved,
        stamp: in_flight.stamp(),
        identity: &shared.identity,
        client: &request.peer.lines,
        grpc_timeout: left.as_ref(),
    };
    in_flight.sent();
    let made_for_this = checkout.is_fresh();
    let most = shared.max_header_bytes_http2;
    let wanted = match (&request.switch, request.takes_lines) {
        (Some(_), _) => ResponseKind::Switch,
        (None, true) => ResponseKind::Lines,
        (None, false) => ResponseKind::Map,
    };
    let exchange = checkout.begin(&request.head, request.scan, &routing, attempt, wanted, most);
    let exchange = exchange.map_err(AttemptError::LocalReply)?;
    if let Some(trace) = &in_flight.trace {
        trace.sent();
    }
    Ok(AwaitResponse::new(exchange, made_for_this, in_flight, request))
}

fn responded(
    shared: &WorkerContext,
    request: &mut ForwardRequest,
    outcome: PodResponse,
    mut in_flight: Box<InFlight>,
) -> Result<Response<ResponseBody>, AttemptError> {
    let body = &request.body;
    match outcome {
        PodResponse::Response(mut response) => {
            if !in_flight.take_refusal(&mut response) {
                note_acceptance(shared, in_flight.pod());
                body.settle();
                return Ok(pass_on(response, in_flight, request));
            }
            if let Some(trace) = &in_flight.trace {
                trace.responded(response.status(), false);
            }
            // Reading the rest of a complete body lets its connection be used again.
            drop(response.body_mut().take_whole());
            drop(response);
            body.take_back();
            if body.is_whole() {
                Err(AttemptError::Bounced(in_flight.undo(), Bounce::Misdirected))
            } else {
                // The pod did nothing, so the client may send the request again. The router cannot: it no longer has
                // all of the body.
                Err(AttemptError::LocalReply(LocalReply::NoOwner))
            }
        }
        PodResponse::Switched(response, stream, read) => match request.switch.take() {
            Some(client) => {
                let seat = request.peer.seat.upgrade();
                in_flight.outlives(request);
                in_flight.passed(response.status(), None);
                in_flight.note_for_log(request);
                Ok(switched(response, (client, seat), stream, read, in_flight))
            }
            None => Err(AttemptError::LocalReply(LocalReply::UpstreamFailed)),
        },
    }
}

fn failure(request: &ForwardRequest, why: NoResponse, in_flight: Box<InFlight>) -> AttemptError {
    let body = &request.body;
    match why {
        NoResponse::Stale => {
            body.take_back();
            AttemptError::Bounced(in_flight.undo(), Bounce::Unprocessed)
        }
        NoResponse::Send(SendError::NotSent(error)) => {
            body.take_back();
            tracing::debug!(pod = in_flight.pod().name, %error, "a pod takes no request");
            if is_not_http2(&error) {
                in_flight.shared().upstream.note_not_http2(in_flight.pod());
            }
            AttemptError::Bounced(in_flight.undo(), Bounce::Unprocessed)
        }
        NoResponse::Send(SendError::Rejected(error)) => {
            tracing::debug!(pod = in_flight.pod().name, %error, "a pod ended two connections of a request; answering 502");
            in_flight.unanswered();
            AttemptError::LocalReply(LocalReply::UpstreamFailed)
        }
        NoResponse::Send(SendError::Failed(Broken::TrailersTooLarge)) => {
            AttemptError::LocalReply(LocalReply::HeadTooLarge)
        }
        NoResponse::Send(SendError::Failed(_)) if body.is_too_large() => {
            AttemptError::LocalReply(LocalReply::BodyTooLarge)
        }
        NoResponse::Send(SendError::Failed(_)) if body.is_malformed() => {
            AttemptError::LocalReply(LocalReply::MalformedBody)
        }
        NoResponse::Send(SendError::Failed(Broken::SpeaksHttp2)) => {
            in_flight.shared().upstream.note_http2(in_flight.pod());
            in_flight.unanswered();
            AttemptError::LocalReply(LocalReply::PodSpeaksHttp2)
        }
        NoResponse::Send(SendError::Failed(Broken::CutOff)) => AttemptError::ClientGone,
        NoResponse::Unanswered => failure(request, NoResponse::Send(SendError::Failed(Broken::Unanswered)), in_flight),
        NoResponse::Send(SendError::Failed(error)) => {
            tracing::debug!(pod = in_flight.pod().name, %error, "an exchange has failed");
            in_flight.unanswered();
            AttemptError::LocalReply(LocalReply::UpstreamFailed)
        }
        NoResponse::Ended(EndCause::Severed) => AttemptError::LocalReply(LocalReply::Severed),
        NoResponse::Ended(EndCause::TimedOut) if in_flight.is_late() => AttemptError::LocalReply(LocalReply::Deadline),
        NoResponse::Ended(EndCause::TimedOut) => {
            if body.upload().is_some_and(|upload| upload.awaits_client) {
                return AttemptError::LocalReply(LocalReply::TooSlow);
            }
            in_flight.unanswered();
            AttemptError::LocalReply(LocalReply::UpstreamTimeout)
        }
    }
}

fn pass_on(
    response: Response<ResponseStream>,
    mut in_flight: Box<InFlight>,
    request: &ForwardRequest,
) -> Response<ResponseBody> {
    // Few responses have a reason, and looking at their names costs less than a lookup. One whose headers are lines has none.
    let has_reason = response.headers().keys().any(|name| *name == SEGUE_REASON);
    let reason = has_reason.then(|| response.headers().get(SEGUE_REASON).and_then(PodReason::of)).flatten();
    in_flight.passed(response.status(), reason);
    in_flight.note_for_log(request);
    if response.body().is_stream() {
        in_flight.streams();
    }
    response.map(|stream| ResponseBody::from_pod(stream, in_flight, request))
}

fn switched(
    mut response: Response<()>,
    (client, seat): (ClientSwitch, Option<Rc<dyn Any>>),
    stream: Stream,
    read: BytesMut,
    in_flight: Box<InFlight>,
) -> Response<ResponseBody> {
    in_flight.streams();
    tunnel::join(client, seat, stream, read, in_flight, response.headers().get(UPGRADE));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.map(|()| ResponseBody::whole(bytes::Bytes::new()))
}
