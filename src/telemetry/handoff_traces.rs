//! The trace of a handoff: a span for the whole, one for each phase, by the leader, and one for each router's cutover.
//!
//! All of them derive the trace from the handoff's record ([`SpanContext::of_handoff`]). A leader that takes over in the
//! middle records what it sees from then on.

use std::time::Duration;

use segue_coordination::coordinator::{EndedPhase, HandoffResult};
use segue_coordination::router::Cutover;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::records::Handoff;
use segue_protocol::trace_context::{SpanContext, SpanId};
use segue_protocol::view::Versioned;
use segue_proxy::spans::{Span, SpanKind, Tracer, bounded, child};
use tokio::time::Instant;

/// Records the handoffs of a keyspace, as one participant sees them.
#[derive(Debug)]
pub(crate) struct HandoffTraces {
    tracer: Tracer,
    keys: Keyspace,
    participant: String,
}

impl HandoffTraces {
    /// Records as the participant of this name.
    pub(crate) fn new(tracer: Tracer, keys: Keyspace, participant: String) -> Self {
        HandoffTraces { tracer, keys, participant }
    }

    /// Notes by which handoff a router is about to stop or switch a partition, if by any.
    pub(crate) fn cuts_over(&self, partition: PartitionId, handoff: Option<&Versioned<Handoff>>) {
        let context = |handoff: &Versioned<Handoff>| {
            SpanContext::of_handoff(&self.keys, partition, handoff.id(), handoff.value.started_at)
        };
        self.tracer.begin_cutover(partition, handoff.map(context));
    }

    /// Records a router's cutover that has just ended, with its drain, the wait for the switch, and its flush.
    pub(crate) fn cut_over(&self, cutover: &Cutover) {
        let Some(handoff) = self.tracer.end_cutover(cutover.partition) else { return };
        let (times, flowed) = (cutover.times, Instant::now());
        let stopped = flowed.checked_sub(times.pause + times.flush).unwrap_or(flowed);
        let whole =
            HandoffPart { context: child(handoff), parent: handoff.span, name: "cutover", start: stopped, end: flowed };
        let mut span = self.span(&whole, cutover.partition);
        span.set("segue.router", self.participant.clone());
        span.set("segue.pod", cutover.target.pod.clone());
        span.set("segue.epoch", cutover.target.epoch.get());
        span.set("segue.stashed", times.stashed);
        span.set("segue.severed", cutover.severed);
        self.tracer.record(span);
        let (drained, switched) = (stopped + times.drain, stopped + times.pause);
        for (name, start, end) in
            [("drain", stopped, drained), ("switch", drained, switched), ("flush", switched, flowed)]
        {
            let part = HandoffPart { context: child(handoff), parent: whole.context.span, name, start, end };
            self.tracer.record(self.span(&part, cutover.partition));
        }
    }

    /// Records a phase that has just ended, and with the last one the handoff.
    pub(crate) fn phase_ended(&self, ended: &EndedPhase<'_>) {
        let (record, now) = (ended.record, Instant::now());
        let handoff = SpanContext::of_handoff(&self.keys, record.partition, ended.handoff, record.started_at);
        let since = |age: Duration| now.checked_sub(age).unwrap_or(now);
        let (start, end) = (since(ended.ago + ended.lasted), since(ended.ago));
        let part =
            HandoffPart { context: child(handoff), parent: handoff.span, name: ended.phase.as_str(), start, end };
        self.tracer.record(self.span(&part, record.partition));
        let Some(result) = ended.result else { return };
        let mut span = Span::new(handoff, None, SpanKind::Internal, "handoff", since(ended.age));
        span.set("segue.partition", record.partition.get());
        span.set("segue.handoff", ended.handoff.get());
        span.set("segue.epoch", record.epoch.get());
        span.set("segue.coordinator", self.participant.clone());
        if let Some(old_owner) = &record.old_owner {
            span.set("segue.old_owner", old_owner.clone());
        }
        span.set("segue.new_owner", record.new_owner.clone());
        span.set("segue.reason", bounded(&record.reason));
        if let HandoffResult::Cancelled(cause) = result {
            span.fail(cause);
        }
        self.tracer.record(span);
    }

    fn span(&self, part: &HandoffPart, partition: PartitionId) -> Span {
        let mut span = Span::new(part.context, Some(part.parent), SpanKind::Internal, part.name, part.start);
        span.end = segue_proxy::spans::unix_nanos(part.end);
        span.set("segue.partition", partition.get());
        span
    }
}

/// A part of a handoff.
struct HandoffPart {
    context: SpanContext,
    parent: SpanId,
    name: &'static str,
    start: Instant,
    end: Instant,
}
