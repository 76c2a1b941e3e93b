//! What is recorded of a sampled request: a span for the request, one for each time in the stash and one for each
//! attempt.
//!
//! Each span ends when its owner drops it: the request's when neither the request nor an exchange is left, an attempt's
//! with its exchange. So a span is recorded however its subject ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use http::header::{HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode, Version};
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::trace_context::{SpanContext, SpanId};
use tokio::time::Instant;

use super::context::ClientInfo;
use crate::message::local_reply::LocalReply;
use crate::message::reserved::ReservedHeaders;
use crate::routing::table::Pod;
use crate::spans::{Span, SpanKind, TRACEPARENT, TRACESTATE, Tracer, bounded, child};

/// A sampled request.
pub(crate) struct RequestTrace {
    tracer: Rc<Tracer>,
    context: SpanContext,
    parent: Option<SpanId>,
    arrived: Instant,
    /// The method, if it is one of those that everybody knows: a client's own may be long.
    method: Option<&'static str>,
    path: String,
    version: Version,
    scheme: &'static str,
    client: String,
    partition: Cell<Option<PartitionId>>,
    hold: RefCell<Option<StashTime>>,
    attempts: Cell<u32>,
    outcome: Cell<TracedResponse>,
}

/// A time in the stash.
struct StashTime {
    since: Instant,
    handoff: Option<SpanContext>,
}

/// The response to a request.
#[derive(Clone, Copy)]
enum TracedResponse {
    /// None: the client has left.
    None,
    Passed(StatusCode),
    /// It was passed on in part, for this reason.
    CutOff(StatusCode, &'static str),
    Own(LocalReply),
}

impl RequestTrace {
    /// Returns the trace of a request if it is sampled.
    pub(super) fn begin(
        tracer: &Rc<Tracer>,
        head: &mut Parts,
        (peer, reserved): (&ClientInfo, &ReservedHeaders),
        arrived: Instant,
    ) -> Option<Rc<Self>> {
        let (context, parent) = tracer.sample(&head.headers)?;
        if parent.is_none() {
            // It belongs to a `traceparent` that is absent or invalid.
            head.headers.remove(TRACESTATE);
        }
        Some(Rc::new(RequestTrace {
            tracer: tracer.clone(),
            context,
            parent,
            arrived,
            method: known(&head.method),
            path: bounded(head.uri.path()),
            version: head.version,
            scheme: peer.lines.scheme,
            client: peer.name(reserved.forwarded_client(&head.headers)).into_owned(),
            partition: Cell::new(None),
            hold: RefCell::new(None),
            attempts: Cell::new(0),
            outcome: Cell::new(TracedResponse::None),
        }))
    }

    pub(super) fn located(&self, partition: PartitionId) {
        self.partition.set(Some(partition));
    }

    /// Begins a time in the stash.
    pub(super) fn held(&self) {
        let hold = StashTime { since: Instant::now(), handoff: self.handoff() };
        *self.hold.borrow_mut() = Some(hold);
    }

    /// Ends the time in the stash: the request was admitted.
    pub(super) fn admitted(&self) {
        self.end_hold(None);
    }

    fn end_hold(&self, failure: Option<&'static str>) {
        let Some(hold) = self.hold.borrow_mut().take() else { return };
        let context = child(self.context);
        let mut span = Span::new(context, Some(self.context.span), SpanKind::Internal, "stash", hold.since);
        // A partition whose owner died is held before its handoff exists.
        span.link = hold.handoff.or_else(|| self.handoff());
        self.set_partition(&mut span);
        if let Some(failure) = failure {
            span.fail(failure);
        }
        self.tracer.record(span);
    }

    fn handoff(&self) -> Option<SpanContext> {
        self.tracer.handoff(self.partition.get()?)
    }

    /// Begins an attempt, and names it in the request's headers as the parent of what the pod records.
    pub(super) fn attempt(
        self: &Rc<Self>,
        headers: &mut HeaderMap,
        pod: &Arc<Pod>,
        epoch: Option<Epoch>,
    ) -> Box<AttemptTrace> {
        let context = child(self.context);
        if let Ok(traceparent) = HeaderValue::try_from(context.to_string()) {
            headers.insert(TRACEPARENT, traceparent);
        }
        let resent = self.attempts.replace(self.attempts.get() + 1);
        Box::new(AttemptTrace {
            request: self.clone(),
            context,
            began: Instant::now(),
            pod: pod.clone(),
            epoch,
            resent,
            status: Cell::new(None),
            failure: Cell::new(Some("not-sent")),
        })
    }

