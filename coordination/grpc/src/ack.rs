//! Handles acknowledgements: judges them by the view and writes them to the store.

use std::time::Duration;

use segue_coordination::session::unix_millis;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::{Verdict, judge};
use segue_protocol::ids::{HandoffId, PartitionId, Revision};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

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
    if !ack.failure.is_empty() {
        let (pod, failure) = (&token.pod, &ack.failure);
        let (partition, handoff) = (partition.get(), handoff.get());
        warn!(pod, partition, handoff, failure, "{} failed in a pod; it stays due", callback.as_str());
        return AckOutcome::Accepted;
    }
    if handoff == HandoffId::NONE {
        let is_told = callback != Callback::Warm || shared.sessions.warmed_by_hand(token.incarnation(), partition);
        return if is_told { AckOutcome::Accepted } else { AckOutcome::Again };
    }
    loop {
        let (verdict, revision) = {
            let view = shared.hub.view();
            let now = unix_millis();
            let verdict = judge(&view, &token.pod, token.incarnation(), partition, handoff, callback, now);
            (verdict, view.revision)
        };
        match verdict {
            Verdict::Known => return AckOutcome::Accepted,
            Verdict::Stale => return AckOutcome::Stale,
            Verdict::TooEarly => {}
            Verdict::Commit(txn) => match timeout(PATIENCE, shared.store.commit(*txn)).await {
                Ok(Ok(outcome)) if outcome.committed() => {
                    let (pod, partition, handoff) = (&token.pod, partition.get(), handoff.get());
                    info!(pod, partition, handoff, "{} done", callback.as_str());
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
