//! A keyspace at a glance: the content of `segue status` and of the admin endpoint's `/status`, from one view of the
//! store.
//!
//! Not here: its text (`status_text`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use segue_protocol::ids::{Epoch, HandoffId, Incarnation, PartitionId, Revision};
use segue_protocol::planning::{Assurance, MISSED_BEFORE_SUSPECTED, repair};
use segue_protocol::records::{Handoff, HeldMoves, Mode, Phase, Pin, PodStatus};
use segue_protocol::view::{Versioned, View};
use serde::{Deserialize, Serialize};

use super::resting::ActiveBackOff;
use super::troubles::{TroubleLine, TroubleReports};
use super::waits::WaitLine;

/// Most waits of a handoff that are listed with their beginning.
const MOST_WAITS: usize = 16;

/// The keyspace at one revision.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeyspaceStatus {
    /// The revision of the store.
    pub revision: Revision,
    /// Why this may not be the present state. `None` while the process that reports it follows the store.
    pub stale: Option<Stale>,
    /// In which words the store refuses writes, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_refuses_writes: Option<String>,
    /// What clients suffer, as the routers report it.
    #[serde(default)]
    pub troubles: Vec<TroubleLine>,
    /// The leading coordinator.
    pub leader: Option<String>,
    /// Number of partitions; 0 before a leader has written it.
    pub partitions: u32,
    /// The number above which epochs begin; above 0 once the store went back, or an operator has said so.
    #[serde(default)]
    pub epoch_floor: Epoch,
    /// The pods.
    pub pods: Vec<PodLine>,
    /// The names of the routers.
    pub routers: Vec<String>,
    /// Number of partitions without a live owner.
    pub unowned: usize,
    /// The handoffs in progress.
    pub handoffs: Vec<HandoffLine>,
    /// What rests after failed moves. Only `segue status` fills it, from the history, which no process follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resting: Vec<ActiveBackOff>,
    /// Moves that the leader wants and holds back, by new owner and reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldMoves>,
    /// The clocks that differ from the leader's, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<String>,
    /// The operator who has paused planned moves, and the reason.
    pub paused: Option<String>,
    /// The pods that operators drain, registered or not, each with the operator and the reason.
    pub drains: Vec<(String, String)>,
    /// The partitions that operators have placed.
    pub pins: Vec<PinLine>,
    /// The addresses that several pods advertise, each with its pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shared_addresses: BTreeMap<String, Vec<String>>,
    /// The guarantee that these pods allow.
    pub assurance: Option<String>,
    /// Keys that cannot be read, with the reason.
    pub malformed: Vec<(String, String)>,
    /// Registrations without a lease, which never expire.
    pub leaseless: Vec<String>,
    /// The commands that delete registrations which cannot be read or have no lease, once their process is gone, and
    /// operators' keys that cannot be read.
    pub repairs: Vec<String>,
}

/// Since when a process does not follow the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stale {
    /// Unix milliseconds, by the clock of the process.
    pub since: u64,
    /// The time since then.
    pub age_ms: u64,
    /// Why, in words.
    pub reason: String,
}

impl Stale {
    /// Returns what has been so since `since`, as of `now`, both in Unix milliseconds.
    pub(crate) fn new(since: u64, reason: String, now: u64) -> Self {
        Stale { since, age_ms: now.saturating_sub(since), reason }
    }
}

/// A pod in an [`KeyspaceStatus`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PodLine {
    /// The pod's name.
    pub name: String,
    /// The life of the pod.
    pub incarnation: Incarnation,
    /// The address that routers connect to.
    pub address: String,
    /// Whether the pod accepts partitions.
    pub status: PodStatus,
    /// Number of partitions that the pod owns.
    pub partitions: usize,
    /// The pod's share relative to the others'. `None` from an earlier version.
    #[serde(default)]
    pub weight: Option<f64>,
    /// The zone that the pod runs in.
    #[serde(default)]
    pub zone: Option<String>,
    /// The version of the pod's service.
    #[serde(default)]
    pub version: Option<String>,
    /// The pod's capabilities in a handoff.
    pub capabilities: Vec<String>,
    /// The load of the last heartbeat.
    pub load: Option<f64>,
    /// Age of the last heartbeat, by the clocks of two machines. Informational.
    pub heartbeat_age_ms: Option<u64>,
    /// Whether the pod has missed heartbeats, by that age. The leader measures by its own clock.
    pub suspected: bool,
    /// Number of the pod's partitions that have a checkpoint, whoever made it.
    #[serde(default)]
    pub checkpoints: usize,
    /// Age of the oldest of these, by the clocks of two machines. Informational.
    #[serde(default)]
    pub oldest_checkpoint_age_ms: Option<u64>,
}

