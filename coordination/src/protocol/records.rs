//! The values that stand in the store, as JSON: who is there, who owns what, what moves, who has acknowledged.
//!
//! Readers ignore fields that they do not know and give absent ones their default, so that versions can be mixed.
//! Timestamps are Unix milliseconds, for people only: no decision compares the clocks of two machines.

use std::fmt;

use crate::protocol::ids::{Epoch, HandoffId, Incarnation, LeaseId, PartitionId};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The most partitions that a keyspace may have; the configuration and the routing table have the same bound.
pub const MAX_PARTITIONS: u32 = 65_536;

/// `config`: what belongs to the keyspace itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyspaceConfig {
    /// Partitions are numbered `0..partitions`. The number never falls, and grows only where [`partitioner`](Self::partitioner)
    /// allows it.
    pub partitions: u32,
    /// How requests map to partitions. The first router writes it.
    #[serde(default)]
    pub partitioner: Option<Partitioner>,
    /// Fields that this version does not know. They are kept when the record is written again.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl KeyspaceConfig {
    /// Settings with this many partitions, before any router has said how requests map to them.
    pub fn new(partitions: u32) -> Self {
        KeyspaceConfig { partitions, partitioner: None, unknown: Map::new() }
    }
}

/// How requests map to partitions, in the form in which two routers compare it. One with a field more is another mapping, and
/// [`Unknown`](Self::Unknown) here.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Partitioner {
    /// `{"key":"path:/persons/{key}","hash":"murmur2"}`: the hash of a key that is taken from here, modulo the number of
    /// partitions.
    Key {
        /// `header:`, `path:`, `query:` or `cookie:`, and what the file says after it.
        key: String,
        /// The name of the hash.
        hash: String,
    },
    /// `{"number":true}`: the request names the partition itself.
    Number {
        /// Always true.
        number: bool,
    },
    /// A mapping that this version does not know. No router has it for its own.
    Unknown(Value),
}

impl Partitioner {
    /// The mapping of a request that names its partition.
    pub const NUMBER: Partitioner = Partitioner::Number { number: true };
}

impl fmt::Display for Partitioner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Partitioner::Key { key, hash } => write!(out, "the {hash} hash of {key}"),
            Partitioner::Number { .. } => out.write_str("the partition's number in the request"),
            Partitioner::Unknown(value) => write!(out, "{value}"),
        }
    }
}

/// A non-negative factor, kept in thousandths so that views can be compared and hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub struct Thousandths(pub u32);

impl From<f64> for Thousandths {
    fn from(value: f64) -> Self {
        // The cast saturates, and takes NaN to 0.
        Thousandths((value * 1000.0).round() as u32)
    }
}

impl From<Thousandths> for f64 {
    fn from(value: Thousandths) -> f64 {
        f64::from(value.0) / 1000.0
    }
}

/// Whether a pod takes partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum PodStatus {
    /// It does.
    #[default]
    Ready,
    /// It gives up what it has and gets no more.
    Draining,
}

/// What a pod is able to do in a handoff; on the wire a list of the names of those that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct Capabilities {
    /// As a new owner it reads the tail of the log and says `synced`.
    pub sync: bool,
    /// As an old owner it refuses the partition, ends what it works on and says `drained`.
    pub drained: bool,
    /// It says `released` once it has let go of a partition's state.
    pub released: bool,
    /// It refuses requests of another epoch, and all of them past its lease clock.
    pub fence: bool,
}

impl Capabilities {
    /// All four.
    pub const ALL: Capabilities = Capabilities { sync: true, drained: true, released: true, fence: true };
}

impl From<Vec<String>> for Capabilities {
    fn from(names: Vec<String>) -> Self {
        let has = |name: &str| names.iter().any(|have| have == name);
        Capabilities { sync: has("sync"), drained: has("drained"), released: has("released"), fence: has("fence") }
    }
}

