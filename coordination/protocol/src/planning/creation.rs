//! Begins one move: its handoff with mode and epoch, and the reason for it in words.

use super::actions::PlannedWrite;
use super::budget::MoveCause;
use super::context::Context;
use super::waiting_moves::{NewOwner, WaitingMove};
use super::{Policy, Strategy};
use crate::ids::{Epoch, Incarnation, PartitionId, Revision};
use crate::records::{Assignment, Handoff, Mode, PodRecord};
use crate::view::{Versioned, View};

/// Returns the action that begins a move. `None` if no epoch is left for it.
pub(super) fn begin(view: &View, policy: &Policy, planned: &WaitingMove) -> Option<PlannedWrite> {
    let WaitingMove { cause, partition, to: NewOwner { pod, incarnation }, reason, .. } = planned;
    let (cause, partition) = (*cause, *partition);
    let assignment = view.assignments.get(&partition);
    let mode = if may_be_independent(view, partition, pod) { policy.mode } else { Mode::Barrier };
    let epoch = next_epoch(view, partition)?;
    let handoff = Handoff {
        old_owner: assignment.map(|assignment| assignment.value.owner.clone()),
        old_incarnation: assignment.map_or(Incarnation::NONE, |assignment| assignment.value.incarnation),
        mode,
        reason: reason.clone(),
        ..Handoff::new(partition, pod.as_str(), *incarnation, epoch)
    };
    Some(PlannedWrite::Create {
        handoff,
        cause,
        assignment: assignment.map_or(Revision::ZERO, |assignment| assignment.mod_revision),
        seen: view.revision,
    })
}

/// Returns the action that assigns a partition of a new keyspace at once, unless its owner has something to warm: that needs a
/// handoff, which bounds what a pod warms at a time and goes to another pod if it fails.
pub(super) fn assign_at_once(view: &View, partition: PartitionId, to: &str) -> Option<PlannedWrite> {
    if !view.assignments.is_empty() || !view.handoffs.is_empty() || !view.malformed.is_empty() {
        return None;
    }
    let pod = view.pods.get(to).filter(|pod| pod.value.nothing_to_warm)?;
    let assignment = Assignment {
        work_ends_within_ms: pod.value.work_ends_within_ms,
        ..Assignment::new(partition, to.to_owned(), pod.incarnation(), next_epoch(view, partition)?)
    };
    Some(PlannedWrite::Assign { assignment, seen: view.revision })
}

/// Returns whether a move to this pod is safe without the barrier. It requires
///
/// * a single router;
/// * a new owner without the capability `sync`. It would read the tail in `Ready`, while the router may still send to
///   the old owner, and miss what the old owner writes after that;
/// * an old owner without a bound on its work, since the bound would have to be waited out before the new owner begins;
/// * a new owner without a bound on its work, since the assignment records it only with the flip, which comes last.
fn may_be_independent(view: &View, partition: PartitionId, to: &str) -> bool {
    let old_is_bounded = view.assignments.get(&partition).is_some_and(|it| it.value.work_ends_within_ms.is_some());
    let may_be = |pod: &PodRecord| !pod.capabilities.sync && pod.work_ends_within_ms.is_none();
    view.routers.len() < 2 && !old_is_bounded && view.pods.get(to).is_some_and(|pod| may_be(&pod.value))
}

/// Returns the epoch of the partition's next ownership. `None` if it would not be below the last epoch.
///
/// The revision makes an epoch unique: neither a cancelled handoff, which had announced its epoch, nor an assignment
/// that is deleted by hand can bring one back. The floor is above every epoch from before the store went back. The last
/// epoch is above both only if it was written by hand, or if nobody saw the store go back. The revisions since then make
/// the next one unique, as long as the store has that assignment: once it is deleted by hand, nothing shows that its epoch
/// was above the revision.
pub(super) fn next_epoch(view: &View, partition: PartitionId) -> Option<Epoch> {
    let planned = Epoch::planned_at(view.epoch_floor(), view.revision);
    let since = |last: Revision| view.revision.get().saturating_sub(last.get());
    let follows = |last: &Versioned<Assignment>| last.value.epoch.next().later_by(since(last.mod_revision));
    let epoch = view.assignments.get(&partition).map_or(planned, |last| planned.max(follows(last)));
    Some(epoch).filter(|epoch| *epoch < Epoch::MAX)
}

/// Returns the reason for the move of a partition without a living owner to this pod in words.
pub(super) fn urgent_reason(context: &Context<'_>, cause: MoveCause, partition: PartitionId, to: &str) -> String {
    let assignment = context.view.assignments.get(&partition);
    let owner = assignment.map_or("nobody", |assignment| assignment.value.owner.as_str());
    let reason = match cause {
        MoveCause::FirstPlacement => "first placement".to_owned(),
        _ if owner == to => format!("its owner {owner} came back in a new life"),
        _ => format!("its owner {owner} is dead"),
    };
    beside_wanted(context, partition, to, reason)
}

/// Returns the reason with what the key `wanted` has to do with it, if the strategy follows that key.
pub(super) fn beside_wanted(context: &Context<'_>, partition: PartitionId, to: &str, reason: String) -> String {
    match context.view.wanted.as_ref().filter(|_| context.policy.strategy == Strategy::External) {
        Some(wanted) => {
            let is_named = wanted.value.owners.get(&partition).is_some_and(|owner| owner == to);
            let verb = if is_named { "names" } else { "does not name" };
            format!("{reason} (generation {} of wanted {verb} {to})", wanted.value.generation)
        }
        None => reason,
    }
}
