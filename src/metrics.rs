//! The metrics of the control side: what routers and coordinators did, as Prometheus series.
//!
//! Every series is there from the start, at zero, so that a rate can be taken of the first event. The names are fixed
//! (`segue_` and the documented ones); the request path has its own ([`segue_proxy::metrics`]).

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use segue_coordination::coordinator::{CoordinatorObserver, HandoffResult};
use segue_coordination::planning::RoundCause;
use segue_coordination::protocol::records::Phase;
use segue_coordination::protocol::view::View;
use segue_coordination::router::{Cutover, RouterObserver};
use segue_coordination::store::StoreError;
use segue_coordination::store::keys::Partition;

/// From a pause that nobody can notice to one that everybody does; half of them below 50 ms, where cutovers are.
const PAUSES: [f64; 17] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.008, 0.015, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// A phase may last as long as a warm-up.
const PHASES: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodLabel {
    pod: String,
}

/// Registers `store_resyncs_total{cause}`, which every participant that follows the store counts.
#[derive(Debug, Clone, Default)]
pub struct ResyncMetrics {
    resyncs: Family<CauseLabel, Counter>,
}

impl ResyncMetrics {
    /// Makes the series and registers them.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = ResyncMetrics::default();
        for cause in ["unavailable", "compacted", "refused"] {
            drop(metrics.resyncs.get_or_create(&CauseLabel { cause }));
        }
        registry.register("store_resyncs", "Times the state was taken anew from the store", metrics.resyncs.clone());
        metrics
    }

    fn count(&self, cause: &StoreError) {
        let cause = match cause {
            StoreError::Compacted { .. } => "compacted",
            StoreError::Unavailable(_) => "unavailable",
            StoreError::LeaseNotFound | StoreError::Refused(_) => "refused",
        };
        self.resyncs.get_or_create(&CauseLabel { cause }).inc();
    }
}

/// Counts `handovers_total{result}`.
#[derive(Debug, Clone, Default)]
pub struct HandoverMetrics {
    handovers: Family<ResultLabel, Counter>,
}

impl HandoverMetrics {
    /// Makes the series and registers them.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = HandoverMetrics::default();
        for result in ["taken", "failed", "refused"] {
            drop(metrics.handovers.get_or_create(&ResultLabel { result }));
        }
        let help =
            "Hand-overs: taken by this process, and those that a newcomer did not come to its end with or was refused";
        registry.register("handovers", help, metrics.handovers.clone());
        metrics
    }

    /// This process took over from another.
    pub fn taken(&self) {
        self.count("taken");
    }

    /// A newcomer did not get ready.
    pub fn failed(&self) {
        self.count("failed");
    }

    /// A newcomer came at the wrong moment.
    pub fn refused(&self) {
        self.count("refused");
    }

    fn count(&self, result: &'static str) {
        self.handovers.get_or_create(&ResultLabel { result }).inc();
    }
}

/// What a router's cutovers cost.
#[derive(Debug)]
pub struct RouterMetrics {
    cutovers: Family<ResultLabel, Counter>,
    pause: Histogram,
    drain: Histogram,
    flush: Histogram,
    severed: Counter,
    lease_remaining: Gauge<f64, AtomicU64>,
    resyncs: ResyncMetrics,
}

impl RouterMetrics {
    /// Makes the series and registers them.
    pub fn new(registry: &mut Registry, resyncs: ResyncMetrics) -> Self {
        let metrics = RouterMetrics {
            cutovers: Family::default(),
            pause: Histogram::new(PAUSES),
            drain: Histogram::new(PAUSES),
            flush: Histogram::new(PAUSES),
            severed: Counter::default(),
            lease_remaining: Gauge::default(),
            resyncs,
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
        registry.register("severed", "Exchanges that the end of a drain severed", metrics.severed.clone());
        registry.register(
            "lease_remaining_seconds",
            "For how long this participant may still trust its lease",
            metrics.lease_remaining.clone(),
        );
        metrics
    }

    /// Says how long the lease may still be trusted.
    pub fn set_lease_remaining(&self, remaining: Duration) {
        self.lease_remaining.set(remaining.as_secs_f64());
    }
}

impl RouterObserver for RouterMetrics {
    fn cutover(&self, cutover: &Cutover) {
        let result = if cutover.severed > 0 { "severed" } else { "switched" };
        self.cutovers.get_or_create(&ResultLabel { result }).inc();
        self.pause.observe(cutover.times.pause.as_secs_f64());
        self.drain.observe(cutover.times.drain.as_secs_f64());
        self.flush.observe(cutover.times.flush.as_secs_f64());
        self.severed.inc_by(cutover.severed);
    }