impl From<Capabilities> for Vec<String> {
    fn from(have: Capabilities) -> Self {
        [("sync", have.sync), ("drained", have.drained), ("released", have.released), ("fence", have.fence)]
            .into_iter()
            .filter(|(_, has)| *has)
            .map(|(name, _)| name.to_owned())
            .collect()
    }
}

/// `pods/{pod}`, leased: a pod's registration. Its `create_revision` is the pod's incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodRecord {
    /// The pod's name, as in the key.
    pub pod_name: String,
    /// Where routers reach it: `host:port`.
    pub address: String,
    /// Whether it takes partitions.
    #[serde(default)]
    pub status: PodStatus,
    /// For people.
    #[serde(default)]
    pub registered_at: u64,
    /// For people: when the record was last written. That the pod lives is shown by its lease, not by this.
    #[serde(default)]
    pub last_heartbeat: u64,
    /// Its share of the partitions relative to the others'; 1.0 is usual.
    #[serde(default = "unit_weight")]
    pub weight: Thousandths,
    /// Where it runs.
    #[serde(default)]
    pub zone: Option<String>,
    /// How busy it says it is.
    #[serde(default)]
    pub load: Option<Thousandths>,
    /// What it can do in a handoff.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Where its admin endpoint is reached: `host:port`.
    #[serde(default)]
    pub admin: Option<String>,
    /// The version of its rollout.
    #[serde(default)]
    pub version: Option<String>,
    /// The bound on the work of a request, in milliseconds from the last byte that reached the service. `None`: no bound
    /// is claimed.
    #[serde(default)]
    pub work_ends_within_ms: Option<u64>,
}

impl PodRecord {
    /// A pod that takes partitions, of the usual weight, and is able to do nothing in a handoff.
    pub fn new(pod_name: impl Into<String>, address: impl Into<String>) -> Self {
        PodRecord {
            pod_name: pod_name.into(),
            address: address.into(),
            status: PodStatus::default(),
            registered_at: 0,
            last_heartbeat: 0,
            weight: unit_weight(),
            zone: None,
            load: None,
            capabilities: Capabilities::default(),
            admin: None,
            version: None,
            work_ends_within_ms: None,
        }
    }
}

fn unit_weight() -> Thousandths {
    Thousandths(1000)
}

/// `routers/{router}`, leased: a router's registration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouterRecord {
    /// The router's name, as in the key.
    pub router_name: String,
    /// For people.
    #[serde(default)]
    pub registered_at: u64,
    /// For people.
    #[serde(default)]
    pub last_heartbeat: u64,
    /// Where its admin endpoint is reached: `host:port`.
    #[serde(default)]
    pub admin: Option<String>,
}

impl RouterRecord {
    /// A router without an admin endpoint.
    pub fn new(router_name: impl Into<String>) -> Self {
        RouterRecord { router_name: router_name.into(), registered_at: 0, last_heartbeat: 0, admin: None }
    }
}

/// The state of an assignment. There is one; the field leaves room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum AssignmentStatus {
    /// The owner serves the partition.
    #[default]
    Active,
}

/// `assignments/{partition}`: who owns a partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Assignment {
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// The owning pod.
    pub owner: String,
    /// Which life of that pod: a pod of this name with another incarnation does not own the partition.
    pub incarnation: Incarnation,
    /// Always `Active`.
    #[serde(default)]
    pub status: AssignmentStatus,
    /// The number of this ownership.
    pub epoch: Epoch,
    /// The owner's bound on the work of a request, as of when it took the partition over. It outlives the owner's record.
    #[serde(default)]
    pub work_ends_within_ms: Option<u64>,
}

impl Assignment {
    /// The partition belongs to this life of a pod, whose work has no bound.
    pub fn new(partition: PartitionId, owner: impl Into<String>, incarnation: Incarnation, epoch: Epoch) -> Self {
        let (owner, status) = (owner.into(), AssignmentStatus::Active);
        Assignment { partition, owner, incarnation, status, epoch, work_ends_within_ms: None }
    }
}

