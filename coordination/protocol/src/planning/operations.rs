//! Decides the leader's answers to operators' operations, and which answered operations and pins it deletes.
//!
//! An accepted move or pin becomes a pin, which placement obeys from then on; an accepted cancel ends a handoff. Either
//! is written in the transaction that writes the answer.
//!
//! # Invariants
//!
//! * An operation is answered once: the transaction requires that it still has no answer. One case changes an answer:
//!   the acceptance of a move whose pod then reports that it cannot take the partition.
//! * An operation that cannot be read is neither answered nor deleted.
//! * A cancel ends only the handoff that its operator saw, and none past the point of no return.

use std::time::Duration;

use super::actions::{CancelReason, ObservedHandoff, PlannedWrite};
use super::endings;
use super::notice::or_none;
use super::wishes::answered;
use super::{FIRST_BACK_OFF, Memory, is_dead};
use crate::ids::{HandoffId, Incarnation, PartitionId, Revision};
use crate::records::{Operation, Pin, Request};
use crate::view::{Versioned, View};

/// Number of answered operations that are kept, so that a repeated id gets the same answer.
pub const KEPT_OPERATIONS: usize = 100;
/// Most operations that one transaction deletes: etcd refuses transactions of more than 128 parts.
pub(super) const DELETED_TOGETHER: usize = 50;

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OperationOutcome {
    Refused(String),
    Pinned(Pin, String),
    Cancelled(ObservedHandoff, String),
}

/// Answers the operations that have no answer yet.
pub(super) fn answer(view: &View, memory: &mut Memory, now: Duration, actions: &mut Vec<PlannedWrite>) {
    let Some(partitions) = memory.number.of(view) else { return };
    // The oldest first: of two wishes for one partition the later one counts.
    let is_open = |(_, operation): &(&String, &Versioned<Operation>)| operation.value.answer.is_none();
    let mut open: Vec<_> = view.intentions.operations.iter().filter(is_open).collect();
    open.sort_unstable_by_key(|(_, operation)| operation.create_revision);
    for (id, operation) in open {
        let verdict = judge(view, partitions, &operation.value);
        let answered = |accepted, text| answered(id, operation, accepted, text);
        match verdict {
            OperationOutcome::Refused(why) => {
                actions.push(PlannedWrite::Answer { answered: answered(false, why), pin: None })
            }
            OperationOutcome::Pinned(pin, text) => {
                let seen = operation.value.request.partition().map_or(Revision::ZERO, |at| view.pin_revision(at));
                actions.push(PlannedWrite::Answer { answered: answered(true, text), pin: Some((pin, seen)) });
            }
            OperationOutcome::Cancelled(observed, text) => {
                let partition = observed.partition();
                let to = &observed.handoff.value.new_owner;
                let pin = view.intentions.pin(partition).filter(|pin| pin.value.to == *to);
                let wish = pin.filter(|pin| pin.value.ends_with_the_pod()).map(|pin| pin.mod_revision);
                let answered = Box::new(answered(true, text));
                let reason = CancelReason::Operator { answered, wish };
                let mut action = PlannedWrite::Cancel { observed, reason, back_offs: Vec::new() };
                endings::note(memory, &mut action, now);
                actions.push(action);
            }
        }
    }
}

fn judge(view: &View, partitions: u32, operation: &Operation) -> OperationOutcome {
    let usable = |partition: PartitionId| {
        if partition.get() >= partitions {
            let last = partitions.saturating_sub(1);
            return Err(format!("there is no partition {partition}: the keyspace has 0 to {last}"));
        }
        if view.is_malformed(partition) {
            return Err(format!("a record of partition {partition} cannot be read: see segue status"));
        }
        Ok(partition)
    };
    let judged = match &operation.request {
        Request::Move { partition, to, pin } => {
            usable(*partition).and_then(|at| judge_move(view, at, to, *pin, operation))
        }
        Request::Pin { partition, to } => {
            usable(*partition).and_then(|at| judge_pin(view, at, to.as_deref(), operation))
        }
        Request::Cancel { partition, handoff } => usable(*partition).and_then(|at| judge_cancel(view, at, *handoff)),
        Request::Change { .. } => Err("a change is written together with its answer".to_owned()),
    };
    judged.unwrap_or_else(OperationOutcome::Refused)
}

/// Returns the incarnation of a pod that accepts partitions, or the reason why it does not.
fn target(view: &View, pod: &str) -> Result<Incarnation, String> {
    let Some(record) = view.pods.get(pod) else {
        if view.pod_key(pod).is_some() {
            return Err(format!("the registration of pod {pod} cannot be read"));
        }
        let pods: Vec<&str> = view.pods.keys().map(String::as_str).collect();
        return Err(format!("no pod {pod} is registered; registered are: {}", or_none(&pods.join(", "))));
    };
    if let Some(drain) = view.intentions.drains.get(pod) {
        return Err(format!("pod {pod} is drained by {}: segue undrain {pod}", drain.value.origin));
    }
    if view.is_draining(pod) {
        return Err(format!("pod {pod} is not Ready: it gives up its partitions"));
    }
    if record.lease.is_none() {
        return Err(format!("the registration of pod {pod} has no lease: see segue status"));
    }
    Ok(record.incarnation())
}

