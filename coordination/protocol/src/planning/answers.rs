//! The writes that answer operators' operations, and their guards. This is the part of [`txn`](super::txn()) for
//! operators.
//!
//! # Invariants
//!
//! * An answer is written only while its operation has none. The acceptance of a move becomes a refusal if its pod
//!   cannot take the partition.
//! * A pin is written only if its pod is still the same incarnation and no operator drains it, and never over a pin
//!   that the view did not show.

use crate::ids::{PartitionId, Revision};
use crate::records::{Operation, Pin, encode};
use crate::txn::{Compare, Op};
use crate::view::View;

/// An operation with its answer, written by the transaction that acts on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AnsweredOperation {
    /// The operation's id.
    pub id: String,
    /// The operation's `mod_revision` before the answer.
    pub seen: Revision,
    /// The operation. [`txn`](super::txn()) fills in the time of the answer.
    pub operation: Operation,
}

/// An operator's move whose pod cannot take the partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FailedMove {
    /// The operation with the reason as its answer, unless it has been deleted.
    pub answered: Option<AnsweredOperation>,
    /// The `mod_revision` of its pin, if the pin ends with the move.
    pub pin: Option<Revision>,
}

/// Answers an operation, and writes its pin if it has one. `pin` contains the `mod_revision` of the pin that it
/// replaces, or 0.
pub(super) fn answer(
    view: &View,
    answered: &AnsweredOperation,
    pin: Option<&(Pin, Revision)>,
    now_ms: u64,
    when: &mut Vec<Compare>,
) -> Vec<Op> {
    let (keys, mut then) = (view.keys(), vec![write(view, answered, now_ms, when)]);
    if let (Some((pin, seen)), Some(partition)) = (pin, answered.operation.request.partition()) {
        let key = keys.pin(partition);
        when.push(Compare::unchanged_since(&key, *seen));
        when.push(Compare::unchanged_since(keys.drain(&pin.to), Revision::ZERO));
        if pin.ends_with_the_pod() {
            when.push(Compare::created_at(keys.pod(&pin.to), pin.incarnation.revision()));
        }
        then.push(Op::put(key, encode(pin)));
    }
    then
}

/// Answers the operation that cancels a handoff. If an operator asked for the move, `wish` is the `mod_revision` of its
/// pin, which ends with the move.
pub(super) fn cancel(
    view: &View,
    answered: &AnsweredOperation,
    wish: Option<Revision>,
    now_ms: u64,
    when: &mut Vec<Compare>,
    then: &mut Vec<Op>,
) {
    then.push(write(view, answered, now_ms, when));
    if let (Some(seen), Some(partition)) = (wish, answered.operation.request.partition()) {
        unpin(view, partition, seen, when, then);
    }
}

/// Refuses a move that was accepted, and ends its pin.
pub(super) fn fail(
    view: &View,
    partition: PartitionId,
    failed: &FailedMove,
    now_ms: u64,
    when: &mut Vec<Compare>,
    then: &mut Vec<Op>,
) {
    then.extend(failed.answered.iter().map(|answered| write(view, answered, now_ms, when)));
    if let Some(seen) = failed.pin {
        unpin(view, partition, seen, when, then);
    }
}

fn unpin(view: &View, partition: PartitionId, seen: Revision, when: &mut Vec<Compare>, then: &mut Vec<Op>) {
    let key = view.keys().pin(partition);
    when.push(Compare::unchanged_since(&key, seen));
    then.push(Op::delete(key));
}

/// Deletes a pin if the incarnation that it is meant for is over.
pub(super) fn drop_pin(
    view: &View,
    partition: PartitionId,
    pin: &Pin,
    seen: Revision,
    when: &mut Vec<Compare>,
) -> Vec<Op> {
    let key = view.keys().pin(partition);
    when.push(Compare::unchanged_since(&key, seen));
    when.push(Compare::not_created_at(view.keys().pod(&pin.to), pin.incarnation.revision()));
    vec![Op::delete(key)]
}

/// Deletes operations that have not changed since the view.
pub(super) fn forget(view: &View, operations: &[(String, Revision)], when: &mut Vec<Compare>) -> Vec<Op> {
    let key = |id: &String| view.keys().operation(id);
    when.extend(operations.iter().map(|(id, seen)| Compare::unchanged_since(key(id), *seen)));
    operations.iter().map(|(id, _)| Op::delete(key(id))).collect()
}

/// Writes an answer, guarded by the absence of an earlier one.
fn write(view: &View, answered: &AnsweredOperation, now_ms: u64, when: &mut Vec<Compare>) -> Op {
    let (key, mut operation) = (view.keys().operation(&answered.id), answered.operation.clone());
    if let Some(answer) = &mut operation.answer {
        answer.at = now_ms;
    }
    when.push(Compare::unchanged_since(&key, answered.seen));
    Op::put(key, encode(&operation))
}
