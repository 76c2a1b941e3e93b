//! An exchange with a pod as it is counted: from its beginning until the pod is done, even if the client has left.
//!
//! # Invariants
//!
//! * An exchange whose client leaves before the response begins goes on, and counts, until the pod responds, its time
//!   is up or its partition is severed.
//! * Once the response has begun, the outcome is definite. Its rest is read within narrow bounds, and counts until
//!   then.
//! * The response to a safe method is broken off at once when its client leaves, unless little of it is left.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use segue_protocol::ids::{Epoch, PartitionId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::WorkerContext;
use super::request::ForwardRequest;
use super::response_head::NoResponse;
use super::trace::AttemptTrace;
use crate::message::headers;
use crate::message::local_reply::PodReason;
use crate::metrics::CutOff;
use crate::routing::permit::Permit;
use crate::routing::request_summary::RequestSummary;
use crate::routing::table::Pod;
use crate::runtime::background::Background;
use crate::runtime::exchange_timeout::Ended;
use crate::upstream::{Counted, Exchange, PodResponse, ResponseStream};

/// Time that a request may wait for its pod before its place in a flush goes to another key's request.
const GIVE_WAY_TIMEOUT: Duration = Duration::from_millis(250);

/// A permit, and what is recorded about its exchange. It is passed from owner to owner, hence boxed.
pub(crate) struct InFlight {
    permit: Option<Permit>,
    shared: Rc<WorkerContext>,
    started: Instant,
    /// When the request could be sent to its pod.
    admitted: Instant,
    /// When the request was sent towards its pod. Read from the coarse timer, which may lag, unless the request holds a
    /// place in a flush.
    departed: Instant,
    deadline: Option<Instant>,
    /// Whether its method promises to change nothing (RFC 9110, 9.2.1).
    is_safe: bool,
    /// `None` unless the request is sampled.
    pub(super) trace: Option<Box<AttemptTrace>>,
    /// `None` while the request itself is at hand, and for an exchange that is over with its response's head.
    summary: Option<RequestSummary>,
}

/// What a request states about its exchange.
pub(crate) struct Terms {
    pub(crate) arrived: Instant,
    /// The time by which the client wants the whole response.
    pub(crate) deadline: Option<Instant>,
    /// Whether its method promises to change nothing (RFC 9110, 9.2.1).
    pub(crate) is_safe: bool,
}

impl InFlight {
    pub(crate) fn begin(permit: Permit, shared: &Rc<WorkerContext>, terms: Terms) -> Self {
        shared.metrics.begins();
        shared.load.begin(permit.pod().slot);
        // A request that was not held is admitted at once. For others the clock is read once more.
        let admitted = if permit.was_held() { Instant::now() } else { terms.arrived };
        let departed = if permit.holds_place() { Instant::now() } else { shared.timer.now() };
        InFlight {
            permit: Some(permit),
            shared: shared.clone(),
            started: terms.arrived,
            admitted,
            departed,
            deadline: terms.deadline,
            is_safe: terms.is_safe,
            trace: None,
            summary: None,
        }
    }

    fn permit(&self) -> &Permit {
        // Taken only by `undo`, which consumes the exchange.
        self.permit.as_ref().expect("an exchange that was not undone")
    }

    pub(crate) fn pod(&self) -> &Arc<Pod> {
        self.permit().pod()
    }

