//! The metrics of a leading coordinator.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use segue_coordination::coordinator::{CoordinatorObserver, EndedPhase, HandoffResult};
use segue_coordination::store::StoreError;
use segue_protocol::handoff::advance::{PendingOn, waiting_for};
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::{CancelReason, MoveCause, RoundCause};
use segue_protocol::records::Phase;
use segue_protocol::view::{Intentions, View};
use tokio::time::Instant;

use super::{CauseLabel, LeaseGauge, ParticipantMetrics};
use crate::telemetry::handoff_traces::HandoffTraces;

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
struct HandoffLabel {
    result: &'static str,
    cause: &'static str,
}

impl HandoffLabel {
    fn of(result: HandoffResult) -> Self {
        match result {
            HandoffResult::Completed(cause) => HandoffLabel { result: "completed", cause: cause.as_str() },
            HandoffResult::Cancelled(cause) => HandoffLabel { result: "cancelled", cause },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodLabel {
    pod: String,
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ForLabel {
    r#for: String,
}

/// The clocks of pods and routers.
#[derive(Debug, Default)]
struct ClockGauges {
    series: Family<ForLabel, Gauge<f64, AtomicU64>>,
    listed: Mutex<BTreeSet<String>>,
}

impl ClockGauges {
    /// Takes the offsets in milliseconds, by name.
    fn set(&self, offsets: &BTreeMap<String, i64>) {
        let label = |name: &String| ForLabel { r#for: name.clone() };
        for (name, offset) in offsets {
            self.series.get_or_create(&label(name)).set(*offset as f64 / 1_000.0);
        }
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in listed.iter().filter(|name| !offsets.contains_key(*name)) {
            self.series.remove(&label(gone));
        }
        *listed = offsets.keys().cloned().collect();
    }
}

/// The intentions of operators that stand: pauses, drains and pins.
#[derive(Debug, Default)]
struct IntentionMetrics {
    paused: Gauge,
    drained: Gauge,
    pinned: Gauge,
}

impl IntentionMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("planner_paused", "Whether an operator pauses planned moves", self.paused.clone());
        let help = "Pods that operators drain, whether they live or not";
        registry.register("pods_drained", help, self.drained.clone());
        registry.register("partitions_pinned", "Partitions that operators have pinned", self.pinned.clone());
    }

    fn set(&self, intentions: &Intentions) {
        self.paused.set(i64::from(intentions.pause.is_some()));
        self.drained.set(intentions.drains.len() as i64);
        self.pinned.set(intentions.pins.len() as i64);
    }
}

/// The work of a leading coordinator.
#[derive(Debug)]
pub(crate) struct CoordinatorMetrics {
    handoffs: Family<HandoffLabel, Counter>,
    phases: Family<PhaseLabel, Histogram>,
    in_flight: Family<PhaseLabel, Gauge>,
    planning_rounds: Family<CauseLabel, Counter>,
    waits: Listing<WaitLabel>,
    oldest: Gauge<f64, AtomicU64>,
    checkpoints: Gauge,
    oldest_checkpoint: Gauge<f64, AtomicU64>,
    unusable: Listing<KeyLabel>,
    partitions: Listing<PodLabel>,
    partitions_unowned: Gauge,
    intentions: IntentionMetrics,
    leader: Gauge,
    store_fills_up: Gauge,
    clocks: ClockGauges,
    lease: LeaseGauge,
    participants: ParticipantMetrics,
    traces: Option<HandoffTraces>,
}

impl CoordinatorMetrics {
    /// Creates and registers the series.
    pub(crate) fn new(registry: &mut Registry, participants: ParticipantMetrics) -> Self {
        let metrics = CoordinatorMetrics {
            handoffs: Family::default(),
            phases: Family::new_with_constructor(|| Histogram::new(PHASE_BUCKETS)),
            in_flight: Family::default(),
            waits: Listing::new(),
            oldest: Gauge::default(),
            checkpoints: Gauge::default(),
            oldest_checkpoint: Gauge::default(),
            unusable: Listing::new(),
            planning_rounds: Family::default(),
            partitions: Listing::new(),
            partitions_unowned: Gauge::default(),
            intentions: IntentionMetrics::default(),
            leader: Gauge::default(),
            store_fills_up: Gauge::default(),
            clocks: ClockGauges::default(),
            lease: participants.lease("coordinator"),
            participants,
            traces: None,
        };
        for result in MoveCause::ALL.map(HandoffResult::Completed) {
            drop(metrics.handoffs.get_or_create(&HandoffLabel::of(result)));
        }
        for cause in CancelReason::NAMES.into_iter().chain([HandoffResult::NOT_HERE]) {
            drop(metrics.handoffs.get_or_create(&HandoffLabel::of(HandoffResult::Cancelled(cause))));
        }
        for phase in Phase::ALL.map(|phase| PhaseLabel { phase: phase.as_str() }) {
            drop(metrics.phases.get_or_create(&phase));
            drop(metrics.in_flight.get_or_create(&phase));
        }
        for cause in RoundCause::ALL {
            drop(metrics.planning_rounds.get_or_create(&CauseLabel { cause: cause.as_str() }));
        }
        registry.register("handoffs", "Handoffs that ended", metrics.handoffs.clone());
        registry.register("handoff_phase_seconds", "How long phases of handoffs lasted", metrics.phases.clone());
        registry.register("handoffs_in_flight", "Handoffs that stand, by phase", metrics.in_flight.clone());
        let help = "Handoffs that wait for this router or pod before their phase can move on";
        registry.register("handoff_waits", help, metrics.waits.series.clone());
        let help = "When the oldest handoff that stands was begun; 0 without any";
        registry.register("handoff_oldest_started_timestamp_seconds", help, metrics.oldest.clone());
        registry.register("checkpoints", "Partitions that have a checkpoint", metrics.checkpoints.clone());
        let help = "When the oldest of the partitions' newest checkpoints was recorded; 0 without any";
        registry.register("checkpoint_oldest_timestamp_seconds", help, metrics.oldest_checkpoint.clone());
        let help =
            "Keys that cannot be read, and registrations without a lease; `segue status` says what to do about each";
        registry.register("unusable_keys", help, metrics.unusable.series.clone());
        registry.register("planning_rounds", "Rounds of planning", metrics.planning_rounds.clone());
        registry.register("partitions", "Partitions that a pod owns", metrics.partitions.series.clone());
        let help = "Partitions without a living owner";
        registry.register("partitions_unowned", help, metrics.partitions_unowned.clone());
        metrics.intentions.register(registry);
        let help = "Whether the store's database is beyond half of its quota while nobody compacts it";
        registry.register("store_fills_up", help, metrics.store_fills_up.clone());
        let help = "By how much the clock of this pod or router is ahead of the leader's, as of what it wrote last";
        registry.register("clock_offset_seconds", help, metrics.clocks.series.clone());
        registry.register("leader", "Whether this coordinator leads", metrics.leader.clone());
        metrics
    }

    /// Records the handoffs' traces, too.
    pub(crate) fn with_traces(self, traces: Option<HandoffTraces>) -> Self {
        CoordinatorMetrics { traces, ..self }
    }

    /// Sets until when the leader's lease may be trusted, on the clock of `lease_now`; `None` while it does not lead.
    pub(crate) fn set_trusted_until(&self, until: Option<Instant>) {
        self.lease.set(until);
    }

    fn set_in_flight(&self, phase: Phase, handoffs: i64) {
        self.in_flight.get_or_create(&PhaseLabel { phase: phase.as_str() }).set(handoffs);
    }
}

impl CoordinatorObserver for CoordinatorMetrics {
    fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        if !leads {
            // Another coordinator exports these numbers now.
            Phase::ALL.into_iter().for_each(|phase| self.set_in_flight(phase, 0));
            self.partitions.set(HashMap::new());
            self.waits.set(HashMap::new());
            self.unusable.set(HashMap::new());
            self.oldest.set(0.0);
            self.checkpoints.set(0);
            self.oldest_checkpoint.set(0.0);
            self.partitions_unowned.set(0);
            self.store_fills_up.set(0);
            self.clocks.set(&BTreeMap::new());
            self.intentions.set(&Intentions::default());
        }
    }

    fn round(&self, cause: RoundCause) {
        self.planning_rounds.get_or_create(&CauseLabel { cause: cause.as_str() }).inc();
    }

    fn store_fills_up(&self, fills_up: bool) {
        self.store_fills_up.set(i64::from(fills_up));
    }

    fn clocks(&self, offsets: &BTreeMap<String, i64>) {
        self.clocks.set(offsets);
    }

    fn phase_ended(&self, phase: Phase, lasted: Duration) {
        self.phases.get_or_create(&PhaseLabel { phase: phase.as_str() }).observe(lasted.as_secs_f64());
    }

    fn traced_phase(&self, ended: &EndedPhase<'_>) {
        if let Some(traces) = &self.traces {
            traces.phase_ended(ended);
        }
    }

    fn handoff_ended(&self, _partition: PartitionId, result: HandoffResult) {
        self.handoffs.get_or_create(&HandoffLabel::of(result)).inc();
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
        let checkpoints = view.checkpoints.values().map(|it| &it.value).filter(|it| it.checkpoint.is_some());
        self.checkpoints.set(checkpoints.clone().count() as i64);
        let oldest = checkpoints.map(|it| it.taken_at).min();
        self.oldest_checkpoint.set(oldest.map_or(0.0, |millis| millis as f64 / 1000.0));
        let unreadable = view.malformed.keys().map(|key| KeyLabel { key: key.clone(), reason: "unreadable" });
        let leaseless = view.leaseless().filter(|key| !view.malformed.contains_key(key));
        let leaseless = leaseless.map(|key| KeyLabel { key, reason: "leaseless" });
        self.unusable.set(unreadable.chain(leaseless).map(|label| (label, 1)).collect());
        self.partitions_unowned.set(i64::from(view.partitions()).saturating_sub(view.live_owners() as i64).max(0));
        self.intentions.set(&view.intentions);
        let owned = |pod: &String| (PodLabel { pod: pod.clone() }, view.assigned_count(pod) as i64);
        self.partitions.set(view.pods.keys().map(owned).collect());
    }

    fn resync(&self, cause: &StoreError) {
        self.participants.count_resync(cause);
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
        let participants = ParticipantMetrics::new(&mut registry);
        let metrics = CoordinatorMetrics::new(&mut registry, participants);
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
            ("operator/pause", r#"{"who":"ann"}"#, None),
            ("operator/drains/gone", r#"{"who":"ann"}"#, None),
            ("operator/pins/1", r#"{"to":"w","who":"ann"}"#, None),
            ("config", r#"{"partitions":3}"#, None),
            ("assignments/0", r#"{"partition":0,"owner":"w","incarnation":5,"epoch":7}"#, None),
            ("checkpoints/0", r#"{"partition":0,"checkpoint":"a","pod_name":"w","epoch":7,"taken_at":9000}"#, None),
            ("checkpoints/1", r#"{"partition":1,"checkpoint":"b","pod_name":"w","epoch":7,"taken_at":8000}"#, None),
            ("checkpoints/2", r#"{"partition":2,"checkpoint":null,"pod_name":"w","epoch":7}"#, None),
            ("assignments/1", r#"{"partition":1,"owner":"dead","incarnation":3,"epoch":7}"#, None),
        ];
        metrics.view_changed(&view(&entries));
        let waiting = r#"segue_handoff_waits{kind="router",for="slow"} 1"#;
        let shown = text(&registry);
        for line in [
            waiting,
            "segue_handoff_oldest_started_timestamp_seconds 7.0",
            "segue_partitions_unowned 2",
            "segue_checkpoints 2",
            "segue_checkpoint_oldest_timestamp_seconds 8.0",
            r#"segue_handoffs_in_flight{phase="Ready"} 1"#,
            r#"segue_partitions{pod="w"} 1"#,
            "segue_planner_paused 1",
            "segue_pods_drained 1",
            "segue_partitions_pinned 1",
            r#"segue_unusable_keys{key="/segue/default/routers/slow",reason="unreadable"} 1"#,
            r#"segue_unusable_keys{key="/segue/default/routers/by-hand",reason="leaseless"} 1"#,
        ] {
            assert!(shown.contains(line), "{line} is missing in {shown}");
        }
        entries.push(("~acks/handoff_drains/0/slow", said, None));
        metrics.view_changed(&view(&entries));
        assert!(!text(&registry).contains(waiting), "it has said that it has drained");
        metrics.leads(false);
        let shown = text(&registry);
        for line in
            ["segue_planner_paused 0", "segue_partitions_unowned 0", r#"segue_handoffs_in_flight{phase="Ready"} 0"#]
        {
            assert!(shown.contains(line), "{line} is missing in {shown}");
        }
        assert!(!shown.contains("segue_partitions{"), "it no longer knows");
    }

    #[test]
    fn handoffs_are_counted_by_how_they_ended_and_why() {
        let mut registry = Registry::with_prefix("segue");
        let participants = ParticipantMetrics::new(&mut registry);
        let metrics = CoordinatorMetrics::new(&mut registry, participants);
        let moved = r#"segue_handoffs_total{result="completed",cause="balance"}"#;
        let late = r#"segue_handoffs_total{result="cancelled",cause="warm_timeout"}"#;
        let elsewhere = r#"segue_handoffs_total{result="cancelled",cause="elsewhere"}"#;
        let shown = text(&registry);
        for series in [moved, late, elsewhere] {
            assert!(shown.contains(&format!("{series} 0")), "{series} in {shown}");
        }
        let late_end = HandoffResult::Cancelled(CancelReason::WarmTimeout.as_str());
        for result in [HandoffResult::Completed(MoveCause::Balance), late_end, late_end] {
            metrics.handoff_ended(PartitionId::new(0), result);
        }
        let shown = text(&registry);
        for line in [format!("{moved} 1"), format!("{late} 2"), format!("{elsewhere} 0")] {
            assert!(shown.contains(&line), "{line} in {shown}");
        }
    }
}
