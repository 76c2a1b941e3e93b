//! The metrics of a router's control side.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use segue_coordination::router::{Cutover, RouterObserver};
use segue_coordination::store::StoreError;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::{Handoff, PodTrouble, RouterTroubles};
use segue_protocol::view::Versioned;
use tokio::time::Instant;

use super::{LeaseGauge, ParticipantMetrics, ResultLabel};
use crate::telemetry::handoff_traces::HandoffTraces;

/// Buckets from an imperceptible pause to an obvious one; half of them below 50 ms, where cutovers are.
const PAUSE_BUCKETS: [f64; 17] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.008, 0.015, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// A pod, and the kind of its trouble.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct TroubleLabel {
    pod: String,
    kind: &'static str,
}

/// The pods in trouble. Each has a series while it is in trouble.
#[derive(Debug, Clone, Default)]
struct PodTroubleSeries(Arc<Mutex<BTreeSet<TroubleLabel>>>);

impl Collector for PodTroubleSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "1 while a pod does not serve this router's clients well; /status tells more";
        let mut troubles = encoder.encode_descriptor("pod_trouble", help, None, MetricType::Gauge)?;
        for label in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            troubles.encode_family(label)?.encode_gauge(&1i64)?;
        }
        Ok(())
    }
}

/// The costs of a router's cutovers, and the pods in trouble.
#[derive(Debug)]
pub(crate) struct RouterMetrics {
    cutovers: Family<ResultLabel, Counter>,
    pause: Histogram,
    drain: Histogram,
    flush: Histogram,
    exchanges_severed: Counter,
    mapping_differs: Gauge,
    pod_trouble: PodTroubleSeries,
    lease: LeaseGauge,
    participants: ParticipantMetrics,
    traces: Option<HandoffTraces>,
}

impl RouterMetrics {
    /// Creates and registers the series.
    pub(crate) fn new(registry: &mut Registry, participants: ParticipantMetrics) -> Self {
        let metrics = RouterMetrics {
            cutovers: Family::default(),
            pause: Histogram::new(PAUSE_BUCKETS),
            drain: Histogram::new(PAUSE_BUCKETS),
            flush: Histogram::new(PAUSE_BUCKETS),
            exchanges_severed: Counter::default(),
            mapping_differs: Gauge::default(),
            pod_trouble: PodTroubleSeries::default(),
            lease: participants.lease("router"),
            participants,
            traces: None,
        };
        for result in ["switched", "severed"] {
            drop(metrics.cutovers.get_or_create(&ResultLabel { result }));
        }
        registry.register("cutovers", "Times a partition's requests flow again after a stop", metrics.cutovers.clone());
        registry.register(
            "cutover_pause_seconds",
            "From the stop until the first request could reach a pod again",
            metrics.pause.clone(),
        );
        registry.register("cutover_drain_seconds", "From the stop until nothing was in flight", metrics.drain.clone());
        registry.register(
            "cutover_flush_seconds",
            "From the switch until the stash was empty and the gate open",
            metrics.flush.clone(),
        );
        registry.register(
            "exchanges_severed",
            "Exchanges that the end of a drain severed",
            metrics.exchanges_severed.clone(),
        );
        registry.register(
            "mapping_differs",
            "1 while the router does not register because the keyspace maps keys in another way",
            metrics.mapping_differs.clone(),
        );
        registry.register_collector(Box::new(metrics.pod_trouble.clone()));
        metrics
    }

    /// Records the cutovers as parts of their handoffs' traces, too.
    pub(crate) fn with_traces(self, traces: Option<HandoffTraces>) -> Self {
        RouterMetrics { traces, ..self }
    }

    /// Sets until when the lease may be trusted, on the clock of `lease_now`; `None` before the first lease.
    pub(crate) fn set_trusted_until(&self, until: Option<Instant>) {
        self.lease.set(until);
    }
}

impl RouterObserver for RouterMetrics {
    fn cuts_over(&self, partition: PartitionId, handoff: Option<&Versioned<Handoff>>) {
        if let Some(traces) = &self.traces {
            traces.cuts_over(partition, handoff);
        }
    }

    fn cutover(&self, cutover: &Cutover) {
        let result = if cutover.severed > 0 { "severed" } else { "switched" };
        self.cutovers.get_or_create(&ResultLabel { result }).inc();
        self.pause.observe(cutover.times.pause.as_secs_f64());
        self.drain.observe(cutover.times.drain.as_secs_f64());
        self.flush.observe(cutover.times.flush.as_secs_f64());
        self.exchanges_severed.inc_by(cutover.severed);
        if let Some(traces) = &self.traces {
            traces.cut_over(cutover);
        }
    }

    fn resync(&self, cause: &StoreError) {
        self.participants.count_resync(cause);
    }

    fn mapping_differs(&self, differs: bool) {
        self.mapping_differs.set(differs.into());
    }

    fn troubles(&self, troubles: &RouterTroubles) {
        let label = |pod: &PodTrouble| TroubleLabel { pod: pod.pod_name.clone(), kind: pod.kind.as_str() };
        let present: BTreeSet<TroubleLabel> = troubles.pods.iter().map(label).collect();
        *self.pod_trouble.0.lock().unwrap_or_else(PoisonError::into_inner) = present;
    }
}