    pub(crate) fn partition(&self) -> PartitionId {
        self.permit().partition()
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.permit().epoch()
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Returns whether the request was held before it was sent.
    pub(crate) fn was_held(&self) -> bool {
        self.permit().was_held()
    }

    /// Returns whether the request takes up one of the places of a flush.
    pub(crate) fn holds_place(&self) -> bool {
        self.permit().holds_place()
    }

    /// Returns when the request has waited for its pod for so long that its place goes to another.
    pub(crate) fn gives_way_at(&self) -> Instant {
        self.departed + GIVE_WAY_TIMEOUT
    }

    /// Keeps what operators see of the request, which this exchange outlives.
    pub(super) fn outlives(&mut self, request: &ForwardRequest) {
        self.summary = Some(request.summary(&self.shared.reserved));
    }

    /// As [`sever_token`](Counted::sever_token), while the request is at hand.
    pub(super) fn lasts(&self, request: &ForwardRequest) -> CancellationToken {
        self.permit().lasts(|| Some(Arc::new(request.summary(&self.shared.reserved))))
    }

    /// Records that the request is being sent.
    pub(crate) fn sent(&self) {
        self.permit().sent();
    }

    /// Gives the request's place in the flush to another key's request, because it waits.
    pub(crate) fn give_way(&self) {
        self.permit().give_way();
    }

    pub(crate) fn may_still_go(&self) -> bool {
        self.permit().may_still_go()
    }

    pub(crate) fn shared(&self) -> &Rc<WorkerContext> {
        &self.shared
    }

    /// Records that the outcome is definite.
    pub(crate) fn delivered(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.delivered();
        }
    }

    /// Records that this response of the pod is passed on to the client. `reason`: if the pod's layer or sidecar made it
    /// in place of the service.
    pub(crate) fn passed(&mut self, status: StatusCode, reason: Option<PodReason>) {
        self.delivered();
        match reason {
            None => self.shared.metrics.passed(status),
            Some(reason) => self.shared.metrics.passed_reason(reason),
        }
        if let Some(trace) = &self.trace {
            trace.responded(status, true);
        }
    }

    /// Records that the exchange has become a stream.
    pub(crate) fn streams(&self) {
        self.permit().streams();
    }

    /// Records why the exchange ends early.
    pub(crate) fn failed(&self, why: &'static str) {
        if let Some(trace) = &self.trace {
            trace.failed(why);
        }
    }

    /// Records that the pod has sent all of its response.
    #[inline]
    pub(super) fn completed(&self) {
        self.pod().health.completed_response();
    }

    /// Records why the client does not get all of a response that has begun.
    #[cold]
    pub(super) fn cut_off(&self, cause: CutOff) {
        self.shared.metrics.cut_off(cause);
        if cause == CutOff::ClientGone {
            return;
        }
        self.failed(cause.as_str());
        // The other causes are the router's own acts, or those of the client.
        if matches!(cause, CutOff::Broken | CutOff::Idle) {
            let pod = self.pod();
            pod.health.broke_response();
            if let Some(responses) = self.shared.cut_off_log.note(Instant::now()) {
                tracing::warn!(
                    pod = pod.name,
                    address = pod.address,
                    partition = self.partition().get(),
                    cause = cause.as_str(),
                    responses,
                    "a pod did not send all of a response; its client got a part of it"
                );
            }
        }
    }

    /// Uncounts an exchange that has not taken place, and returns its permit.
    pub(crate) fn undo(mut self: Box<Self>) -> Permit {
        let permit = self.permit.take().expect("an exchange that was not undone");
        self.shared.metrics.ends();
        self.shared.load.end(permit.pod().slot);
        permit
    }
}

impl Counted for InFlight {
    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn idle_timeout(&self) -> Duration {
        self.shared.idle_timeout
    }

    fn sever_token(&self) -> CancellationToken {
        self.permit().lasts(|| self.summary.clone().map(Arc::new))
    }

    fn background(&self) -> &Background {
        &self.shared.background
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(permit) = &self.permit {
            self.shared.metrics.ends();
            self.shared.load.end(permit.pod().slot);
            let now = Instant::now();
            let took = now - self.started;
            self.shared.metrics.took(took);
            // Most requests were not held, and need no second subtraction.
            self.shared.metrics.upstream_took(if self.admitted == self.started { took } else { now - self.admitted });
        }
    }
}