/// Where a handoff is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// The new owner copies state while the old one serves.
    Warming,
    /// Routers stop, stash and drain.
    Ready,
    /// The old owner confirms that it has ended, the new one reads the tail.
    Syncing,
    /// The assignment has flipped; routers switch and flush. No way back.
    Switching,
    /// All routers have cut over; the old owner releases.
    Complete,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Phase; 5] = [Phase::Warming, Phase::Ready, Phase::Syncing, Phase::Switching, Phase::Complete];

    /// The phase as metrics and logs name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Warming => "Warming",
            Phase::Ready => "Ready",
            Phase::Syncing => "Syncing",
            Phase::Switching => "Switching",
            Phase::Complete => "Complete",
        }
    }
}

/// Whether routers wait for each other before they switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All routers drain before any of them switches. The default and the promise.
    #[default]
    Barrier,
    /// Each router switches by itself; for a site with one router only.
    Independent,
}

impl Mode {
    /// All modes, by their names in the file.
    pub const NAMES: &[(&str, Self)] = &[("barrier", Mode::Barrier), ("independent", Mode::Independent)];
}

/// `handoffs/{partition}`: one move of one partition. Its identity is the `create_revision` of its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Handoff {
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// Who gives the partition up; `None` for the very first placement.
    #[serde(default)]
    pub old_owner: Option<String>,
    /// Which life of the old owner; 0 without one.
    #[serde(default)]
    pub old_incarnation: Incarnation,
    /// Who gets it.
    pub new_owner: String,
    /// Which life of the new owner.
    pub new_incarnation: Incarnation,
    /// Where the move is.
    pub phase: Phase,
    /// The epoch that the new owner will have.
    pub epoch: Epoch,
    /// How routers cut over.
    #[serde(default)]
    pub mode: Mode,
    /// For people.
    #[serde(default)]
    pub started_at: u64,
    /// For people.
    #[serde(default)]
    pub phase_entered_at: u64,
    /// Why the move was planned, in words.
    #[serde(default)]
    pub reason: String,
    /// The old owner is dead and had a bound on its work, and a coordinator has waited it out: the log is at rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub work_has_ended: bool,
}

impl Handoff {
    /// The move of a partition to this life of a pod, with the barrier, as it begins; from nobody.
    pub fn new(partition: PartitionId, to: impl Into<String>, incarnation: Incarnation, epoch: Epoch) -> Self {
        Handoff {
            partition,
            old_owner: None,
            old_incarnation: Incarnation::NONE,
            new_owner: to.into(),
            new_incarnation: incarnation,
            phase: Phase::Warming,
            epoch,
            mode: Mode::Barrier,
            started_at: 0,
            phase_entered_at: 0,
            reason: String::new(),
            work_has_ended: false,
        }
    }

    /// The same, from this life of its owner.
    pub fn taken_from(self, owner: impl Into<String>, incarnation: Incarnation) -> Self {
        Handoff { old_owner: Some(owner.into()), old_incarnation: incarnation, ..self }
    }
}

/// `handoff_drains/{partition}/{router}`: nothing of the partition is in flight through this router any more.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouterDrainedAck {
    /// The handoff that this is for. First, with `gave_up`: see [`starts_with`](Self::starts_with).
    pub handoff: HandoffId,
    /// The drain did not end and severing would not be safe: the router asks for the handoff to be cancelled.
    #[serde(default)]
    pub gave_up: bool,
    /// The router, as in the key.
    pub router_name: String,
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// For people.
    #[serde(default)]
    pub acked_at: u64,
    /// How many exchanges were severed to get there.
    #[serde(default)]
    pub severed: u64,
}

impl RouterDrainedAck {
    /// The router has drained, and severed nothing to get there.
    pub fn new(router_name: impl Into<String>, partition: PartitionId, handoff: HandoffId) -> Self {
        let router_name = router_name.into();
        RouterDrainedAck { handoff, gave_up: false, router_name, partition, acked_at: 0, severed: 0 }
    }

