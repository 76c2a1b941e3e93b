//! The coordinator's writes, before they become transactions.
//!
//! An [`PlannedWrite`] carries the revisions and incarnations that it was decided from. [`txn`](super::txn()) turns them into
//! guards.

use std::fmt;
use std::time::Duration;

use super::answers::{AnsweredOperation, FailedMove};
use super::budget::MoveCause;
use crate::handoff::advance::PendingOn;
use crate::ids::{PartitionId, Revision};
use crate::records::{Assignment, BackOffSubject, Handoff, KeyspaceConfig, Operation, PastBackOff, Phase, Pin};
use crate::view::Versioned;

/// A handoff as a decision saw it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObservedHandoff {
    /// The handoff's record.
    pub handoff: Versioned<Handoff>,
    /// The `mod_revision` of the partition's assignment; 0 if there was none.
    pub assignment: Revision,
}

impl ObservedHandoff {
    /// Returns the partition that the handoff moves.
    pub fn partition(&self) -> PartitionId {
        self.handoff.value.partition
    }
}

/// A back-off after a cancel, as its decision saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DecidedBackOff {
    /// Whom it concerns. The pod is the new owner of the cancelled handoff.
    pub of: BackOffSubject,
    /// Failures in a row.
    pub failures: u32,
    /// How long it still lasts.
    pub remains: Duration,
}

impl DecidedBackOff {
    pub(super) fn recorded(self, now_ms: u64) -> PastBackOff {
        let remains = u64::try_from(self.remains.as_millis()).unwrap_or(u64::MAX);
        PastBackOff { of: self.of, failures: self.failures, until: now_ms.saturating_add(remains) }
    }
}

/// Why a handoff was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// The new owner is dead.
    NewOwnerDead,
    /// The new owner began to drain while it was warming.
    NewOwnerDraining,
    /// The new owner reported that it cannot take the partition.
    NewOwnerFailed {
        /// The reason, as the pod reported it.
        reason: String,
        /// The operator's move that thereby fails, if the handoff was one.
        wish: Option<Box<FailedMove>>,
    },
    /// The new owner was not warm in time.
    WarmTimeout,
    /// The new owner was not warm in half of the time for which routers hold requests, and another pod may be sooner.
    NewOwnerSlow,
    /// The phase lasted too long.
    PhaseTimeout {
        /// The phase that lasted too long.
        phase: Phase,
        /// What the handoff was waiting for.
        waiting: Vec<PendingOn>,
    },
    /// The phase lasted too long, and the store refused writes meanwhile.
    StoreRefused {
        /// The phase.
        phase: Phase,
    },
    /// A router could not drain.
    GaveUp {
        /// The router.
        router: String,
    },
    /// Another router registered while an `independent` handoff was warming.
    SecondRouter,
    /// The keyspace has no such partition.
    BeyondConfig,
    /// The assignment is not the one that the handoff was planned from.
    AssignmentChanged,
    /// The handoff's place in the budget is needed for a partition without a live owner.
    MoreUrgent,
    /// An operator cancelled it.
    Operator {
        /// The operation.
        answered: Box<AnsweredOperation>,
        /// The `mod_revision` of the pin if an operator asked for the move. The pin ends with the move.
        wish: Option<Revision>,
    },
}

impl CancelReason {
    /// The names of all reasons.
    pub const NAMES: [&str; 13] = [
        "new_owner_dead",
        "new_owner_draining",
        "new_owner_failed",
        "warm_timeout",
        "new_owner_slow",
        "phase_timeout",
        "store_refused",
        "gave_up",
        "second_router",
        "beyond_config",
        "assignment_changed",
        "more_urgent",
        "operator",
    ];

