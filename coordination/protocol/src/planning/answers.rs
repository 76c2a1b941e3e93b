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
use crate::txn::{Compare, Op, Txn};
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
    txn: &mut Txn,
) {
    write(view, answered, now_ms, txn);
    if let (Some((pin, seen)), Some(partition)) = (pin, answered.operation.request.partition()) {
        let (keys, key) = (view.keys(), view.keys().pin(partition));
        txn.when.push(Compare::unchanged_since(&key, *seen));
        txn.when.push(Compare::unchanged_since(keys.drain(&pin.to), Revision::ZERO));
        if pin.ends_with_the_pod() {
            txn.when.push(Compare::created_at(keys.pod(&pin.to), pin.incarnation.revision()));
        }
        txn.then.push(Op::put(key, encode(pin)));
    }
}

/// Answers the operation that cancels a handoff. If an operator asked for the move, `wish` is the `mod_revision` of its
/// pin, which ends with the move.
pub(super) fn cancel(view: &View, answered: &AnsweredOperation, wish: Option<Revision>, now_ms: u64, txn: &mut Txn) {
    write(view, answered, now_ms, txn);
    if let (Some(seen), Some(partition)) = (wish, answered.operation.request.partition()) {
        unpin(view, partition, seen, txn);
    }
}

/// Refuses a move that was accepted, and ends its pin.
pub(super) fn fail(view: &View, partition: PartitionId, failed: &FailedMove, now_ms: u64, txn: &mut Txn) {
    if let Some(answered) = &failed.answered {
        write(view, answered, now_ms, txn);
    }
    if let Some(seen) = failed.pin {
        unpin(view, partition, seen, txn);
    }
}

fn unpin(view: &View, partition: PartitionId, seen: Revision, txn: &mut Txn) {
    let key = view.keys().pin(partition);
    txn.when.push(Compare::unchanged_since(&key, seen));
    txn.then.push(Op::delete(key));
}

/// Deletes a pin if the incarnation that it is meant for is over.
pub(super) fn drop_pin(view: &View, partition: PartitionId, pin: &Pin, seen: Revision, txn: &mut Txn) {
    unpin(view, partition, seen, txn);
    txn.when.push(Compare::not_created_at(view.keys().pod(&pin.to), pin.incarnation.revision()));
}

/// Deletes operations that have not changed since the view.
pub(super) fn forget(view: &View, operations: &[(String, Revision)], txn: &mut Txn) {
    let key = |id: &String| view.keys().operation(id);
    txn.when.extend(operations.iter().map(|(id, seen)| Compare::unchanged_since(key(id), *seen)));
    txn.then.extend(operations.iter().map(|(id, _)| Op::delete(key(id))));
}

/// Writes an answer, guarded by the absence of an earlier one.
fn write(view: &View, answered: &AnsweredOperation, now_ms: u64, txn: &mut Txn) {
    let (key, mut operation) = (view.keys().operation(&answered.id), answered.operation.clone());
    if let Some(answer) = &mut operation.answer {
        answer.at = now_ms;
    }
    txn.when.push(Compare::unchanged_since(&key, answered.seen));
    txn.then.push(Op::put(key, encode(&operation)));
}