/// Time for which a response is still read after its client has left. The request's outcome is definite, and most
/// longer responses are endless streams.
const READ_ON_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of such a response that are read at most, so that it does not fill the pod's link in vain.
const MAX_READ_ON_BYTES: u64 = 1 << 20;
/// Size up to which a response that may be broken off is read to its end all the same. That is less work than a new
/// connection, and avoids a reset on a shared one.
const MAX_SAFE_READ_ON_BYTES: u64 = 64 << 10;

/// Completes an exchange whose client has disconnected before the response began.
pub(crate) fn see_through(mut exchange: Exchange, mut in_flight: Box<InFlight>) {
    let shared = in_flight.shared.clone();
    let limit = in_flight.deadline.unwrap_or(Instant::now() + shared.request_timeout);
    let limit = limit.min(Instant::now() + shared.request_timeout);
    let severed = in_flight.sever_token();
    shared.background.run(async move {
        let response = tokio::select! {
            response = std::future::poll_fn(|context| exchange.poll_response(context, &mut |_| {})) => {
                response.map_err(NoResponse::Send)
            }
            () = tokio::time::sleep_until(limit) => Err(NoResponse::Ended(Ended::TimedOut)),
            () = severed.cancelled() => Err(NoResponse::Ended(Ended::Severed)),
        };
        // An exchange that has not ended is broken off, and only then leaves the gate.
        drop(exchange);
        match response {
            Ok(PodResponse::Response(mut response)) => {
                if let Some(trace) = &in_flight.trace {
                    trace.responded(response.status(), false);
                }
                if !headers::take_misdirected(response.status(), response.headers_mut()) {
                    in_flight.delivered();
                }
                if response.body().is_stream() {
                    in_flight.streams();
                }
                read_on(response.into_body(), in_flight, severed).await;
            }
            Ok(switched @ PodResponse::Switched(..)) => {
                drop(switched);
                drop(in_flight);
            }
            Err(why) => {
                in_flight.failed(why.as_str());
                drop(in_flight);
            }
        }
    });
}

/// Why the router breaks an attempt off in the middle of its response, in traces.
const BROKEN_OFF: &str = "client-gone";

/// Completes an exchange whose client has disconnected in the middle of the response.
pub(crate) fn see_rest_through(stream: ResponseStream, in_flight: Box<InFlight>) {
    let (shared, severed) = (in_flight.shared.clone(), in_flight.sever_token());
    // With HTTP/2 the end may follow the last byte, which is all that the client waits for.
    let client_has_all = stream.left() == Some(0);
    if !client_has_all {
        in_flight.cut_off(CutOff::ClientGone);
        if let Some(trace) = &in_flight.trace {
            trace.client_left();
        }
    }
    shared.background.run(read_on(stream, in_flight, severed));
}

/// Reads a response without a client, within bounds, then breaks it off. Only that tells the pod that the client has
/// left.
async fn read_on(mut stream: ResponseStream, in_flight: Box<InFlight>, severed: CancellationToken) {
    if in_flight.is_safe && stream.left().is_none_or(|left| left > MAX_SAFE_READ_ON_BYTES) {
        in_flight.failed(BROKEN_OFF);
        drop(stream);
        drop(in_flight);
        return;
    }
    let limit = Instant::now() + READ_ON_TIMEOUT.min(in_flight.shared.request_timeout);
    let limit = in_flight.deadline.map_or(limit, |deadline| deadline.min(limit));
    let read = async {
        let mut read = 0;
        while read < MAX_READ_ON_BYTES {
            match std::future::poll_fn(|context| stream.poll_frame(context)).await {
                Some(Ok(frame)) => read += frame.data_ref().map_or(0, |data| data.len() as u64),
                Some(Err(_)) => return false,
                None => return true,
            }
        }
        stream.is_done()
    };
    let whole = tokio::select! {
        whole = read => whole,
        () = tokio::time::sleep_until(limit) => false,
        () = severed.cancelled() => false,
    };
    if whole {
        stream.finish(in_flight);
    } else {
        in_flight.failed(BROKEN_OFF);
        drop(stream);
        drop(in_flight);
    }
}
