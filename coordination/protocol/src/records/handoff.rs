//! Who owns a partition, and its move from one pod to another.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Incarnation, PartitionId};

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
