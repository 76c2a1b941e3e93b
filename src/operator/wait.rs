//! Waits until a condition holds.

use std::time::Duration;

use segue_coordination::session::{Update, Watcher};
use segue_protocol::ids::PartitionId;
use segue_protocol::view::View;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::standing::{ConditionState, drained, moved, settled};
use super::{Link, OperatorError, ensure_known};

/// What a wait waits for at present, in words.
pub(crate) type WaitProgress = watch::Sender<String>;

/// A condition that can be waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The keyspace is at rest.
    Settled,
    /// The partition is on this pod or, without one, where it belongs.
    Moved { partition: PartitionId, to: Option<String> },
    /// The pod is empty. With `by_operator`, the drain of an operator has to stand meanwhile.
    Drained { pod: String, by_operator: bool },
}

impl Condition {
    fn judge(&self, view: &View) -> ConditionState {
        match self {
            Condition::Settled => settled(view),
            Condition::Moved { partition, to } => moved(view, *partition, to.as_deref()),
            Condition::Drained { pod, by_operator } => drained(view, pod, *by_operator),
        }
    }
}

/// Waits until a condition holds, and returns the state in words.
pub(crate) async fn until(
    link: &Link,
    condition: &Condition,
    timeout: Duration,
    said: &WaitProgress,
) -> Result<String, OperatorError> {
    // A store that cannot be reached at all is reported, and not waited for.
    let view = link.view().await?;
    if let Condition::Drained { pod, by_operator: false } = condition {
        ensure_known(&view, pod)?;
    }
    // However short the wait is, what is missing is known.
    if let Some(end) = ended(condition.judge(&view), said) {
        return end;
    }
    watch(link, timeout, |view| condition.judge(view), said).await
}

/// Waits until `judge` returns [`ConditionState::Done`], and returns its text. Fails if `judge` returns [`ConditionState::Failed`],
/// or after `timeout`.
pub(super) async fn watch(
    link: &Link,
    timeout: Duration,
    mut judge: impl FnMut(&View) -> ConditionState,
    said: &WaitProgress,
) -> Result<String, OperatorError> {
    let mut watcher = Watcher::start_planning(link.store.clone(), link.keys.clone());
    let deadline = Instant::now() + timeout;
    let mut view: Option<View> = None;
    loop {
        let update = tokio::select! {
            update = watcher.next() => update,
            () = sleep_until(deadline) => {
                let what = Some(said.borrow().clone()).filter(|what| !what.is_empty());
                let what = what.unwrap_or_else(|| "nothing is known yet".to_owned());
                return Err(OperatorError::Waiting { after: timeout, what });
            }
        };
        match update {
            Update::Snapshot(snapshot) => view = Some(*snapshot),
            Update::Batch(batch) => view.iter_mut().for_each(|view| drop(view.apply(batch.clone()))),
            Update::Lost(error) => {
                said.send_replace(format!("{error}; trying again"));
                continue;
            }
        }
        while let Some(batch) = watcher.try_next_batch() {
            view.iter_mut().for_each(|view| drop(view.apply(batch.clone())));
        }
        let Some(view) = &view else { continue };
        if let Some(end) = ended(judge(view), said) {
            return end;
        }
    }
}

/// Returns how a wait ends, or says what is missing.
fn ended(standing: ConditionState, said: &WaitProgress) -> Option<Result<String, OperatorError>> {
    match standing {
        ConditionState::Done(text) => Some(Ok(text)),
        ConditionState::Failed(why) => Some(Err(OperatorError::Refused(why))),
        ConditionState::Waiting(text) => {
            said.send_replace(text);
            None
        }
    }
}
