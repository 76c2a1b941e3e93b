//! The metrics of the control side: what routers and coordinators did, as Prometheus series.
//!
//! Every series exists from the start, at zero, so that a rate can be taken of the first event. The names are fixed
//! (`segue_` and the documented ones). The request path has its own metrics ([`segue_proxy::metrics`]).

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use segue_coordination::coordinator::{CoordinatorObserver, HandoffResult};
use segue_coordination::router::{Cutover, RouterObserver};
use segue_coordination::store::StoreError;
use segue_protocol::handoff::advance::{PendingOn, waiting_for};
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::RoundCause;
use segue_protocol::records::Phase;
use segue_protocol::view::View;

/// Buckets from an imperceptible pause to an obvious one; half of them below 50 ms, where cutovers are.
const PAUSE_BUCKETS: [f64; 17] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.008, 0.015, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Buckets of phases, which may last as long as a warm-up.
const PHASE_BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabel {
    kind: &'static str,
    r#for: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KeyLabel {
    key: String,
    reason: &'static str,
}

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

/// Registers `build_info{version,revision}`. The revision is the value of `SEGUE_REVISION` at build time.
pub fn register_build_info(registry: &mut Registry) {
    let revision = option_env!("SEGUE_REVISION").unwrap_or("unknown");
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("revision", revision)];
    registry.register("build", "The build of this process", Info::new(labels));
}

/// Registers `store_resyncs_total{cause}`, which every participant that follows the store increments.
#[derive(Debug, Clone, Default)]
pub struct ResyncMetrics {
    resyncs: Family<CauseLabel, Counter>,
}

impl ResyncMetrics {
    /// Creates and registers the series.
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

/// Counts `hot_restarts_total{result}`.
#[derive(Debug, Clone, Default)]
pub struct HotRestartMetrics {
    hot_restarts: Family<ResultLabel, Counter>,
}

impl HotRestartMetrics {
    /// Creates and registers the series.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = HotRestartMetrics::default();
        for result in ["taken", "failed", "refused"] {
            drop(metrics.hot_restarts.get_or_create(&ResultLabel { result }));
        }
        let help =
            "Hot restarts: taken over by this process, failed before the new process was ready, and refused to one";
        registry.register("hot_restarts", help, metrics.hot_restarts.clone());
        metrics
    }

    /// Counts that this process took over from another.
    pub fn taken(&self) {
        self.count("taken");
    }

    /// Counts that a new process did not become ready.
    pub fn failed(&self) {
        self.count("failed");
    }

    /// Counts that a new process came at the wrong moment.
    pub fn refused(&self) {
        self.count("refused");
    }

    fn count(&self, result: &'static str) {
        self.hot_restarts.get_or_create(&ResultLabel { result }).inc();
    }
}

/// The costs of a router's cutovers.
#[derive(Debug)]
pub struct RouterMetrics {
    cutovers: Family<ResultLabel, Counter>,
    pause: Histogram,
    drain: Histogram,
    flush: Histogram,
    exchanges_severed: Counter,
    lease_trusted_until: Gauge<f64, AtomicU64>,
    resyncs: ResyncMetrics,
}

impl RouterMetrics {
    /// Creates and registers the series.
    pub fn new(registry: &mut Registry, resyncs: ResyncMetrics) -> Self {
        let metrics = RouterMetrics {
            cutovers: Family::default(),
            pause: Histogram::new(PAUSE_BUCKETS),
            drain: Histogram::new(PAUSE_BUCKETS),
            flush: Histogram::new(PAUSE_BUCKETS),
            exchanges_severed: Counter::default(),
            lease_trusted_until: Gauge::default(),
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
        registry.register(
            "exchanges_severed",
            "Exchanges that the end of a drain severed",
            metrics.exchanges_severed.clone(),
        );
        registry.register(
            "lease_trusted_until_timestamp_seconds",
            "Until when this participant may trust its lease, as Unix time; 0 before its first lease",
            metrics.lease_trusted_until.clone(),
        );
        metrics
    }

    /// Sets until when the lease may be trusted, in seconds of Unix time.
    pub fn set_lease_trusted_until(&self, unix_seconds: f64) {
        self.lease_trusted_until.set(unix_seconds);
    }
}

impl RouterObserver for RouterMetrics {
    fn cutover(&self, cutover: &Cutover) {
        let result = if cutover.severed > 0 { "severed" } else { "switched" };
        self.cutovers.get_or_create(&ResultLabel { result }).inc();
        self.pause.observe(cutover.times.pause.as_secs_f64());
        self.drain.observe(cutover.times.drain.as_secs_f64());
        self.flush.observe(cutover.times.flush.as_secs_f64());
        self.exchanges_severed.inc_by(cutover.severed);
    }

