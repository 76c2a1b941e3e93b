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
use crate::handoff::advance::flip;
use crate::handoff::history::{HandoffEnding, end_handoff};
use crate::ids::Revision;
use crate::records::{Handoff, HandoffEnd, Mode, Phase, encode};
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
    let mut when = authority.guards(keys);
    let then = match action {
        PlannedWrite::WriteConfig { config, seen } => {
            when.push(Compare::unchanged_since(keys.config(), *seen));
            vec![Op::put(keys.config(), encode(config))]
        }
        PlannedWrite::Create { handoff, cause, assignment, seen } => {
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
            vec![Op::put(keys.handoff(handoff.partition), encode(&record))]
        }
        PlannedWrite::Cancel { observed, reason, back_offs } => {
            when.extend(still(view, observed));
            if *reason == CancelReason::NewOwnerDead {
                when.push(new_owner_is_gone(view, observed));
            }
            let (result, cause) = (HandoffEnd::Cancelled, reason.as_str());
            let back_offs = back_offs.iter().map(|back_off| back_off.recorded(now_ms)).collect();
            let ending = HandoffEnding { result, cause, reason: reason.to_string(), back_offs };
            let mut then = end_handoff(view, &observed.handoff, ending, now_ms);
            if let CancelReason::Operator { answered, wish } = reason {
                answers::cancel(view, answered, *wish, now_ms, &mut when, &mut then);
            }
            if let CancelReason::NewOwnerFailed { wish: Some(wish), .. } = reason {
                answers::fail(view, observed.partition(), wish, now_ms, &mut when, &mut then);
            }
            then
        }
        PlannedWrite::Abandon { observed } => {
            when.extend(still(view, observed));
            when.push(new_owner_is_gone(view, observed));
            let handoff = &observed.handoff.value;
            let reason = "the new owner died after it had taken over".to_owned();
            let ending = HandoffEnding::new(HandoffEnd::Abandoned, CancelReason::NewOwnerDead.as_str(), reason);
            let mut then = end_handoff(view, &observed.handoff, ending, now_ms);
            // In `independent` mode the assignment flips last, and requests may have reached the new owner before.
            if handoff.phase < Phase::Switching {
                then.extend(flip(view, handoff).map(|(_, put)| put));
            }
            then
        }
        PlannedWrite::Delete { observed, waiting } => {
            when.extend(still(view, observed));
            let reason = format!("ended without waiting for {}", all(waiting));
            let ending = HandoffEnding::new(HandoffEnd::Completed, "not_released", reason);
            end_handoff(view, &observed.handoff, ending, now_ms)
        }
        PlannedWrite::Sweep { partition } => {
            when.push(Compare::unchanged_since(keys.handoff(*partition), Revision::ZERO));
            keys.acks_of(*partition).map(|prefix| Op::Delete(Keys::Prefix(prefix))).into()
        }
        PlannedWrite::ForgetCheckpoints { checkpoints: beyond, config } => {
            checkpoints::forget(view, beyond, *config, &mut when)
        }
        PlannedWrite::Answer { answered, pin } => answers::answer(view, answered, pin.as_ref(), now_ms, &mut when),
        PlannedWrite::DropPin { partition, pin, seen } => answers::drop_pin(view, *partition, pin, *seen, &mut when),
        PlannedWrite::ForgetOperations { operations } => answers::forget(view, operations, &mut when),
    };
    Some(Txn::guarded(when, then))
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