/// Returns the age of a partition's newest checkpoint, by the clocks of two machines. `now` is in Unix milliseconds.
pub(crate) fn checkpoint_age(view: &View, partition: PartitionId, now: u64) -> Option<u64> {
    let record = &view.checkpoints.get(&partition)?.value;
    record.checkpoint.as_ref().map(|_| now.saturating_sub(record.taken_at))
}

/// What a pod owns.
#[derive(Debug, Clone, Copy, Default)]
struct PodHoldings {
    partitions: usize,
    /// How many of them have a checkpoint.
    checkpoints: usize,
    /// The age of the oldest one, in milliseconds.
    oldest_checkpoint: Option<u64>,
}

/// Returns the age of a pod's last heartbeat, and whether the pod has missed as many as make it suspected. `now` is in
/// Unix milliseconds.
pub(crate) fn heartbeat_age(view: &View, pod: &str, now: u64) -> Option<(u64, bool)> {
    let load = view.load(pod)?;
    let age = now.saturating_sub(load.at);
    Some((age, age >= load.interval_ms.saturating_mul(u64::from(MISSED_BEFORE_SUSPECTED))))
}

/// A partition in a [`KeyspaceStatus`] that an operator has placed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PinLine {
    /// The partition.
    pub partition: PartitionId,
    /// The pod that it belongs on. `None` if the pin cannot be read: the partition stays where it is.
    pub to: Option<String>,
    /// Whether the pin comes from a move and ends with the pod's incarnation.
    pub until_pod_goes: bool,
    /// The operator, and the reason.
    pub by: String,
}

impl PinLine {
    fn of(partition: PartitionId, pin: Option<&Versioned<Pin>>) -> Self {
        PinLine {
            partition,
            to: pin.map(|pin| pin.value.to.clone()),
            until_pod_goes: pin.is_some_and(|pin| pin.value.ends_with_the_pod()),
            by: pin.map_or("somebody (the pin cannot be read)".to_owned(), |pin| pin.value.origin.to_string()),
        }
    }
}

/// A handoff in an [`KeyspaceStatus`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HandoffLine {
    /// The handoff.
    pub id: HandoffId,
    /// The partition.
    pub partition: PartitionId,
    /// The pod that gives the partition up.
    pub from: Option<String>,
    /// The pod that gets it.
    pub to: String,
    /// The phase of the move.
    pub phase: Phase,
    /// How routers cut over.
    pub mode: Mode,
    /// How long the phase has lasted, by the clocks of two machines. Informational.
    pub phase_age_ms: u64,
    /// What the handoff waits for.
    pub waiting_for: String,
    /// The first of these, each with the beginning of the wait. Empty from an earlier version.
    #[serde(default)]
    pub waits: Vec<WaitLine>,
    /// Why the move was planned.
    pub reason: String,
}

impl HandoffLine {
    fn of(view: &View, partition: PartitionId, handoff: &Versioned<Handoff>, now: u64) -> Self {
        let waits = WaitLine::all(view, partition, now);
        HandoffLine {
            id: handoff.id(),
            partition,
            from: handoff.value.old_owner.clone(),
            to: handoff.value.new_owner.clone(),
            phase: handoff.value.phase,
            mode: handoff.value.mode,
            phase_age_ms: now.saturating_sub(handoff.value.phase_entered_at),
            waiting_for: waits.iter().map(|wait| wait.what.as_str()).collect::<Vec<_>>().join(", "),
            waits: waits.into_iter().take(MOST_WAITS).collect(),
            reason: handoff.value.reason.clone(),
        }
    }
}

