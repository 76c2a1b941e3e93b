//! An exchange with a pod as it is counted: from its beginning until the pod is done, even if the client has left.
//!
//! # Invariants
//!
//! * Dropping it leaves the gate, so whoever drops it has broken off or completed the exchange before.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use segue_protocol::ids::{Epoch, PartitionId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::WorkerContext;
use super::passage::Passage;
use super::request::{FailedAttempt, ForwardRequest};
use super::request_log::RequestLine;
use super::trace::AttemptTrace;
use crate::message::headers::{self, Stamp};
use crate::message::local_reply::PodReason;
use crate::metrics::CutOffCause;
use crate::routing::request_summary::RequestSummary;
use crate::routing::table::{CodeClass, Pod};
use crate::runtime::background::Background;
use crate::upstream::ExchangeGuard;

/// Time that a request may wait for its pod before its place in a flush goes to another key's request.
const GIVE_WAY_TIMEOUT: Duration = Duration::from_millis(250);

/// A passage, and what is recorded about its exchange. It is passed from owner to owner, hence boxed.
pub(crate) struct InFlight {
    passage: Option<Passage>,
    shared: Rc<WorkerContext>,
    started: Instant,
    /// When the request could be sent to its pod.
    admitted: Instant,
    /// When the request was sent towards its pod. Read from the coarse timer, which may lag, unless the request holds a
    /// place in a flush.
    departed: Instant,
    deadline: Option<Instant>,
    is_safe: bool,
    /// `None` unless the request is sampled.
    pub(super) trace: Option<Box<AttemptTrace>>,
    /// `None` while the request itself is at hand, and for an exchange that is over with its response's head.
    summary: Option<RequestSummary>,
    /// The status of the response that is passed on; 0 without one.
    status: u16,
    /// Why the exchange ends early, or a pod's reason, for the log.
    reason: Cell<&'static str>,
    /// Whether the request gets a line in the log when it is over.
    is_logged: Cell<bool>,
}

/// The properties of a request that its exchange depends on.
pub(crate) struct ExchangeTerms {
    pub(crate) arrived: Instant,
    /// The time by which the client wants the whole response.
    pub(crate) deadline: Option<Instant>,
    /// Whether its method promises to change nothing (RFC 9110, 9.2.1).
    pub(crate) is_safe: bool,
}

impl ExchangeTerms {
    #[inline]
    pub(super) fn of(request: &ForwardRequest) -> Self {
        let is_safe = request.head.method.is_safe();
        ExchangeTerms { arrived: request.arrived, deadline: request.deadline, is_safe }
    }
}

impl InFlight {
    pub(crate) fn begin(passage: Passage, shared: &Rc<WorkerContext>, terms: ExchangeTerms) -> Self {
        shared.metrics.begins();
        shared.load.begin(passage.pod().slot);
        // A request that was not held is admitted at once. For others the clock is read once more.
        let admitted = if passage.was_held() { Instant::now() } else { terms.arrived };
        let departed = if passage.holds_place() { Instant::now() } else { shared.timer.now() };
        InFlight {
            passage: Some(passage),
            shared: shared.clone(),
            started: terms.arrived,
            admitted,
            departed,
            deadline: terms.deadline,
            is_safe: terms.is_safe,
            trace: None,
            summary: None,
            status: 0,
            reason: Cell::new(""),
            is_logged: Cell::new(false),
        }
    }

    fn passage(&self) -> &Passage {
        // Taken only by `undo`, which consumes the exchange.
        self.passage.as_ref().expect("an exchange that was not undone")
    }

    pub(crate) fn pod(&self) -> &Arc<Pod> {
        self.passage().pod()
    }

    /// Returns the partition and the epoch. `None` for a request without a key.
    pub(crate) fn ownership(&self) -> Option<(PartitionId, Epoch)> {
        self.passage().ownership()
    }

    /// Returns what the pod is told of them.
    pub(super) fn stamp(&self) -> Stamp {
        self.passage().stamp()
    }

