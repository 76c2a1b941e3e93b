//! The metrics of the pods' gRPC service.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use segue_grpc::PodsObserver;
use segue_grpc::proto::AckOutcome;
use segue_protocol::handoff::pod_reconcile::Callback;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StartLabel {
    start: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AckLabel {
    task: &'static str,
    result: &'static str,
    outcome: &'static str,
}

impl AckLabel {
    fn new(task: Callback, failed: bool, outcome: AckOutcome) -> Self {
        let outcome = match outcome {
            AckOutcome::Accepted => "accepted",
            AckOutcome::Again => "again",
            AckOutcome::Stale | AckOutcome::OutcomeUnspecified => "stale",
        };
        AckLabel { task: task.as_str(), result: if failed { "failed" } else { "done" }, outcome }
    }
}

/// The streams, polls and acknowledgements of pods at this instance.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodsServiceMetrics {
    streams: Gauge,
    opened: Family<StartLabel, Counter>,
    polls: Counter,
    acks: Family<AckLabel, Counter>,
    stuck: Gauge,
}

impl PodsServiceMetrics {
    /// Creates and registers the series.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = PodsServiceMetrics::default();
        for start in ["new", "resumed"] {
            drop(metrics.opened.get_or_create(&StartLabel { start }));
        }
        for task in Callback::ALL {
            for failed in [false, true] {
                for outcome in [AckOutcome::Accepted, AckOutcome::Again, AckOutcome::Stale] {
                    drop(metrics.acks.get_or_create(&AckLabel::new(task, failed, outcome)));
                }
            }
        }
        registry.register("pods_service_streams", "Pods' streams at this instance", metrics.streams.clone());
        let help = "Pods' streams that began, of new and of resumed registrations";
        registry.register("pods_service_streams_opened", help, metrics.opened.clone());
        registry.register("pods_service_polls", "Polls of pods without streams", metrics.polls.clone());
        registry.register("pods_service_acks", "Acknowledgements of tasks, by their outcome", metrics.acks.clone());
        let help = "Pods that send heartbeats and apply no events, so that their leases are not renewed";
        registry.register("pods_service_stuck_pods", help, metrics.stuck.clone());
        metrics
    }
}

impl PodsObserver for PodsServiceMetrics {
    fn stream_began(&self, resumed: bool) {
        self.streams.inc();
        self.opened.get_or_create(&StartLabel { start: if resumed { "resumed" } else { "new" } }).inc();
    }

    fn stream_ended(&self) {
        self.streams.dec();
    }

    fn polled(&self) {
        self.polls.inc();
    }

    fn acknowledged(&self, task: Callback, failed: bool, outcome: AckOutcome) {
        self.acks.get_or_create(&AckLabel::new(task, failed, outcome)).inc();
    }

    fn reader_stuck(&self, stuck: bool) {
        if stuck {
            self.stuck.inc();
        } else {
            self.stuck.dec();
        }
    }
}