    fn resync(&self, cause: &StoreError) {
        self.resyncs.count(cause);
    }
}

/// Gauges for a changing set of things. A gauge that stays is never missing, not even for a moment: another thread
/// reads the series meanwhile.
#[derive(Debug)]
struct Listing<Label: Clone + Hash + Eq> {
    series: Family<Label, Gauge>,
    listed: Mutex<HashMap<Label, i64>>,
}

impl<Label: Clone + Hash + Eq> Listing<Label> {
    fn new() -> Self {
        Listing { series: Family::default(), listed: Mutex::default() }
    }

    fn set(&self, now: HashMap<Label, i64>) {
        for (label, value) in &now {
            self.series.get_or_create(label).set(*value);
        }
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in listed.keys().filter(|label| !now.contains_key(label)) {
            self.series.remove(gone);
        }
        *listed = now;
    }
}

/// The work of a leading coordinator.
#[derive(Debug)]
pub struct CoordinatorMetrics {
    handoffs: Family<ResultLabel, Counter>,
    phases: Family<PhaseLabel, Histogram>,
    in_flight: Family<PhaseLabel, Gauge>,
    planning_rounds: Family<CauseLabel, Counter>,
    waits: Listing<WaitLabel>,
    oldest: Gauge<f64, AtomicU64>,
    unusable: Listing<KeyLabel>,
    partitions: Listing<PodLabel>,
    partitions_unowned: Gauge,
    leader: Gauge,
    resyncs: ResyncMetrics,
}

impl CoordinatorMetrics {
    /// Creates and registers the series.
    pub fn new(registry: &mut Registry, resyncs: ResyncMetrics) -> Self {
        let metrics = CoordinatorMetrics {
            handoffs: Family::default(),
            phases: Family::new_with_constructor(|| Histogram::new(PHASE_BUCKETS)),
            in_flight: Family::default(),
            waits: Listing::new(),
            oldest: Gauge::default(),
            unusable: Listing::new(),
            planning_rounds: Family::default(),
            partitions: Listing::new(),
            partitions_unowned: Gauge::default(),
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
            drop(metrics.planning_rounds.get_or_create(&CauseLabel { cause: cause.as_str() }));
        }
        registry.register("handoffs", "Handoffs that ended", metrics.handoffs.clone());
        registry.register("handoff_phase_seconds", "How long phases of handoffs lasted", metrics.phases.clone());
        registry.register("handoffs_in_flight", "Handoffs that stand, by phase", metrics.in_flight.clone());
        let help = "Handoffs that wait for this router or pod before their phase can move on";
        registry.register("handoff_waits", help, metrics.waits.series.clone());
        let help = "When the oldest handoff that stands was begun; 0 without any";
        registry.register("handoff_oldest_started_timestamp_seconds", help, metrics.oldest.clone());
        let help =
            "Keys that cannot be read, and registrations without a lease; `segue status` says what to do about each";
        registry.register("unusable_keys", help, metrics.unusable.series.clone());
        registry.register("planning_rounds", "Rounds of planning", metrics.planning_rounds.clone());
        registry.register("partitions", "Partitions that a pod owns", metrics.partitions.series.clone());
        let help = "Partitions without a living owner";
        registry.register("partitions_unowned", help, metrics.partitions_unowned.clone());
        registry.register("leader", "Whether this coordinator leads", metrics.leader.clone());
        metrics
    }

    fn set_in_flight(&self, phase: Phase, handoffs: i64) {
        self.in_flight.get_or_create(&PhaseLabel { phase: phase.as_str() }).set(handoffs);
    }
}

impl CoordinatorObserver for CoordinatorMetrics {
    fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        if !leads {
            // Another coordinator knows these numbers now.
            Phase::ALL.into_iter().for_each(|phase| self.set_in_flight(phase, 0));
            self.partitions.set(HashMap::new());
            self.waits.set(HashMap::new());
            self.unusable.set(HashMap::new());
            self.oldest.set(0.0);
            self.partitions_unowned.set(0);
        }
    }

    fn round(&self, cause: RoundCause) {
        self.planning_rounds.get_or_create(&CauseLabel { cause: cause.as_str() }).inc();
    }

    fn phase_ended(&self, phase: Phase, lasted: Duration) {
        self.phases.get_or_create(&PhaseLabel { phase: phase.as_str() }).observe(lasted.as_secs_f64());
    }

    fn handoff_ended(&self, _partition: PartitionId, result: HandoffResult) {
        let result = match result {
            HandoffResult::Completed => "completed",
            HandoffResult::Cancelled => "cancelled",
        };
        self.handoffs.get_or_create(&ResultLabel { result }).inc();
    }