    /// Returns whether a response is a pod's refusal, and removes from it what says so. What only pods can say counts for
    /// nothing if a service says it that is no pod.
    #[inline]
    pub(super) fn take_refusal<B>(&self, response: &mut Response<B>) -> bool {
        if self.passage().is_outside() {
            headers::clean_foreign_response(response.headers_mut());
            return false;
        }
        headers::take_misdirected(response.status(), response.headers_mut())
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Returns whether the request was held before it was sent.
    pub(crate) fn was_held(&self) -> bool {
        self.passage().was_held()
    }

    /// Returns whether the request takes up one of the places of a flush.
    pub(crate) fn holds_place(&self) -> bool {
        self.passage().holds_place()
    }

    /// Returns when the request has waited for its pod for so long that its place goes to another.
    pub(crate) fn gives_way_at(&self) -> Instant {
        self.departed + GIVE_WAY_TIMEOUT
    }

    /// Keeps what operators see of the request, which this exchange outlives.
    pub(super) fn outlives(&mut self, request: &ForwardRequest) {
        self.summary = Some(request.summary(&self.shared.reserved));
    }

    /// As [`sever_token`](ExchangeGuard::sever_token), while the request is at hand.
    pub(super) fn lasts(&self, request: &ForwardRequest) -> CancellationToken {
        self.passage().lasts(|| Some(Arc::new(request.summary(&self.shared.reserved))))
    }

    /// Records that the request is being sent.
    pub(crate) fn sent(&self) {
        self.passage().sent();
    }

    /// Gives the request's place in the flush to another key's request, because it waits.
    pub(crate) fn give_way(&self) {
        self.passage().give_way();
    }

    pub(crate) fn may_still_go(&self) -> bool {
        self.passage().may_still_go()
    }

    /// Returns whether the method of the request promises to change nothing (RFC 9110, 9.2.1).
    pub(super) fn is_safe(&self) -> bool {
        self.is_safe
    }

    pub(crate) fn shared(&self) -> &Rc<WorkerContext> {
        &self.shared
    }

    /// Records that the outcome is definite.
    pub(crate) fn delivered(&mut self) {
        if let Some(passage) = &mut self.passage {
            passage.delivered();
        }
    }

    /// Records that this response of the pod is passed on to the client. `reason`: if the pod's layer or sidecar made it
    /// in place of the service.
    pub(crate) fn passed(&mut self, status: StatusCode, reason: Option<PodReason>) {
        self.delivered();
        self.status = status.as_u16();
        self.passage().traffic().answered(status.into());
        match reason {
            None => self.shared.metrics.passed(status),
            Some(reason) => {
                self.reason.set(reason.as_str());
                self.shared.metrics.passed_reason(reason);
            }
        }
        if let Some(trace) = &self.trace {
            trace.responded(status, true);
        }
    }

    /// Keeps what the line of the log needs, if there will be one about the response that is passed on.
    #[inline]
    pub(super) fn note_for_log(&mut self, request: &ForwardRequest) {
        let has_failed = self.status >= 500 || !self.reason.get().is_empty();
        if self.shared.request_log.wants(has_failed) {
            self.outlives(request);
            self.is_logged.set(true);
        }
    }

    /// Returns what the log names of this attempt.
    #[cold]
    pub(super) fn attempt(&self) -> Box<FailedAttempt> {
        let held = self.admitted - self.started;
        Box::new(FailedAttempt { pod: self.pod().clone(), epoch: self.ownership().map(|(_, epoch)| epoch), held })
    }

    /// Writes the line of the log.
    #[cold]
    fn write_line(&self, passage: &Passage, took: Duration) {
        let Some(request) = &self.summary else { return };
        let (partition, epoch) = passage.ownership().unzip();
        self.shared.request_log.write(&RequestLine {
            request,
            partition,
            pod: Some((&passage.pod().name, epoch)),
            status: (self.status > 0).then_some(self.status),
            reason: self.reason.get(),
            held: self.admitted - self.started,
            took,
        });
    }

    /// Records that the pod has failed the request without a response.
    #[cold]
    pub(super) fn unanswered(&self) {
        self.passage().traffic().answered(CodeClass::NoResponse);
    }

    /// Records that the exchange has become a stream.
    pub(crate) fn streams(&self) {
        self.passage().streams();
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
    pub(super) fn cut_off(&self, cause: CutOffCause) {
        self.shared.metrics.cut_off(cause);
        self.reason.set(cause.as_str());
        if self.shared.request_log.wants(cause != CutOffCause::ClientGone) {
            self.is_logged.set(true);
        }
        if cause == CutOffCause::ClientGone {
            return;
        }
        self.failed(cause.as_str());
        // The other causes are the router's own acts, or those of the client.
        if matches!(cause, CutOffCause::Broken | CutOffCause::Idle) {
            let pod = self.pod();
            pod.health.broke_response();
            if let Some(responses) = self.shared.cut_off_log.note() {
                tracing::warn!(
                    pod = pod.name,
                    address = pod.address,
                    partition = self.ownership().map(|(partition, _)| partition.get()),
                    cause = cause.as_str(),
                    responses,
                    "a pod did not send all of a response; its client got a part of it"
                );
            }
        }
    }

    /// Uncounts an exchange that has not taken place, and returns its passage.
    pub(crate) fn undo(mut self: Box<Self>) -> Passage {
        let passage = self.passage.take().expect("an exchange that was not undone");
        self.shared.metrics.ends();
        self.shared.load.end(passage.pod().slot);
        passage
    }
}

impl ExchangeGuard for InFlight {
    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn idle_timeout(&self) -> Duration {
        self.shared.idle_timeout
    }

    fn sever_token(&self) -> CancellationToken {
        self.passage().lasts(|| self.summary.clone().map(Arc::new))
    }

    fn background(&self) -> &Background {
        &self.shared.background
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(passage) = &self.passage {
            self.shared.metrics.ends();
            self.shared.load.end(passage.pod().slot);
            let now = Instant::now();
            let took = now - self.started;
            self.shared.metrics.took(took);
            // Most requests were not held, and need no second subtraction.
            if self.is_logged.get() {
                self.write_line(passage, took);
            }
            passage.traffic().took(if self.admitted == self.started { took } else { now - self.admitted });
        }
    }
}
