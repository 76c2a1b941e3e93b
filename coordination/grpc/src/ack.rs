//! Handles acknowledgements: judges them by the view and writes them to the store.

use segue_coordination::session::unix_millis;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::{ReportVerdict, TaskReport, judge};
use segue_protocol::ids::{HandoffId, PartitionId, Revision};
use segue_protocol::records::one_line;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, warn};

use crate::attach::tell_stream;
use crate::checkpoints;
use crate::proto::{Ack, AckKind, AckOutcome};
use crate::sessions::UnrecordedAck;
use crate::shared::{KeyspaceService, PATIENCE};
use crate::token::Token;

/// Returns the report in an acknowledgement, or `None` if it is of no task.
pub(crate) fn reported(ack: &Ack) -> Option<TaskReport> {
    let id = ack.id?;
    let callback = match ack.kind() {
        AckKind::Ready => Callback::Warm,
        AckKind::Synced => Callback::Sync,
        AckKind::Drained => Callback::Drain,
        AckKind::Released => Callback::Release,
        AckKind::Checkpointed => Callback::Checkpoint,
        AckKind::AckUnspecified => return None,
    };
    let failure = (ack.permanent || !ack.failure.is_empty()).then(|| one_line(&ack.failure));
    Some(TaskReport {
        partition: PartitionId::new(id.partition),
        handoff: HandoffId::created_at(Revision::new(id.handoff)),
        callback,
        failure: failure.map(|why| if why.is_empty() { "no reason given".to_owned() } else { why }),
    })
}

/// Handles an acknowledgement of the pod that this token belongs to. It waits for the view until `deadline`.
pub(crate) async fn acknowledge(shared: &KeyspaceService, token: &Token, ack: &Ack, deadline: Instant) -> AckOutcome {
    let Some(report) = reported(ack) else { return AckOutcome::Stale };
    let TaskReport { partition, handoff, callback, .. } = report;
    let outcome = if report.failure.is_some() {
        fail(shared, token, &report, ack.permanent, deadline).await
    } else if callback == Callback::Checkpoint {
        checkpoints::record(shared, token, ack, deadline).await
    } else if handoff == HandoffId::NONE {
        done_by_hand(shared, token, partition, callback).await
    } else {
        store(shared, token, &report, deadline).await
    };
    shared.observer.acknowledged(callback, report.failure.is_some(), outcome);
    outcome
}

/// Handles the failure of a task.
async fn fail(
    shared: &KeyspaceService,
    token: &Token,
    report: &TaskReport,
    is_permanent: bool,
    deadline: Instant,
) -> AckOutcome {
    let (pod, partition, handoff) = (&token.pod, report.partition.get(), report.handoff.get());
    let (callback, failure) = (report.callback.as_str(), report.failure.as_deref());
    if is_permanent && report.can_fail() {
        let outcome = store(shared, token, report, deadline).await;
        let stored = outcome.as_str_name();
        warn!(pod, partition, handoff, failure, outcome = stored, "{callback} failed in a pod for good");
        return outcome;
    }
    warn!(pod, partition, handoff, failure, "{callback} failed in a pod; it stays due");
    AckOutcome::Accepted
}

/// Handles the acknowledgement of a task without a handoff, of which the store has no record.
async fn done_by_hand(
    shared: &KeyspaceService,
    token: &Token,
    partition: PartitionId,
    callback: Callback,
) -> AckOutcome {
    match callback {
        // The next Poll lists the partition among the holdings.
        Callback::Warm => tell_stream(shared, token, partition, UnrecordedAck::WarmedByHand).await,
        _ => AckOutcome::Accepted,
    }
}

/// Writes a report to the store once the view shows that it is due.
async fn store(shared: &KeyspaceService, token: &Token, report: &TaskReport, deadline: Instant) -> AckOutcome {
    loop {
        let (verdict, revision) = {
            let view = shared.hub.view();
            (judge(&view, &token.pod, token.incarnation(), report, unix_millis()), view.revision)
        };
        match verdict {
            ReportVerdict::Known => return AckOutcome::Accepted,
            ReportVerdict::Stale => return AckOutcome::Stale,
            ReportVerdict::TooEarly => {}
            ReportVerdict::Commit(txn) => match timeout(PATIENCE, shared.store.commit(*txn)).await {
                Ok(Ok(outcome)) if outcome.committed() => {
                    if report.failure.is_none() {
                        let (pod, partition, handoff) = (&token.pod, report.partition.get(), report.handoff.get());
                        debug!(pod, partition, handoff, "{} done", report.callback.as_str());
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