    /// Returns the reason's name in metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            CancelReason::NewOwnerDead => "new_owner_dead",
            CancelReason::NewOwnerDraining => "new_owner_draining",
            CancelReason::NewOwnerFailed { .. } => "new_owner_failed",
            CancelReason::WarmTimeout => "warm_timeout",
            CancelReason::NewOwnerSlow => "new_owner_slow",
            CancelReason::PhaseTimeout { .. } => "phase_timeout",
            CancelReason::StoreRefused { .. } => "store_refused",
            CancelReason::GaveUp { .. } => "gave_up",
            CancelReason::SecondRouter => "second_router",
            CancelReason::BeyondConfig => "beyond_config",
            CancelReason::AssignmentChanged => "assignment_changed",
            CancelReason::MoreUrgent => "more_urgent",
            CancelReason::Operator { .. } => "operator",
        }
    }
}

impl fmt::Display for CancelReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CancelReason::NewOwnerDead => out.write_str("the new owner is dead"),
            CancelReason::NewOwnerDraining => out.write_str("the new owner is draining"),
            CancelReason::NewOwnerFailed { reason, .. } => {
                write!(out, "the new owner cannot take the partition: {reason}")
            }
            CancelReason::WarmTimeout => out.write_str("the new owner did not get warm in time"),
            CancelReason::NewOwnerSlow => {
                out.write_str("the new owner warms without progress, requests are held, and another pod may be sooner")
            }
            CancelReason::PhaseTimeout { phase, waiting } => {
                write!(out, "{} lasted too long, waiting for {}", phase.as_str(), all(waiting))
            }
            CancelReason::StoreRefused { phase } => {
                write!(out, "{} lasted too long, because the store refused writes", phase.as_str())
            }
            CancelReason::GaveUp { router } => write!(out, "router {router} could not drain"),
            CancelReason::SecondRouter => {
                out.write_str("independent mode needs a single router, and another one registered")
            }
            CancelReason::BeyondConfig => out.write_str("the keyspace has no such partition"),
            CancelReason::AssignmentChanged => {
                out.write_str("the assignment is not the one that the move started from")
            }
            CancelReason::Operator { answered, .. } => write!(out, "cancelled by {}", answered.operation.origin),
            CancelReason::MoreUrgent => out.write_str("its place is needed for a partition that nobody alive owns"),
        }
    }
}

/// Returns everything that is waited for, in words.
pub(super) fn all(waiting: &[PendingOn]) -> String {
    waiting.iter().map(PendingOn::to_string).collect::<Vec<_>>().join(", ")
}

/// One write of the coordinator, with what it was decided from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PlannedWrite {
    /// Write the settings of the keyspace.
    WriteConfig {
        /// The new settings.
        config: KeyspaceConfig,
        /// The `mod_revision` of the settings they replace; 0 if there are none.
        seen: Revision,
    },
    /// Begin a move. The times in the record are filled in by [`txn`](super::txn()).
    Create {
        /// The record; its `reason` explains the move in words.
        handoff: Handoff,
        /// The kind of reason.
        cause: MoveCause,
        /// The `mod_revision` of the assignment that the move starts from; 0 if there is none.
        assignment: Revision,
        /// The revision of the view that the decision saw.
        seen: Revision,
    },
    /// Assign a partition of a new keyspace to its first owner, which has nothing to warm.
    Assign {
        /// The assignment.
        assignment: Assignment,
        /// The revision of the view that the decision saw.
        seen: Revision,
    },
    /// Cancel a move; the old owner keeps the partition.
    Cancel {
        /// The handoff.
        observed: ObservedHandoff,
        /// The reason.
        reason: CancelReason,
        /// The back-offs that are in force from then on.
        back_offs: Vec<DecidedBackOff>,
    },
    /// End a move whose new owner died past the point of no return. The new owner becomes a dead owner, from which
    /// the next move starts.
    Abandon {
        /// The handoff.
        observed: ObservedHandoff,
    },
    /// Delete a completed move whose old owner does not acknowledge that it has released.
    Delete {
        /// The handoff.
        observed: ObservedHandoff,
        /// What the handoff was still waiting for.
        waiting: Vec<PendingOn>,
    },
    /// Delete acks whose handoff is gone.
    Sweep {
        /// The partition of the acks.
        partition: PartitionId,
    },
    /// Delete checkpoints of partitions that the keyspace does not have.
    ForgetCheckpoints {
        /// Their partitions, each with the checkpoint's `mod_revision`.
        checkpoints: Vec<(PartitionId, Revision)>,
        /// The `mod_revision` of the settings.
        config: Revision,
    },
    /// Answer an operation.
    Answer {
        /// The operation.
        answered: AnsweredOperation,
        /// The requested pin, and the `mod_revision` of the pin that it replaces, or 0.
        pin: Option<(Pin, Revision)>,
    },
    /// Delete a pin that ended with an incarnation of its pod.
    DropPin {
        /// The partition.
        partition: PartitionId,
        /// The pin.
        pin: Pin,
        /// When the pin was last written.
        seen: Revision,
    },
    /// Delete old operations.
    ForgetOperations {
        /// Their ids, each with its `mod_revision`.
        operations: Vec<(String, Revision)>,
    },
}

