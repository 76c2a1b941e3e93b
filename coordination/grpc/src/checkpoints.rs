//! Records the checkpoints that pods acknowledge, and says when to look for those that have become due.
//!
//! [`checkpoint`](segue_protocol::handoff::checkpoint) decides what is due and builds the transaction. Not here: the task
//! itself, which a pod is told like any other.

use std::time::Duration;

use segue_coordination::session::unix_millis;
use segue_protocol::handoff::checkpoint::{self, PendingCheckpoint, is_recorded, recorded_at};
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::records::CheckpointName;
use segue_protocol::view::View;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use crate::attach::tell_stream;
use crate::proto::{Ack, AckOutcome};
use crate::sessions::UnrecordedAck;
use crate::shared::{KeyspaceService, PATIENCE};
use crate::token::Token;

/// Bounds of the time between two looks for tasks that have become due because time has passed.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Returns the time between two looks for tasks that have become due because time has passed. Without checkpoints there is
/// none.
pub(crate) fn look_interval(view: &View) -> Option<Duration> {
    let times = view.settings()?.checkpoint_times()?;
    Some((times.interval.min(times.timeout) / 16).clamp(LOOKS.0, LOOKS.1))
}

/// Writes a checkpoint to the store, if the pod owns the epoch that it was made in.
pub(crate) async fn record(shared: &KeyspaceService, token: &Token, ack: &Ack, deadline: Instant) -> AckOutcome {
    let Some(id) = ack.id else { return AckOutcome::Stale };
    let (pod, partition, epoch) = (&token.pod, PartitionId::new(id.partition), Epoch::new(ack.epoch));
    let name = match ack.checkpoint.as_slice() {
        [] => None,
        bytes => match CheckpointName::try_from(bytes) {
            Ok(name) => Some(name),
            Err(error) => {
                warn!(pod, partition = partition.get(), %error, "pod's checkpoint is not recorded");
                return AckOutcome::Stale;
            }
        },
    };
    let replaces = recorded_at(&shared.hub.view(), partition);
    let made = PendingCheckpoint { epoch, name, at: unix_millis(), replaces };
    loop {
        let (txn, rests, is_over, revision) = {
            let view = shared.hub.view();
            // An earlier attempt of this call may have been committed without an answer.
            let is_recorded = is_recorded(&view, partition, &made);
            if made.name.is_some() && is_recorded {
                return AckOutcome::Accepted;
            }
            // This instance may be behind the one that told the pod of its epoch.
            let is_over = view.assignments.get(&partition).is_some_and(|it| it.value.epoch >= epoch);
            let txn = checkpoint::record(&view, pod, token.incarnation(), partition, &made);
            (txn, is_recorded, is_over, view.revision)
        };
        match txn {
            None if is_over => return AckOutcome::Stale,
            None => {}
            Some(_) if rests => return tell_stream(shared, token, partition, UnrecordedAck::NothingNew).await,
            Some(txn) => match timeout(PATIENCE, shared.store.commit(txn)).await {
                Ok(Ok(outcome)) if outcome.committed() => return AckOutcome::Accepted,
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
