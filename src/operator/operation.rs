//! A move, a pin and a cancel: operations, each of which the leader answers in the transaction that acts on it.

use std::time::Duration;

use segue_protocol::ids::Revision;
use segue_protocol::records::{Operation, Request, encode};
use segue_protocol::txn::{Compare, Op, Txn};
use segue_protocol::view::View;
use serde_json::{Value, json};

use super::order::{Action, ActionOutcome, OperationId, Order};
use super::standing::ConditionState;
use super::wait::{WaitProgress, watch};
use super::{Link, OperatorError, ensure_exists};

/// Writes an operation and waits for its answer. Fails with the answer if the operation was refused.
pub(super) async fn ask(
    link: &Link,
    order: &Order,
    patience: Duration,
    said: &WaitProgress,
) -> Result<ActionOutcome, OperatorError> {
    let view = link.view().await?;
    ensure_exists(&view)?;
    let known = order.id.as_ref().and_then(|id| view.intentions.operations.get(id.as_str()));
    let request = match known.map(|known| &known.value.request) {
        Some(known) if repeats(known, &order.action) => known.clone(),
        _ => request(&view, &order.action)?,
    };
    let id = order.id.clone().unwrap_or_else(OperationId::random);
    let operation = Operation { request, origin: order.origin.clone(), answer: None };
    if known.is_none_or(|known| known.value.request != operation.request) {
        create(link, &id, &operation).await?;
    }
    let text = watch(link, patience, |view| answered(view, &id), said).await?;
    Ok(ActionOutcome::new(facts(&id, &operation.request), text))
}

/// Returns whether this is the request that the action became when its id was first used. The handoff that a cancel
/// means is the one that stood then.
fn repeats(known: &Request, action: &Action) -> bool {
    match (known, action) {
        (Request::Cancel { partition, .. }, Action::Cancel { partition: again, handoff: None }) => partition == again,
        _ => false,
    }
}

fn request(view: &View, action: &Action) -> Result<Request, OperatorError> {
    match action {
        Action::Move { partition, to, pin } => Ok(Request::Move { partition: *partition, to: to.clone(), pin: *pin }),
        Action::Pin { partition, to } => Ok(Request::Pin { partition: *partition, to: to.clone() }),
        Action::Cancel { partition, handoff: Some(handoff) } => {
            Ok(Request::Cancel { partition: *partition, handoff: *handoff })
        }
        Action::Cancel { partition, handoff: None } => match view.handoffs.get(partition) {
            Some(handoff) => Ok(Request::Cancel { partition: *partition, handoff: handoff.id() }),
            None => {
                Err(OperatorError::Refused(format!("partition {partition} does not move: there is nothing to cancel")))
            }
        },
        other => Err(OperatorError::BadInput(format!("no leader is needed to {other}"))),
    }
}

/// Creates the operation's key. If it exists, it has to be the same operation.
async fn create(link: &Link, id: &OperationId, operation: &Operation) -> Result<(), OperatorError> {
    let key = link.keys.operation(id.as_str());
    let when = vec![Compare::unchanged_since(&key, Revision::ZERO)];
    let then = vec![Op::Put { key, value: encode(operation), lease: None }];
    if link.commit(Txn { when, then, otherwise: None }).await? {
        return Ok(());
    }
    let view = link.view().await?;
    let same =
        view.intentions.operations.get(id.as_str()).is_some_and(|known| known.value.request == operation.request);
    if same { Ok(()) } else { Err(taken(id)) }
}

/// Returns the error that an id belongs to another operation.
pub(super) fn taken(id: &OperationId) -> OperatorError {
    OperatorError::Refused(format!("operation {id} exists and asks for something else: choose another id"))
}

fn answered(view: &View, id: &OperationId) -> ConditionState {
    match view.intentions.operations.get(id.as_str()).map(|operation| &operation.value.answer) {
        Some(Some(answer)) if answer.accepted => ConditionState::Done(answer.text.clone()),
        Some(Some(answer)) => ConditionState::Failed(answer.text.clone()),
        Some(None) if view.coordinator().is_none() => {
            ConditionState::Waiting(format!("operation {id} waits for an answer; no coordinator leads"))
        }
        Some(None) => ConditionState::Waiting(format!("operation {id} waits for the coordinator's answer")),
        None => ConditionState::Failed(format!("operation {id} was deleted before it had an answer")),
    }
}

fn facts(id: &OperationId, request: &Request) -> Value {
    match request {
        Request::Move { partition, to, pin } => {
            json!({ "operation": id, "partition": partition, "to": to, "pin": pin })
        }
        Request::Cancel { partition, handoff } => {
            json!({ "operation": id, "partition": partition, "handoff": handoff })
        }
        Request::Pin { partition, .. } => json!({ "operation": id, "partition": partition }),
        Request::Change { what } => json!({ "operation": id, "what": what }),
    }
}
