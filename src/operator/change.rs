//! Changes of standing intentions: each is one transaction, which also records the operation if it has an id.

use std::time::Duration;

use segue_config::show_duration;
use segue_coordination::session::unix_millis;
use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::planning::external;
use segue_protocol::records::{Answer, Drain, Operation, Origin, Pause, Request, Wanted, encode};
use segue_protocol::registration;
use segue_protocol::txn::{Compare, Op, Txn};
use segue_protocol::view::View;
use serde_json::json;

use super::decision::{ChangeDecision, deleting, unchanged};
use super::operation::taken;
use super::order::{Action, ActionOutcome, OperationId, Order};
use super::standing::owned;
use super::{Link, OperatorError, ensure_exists, ensure_known, forget, partitions, settings};

/// Carries out an order that needs no leader.
pub(super) async fn write(link: &Link, order: &Order) -> Result<ActionOutcome, OperatorError> {
    let view = link.view().await?;
    if let Some(outcome) = earlier(&view, order)? {
        return Ok(outcome);
    }
    let (mut txn, mut outcome) = match &order.action {
        Action::Drain { pod } => drain(&view, pod, &order.origin)?,
        Action::Undrain { pod } => undrain(&view, pod)?,
        Action::Pause { span } => pause(link, &view, *span, &order.origin).await?,
        Action::Resume {} => resume(&view),
        Action::Unpin { partition } => unpin(&view, *partition)?,
        Action::Want(wanted) => want(&view, wanted)?,
        Action::Set { key, value } => settings::set(&view, key, value)?,
        Action::Remap { to, confirmed } => settings::remap(&view, to, *confirmed)?,
        Action::Forget { kind, name, force, confirmed } => {
            let (key, seen, forgotten) = forget::judge(&view, *kind, name, *force).map_err(OperatorError::Refused)?;
            if !confirmed {
                return Err(OperatorError::Refused(forgotten.question()));
            }
            (registration::forget(&key, seen), ActionOutcome::new(json!(forgotten), forgotten.in_words()))
        }
        Action::Move { .. } | Action::Pin { .. } | Action::Cancel { .. } => {
            return Err(OperatorError::BadInput(format!("only the leader can {}", order.action)));
        }
    };
    if let Some(id) = &order.id {
        record(&view, id, order, &outcome.text, &mut txn);
        outcome.facts.insert("operation".to_owned(), json!(id));
    }
    if txn.then.is_empty() || link.commit(txn).await? {
        return Ok(outcome);
    }
    // A repeated order may have overtaken this one.
    earlier(&link.view().await?, order)?.ok_or_else(|| {
        let text = format!("{}: the keyspace was changed at the same time; nothing was done: try again", order.action);
        OperatorError::Refused(text)
    })
}

/// Returns the outcome of the order if its id was used before for the same.
fn earlier(view: &View, order: &Order) -> Result<Option<ActionOutcome>, OperatorError> {
    let Some(id) = &order.id else { return Ok(None) };
    let Some(known) = view.intentions.operations.get(id.as_str()).map(|known| &known.value) else { return Ok(None) };
    match (&known.request, &known.answer) {
        (Request::Change { what }, Some(answer)) if *what == order.action.to_string() => {
            Ok(Some(ActionOutcome::new(json!({ "operation": id, "repeated": true }), answer.text.clone())))
        }
        _ => Err(taken(id)),
    }
}

/// Adds the record of the operation, which must not exist.
fn record(view: &View, id: &OperationId, order: &Order, text: &str, txn: &mut Txn) {
    let answer = Answer { accepted: true, text: text.to_owned(), at: unix_millis() };
    let request = Request::Change { what: order.action.to_string() };
    let operation = Operation { request, origin: order.origin.clone(), answer: Some(answer) };
    let key = view.keys().operation(id.as_str());
    txn.when.push(Compare::unchanged_since(&key, Revision::ZERO));
    txn.then.push(Op::Put { key, value: encode(&operation), lease: None });
}

fn drain(view: &View, pod: &str, origin: &Origin) -> Result<ChangeDecision, OperatorError> {
    ensure_known(view, pod)?;
    if let Some(drain) = view.intentions.drains.get(pod) {
        let text = format!("pod {pod} is drained already, by {}", drain.value.origin);
        return Ok(unchanged(ActionOutcome::new(json!({ "pod": pod, "drained": false }), text)));
    }
    let left = partitions(owned(view, pod));
    let text = format!("pod {pod} gives up its partitions ({left}) and gets no more until segue undrain {pod}");
    let key = view.keys().drain(pod);
    let when = vec![Compare::unchanged_since(&key, Revision::ZERO)];
    let then = vec![Op::Put { key, value: encode(&Drain { origin: origin.clone() }), lease: None }];
    Ok((Txn { when, then, otherwise: None }, ActionOutcome::new(json!({ "pod": pod, "drained": true }), text)))
}

