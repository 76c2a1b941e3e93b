//! Spans: what distributed tracing records of sampled requests and of handoffs.
//!
//! For: which requests are recorded, and the queue to whoever exports the spans. Not for: what the path of a request
//! records ([`forward`](crate::forward)), and the export itself, which is the program's.
//!
//! # Invariants
//!
//! * Recording never waits: a span that finds the queue full is dropped and counted.
//! * A span has a bounded size.

mod span;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use http::header::HeaderName;
use prometheus_client::metrics::counter::Counter;
use segue_protocol::ids::PartitionId;
use segue_protocol::trace_context::{Flags, SpanContext, SpanId, TraceId};
use tokio::sync::mpsc;

pub use self::span::{AttributeValue, Span, SpanKind, bounded, unix_nanos};

/// The header with the context of the caller's span.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header with what vendors add to the context. It is valid only beside a `traceparent`.
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Which requests are recorded. A `traceparent` decides for its request; this decides for those without one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    share: f64,
}

impl Sampler {
    /// All choices that have a name, by their names in the file.
    pub const NAMES: &[(&str, Self)] = &[("parent", Sampler { share: 0.0 }), ("always", Sampler { share: 1.0 })];

    /// Records this share of the requests without a `traceparent`. `None` unless it is from 0 to 1.
    pub fn share(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then_some(Sampler { share })
    }

    fn takes_one(self) -> bool {
        // A random number is below 1, so a share of 1 takes all requests and a share of 0 none.
        rand::random::<f64>() < self.share
    }
}

/// Records only requests whose callers record them.
impl Default for Sampler {
    fn default() -> Self {
        Sampler { share: 0.0 }
    }
}

/// Creates spans and queues them for export.
#[derive(Debug, Clone)]
pub struct Tracer {
    /// The share of [`Sampler`], as bits. All clones have the same.
    share: Arc<AtomicU64>,
    queue: mpsc::Sender<Span>,
    dropped: Counter,
    handoffs: Arc<Mutex<HashMap<PartitionId, SpanContext>>>,
}

impl Tracer {
    /// Returns a tracer and the end of its queue, which holds at most `capacity` spans. `dropped` counts those that find
    /// it full.
    pub fn new(sampling: Sampler, capacity: usize, dropped: Counter) -> (Self, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(capacity);
        let share = Arc::new(AtomicU64::new(sampling.share.to_bits()));
        (Tracer { share, queue, dropped, handoffs: Arc::default() }, spans)
    }

    /// Sets which requests without a `traceparent` are recorded from now on.
    pub fn set_sampling(&self, sampling: Sampler) {
        self.share.store(sampling.share.to_bits(), Relaxed);
    }

    fn sampling(&self) -> Sampler {
        Sampler { share: f64::from_bits(self.share.load(Relaxed)) }
    }

    /// Queues a span that has ended.
    pub fn record(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }

    /// Sets the handoff that a partition's requests wait for from now on.
    pub fn begin_cutover(&self, partition: PartitionId, handoff: Option<SpanContext>) {
        match handoff {
            Some(handoff) => drop(self.handoffs().insert(partition, handoff)),
            None => drop(self.end_cutover(partition)),
        }
    }

    /// Returns the handoff that a partition's requests have waited for, and forgets it.
    pub fn end_cutover(&self, partition: PartitionId) -> Option<SpanContext> {
        self.handoffs().remove(&partition)
    }

    /// Returns the handoff that a partition's requests wait for.
    pub(crate) fn handoff(&self, partition: PartitionId) -> Option<SpanContext> {
        self.handoffs().get(&partition).copied()
    }

    fn handoffs(&self) -> MutexGuard<'_, HashMap<PartitionId, SpanContext>> {
        self.handoffs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether requests without a `traceparent` may be recorded.
    #[inline]
    pub(crate) fn takes_others(&self) -> bool {
        self.sampling().share > 0.0
    }

    /// Returns the context of a request's span and its parent. `None` if the request is not recorded.
    pub(crate) fn sample(&self, headers: &HeaderMap) -> Option<(SpanContext, Option<SpanId>)> {
        let mut given = headers.get_all(TRACEPARENT).iter();
        let parent = given.next().and_then(|value| SpanContext::parse(value.as_bytes()));
        match parent.filter(|_| given.next().is_none()) {
            Some(parent) => parent.flags.sampled().then(|| (child(parent), Some(parent.span))),
            None => self.sampling().takes_one().then(|| (root(), None)),
        }
    }
}

/// Returns the context of a new span below `parent`.
pub fn child(parent: SpanContext) -> SpanContext {
    SpanContext { span: SpanId(rand::random()), ..parent }
}

fn root() -> SpanContext {
    SpanContext { trace: TraceId(rand::random()), span: SpanId(rand::random()), flags: Flags::SAMPLED }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const NOT_SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn sampled(sampling: f64, traceparents: &[&'static str]) -> Option<(SpanContext, Option<SpanId>)> {
        let (tracer, _) = Tracer::new(Sampler::share(sampling).unwrap(), 1, Counter::default());
        let mut headers = HeaderMap::new();
        for traceparent in traceparents {
            headers.append(TRACEPARENT, HeaderValue::from_static(traceparent));
        }
        tracer.sample(&headers)
    }

    #[test]
    fn the_caller_decides_for_its_request() {
        let caller = SpanContext::parse(SAMPLED.as_bytes()).unwrap();
        for share in [0.0, 1.0] {
            let (context, parent) = sampled(share, &[SAMPLED]).unwrap();
            assert_eq!((context.trace, parent), (caller.trace, Some(caller.span)));
            assert_ne!(context.span, caller.span);
            assert_eq!(sampled(share, &[NOT_SAMPLED]), None);
        }
    }

    #[test]
    fn without_a_valid_caller_the_share_decides() {
        for none in [&[][..], &["00-no"], &[SAMPLED, SAMPLED]] {
            assert_eq!(sampled(0.0, none), None, "{none:?}");
            let (context, parent) = sampled(1.0, none).unwrap();
            assert!(context.flags.sampled() && parent.is_none(), "{none:?}");
        }
        let taken = (0..10_000).filter(|_| sampled(0.25, &[]).is_some()).count();
        assert!((2_000..3_000).contains(&taken), "{taken}");
        assert_eq!([-0.1, 1.1, f64::NAN].map(Sampler::share), [None; 3]);
    }

    #[test]
    fn a_span_that_finds_the_queue_full_is_counted() {
        let dropped = Counter::default();
        let (tracer, mut spans) = Tracer::new(Sampler::default(), 1, dropped.clone());
        let span = || Span::new(root(), None, SpanKind::Internal, "stash", tokio::time::Instant::now());
        tracer.record(span());
        tracer.record(span());
        assert_eq!(dropped.get(), 1);
        assert!(spans.try_recv().is_ok());
        tracer.record(span());
        assert_eq!(dropped.get(), 1);
        drop(spans);
        tracer.record(span());
        assert_eq!(dropped.get(), 2);
    }
}
