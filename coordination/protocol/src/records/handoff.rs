//! The ownership of a partition, and its move from one pod to another.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Incarnation, PartitionId};

/// The state of an assignment. There is only one; the field leaves room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum AssignmentStatus {
    /// The owner serves the partition.
    #[default]
    Active,
}

/// `assignments/{partition}`: the owner of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Assignment {
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// The owning pod.
    pub owner: String,
    /// The life of the owner: a pod of this name with another incarnation does not own the partition.
    pub incarnation: Incarnation,
    /// Always `Active`.
    #[serde(default)]
    pub status: AssignmentStatus,
    /// The epoch of this ownership.
    pub epoch: Epoch,
    /// The owner's bound on the work of a request, as of its takeover of the partition. It outlives the owner's record.
    #[serde(default)]
    pub work_ends_within_ms: Option<u64>,
}

impl Assignment {
    /// Returns the assignment to this life of a pod, without a bound on its work.
    pub fn new(partition: PartitionId, owner: impl Into<String>, incarnation: Incarnation, epoch: Epoch) -> Self {
        let (owner, status) = (owner.into(), AssignmentStatus::Active);
        Assignment { partition, owner, incarnation, status, epoch, work_ends_within_ms: None }
    }
}

/// The phases of a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// The new owner copies state while the old one serves.
    Warming,
    /// Routers stop, stash and drain.
    Ready,
    /// The old owner confirms that its work has ended, and the new one reads the tail.
    Syncing,
    /// The assignment has flipped; routers switch and flush. There is no way back.
    Switching,
    /// All routers have cut over; the old owner releases its state.
    Complete,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Phase; 5] = [Phase::Warming, Phase::Ready, Phase::Syncing, Phase::Switching, Phase::Complete];

    /// Returns the phase's name in metrics and logs.
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

/// A phase that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PastPhase {
    /// The phase.
    pub phase: Phase,
    /// How long it lasted, in milliseconds: from the clock of the participant that began it to the clock of the one that
    /// ended it. 0 if the second clock was behind the first.
    pub ms: u64,
}

/// The ways in which several routers cut over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All routers drain before any of them switches. The default, and the mode that the guarantee is given for.
    #[default]
    Barrier,
    /// Each router switches by itself. Only for deployments with a single router.
    Independent,
}

impl Mode {
    /// All modes, by their names in the configuration file.
    pub const NAMES: &[(&str, Self)] = &[("barrier", Mode::Barrier), ("independent", Mode::Independent)];
}

/// `handoffs/{partition}`: one move of one partition. Its identity is the `create_revision` of its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Handoff {
    /// The partition, as in the key.
    pub partition: PartitionId,
    /// The pod that gives the partition up. `None` for the very first placement.
    #[serde(default)]
    pub old_owner: Option<String>,
    /// The life of the old owner; 0 without one.
    #[serde(default)]
    pub old_incarnation: Incarnation,
    /// The pod that gets the partition.
    pub new_owner: String,
    /// The life of the new owner.
    pub new_incarnation: Incarnation,
    /// The phase of the move.
    pub phase: Phase,
    /// The epoch that the new owner will have.
    pub epoch: Epoch,
    /// How routers cut over.
    #[serde(default)]
    pub mode: Mode,
    /// Informational.
    #[serde(default)]
    pub started_at: u64,
    /// Informational.
    #[serde(default)]
    pub phase_entered_at: u64,
    /// Why the move was planned, in words.
    #[serde(default)]
    pub reason: String,
    /// A coordinator has waited out the bound on the work of the dead old owner: the log is at rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub work_has_ended: bool,
    /// The kind of reason for which the move was planned. Informational.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// The phases that have ended. Informational.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<PastPhase>,
}

impl Handoff {
    /// Returns the first placement of a partition on this life of a pod, in its first phase, with the barrier.
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
            cause: String::new(),
            past: Vec::new(),
        }
    }

    /// Returns whether requests may have reached the new owner, so that there is no way back to the old one.
    pub fn is_past_no_return(&self) -> bool {
        match self.mode {
            Mode::Barrier => self.phase >= Phase::Switching,
            Mode::Independent => self.phase >= Phase::Ready,
        }
    }

    /// Returns the same handoff, from this life of the old owner.
    pub fn taken_from(self, owner: impl Into<String>, incarnation: Incarnation) -> Self {
        Handoff { old_owner: Some(owner.into()), old_incarnation: incarnation, ..self }
    }

    /// Returns the same handoff in another phase, which begins at `now`. The phase that ends joins those that have ended,
    /// with the time between its beginning and `now`.
    pub fn entering(mut self, phase: Phase, now: u64) -> Self {
        self.past.push(PastPhase { phase: self.phase, ms: now.saturating_sub(self.phase_entered_at) });
        Handoff { phase, phase_entered_at: now, ..self }
    }
}