impl KeyspaceStatus {
    /// Notes in which words the store refuses writes, if it does. Each handoff waits for that first.
    pub(crate) fn store_refuses(mut self, words: Option<String>) -> Self {
        for handoff in &mut self.handoffs {
            handoff.waits.retain(|wait| !wait.is_for_store());
            if let Some(words) = &words {
                handoff.waiting_for = WaitLine::for_store(words).what;
                handoff.waits.insert(0, WaitLine::for_store(words));
            }
        }
        self.store_refuses_writes = words;
        self
    }

    /// Adds what the routers report of their clients. `view` is that of the status, and `now` in Unix milliseconds.
    pub(crate) fn with_troubles(self, reports: &TroubleReports, view: &View, now: u64) -> Self {
        KeyspaceStatus { troubles: reports.lines(view, now), ..self }
    }

    /// Returns the status of `view`. `now` is in Unix milliseconds.
    pub(crate) fn of(view: &View, now: u64) -> Self {
        let mut owned: HashMap<(&str, Incarnation), PodHoldings> = HashMap::new();
        for (partition, at) in &view.assignments {
            let owned = owned.entry((&at.value.owner, at.value.incarnation)).or_default();
            let age = checkpoint_age(view, *partition, now);
            owned.partitions += 1;
            owned.checkpoints += usize::from(age.is_some());
            owned.oldest_checkpoint = owned.oldest_checkpoint.max(age);
        }
        let owned = |name: &str, incarnation| owned.get(&(name, incarnation)).copied().unwrap_or_default();
        let leaseless: Vec<String> = view.leaseless().filter(|key| !view.malformed.contains_key(key)).collect();
        let broken: BTreeSet<&String> = view.malformed.keys().chain(&leaseless).collect();
        let repairs = broken.into_iter().filter_map(|key| repair(view, key)).collect();
        KeyspaceStatus {
            revision: view.revision,
            stale: None,
            store_refuses_writes: None,
            troubles: Vec::new(),
            leader: view.coordinator().map(str::to_owned),
            partitions: view.partitions(),
            epoch_floor: view.epoch_floor(),
            pods: view
                .pods
                .iter()
                .map(|(name, pod)| PodLine {
                    name: name.clone(),
                    incarnation: pod.incarnation(),
                    address: pod.value.address.clone(),
                    status: if view.is_draining(name) { PodStatus::Draining } else { pod.value.status },
                    partitions: owned(name, pod.incarnation()).partitions,
                    weight: Some(pod.value.weight.into()),
                    zone: pod.value.zone.clone(),
                    version: pod.value.version.clone(),
                    capabilities: pod.value.capabilities.into(),
                    load: view.load(name).map(|load| load.total.into()),
                    heartbeat_age_ms: heartbeat_age(view, name, now).map(|(age, _)| age),
                    suspected: heartbeat_age(view, name, now).is_some_and(|(_, is_suspected)| is_suspected),
                    checkpoints: owned(name, pod.incarnation()).checkpoints,
                    oldest_checkpoint_age_ms: owned(name, pod.incarnation()).oldest_checkpoint,
                })
                .collect(),
            routers: view.routers.keys().cloned().collect(),
            unowned: PartitionId::all(view.partitions())
                .filter(|partition| view.live_owner(*partition).is_none())
                .count(),
            handoffs: view
                .handoffs
                .iter()
                .map(|(partition, handoff)| HandoffLine::of(view, *partition, handoff, now))
                .collect(),
            resting: Vec::new(),
            held: view.held(),
            clocks: view.leader.iter().flat_map(|it| &it.value.clocks).map(ToString::to_string).collect(),
            paused: view.intentions.pause.as_ref().map(|pause| pause.value.origin.to_string()),
            drains: view
                .intentions
                .drains
                .iter()
                .map(|(pod, drain)| (pod.clone(), drain.value.origin.to_string()))
                .collect(),
            pins: view.intentions.pins.iter().map(|(at, pin)| PinLine::of(*at, pin.as_ref())).collect(),
            shared_addresses: view
                .shared_addresses()
                .into_iter()
                .map(|(address, pods)| (address, pods.into_iter().map(str::to_owned).collect()))
                .collect(),
            assurance: Assurance::of(view).map(|assurance| assurance.to_string()),
            malformed: view.malformed.iter().map(|(key, reason)| (key.clone(), reason.clone())).collect(),
            leaseless,
            repairs,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use segue_protocol::ids::{Epoch, LeaseId, Revision};
    use segue_protocol::keys::Keyspace;
    use segue_protocol::records::{Assignment, Checkpoint, KeyspaceConfig, PodLoad, PodRecord, encode};
    use segue_protocol::txn::{KeyValue, Snapshot};

    use super::*;

    #[test]
    fn missed_heartbeats_and_the_age_of_checkpoints_are_shown() {
        let (keys, life) = (Keyspace::new("/segue/", "k"), Incarnation::registered_at(Revision::new(2)));
        let load = PodLoad { at: 10_000, ..PodLoad::new(life, 1_000, BTreeMap::new()) };
        let checkpoint = |partition, taken_at| Checkpoint {
            partition,
            checkpoint: Some("at 42".to_owned().try_into().unwrap()),
            pod_name: "a".to_owned(),
            epoch: Epoch::new(5),
            taken_at,
            handoff: HandoffId::NONE,
        };
        let [first, second, third] = [0, 1, 2].map(PartitionId::new);
        let owned = |partition| encode(&Assignment::new(partition, "a", life, Epoch::new(5)));
        let entries = [
            (keys.config(), encode(&KeyspaceConfig::new(3))),
            (keys.pod("a"), encode(&PodRecord::new("a", "127.0.0.1:1"))),
            (keys.load("a"), encode(&load)),
            (keys.assignment(first), owned(first)),
            (keys.assignment(second), owned(second)),
            (keys.assignment(third), owned(third)),
            (keys.checkpoint(first), encode(&checkpoint(first, 9_000))),
            (keys.checkpoint(second), encode(&checkpoint(second, 4_000))),
        ];
        let entry = |(key, value)| {
            let (create_revision, lease) = (life.revision(), Some(LeaseId::new(1)));
            KeyValue { key, value, create_revision, mod_revision: create_revision, lease }
        };
        let entries = entries.into_iter().map(entry).collect();
        let view = View::from_snapshot(keys, Snapshot { revision: Revision::new(9), entries });
        let shown = |now| KeyspaceStatus::of(&view, now).to_string();
        assert!(!shown(12_999).contains("suspected"), "{}", shown(12_999));
        for words in ["suspected: last heartbeat 3.0 s ago", "checkpoints of 2 partitions, the oldest 9.0 s old"] {
            assert!(shown(13_000).contains(words), "{}", shown(13_000));
        }
    }

    #[test]
    fn each_handoff_waits_for_a_store_that_refuses_writes_before_anybody_else() {
        let pod = |name| (format!("pods/{name}"), format!(r#"{{"pod_name":"{name}","address":"h:1"}}"#));
        let handoff = r#"{"partition":0,"new_owner":"b","new_incarnation":2,"epoch":4,"phase":"Warming"}"#;
        let entry = |(key, value): (String, String)| KeyValue {
            key: format!("/segue/default/{key}"),
            value: value.into_bytes(),
            create_revision: 2.into(),
            mod_revision: 2.into(),
            lease: key.starts_with("pods/").then(|| 1.into()),
        };
        let entries = [pod("a"), pod("b"), ("handoffs/0".to_owned(), handoff.to_owned())].map(entry).to_vec();
        let snapshot = Snapshot { revision: 9.into(), entries };
        let view = View::from_snapshot(Keyspace::new("/segue/", "default"), snapshot);
        let shown = |status: &KeyspaceStatus| {
            let handoff = &status.handoffs[0];
            (handoff.waiting_for.clone(), handoff.waits.iter().map(|wait| wait.kind.clone()).collect::<Vec<_>>())
        };
        let status = KeyspaceStatus::of(&view, 0).store_refuses(None);
        assert_eq!(shown(&status), ("pod b to warm".to_owned(), vec!["pod".to_owned()]));
        let status = status.store_refuses(Some("no space".to_owned()));
        let expected = "the store, which refuses writes: no space".to_owned();
        assert_eq!(shown(&status), (expected, vec!["store".to_owned(), "pod".to_owned()]));
        // A command that asks a process adds what it has learnt itself.
        let again = shown(&status);
        assert_eq!(shown(&status.store_refuses(Some("no space".to_owned()))), again);
    }
}