fn judge_move(
    view: &View,
    partition: PartitionId,
    to: &str,
    pin: bool,
    by: &Operation,
) -> Result<OperationOutcome, String> {
    let life = target(view, to)?;
    let (mut text, begins_later) = match (view.handoffs.get(&partition), view.live_owner(partition)) {
        (Some(handoff), _) if handoff.value.new_owner == to => {
            (format!("partition {partition} moves to {to} already"), false)
        }
        (Some(handoff), _) => {
            let first = &handoff.value.new_owner;
            (format!("partition {partition} moves to {to} once its move to {first} has ended"), true)
        }
        (None, Some((owner, _))) if owner.owner == to => (format!("partition {partition} is on {to} already"), false),
        (None, _) => (format!("partition {partition} moves to {to}"), true),
    };
    text += if pin { ", and stays there until it is unpinned" } else { ", and stays there until the pod goes" };
    if let Some(pause) = view.intentions.pause.as_ref().filter(|_| begins_later) {
        text += &format!("; planned moves are paused by {}, so it waits for segue resume", pause.value.origin);
    }
    let incarnation = if pin { Incarnation::NONE } else { life };
    Ok(OperationOutcome::Pinned(Pin { to: to.to_owned(), incarnation, origin: by.origin.clone() }, text))
}

fn judge_pin(
    view: &View,
    partition: PartitionId,
    seen: Option<&str>,
    by: &Operation,
) -> Result<OperationOutcome, String> {
    let to = match (view.handoffs.get(&partition), view.live_owner(partition)) {
        (Some(handoff), _) => &handoff.value.new_owner,
        (None, Some((owner, _))) => &owner.owner,
        (None, None) => return Err(format!("partition {partition} has no living owner to be pinned to")),
    };
    if let Some(seen) = seen.filter(|seen| seen != to) {
        return Err(format!("partition {partition} would be pinned to {to} and not to {seen}: look at it again"));
    }
    target(view, to)?;
    let text = format!("partition {partition} is pinned to {to} until it is unpinned");
    Ok(OperationOutcome::Pinned(
        Pin { to: to.clone(), incarnation: Incarnation::NONE, origin: by.origin.clone() },
        text,
    ))
}

fn judge_cancel(view: &View, partition: PartitionId, seen: HandoffId) -> Result<OperationOutcome, String> {
    let Some(handoff) = view.handoffs.get(&partition).filter(|handoff| handoff.id() == seen) else {
        return Err(format!("handoff {seen} of partition {partition} has ended already"));
    };
    let record = &handoff.value;
    if record.is_past_no_return() {
        let (phase, to) = (record.phase.as_str(), &record.new_owner);
        return Err(format!(
            "the move of partition {partition} to {to} is in {phase}, past the point of no return: it completes by itself"
        ));
    }
    let living = view.live_old_owner(record).and(record.old_owner.as_deref());
    let stays = living.map_or("has no living owner".to_owned(), |old| format!("stays with {old}"));
    let pinned = view.intentions.pin(partition).filter(|pin| !pin.value.ends_with_the_pod());
    let next = match pinned.filter(|pin| pin.value.to == record.new_owner) {
        Some(pin) => format!("it is pinned to {} and moves there again: segue unpin {partition}", pin.value.to),
        None if living.is_none() => {
            let (rest, to) = (FIRST_BACK_OFF.as_secs(), &record.new_owner);
            format!("it moves after {rest} s, to another pod than {to} if one accepts it")
        }
        None => {
            let rest = FIRST_BACK_OFF.as_secs();
            format!("it may be planned again after {rest} s: segue pin {partition} keeps it where it is")
        }
    };
    let observed = ObservedHandoff { handoff: handoff.clone(), assignment: view.assignment_revision(partition) };
    Ok(OperationOutcome::Cancelled(observed, format!("partition {partition} {stays}; {next}")))
}

/// Returns the deletion of each pin that ended with an incarnation of its pod.
pub(super) fn void_pins(view: &View) -> impl Iterator<Item = PlannedWrite> {
    view.intentions.pins.iter().filter_map(|(partition, pin)| {
        let pin = pin.as_ref()?;
        let is_void = pin.value.ends_with_the_pod() && is_dead(view, &pin.value.to, pin.value.incarnation);
        let action = || PlannedWrite::DropPin { partition: *partition, pin: pin.value.clone(), seen: pin.mod_revision };
        is_void.then(action)
    })
}

/// Returns the deletion of answered operations beyond those that are kept, the oldest first, if there are `at_least` as
/// many.
pub(super) fn old_operations(view: &View, at_least: usize) -> Option<PlannedWrite> {
    let is_answered = |(_, operation): &(&String, &Versioned<Operation>)| operation.value.answer.is_some();
    let mut answered: Vec<(&String, &Versioned<Operation>)> =
        view.intentions.operations.iter().filter(is_answered).collect();
    let extra = answered.len().checked_sub(KEPT_OPERATIONS).filter(|extra| *extra >= at_least)?;
    answered.sort_unstable_by_key(|(_, operation)| operation.create_revision);
    let oldest = answered.into_iter().take(extra.min(DELETED_TOGETHER));
    let operations: Vec<(String, Revision)> = oldest.map(|(id, it)| (id.clone(), it.mod_revision)).collect();
    Some(PlannedWrite::ForgetOperations { operations })
}
