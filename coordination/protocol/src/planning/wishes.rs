//! The moves that operators have asked for, and what the answers to them are when their pods cannot take the partition.

use super::answers::{AnsweredOperation, FailedMove};
use crate::ids::PartitionId;
use crate::records::{Answer, Handoff, Operation, Request};
use crate::view::{Versioned, View};

/// Returns why the newest move of this partition to this pod was refused, if it was.
pub fn refusal<'a>(view: &'a View, partition: PartitionId, to: &str) -> Option<&'a str> {
    let answer = newest_move(view, partition, to)?.1.value.answer.as_ref()?;
    (!answer.accepted).then_some(&*answer.text)
}

/// Returns the operator's move that fails because the new owner of this handoff cannot take the partition.
pub(super) fn failed_move(view: &View, handoff: &Handoff, reason: &str) -> Option<FailedMove> {
    let (partition, to) = (handoff.partition, &handoff.new_owner);
    let pin = view.intentions.pin(partition).filter(|pin| pin.value.to == *to)?;
    let ends = pin.value.ends_with_the_pod();
    let mut text = format!("pod {to} cannot take partition {partition}: {reason}");
    if !ends {
        text += &format!("; it stays pinned there and is tried again: segue unpin {partition}");
    }
    let answered = newest_move(view, partition, to).map(|(id, operation)| answered(id, operation, false, text));
    Some(FailedMove { answered, pin: ends.then_some(pin.mod_revision) })
}

/// Returns an operation with its answer.
pub(super) fn answered(id: &str, operation: &Versioned<Operation>, accepted: bool, text: String) -> AnsweredOperation {
    let answer = Some(Answer { accepted, text, at: 0 });
    let value = Operation { answer, ..operation.value.clone() };
    AnsweredOperation { id: id.to_owned(), seen: operation.mod_revision, operation: value }
}

/// Returns the newest move of a partition to this pod.
fn newest_move<'a>(view: &'a View, partition: PartitionId, to: &str) -> Option<(&'a String, &'a Versioned<Operation>)> {
    let is_it = |operation: &Operation| matches!(&operation.request, Request::Move { partition: of, to: pod, .. } if *of == partition && pod == to);
    let moves = view.intentions.operations.iter().filter(|(_, operation)| is_it(&operation.value));
    moves.max_by_key(|(_, operation)| operation.create_revision)
}
