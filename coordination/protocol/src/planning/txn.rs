//! Builds the coordinator's transactions and their guards.
//!
//! # Invariants
//!
//! Every transaction of the coordinator fails, however old its action is by then, if
//!
//! * its [`Authority`] has ended,
//! * the partition's record or assignment is not the one that the decision saw, or
//! * the reason for the action no longer holds.

use super::actions::{CancelReason, ObservedHandoff, PlannedWrite, all};
use super::{answers, checkpoints};
use crate::authority::Authority;
use crate::handoff::flip::flip;
use crate::handoff::history::{HandoffEnding, end_handoff};
use crate::ids::Revision;
use crate::records::{Assignment, Handoff, HandoffEnd, Mode, Phase, encode};
use crate::txn::{Compare, Keys, Op, Txn};
use crate::view::View;

/// Returns the transaction that carries `action` out, for the holder of `authority`.
///
/// Returns `None` unless the view shows that very authority. The view provides only the names of keys. The guards come from what the
/// action was decided from, so the action may be carried out under a later view. `now_ms` is informational.
pub fn txn(view: &View, action: &PlannedWrite, authority: &Authority, now_ms: u64) -> Option<Txn> {
    if !authority.is_shown_by(view) {
        return None;
    }
    let keys = view.keys();
    let mut txn = Txn::guarded(authority.guards(keys), []);
    match action {
        PlannedWrite::WriteConfig { config, seen } => {
            txn.when.push(Compare::unchanged_since(keys.config(), *seen));
            txn.then.push(Op::put(keys.config(), encode(config)));
        }
        PlannedWrite::Create { handoff, cause, assignment, seen } => {
            // An existing record is never overwritten: the put would keep its identity and inherit its acks.
            txn.when.push(Compare::unchanged_since(keys.handoff(handoff.partition), Revision::ZERO));
            txn.when.push(Compare::unchanged_since(keys.assignment(handoff.partition), *assignment));
            txn.when.push(Compare::created_at(keys.pod(&handoff.new_owner), handoff.new_incarnation.revision()));
            // Another write of this decision may have begun the move, and it may be over: the epoch was given then.
            txn.when.push(Compare::none_created_after(keys.ended_handoffs(handoff.partition), *seen));
            if handoff.mode == Mode::Independent {
                txn.when.push(Compare::none_created_after(keys.routers(), *seen));
            }
            let (started_at, phase_entered_at, cause) = (now_ms, now_ms, cause.as_str().to_owned());
            let record = Handoff { started_at, phase_entered_at, cause, ..handoff.clone() };
            txn.then.push(Op::put(keys.handoff(handoff.partition), encode(&record)));
        }
        PlannedWrite::Assign { assignment, seen } => assign(view, assignment, *seen, &mut txn),
        PlannedWrite::Cancel { observed, reason, back_offs } => {
            txn.when.extend(still(view, observed));
            if *reason == CancelReason::NewOwnerDead {
                txn.when.push(new_owner_is_gone(view, observed));
            }
            let (result, cause) = (HandoffEnd::Cancelled, reason.as_str());
            let back_offs = back_offs.iter().map(|back_off| back_off.recorded(now_ms)).collect();
            let ending = HandoffEnding { result, cause, reason: reason.to_string(), back_offs };
            txn.then = end_handoff(view, &observed.handoff, ending, now_ms);
            if let CancelReason::Operator { answered, wish } = reason {
                answers::cancel(view, answered, *wish, now_ms, &mut txn);
            }
            if let CancelReason::NewOwnerFailed { wish: Some(wish), .. } = reason {
                answers::fail(view, observed.partition(), wish, now_ms, &mut txn);
            }
        }
        PlannedWrite::Abandon { observed } => {
            txn.when.extend(still(view, observed));
            txn.when.push(new_owner_is_gone(view, observed));
            let handoff = &observed.handoff.value;
            let reason = "the new owner died after it had taken over".to_owned();
            let ending = HandoffEnding::new(HandoffEnd::Abandoned, CancelReason::NewOwnerDead.as_str(), reason);
            txn.then = end_handoff(view, &observed.handoff, ending, now_ms);
            // In `independent` mode the assignment flips last, and requests may have reached the new owner before.
            if handoff.phase < Phase::Switching {
                txn.then.extend(flip(view, handoff).map(|(_, put)| put));
            }
        }
        PlannedWrite::Delete { observed, waiting } => {
            txn.when.extend(still(view, observed));
            let reason = format!("ended without waiting for {}", all(waiting));
            let ending = HandoffEnding::new(HandoffEnd::Completed, "not_released", reason);
            txn.then = end_handoff(view, &observed.handoff, ending, now_ms);
        }
        PlannedWrite::Sweep { partition } => {
            txn.when.push(Compare::unchanged_since(keys.handoff(*partition), Revision::ZERO));
            txn.then.extend(keys.acks_of(*partition).map(|prefix| Op::Delete(Keys::Prefix(prefix))));
        }
        PlannedWrite::ForgetCheckpoints { checkpoints: beyond, config } => {
            checkpoints::forget(view, beyond, *config, &mut txn);
        }
        PlannedWrite::Answer { answered, pin } => answers::answer(view, answered, pin.as_ref(), now_ms, &mut txn),
        PlannedWrite::DropPin { partition, pin, seen } => answers::drop_pin(view, *partition, pin, *seen, &mut txn),
        PlannedWrite::ForgetOperations { operations } => answers::forget(view, operations, &mut txn),
    }
    Some(txn)
}

/// Assigns a partition that has no owner, and has had none by a handoff since the decision: its epoch was given then.
fn assign(view: &View, assignment: &Assignment, seen: Revision, txn: &mut Txn) {
    let (keys, partition) = (view.keys(), assignment.partition);
    txn.when.push(Compare::unchanged_since(keys.handoff(partition), Revision::ZERO));
    txn.when.push(Compare::unchanged_since(keys.assignment(partition), Revision::ZERO));
    txn.when.push(Compare::created_at(keys.pod(&assignment.owner), assignment.incarnation.revision()));
    txn.when.push(Compare::none_created_after(keys.ended_handoffs(partition), seen));
    txn.then.push(Op::put(keys.assignment(partition), encode(assignment)));
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