    fn resync(&self, cause: &StoreError) {
        self.resyncs.count(cause);
    }
}

/// What a coordinator does while it leads.
#[derive(Debug)]
pub struct CoordinatorMetrics {
    handoffs: Family<ResultLabel, Counter>,
    phases: Family<PhaseLabel, Histogram>,
    in_flight: Family<PhaseLabel, Gauge>,
    rounds: Family<CauseLabel, Counter>,
    partitions: Family<PodLabel, Gauge>,
    leader: Gauge,
    resyncs: ResyncMetrics,
}

impl CoordinatorMetrics {
    /// Makes the series and registers them.
    pub fn new(registry: &mut Registry, resyncs: ResyncMetrics) -> Self {
        let metrics = CoordinatorMetrics {
            handoffs: Family::default(),
            phases: Family::new_with_constructor(|| Histogram::new(PHASES)),
            in_flight: Family::default(),
            rounds: Family::default(),
            partitions: Family::default(),
            leader: Gauge::default(),
            resyncs,
        };
        for result in ["completed", "cancelled"] {
            drop(metrics.handoffs.get_or_create(&ResultLabel { result }));
        }
        for phase in Phase::ALL.map(|phase| PhaseLabel { phase: phase.as_str() }) {
            drop(metrics.phases.get_or_create(&phase));
            drop(metrics.in_flight.get_or_create(&phase));
        }
        for cause in [RoundCause::Election, RoundCause::Membership, RoundCause::Config, RoundCause::Heartbeat] {
            drop(metrics.rounds.get_or_create(&CauseLabel { cause: cause.as_str() }));
        }
        registry.register("handoffs", "Handoffs that ended", metrics.handoffs.clone());
        registry.register("handoff_phase_seconds", "How long phases of handoffs lasted", metrics.phases.clone());
        registry.register("handoffs_in_flight", "Handoffs that stand, by phase", metrics.in_flight.clone());
        registry.register("rounds", "Rounds of planning", metrics.rounds.clone());
        registry.register("partitions", "Partitions that a pod owns", metrics.partitions.clone());
        registry.register("leader", "Whether this coordinator leads", metrics.leader.clone());
        metrics
    }
}

impl CoordinatorObserver for CoordinatorMetrics {
    fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    fn round(&self, cause: RoundCause) {
        self.rounds.get_or_create(&CauseLabel { cause: cause.as_str() }).inc();
    }

    fn phase_ended(&self, phase: Phase, lasted: Duration) {
        self.phases.get_or_create(&PhaseLabel { phase: phase.as_str() }).observe(lasted.as_secs_f64());
    }

    fn handoff_ended(&self, _partition: Partition, result: HandoffResult) {
        let result = match result {
            HandoffResult::Completed => "completed",
            HandoffResult::Cancelled => "cancelled",
        };
        self.handoffs.get_or_create(&ResultLabel { result }).inc();
    }

    fn view_changed(&self, view: &View) {
        for phase in Phase::ALL {
            let count = view.handoffs.values().filter(|handoff| handoff.value.phase == phase).count();
            self.in_flight.get_or_create(&PhaseLabel { phase: phase.as_str() }).set(count as i64);
        }
        self.partitions.clear();
        for pod in view.pods.keys() {
            let owned = view.assignments.values().filter(|assignment| assignment.value.owner == *pod).count();
            self.partitions.get_or_create(&PodLabel { pod: pod.clone() }).set(owned as i64);
        }
    }

    fn resync(&self, cause: &StoreError) {
        self.resyncs.count(cause);
    }
}