fn undrain(view: &View, pod: &str) -> Result<ChangeDecision, OperatorError> {
    ensure_known(view, pod)?;
    let facts = |undrained: bool| json!({ "pod": pod, "undrained": undrained });
    let Some(drain) = view.intentions.drains.get(pod) else {
        return Ok(unchanged(ActionOutcome::new(facts(false), format!("pod {pod} was not drained"))));
    };
    let text = match view.leaves_by_itself(pod) {
        true => format!("the drain of pod {pod} has ended, but the pod itself gives up its partitions"),
        false => format!("pod {pod} may be given partitions again"),
    };
    Ok(deleting(view.keys().drain(pod), drain.mod_revision, ActionOutcome::new(facts(true), text)))
}

async fn pause(
    link: &Link,
    view: &View,
    time: Option<Duration>,
    origin: &Origin,
) -> Result<ChangeDecision, OperatorError> {
    if time.is_some_and(|time| time.is_zero()) {
        return Err(OperatorError::BadInput("a pause for no time has no effect; expected a time above zero".into()));
    }
    ensure_exists(view)?;
    let seen = view.intentions.pause.as_ref().map_or(Revision::ZERO, |pause| pause.mod_revision);
    // The lease is never renewed, so the store ends the pause and no clocks are compared.
    let lease = match time {
        Some(time) => Some(link.store.grant(time).await?),
        None => None,
    };
    let until = time.map(|time| unix_millis().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
    let end = time.map_or("until segue resume".to_owned(), |time| format!("for {}", show_duration(time)));
    let moving = match view.handoffs.len() {
        0 => String::new(),
        moving => format!(" {} on the move: their moves go on.", partitions(moving)),
    };
    let text = format!(
        "planned moves are paused {end}.{moving} Partitions without a living owner, and those of pods that shut down, \
         still move."
    );
    let key = view.keys().pause();
    let when = vec![Compare::unchanged_since(&key, seen)];
    let value = encode(&Pause { origin: origin.clone(), until });
    let txn = Txn { when, then: vec![Op::Put { key, value, lease }], otherwise: None };
    Ok((txn, ActionOutcome::new(json!({ "paused": true, "until": until }), text)))
}

fn resume(view: &View) -> ChangeDecision {
    let facts = json!({ "paused": false });
    match &view.intentions.pause {
        None => unchanged(ActionOutcome::new(facts, "planned moves were not paused")),
        Some(pause) => {
            let text = format!("planned moves go on; they were paused by {}", pause.value.origin);
            deleting(view.keys().pause(), pause.mod_revision, ActionOutcome::new(facts, text))
        }
    }
}

fn unpin(view: &View, partition: PartitionId) -> Result<ChangeDecision, OperatorError> {
    let facts = |unpinned: bool| json!({ "partition": partition, "unpinned": unpinned });
    let Some(pin) = view.intentions.pins.get(&partition) else {
        if partition.get() >= view.partitions() {
            return Err(OperatorError::Refused(format!("there is no partition {partition}")));
        }
        return Ok(unchanged(ActionOutcome::new(facts(false), format!("partition {partition} was not pinned"))));
    };
    let was = pin.as_ref().map_or("a pin that could not be read".to_owned(), |pin| {
        format!("it was pinned to {} by {}", pin.value.to, pin.value.origin)
    });
    let text = format!("partition {partition} goes where the strategy places it; {was}");
    Ok(deleting(view.keys().pin(partition), view.pin_revision(partition), ActionOutcome::new(facts(true), text)))
}

fn want(view: &View, wanted: &Wanted) -> Result<ChangeDecision, OperatorError> {
    let (generation, named) = (wanted.generation, wanted.owners.len());
    let facts = json!({ "generation": generation, "owners": named });
    if view.wanted.as_ref().is_some_and(|stored| stored.value == *wanted) {
        let text = format!("generation {generation} of the wanted owners is stored already");
        return Ok(unchanged(ActionOutcome::new(facts, text)));
    }
    ensure_exists(view)?;
    let txn = external::write(view, wanted).map_err(|why| OperatorError::Refused(why.to_string()))?;
    let text = format!(
        "generation {generation} of the wanted owners names {}; coordinators with strategy = \"external\" follow it",
        partitions(named)
    );
    Ok((txn, ActionOutcome::new(facts, text)))
}
