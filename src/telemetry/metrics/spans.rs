//! The metrics of the export of traces.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counts spans: `spans_exported_total` and `spans_dropped_total{reason}`.
#[derive(Debug, Clone)]
pub(crate) struct SpanMetrics {
    exported: Counter,
    dropped: Family<ReasonLabel, Counter>,
}

impl SpanMetrics {
    /// Creates and registers the series.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = SpanMetrics { exported: Counter::default(), dropped: Family::default() };
        for reason in ["queue_full", "failed", "rejected"] {
            drop(metrics.for_reason(reason));
        }
        registry.register("spans_exported", "Spans that the collector took", metrics.exported.clone());
        registry.register("spans_dropped", "Spans that were recorded and not exported", metrics.dropped.clone());
        metrics
    }

    fn for_reason(&self, reason: &'static str) -> Counter {
        self.dropped.get_or_create(&ReasonLabel { reason }).clone()
    }

    /// Returns the counter of spans for which the queue has no room.
    pub(crate) fn overflow(&self) -> Counter {
        self.for_reason("queue_full")
    }

    /// Counts spans that the collector took.
    pub(crate) fn exported(&self, spans: u64) {
        self.exported.inc_by(spans);
    }

    /// Counts spans that did not reach the collector.
    pub(crate) fn failed(&self, spans: u64) {
        self.for_reason("failed").inc_by(spans);
    }

    /// Counts spans that the collector rejected.
    pub(crate) fn rejected(&self, spans: u64) {
        self.for_reason("rejected").inc_by(spans);
    }
}