    /// What the value of an ack starts with that says "drained" for this handoff, so that a guard on the order of bytes
    /// can tell it from none, from that of another handoff and from one that gave up, without having seen it. One that is
    /// written otherwise, by another hand, is only not recognised.
    pub fn starts_with(handoff: HandoffId) -> String {
        format!(r#"{{"handoff":{handoff},"gave_up":false,"#)
    }
}

/// `handoff_acks/{partition}/{router}`: this router routes to the new owner and has flushed its stash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouterCutoverAck {
    /// The handoff that this is for. First: see [`starts_with`](Self::starts_with).
    pub handoff: HandoffId,
    /// The router, as in the key.
    pub router_name: String,
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// For people.
    #[serde(default)]
    pub acked_at: u64,
    /// How many requests waited in the stash.
    #[serde(default)]
    pub stashed: u64,
    /// From the stop until nothing was in flight, microseconds.
    #[serde(default)]
    pub drain_us: u64,
    /// From the stop until the first request could reach the new owner, microseconds.
    #[serde(default)]
    pub pause_us: u64,
    /// From the switch until the stash was empty and the gate open, microseconds.
    #[serde(default)]
    pub flush_us: u64,
}

impl RouterCutoverAck {
    /// The router has cut over, and took no time for it.
    pub fn new(router_name: impl Into<String>, partition: PartitionId, handoff: HandoffId) -> Self {
        RouterCutoverAck {
            handoff,
            router_name: router_name.into(),
            partition,
            acked_at: 0,
            stashed: 0,
            drain_us: 0,
            pause_us: 0,
            flush_us: 0,
        }
    }

    /// What the value of an ack for this handoff starts with, as with [`RouterDrainedAck::starts_with`].
    pub fn starts_with(handoff: HandoffId) -> String {
        format!(r#"{{"handoff":{handoff},"#)
    }
}

/// What a pod can say about a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodAckKind {
    /// The old owner: I refuse the partition and nothing of it goes on in me.
    Drained,
    /// The new owner: I have read the log to its end.
    Synced,
    /// The old owner: I have let go of the state.
    Released,
}

impl PodAckKind {
    /// The last part of the ack's key.
    pub fn as_str(self) -> &'static str {
        match self {
            PodAckKind::Drained => "drained",
            PodAckKind::Synced => "synced",
            PodAckKind::Released => "released",
        }
    }

    /// The inverse of [`as_str`](Self::as_str).
    pub fn parse(name: &str) -> Option<Self> {
        [PodAckKind::Drained, PodAckKind::Synced, PodAckKind::Released].into_iter().find(|kind| kind.as_str() == name)
    }
}

/// `pod_acks/{partition}/{pod}/{ack}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodAck {
    /// The pod, as in the key.
    pub pod_name: String,
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// The handoff that this is for.
    pub handoff: HandoffId,
    /// What it says.
    pub ack: PodAckKind,
    /// For people.
    #[serde(default)]
    pub acked_at: u64,
}

impl PodAck {
    /// The pod says this about the handoff.
    pub fn new(pod_name: impl Into<String>, partition: PartitionId, handoff: HandoffId, ack: PodAckKind) -> Self {
        PodAck { pod_name: pod_name.into(), partition, handoff, ack, acked_at: 0 }
    }
}

/// `coordinator/leader`, leased: who leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leader {
    /// The coordinator's name.
    pub holder: String,
    /// Its lease.
    #[serde(default)]
    pub lease_id: LeaseId,
}