    /// Records why the response that is passed on ends early, if it has begun.
    fn cut_off(&self, why: &'static str) {
        if let TracedResponse::Passed(status) = self.outcome.get() {
            self.outcome.set(TracedResponse::CutOff(status, why));
        }
    }

    pub(super) fn answered(&self, own: LocalReply) {
        self.outcome.set(TracedResponse::Own(own));
    }

    fn set_partition(&self, span: &mut Span) {
        if let Some(partition) = self.partition.get() {
            span.set("segue.partition", partition.get());
        }
    }
}

/// Returns the method as a name with a bound, as HTTP's semantic conventions ask for.
fn known(method: &Method) -> Option<&'static str> {
    const KNOWN: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE"];
    KNOWN.into_iter().find(|known| method == known)
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let reason = match self.outcome.get() {
            TracedResponse::None => Some("client-gone"),
            TracedResponse::Own(own) => Some(own.reason()),
            TracedResponse::Passed(_) | TracedResponse::CutOff(..) => None,
        };
        self.end_hold(reason);
        let name = self.method.unwrap_or("HTTP");
        let mut span = Span::new(self.context, self.parent, SpanKind::Server, name, self.arrived);
        span.set("http.request.method", self.method.unwrap_or("_OTHER"));
        span.set("url.path", std::mem::take(&mut self.path));
        span.set("url.scheme", self.scheme);
        span.set("network.protocol.version", protocol(self.version));
        span.set("client.address", std::mem::take(&mut self.client));
        self.set_partition(&mut span);
        match self.outcome.get() {
            TracedResponse::None => span.fail("client-gone"),
            TracedResponse::Passed(status) => {
                span.set("http.response.status_code", status.as_u16());
                span.failed = status.is_server_error();
            }
            TracedResponse::CutOff(status, why) => {
                span.set("http.response.status_code", status.as_u16());
                span.fail(why);
            }
            TracedResponse::Own(own) => {
                span.set("http.response.status_code", own.status().as_u16());
                span.set("error.type", own.reason());
                span.failed = own.status().is_server_error();
            }
        }
        self.tracer.record(span);
    }
}

/// An attempt of a sampled request.
pub(crate) struct AttemptTrace {
    request: Rc<RequestTrace>,
    context: SpanContext,
    began: Instant,
    pod: Arc<Pod>,
    epoch: Option<Epoch>,
    /// Number of attempts before.
    resent: u32,
    status: Cell<Option<StatusCode>>,
    /// Why the attempt would have failed if it ended now.
    failure: Cell<Option<&'static str>>,
}

impl AttemptTrace {
    pub(super) fn sent(&self) {
        self.failure.set(Some("broken"));
    }

    /// Records why the attempt ends early, and with it the response that is passed on.
    pub(super) fn failed(&self, why: &'static str) {
        self.failure.set(Some(why));
        self.request.cut_off(why);
    }

    /// Records that the client has left in the middle of the response. The attempt may still end well.
    pub(super) fn client_left(&self) {
        self.request.cut_off("client-gone");
    }

    /// Records the pod's response. `passed`: it is the response to the client as well.
    pub(super) fn responded(&self, status: StatusCode, passed: bool) {
        self.status.set(Some(status));
        self.failure.set(None);
        if passed {
            self.request.outcome.set(TracedResponse::Passed(status));
        }
    }
}

impl Drop for AttemptTrace {
    fn drop(&mut self) {
        let request = &self.request;
        let name = request.method.unwrap_or("HTTP");
        let mut span = Span::new(self.context, Some(request.context.span), SpanKind::Client, name, self.began);
        span.set("http.request.method", request.method.unwrap_or("_OTHER"));
        if let Some((host, port)) = self.pod.address.rsplit_once(':') {
            span.set("server.address", host.trim_matches(['[', ']']).to_owned());
            if let Ok(port) = port.parse::<u16>() {
                span.set("server.port", port);
            }
        }
        request.set_partition(&mut span);
        span.set("segue.pod", self.pod.name.clone());
        if let Some(epoch) = self.epoch {
            span.set("segue.epoch", epoch.get());
        }
        if self.resent > 0 {
            span.set("http.request.resend_count", self.resent);
        }
        if let Some(status) = self.status.get() {
            span.set("http.response.status_code", status.as_u16());
            span.failed = status.is_client_error() || status.is_server_error();
        }
        if let Some(failure) = self.failure.get() {
            span.fail(failure);
        }
        request.tracer.record(span);
    }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}
