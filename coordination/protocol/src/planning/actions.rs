//! Builds the coordinator's transactions and their guards.
//!
//! An [`Action`] carries the revisions and incarnations that it was decided from; [`txn`] turns them into guards.
//!
//! # Invariants
//!
//! Every transaction of the coordinator fails, however old its action is by then, if
//!
//! * its [`Authority`] has ended,
//! * the partition's record or assignment is not the one that the decision saw, or
//! * the reason for the action no longer holds.

use std::fmt;
use std::time::Duration;

use super::answers::{self, Answered, FailedMove};
use super::budget::MoveCause;
use crate::authority::Authority;
use crate::handoff::advance::{PendingOn, flip};
use crate::handoff::history::{Ending, end_handoff};
use crate::ids::{PartitionId, Revision};
use crate::records::{Handoff, HandoffEnd, KeyspaceConfig, Mode, Operation, PastBackOff, Phase, Pin, Resting, encode};
use crate::txn::{Compare, Keys, Op, Txn};
use crate::view::{Versioned, View};

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
pub struct BackOff {
    /// Whom it concerns. The pod is the new owner of the cancelled handoff.
    pub of: Resting,
    /// Failures in a row.
    pub failures: u32,
    /// How long it still lasts.
    pub remains: Duration,
}

impl BackOff {
    fn recorded(self, now_ms: u64) -> PastBackOff {
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
        answered: Box<Answered>,
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
pub enum Action {
    /// Write the settings of the keyspace.
    WriteConfig {
        /// The new settings.
        config: KeyspaceConfig,
        /// The `mod_revision` of the settings they replace; 0 if there are none.
        seen: Revision,
    },
    /// Begin a move. The times in the record are filled in by [`txn`].
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
    /// Cancel a move; the old owner keeps the partition.
    Cancel {
        /// The handoff.
        observed: ObservedHandoff,
        /// The reason.
        reason: CancelReason,
        /// The back-offs that are in force from then on.
        back_offs: Vec<BackOff>,
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
        answered: Answered,
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

impl Action {
    /// Returns the partition that the action is about, if there is one.
    pub fn partition(&self) -> Option<PartitionId> {
        match self {
            Action::WriteConfig { .. } | Action::ForgetOperations { .. } | Action::ForgetCheckpoints { .. } => None,
            Action::Answer { answered, .. } => answered.operation.request.partition(),
            Action::DropPin { partition, .. } => Some(*partition),
            Action::Create { handoff, .. } => Some(handoff.partition),
            Action::Cancel { observed, .. } | Action::Abandon { observed } | Action::Delete { observed, .. } => {
                Some(observed.partition())
            }
            Action::Sweep { partition } => Some(*partition),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::WriteConfig { config, .. } => {
                write!(out, "set the keyspace to {} partitions", config.partitions)?;
                config.planning.as_ref().map_or(Ok(()), |planning| write!(out, ", planned by {planning}"))
            }
            Action::Create { handoff, .. } => {
                let (partition, from, to) = (handoff.partition, &handoff.old_owner, &handoff.new_owner);
                let from = from.as_deref().unwrap_or("nobody");
                write!(out, "move partition {partition} from {from} to {to}: {}", handoff.reason)
            }
            Action::Cancel { observed, reason, .. } => {
                let (partition, to) = (observed.partition(), &observed.handoff.value.new_owner);
                write!(out, "cancel the move of partition {partition} to {to}: {reason}")
            }
            Action::Abandon { observed } => {
                let (partition, to) = (observed.partition(), &observed.handoff.value.new_owner);
                write!(out, "begin the move of partition {partition} anew: {to} died after it had taken over")
            }
            Action::Delete { observed, waiting } => {
                let partition = observed.partition();
                write!(out, "end the move of partition {partition} without waiting for {}", all(waiting))
            }
            Action::Answer { answered, .. } => {
                let Operation { request, origin, answer } = &answered.operation;
                let (accepted, text) = answer.as_ref().map_or((false, ""), |it| (it.accepted, it.text.as_str()));
                let verdict = if accepted { "accept" } else { "refuse" };
                write!(out, "{verdict} operation {} of {origin}, {request}: {text}", answered.id)
            }
            Action::DropPin { partition, pin, .. } => {
                let to = &pin.to;
                write!(out, "no longer keep partition {partition} on {to}: that life of the pod is over")
            }
            Action::ForgetOperations { operations } => write!(out, "delete {} old operations", operations.len()),
            Action::ForgetCheckpoints { checkpoints, .. } => {
                write!(out, "delete {} checkpoints of partitions that the keyspace does not have", checkpoints.len())
            }
            Action::Sweep { partition } => write!(out, "delete acks of partition {partition} whose handoff is gone"),
        }
    }
}

/// Returns the transaction that carries `action` out, for the holder of `authority`.
///
/// Returns `None` unless the view shows that very authority. The view provides only the names of keys. The guards come from what the action was decided from, so the action may be carried
/// out under a later view. `now_ms` is informational.
pub fn txn(view: &View, action: &Action, authority: &Authority, now_ms: u64) -> Option<Txn> {
    if !authority.is_shown_by(view) {
        return None;
    }
    let keys = view.keys();
    let mut when = authority.guards(keys);
    let then = match action {
        Action::WriteConfig { config, seen } => {
            when.push(Compare::unchanged_since(keys.config(), *seen));
            vec![put(keys.config(), encode(config))]
        }
        Action::Create { handoff, cause, assignment, seen } => {
            // An existing record is never overwritten: the put would keep its identity and inherit its acks.
            when.push(Compare::unchanged_since(keys.handoff(handoff.partition), Revision::ZERO));
            when.push(Compare::unchanged_since(keys.assignment(handoff.partition), *assignment));
            when.push(Compare::created_at(keys.pod(&handoff.new_owner), handoff.new_incarnation.revision()));
            // Another write of this decision may have begun the move, and it may be over: the epoch was given then.
            when.push(Compare::none_created_after(keys.ended_handoffs(handoff.partition), *seen));
            if handoff.mode == Mode::Independent {
                when.push(Compare::none_created_after(keys.routers(), *seen));
            }
            let (started_at, phase_entered_at, cause) = (now_ms, now_ms, cause.as_str().to_owned());
            let record = Handoff { started_at, phase_entered_at, cause, ..handoff.clone() };
            vec![put(keys.handoff(handoff.partition), encode(&record))]
        }
        Action::Cancel { observed, reason, back_offs } => {
            when.extend(still(view, observed));
            if *reason == CancelReason::NewOwnerDead {
                when.push(new_owner_is_gone(view, observed));
            }
            let (result, cause) = (HandoffEnd::Cancelled, reason.as_str());
            let back_offs = back_offs.iter().map(|back_off| back_off.recorded(now_ms)).collect();
            let ending = Ending { result, cause, reason: reason.to_string(), back_offs };
            let mut then = end_handoff(view, &observed.handoff, ending, now_ms);
            if let CancelReason::Operator { answered, wish } = reason {
                answers::cancel(view, answered, *wish, now_ms, &mut when, &mut then);
            }
            if let CancelReason::NewOwnerFailed { wish: Some(wish), .. } = reason {
                answers::fail(view, observed.partition(), wish, now_ms, &mut when, &mut then);
            }
            then
        }
        Action::Abandon { observed } => {
            when.extend(still(view, observed));
            when.push(new_owner_is_gone(view, observed));
            let handoff = &observed.handoff.value;
            let reason = "the new owner died after it had taken over".to_owned();
            let ending = Ending::new(HandoffEnd::Abandoned, CancelReason::NewOwnerDead.as_str(), reason);
            let mut then = end_handoff(view, &observed.handoff, ending, now_ms);
            // In `independent` mode the assignment flips last, and requests may have reached the new owner before.
            if handoff.phase < Phase::Switching {
                then.extend(flip(view, handoff).map(|(_, put)| put));
            }
            then
        }
        Action::Delete { observed, waiting } => {
            when.extend(still(view, observed));
            let reason = format!("ended without waiting for {}", all(waiting));
            end_handoff(view, &observed.handoff, Ending::new(HandoffEnd::Completed, "not_released", reason), now_ms)
        }
        Action::Sweep { partition } => {
            when.push(Compare::unchanged_since(keys.handoff(*partition), Revision::ZERO));
            keys.acks_of(*partition).map(|prefix| Op::Delete(Keys::Prefix(prefix))).into()
        }
        Action::ForgetCheckpoints { checkpoints, config } => {
            super::checkpoints::forget(view, checkpoints, *config, &mut when)
        }
        Action::Answer { answered, pin } => answers::answer(view, answered, pin.as_ref(), now_ms, &mut when),
        Action::DropPin { partition, pin, seen } => answers::drop_pin(view, *partition, pin, *seen, &mut when),
        Action::ForgetOperations { operations } => answers::forget(view, operations, &mut when),
    };
    Some(Txn { when, then, otherwise: None })
}

/// Returns the guards that record and assignment are those that the decision saw. The record includes its phase: a
/// handoff that was seen before the point of no return has not passed it.
fn still(view: &View, observed: &ObservedHandoff) -> [Compare; 2] {
    let (keys, partition) = (view.keys(), observed.partition());
    [
        Compare::unchanged_since(keys.handoff(partition), observed.handoff.mod_revision),
        Compare::unchanged_since(keys.assignment(partition), observed.assignment),
    ]
}

/// Returns the guard that no key of the new owner's incarnation exists. A later life under its name is no obstacle.
fn new_owner_is_gone(view: &View, observed: &ObservedHandoff) -> Compare {
    let handoff = &observed.handoff.value;
    Compare::not_created_at(view.keys().pod(&handoff.new_owner), handoff.new_incarnation.revision())
}

pub(super) fn put(key: String, value: Vec<u8>) -> Op {
    Op::Put { key, value, lease: None }
}