/// A record as JSON, ready to be put.
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // Records are structs of numbers, strings and lists with string keys: serialising them to memory has no way to fail.
    serde_json::to_vec(record).expect("a record serialises")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ids::Revision;

    const I12: Incarnation = Incarnation::registered_at(Revision::new(12));
    const H1: HandoffId = HandoffId::created_at(Revision::new(1));
    const H12: HandoffId = HandoffId::created_at(Revision::new(12));
    const H120: HandoffId = HandoffId::created_at(Revision::new(120));
    const E3: Epoch = Epoch::new(3);
    const P7: PartitionId = PartitionId::new(7);

    #[test]
    fn a_pod_that_says_little_gets_the_defaults() {
        let pod: PodRecord = serde_json::from_str(
            r#"{"pod_name":"w","address":"10.0.0.1:80","capabilities":["fence","teleport"],"news":1}"#,
        )
        .unwrap();
        assert_eq!(pod.weight, Thousandths(1000));
        assert_eq!(pod.status, PodStatus::Ready);
        assert_eq!(pod.capabilities, Capabilities { fence: true, ..Capabilities::default() });
    }

    #[test]
    fn settings_keep_what_they_do_not_know_when_they_are_written_again() {
        for (text, partitioner) in [
            (r#"{"partitions":64,"partitioner":null}"#, None),
            (r#"{"partitions":64,"partitioner":{"number":true}}"#, Some(Partitioner::NUMBER)),
            (
                r#"{"partitions":64,"partitioner":{"key":"path:/persons/{key}","hash":"murmur2"},"news":[1]}"#,
                Some(Partitioner::Key { key: "path:/persons/{key}".into(), hash: "murmur2".into() }),
            ),
            (
                r#"{"partitions":64,"partitioner":{"range":4}}"#,
                Some(Partitioner::Unknown(serde_json::json!({ "range": 4 }))),
            ),
        ] {
            let config: KeyspaceConfig = serde_json::from_str(text).unwrap();
            assert_eq!(config.partitioner, partitioner);
            assert_eq!(String::from_utf8(encode(&config)).unwrap(), text);
        }
    }

    #[test]
    fn records_have_the_wire_form_of_the_protocol() {
        let handoff = Handoff {
            partition: P7,
            old_owner: None,
            old_incarnation: Incarnation::NONE,
            new_owner: "w-1".into(),
            new_incarnation: I12,
            phase: Phase::Warming,
            epoch: E3,
            mode: Mode::Barrier,
            started_at: 1,
            phase_entered_at: 2,
            reason: "first placement".into(),
            work_has_ended: false,
        };
        assert_eq!(
            String::from_utf8(encode(&handoff)).unwrap(),
            r#"{"partition":7,"old_owner":null,"old_incarnation":0,"new_owner":"w-1","new_incarnation":12,"phase":"Warming","epoch":3,"mode":"barrier","started_at":1,"phase_entered_at":2,"reason":"first placement"}"#
        );
        assert_eq!(serde_json::to_string(&Capabilities::ALL).unwrap(), r#"["sync","drained","released","fence"]"#);
    }

    #[test]
    fn a_word_of_cutover_is_known_by_its_first_bytes() {
        let said = |handoff| {
            let (router_name, partition) = ("r".to_owned(), P7);
            let (acked_at, stashed, drain_us, pause_us, flush_us) = (1, 2, 3, 4, 5);
            let ack =
                RouterCutoverAck { handoff, router_name, partition, acked_at, stashed, drain_us, pause_us, flush_us };
            encode(&ack)
        };
        let known = |value: Vec<u8>| value.starts_with(RouterCutoverAck::starts_with(H12).as_bytes());
        assert!(known(said(H12)));
        assert!(!known(said(H1)) && !known(said(H120)));
    }

    #[test]
    fn a_word_of_drained_is_known_by_its_first_bytes() {
        let said = |handoff, gave_up| {
            let (router_name, partition, acked_at, severed) = ("r".to_owned(), P7, 1, 0);
            encode(&RouterDrainedAck { handoff, gave_up, router_name, partition, acked_at, severed })
        };
        let known = |value: Vec<u8>| value.starts_with(RouterDrainedAck::starts_with(H12).as_bytes());
        assert!(known(said(H12, false)));
        assert!(!known(said(H12, true)) && !known(said(H1, false)) && !known(said(H120, false)));
    }

    #[test]
    fn odd_weights_become_numbers_that_planning_can_use() {
        for (text, expected) in [("0.5", 500), ("-3", 0), ("1e300", u32::MAX)] {
            assert_eq!(serde_json::from_str::<Thousandths>(text).unwrap(), Thousandths(expected));
        }
    }
}