    fn view_changed(&self, view: &View) {
        for phase in Phase::ALL {
            let count = view.handoffs.values().filter(|handoff| handoff.value.phase == phase).count();
            self.set_in_flight(phase, count as i64);
        }
        let mut waits = HashMap::new();
        for partition in view.handoffs.keys() {
            let waiting = waiting_for(view, *partition);
            let parties: BTreeSet<_> = waiting.iter().map(PendingOn::party).collect();
            for (kind, name) in parties {
                *waits.entry(WaitLabel { kind, r#for: name.to_owned() }).or_default() += 1;
            }
        }
        self.waits.set(waits);
        let oldest = view.handoffs.values().map(|handoff| handoff.value.started_at).min();
        self.oldest.set(oldest.map_or(0.0, |millis| millis as f64 / 1000.0));
        let unreadable = view.malformed.keys().map(|key| KeyLabel { key: key.clone(), reason: "unreadable" });
        let leaseless = view.leaseless().filter(|key| !view.malformed.contains_key(key));
        let leaseless = leaseless.map(|key| KeyLabel { key, reason: "leaseless" });
        self.unusable.set(unreadable.chain(leaseless).map(|label| (label, 1)).collect());
        let unowned =
            PartitionId::all(view.partitions()).filter(|partition| view.live_owner(*partition).is_none()).count();
        self.partitions_unowned.set(unowned as i64);
        let pods = view.pods.keys().map(|pod| (pod.as_str(), 0));
        let mut owned: HashMap<&str, i64> = pods.collect();
        for assignment in view.assignments.values() {
            if let Some(owned) = owned.get_mut(assignment.value.owner.as_str()) {
                *owned += 1;
            }
        }
        self.partitions.set(owned.into_iter().map(|(pod, owned)| (PodLabel { pod: pod.to_owned() }, owned)).collect());
    }

    fn resync(&self, cause: &StoreError) {
        self.resyncs.count(cause);
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use segue_protocol::ids::{LeaseId, Revision};
    use segue_protocol::keys::Keyspace;
    use segue_protocol::txn::{KeyValue, Snapshot};

    use super::*;

    fn view(entries: &[(&str, &str, Option<i64>)]) -> View {
        let entries = (5..).zip(entries).map(|(revision, (key, value, lease))| KeyValue {
            key: format!("/segue/default/{key}"),
            value: value.as_bytes().to_vec(),
            create_revision: Revision::new(revision),
            mod_revision: Revision::new(revision),
            lease: lease.map(LeaseId::new),
        });
        let snapshot = Snapshot { revision: Revision::new(100), entries: entries.collect() };
        View::from_snapshot(Keyspace::new("/segue/", "default"), snapshot)
    }

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn a_router_that_a_handoff_waits_for_is_named_as_long_as_it_does() {
        let mut registry = Registry::with_prefix("segue");
        let resyncs = ResyncMetrics::new(&mut registry);
        let metrics = CoordinatorMetrics::new(&mut registry, resyncs);
        let pod = r#"{"pod_name":"w","address":"127.0.0.1:1"}"#;
        let handoff = r#"{"partition":0,"old_owner":"w","old_incarnation":5,"new_owner":"x","new_incarnation":6,
            "phase":"Ready","epoch":9,"mode":"barrier","started_at":7000,"phase_entered_at":7000,"reason":""}"#;
        let said = r#"{"handoff":9,"gave_up":false,"router_name":"slow","partition":0}"#;
        let mut entries = vec![
            ("pods/w", pod, Some(1)),
            ("pods/x", pod, Some(2)),
            ("routers/slow", "{}", Some(3)),
            ("routers/by-hand", r#"{"router_name":"by-hand"}"#, None),
            ("handoffs/0", handoff, None),
            ("config", r#"{"partitions":3}"#, None),
            ("assignments/0", r#"{"partition":0,"owner":"w","incarnation":5,"epoch":7}"#, None),
            ("assignments/1", r#"{"partition":1,"owner":"dead","incarnation":3,"epoch":7}"#, None),
        ];
        metrics.view_changed(&view(&entries));
        let waiting = r#"segue_handoff_waits{kind="router",for="slow"} 1"#;
        let shown = text(&registry);
        for line in [
            waiting,
            "segue_handoff_oldest_started_timestamp_seconds 7.0",
            "segue_partitions_unowned 2",
            r#"segue_handoffs_in_flight{phase="Ready"} 1"#,
            r#"segue_partitions{pod="w"} 1"#,
            r#"segue_unusable_keys{key="/segue/default/routers/slow",reason="unreadable"} 1"#,
            r#"segue_unusable_keys{key="/segue/default/routers/by-hand",reason="leaseless"} 1"#,
        ] {
            assert!(shown.contains(line), "{line} is missing in {shown}");
        }
        entries.push(("handoff_drains/0/slow", said, None));
        metrics.view_changed(&view(&entries));
        assert!(!text(&registry).contains(waiting), "it has said that it has drained");
        metrics.leads(false);
        let shown = text(&registry);
        for line in ["segue_partitions_unowned 0", r#"segue_handoffs_in_flight{phase="Ready"} 0"#] {
            assert!(shown.contains(line), "{line} is missing in {shown}");
        }
        assert!(!shown.contains("segue_partitions{"), "it no longer knows");
    }
}
