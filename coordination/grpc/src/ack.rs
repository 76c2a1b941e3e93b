//! Handles acknowledgements: judges them by the view and writes them to the store.

use std::time::Duration;

use segue_coordination::session::unix_millis;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::{TaskReport, Verdict, judge};
use segue_protocol::ids::{HandoffId, PartitionId, Revision};
use segue_protocol::records::one_line;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use crate::attach::{Way, way_of};
use crate::proto::{Ack, AckKind, AckOutcome};
use crate::shared::Shared;
use crate::token::Token;

/// How long acknowledgements wait for this instance's view, and one for the store.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Handles an acknowledgement of the pod that this token belongs to. It waits for the view until `deadline`.
pub(crate) async fn acknowledge(shared: &Shared, token: &Token, ack: &Ack, deadline: Instant) -> AckOutcome {
    let Some(id) = ack.id else { return AckOutcome::Stale };
    let (partition, handoff) = (PartitionId::new(id.partition), HandoffId::created_at(Revision::new(id.handoff)));
    let callback = match ack.kind() {
        AckKind::Ready => Callback::Warm,
        AckKind::Synced => Callback::Sync,
        AckKind::Drained => Callback::Drain,
        AckKind::Released => Callback::Release,
        AckKind::AckUnspecified => return AckOutcome::Stale,
    };
    let failed = ack.permanent || !ack.failure.is_empty();
    let outcome = if failed {
        fail(shared, token, ack, TaskReport { partition, handoff, callback, failure: None }, deadline).await
    } else if handoff == HandoffId::NONE {
        done_by_hand(shared, token, partition, callback).await
    } else {
        store(shared, token, &TaskReport { partition, handoff, callback, failure: None }, deadline).await
    };
    shared.observer.acknowledged(callback, failed, outcome);
    outcome
}

/// Handles the failure of a task.
async fn fail(shared: &Shared, token: &Token, ack: &Ack, task: TaskReport, deadline: Instant) -> AckOutcome {
    let failure = Some(one_line(&ack.failure)).filter(|failure| !failure.is_empty());
    let failure = failure.unwrap_or_else(|| "the pod gives no reason".to_owned());
    let (pod, partition, handoff) = (&token.pod, task.partition.get(), task.handoff.get());
    let callback = task.callback.as_str();
    if ack.permanent && task.can_fail() {
        let report = TaskReport { failure: Some(failure.clone()), ..task };
        let outcome = store(shared, token, &report, deadline).await;
        warn!(pod, partition, handoff, failure, ?outcome, "{callback} failed in a pod for good");
        return outcome;
    }
    warn!(pod, partition, handoff, failure, "{callback} failed in a pod; it stays due");
    AckOutcome::Accepted
}

/// Handles the acknowledgement of a task without a handoff, of which the store has no record.
async fn done_by_hand(shared: &Shared, token: &Token, partition: PartitionId, callback: Callback) -> AckOutcome {
    if callback != Callback::Warm || shared.sessions.warmed_by_hand(token.incarnation(), partition) {
        return AckOutcome::Accepted;
    }
    // The next Poll lists the partition among the holdings. A stream elsewhere would not learn of it.
    match way_of(shared, &token.pod).await {
        Ok(Some(Way::Poll)) => AckOutcome::Accepted,
        _ => AckOutcome::Again,
    }
}

/// Writes a report to the store once the view shows that it is due.
async fn store(shared: &Shared, token: &Token, report: &TaskReport, deadline: Instant) -> AckOutcome {
    loop {
        let (verdict, revision) = {
            let view = shared.hub.view();
            (judge(&view, &token.pod, token.incarnation(), report, unix_millis()), view.revision)
        };
        match verdict {
            Verdict::Known => return AckOutcome::Accepted,
            Verdict::Stale => return AckOutcome::Stale,
            Verdict::TooEarly => {}
            Verdict::Commit(txn) => match timeout(PATIENCE, shared.store.commit(*txn)).await {
                Ok(Ok(outcome)) if outcome.committed() => {
                    if report.failure.is_none() {
                        let (pod, partition, handoff) = (&token.pod, report.partition.get(), report.handoff.get());
                        info!(pod, partition, handoff, "{} done", report.callback.as_str());
                    }
                    return AckOutcome::Accepted;
                }
                // The view was out of date.
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => return AckOutcome::Again,
            },
        }
        if timeout_at(deadline, shared.hub.newer_than(revision)).await.is_err() {
            return AckOutcome::Again;
        }
    }
}