impl PlannedWrite {
    /// Returns the partition that the action is about, if there is one.
    pub fn partition(&self) -> Option<PartitionId> {
        match self {
            PlannedWrite::WriteConfig { .. }
            | PlannedWrite::ForgetOperations { .. }
            | PlannedWrite::ForgetCheckpoints { .. } => None,
            PlannedWrite::Answer { answered, .. } => answered.operation.request.partition(),
            PlannedWrite::DropPin { partition, .. } => Some(*partition),
            PlannedWrite::Create { handoff, .. } => Some(handoff.partition),
            PlannedWrite::Assign { assignment, .. } => Some(assignment.partition),
            PlannedWrite::Cancel { observed, .. }
            | PlannedWrite::Abandon { observed }
            | PlannedWrite::Delete { observed, .. } => Some(observed.partition()),
            PlannedWrite::Sweep { partition } => Some(*partition),
        }
    }
}

impl fmt::Display for PlannedWrite {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlannedWrite::WriteConfig { config, .. } => {
                write!(out, "set the keyspace to {} partitions", config.partitions)?;
                config.planning.as_ref().map_or(Ok(()), |planning| write!(out, ", planned by {planning}"))
            }
            PlannedWrite::Create { handoff, .. } => {
                let (partition, from, to) = (handoff.partition, &handoff.old_owner, &handoff.new_owner);
                let from = from.as_deref().unwrap_or("nobody");
                write!(out, "move partition {partition} from {from} to {to}: {}", handoff.reason)
            }
            PlannedWrite::Assign { assignment: Assignment { partition, owner, .. }, .. } => {
                write!(out, "assign partition {partition} to {owner}, which has nothing to warm: first placement")
            }
            PlannedWrite::Cancel { observed, reason, .. } => {
                let (partition, to) = (observed.partition(), &observed.handoff.value.new_owner);
                write!(out, "cancel the move of partition {partition} to {to}: {reason}")
            }
            PlannedWrite::Abandon { observed } => {
                let (partition, to) = (observed.partition(), &observed.handoff.value.new_owner);
                write!(out, "begin the move of partition {partition} anew: {to} died after it had taken over")
            }
            PlannedWrite::Delete { observed, waiting } => {
                let partition = observed.partition();
                write!(out, "end the move of partition {partition} without waiting for {}", all(waiting))
            }
            PlannedWrite::Answer { answered, .. } => {
                let Operation { request, origin, answer } = &answered.operation;
                let (accepted, text) = answer.as_ref().map_or((false, ""), |it| (it.accepted, it.text.as_str()));
                let verdict = if accepted { "accept" } else { "refuse" };
                write!(out, "{verdict} operation {} of {origin}, {request}: {text}", answered.id)
            }
            PlannedWrite::DropPin { partition, pin, .. } => {
                let to = &pin.to;
                write!(out, "no longer keep partition {partition} on {to}: that life of the pod is over")
            }
            PlannedWrite::ForgetOperations { operations } => write!(out, "delete {} old operations", operations.len()),
            PlannedWrite::ForgetCheckpoints { checkpoints, .. } => {
                write!(out, "delete {} checkpoints of partitions that the keyspace does not have", checkpoints.len())
            }
            PlannedWrite::Sweep { partition } => {
                write!(out, "delete acks of partition {partition} whose handoff is gone")
            }
        }
    }
}
