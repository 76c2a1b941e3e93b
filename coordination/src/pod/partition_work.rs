//! The work on one partition: the callback that runs, and what has become of those before it.
//!
//! # Invariants
//!
//! * One callback runs at a time, and the next begins only when the one before it has really ended.

use std::sync::Arc;

use segue_protocol::handoff::pod_reconcile::{Callback, LocalState, PodAction, Task};
use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::records::CheckpointName;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::checkpoints::Checkpoints;
use super::membership::Membership;
use super::ownership::Ownership;
use super::{HandlerError, HandoffContext, HandoffHandler, PermanentFailure};
use crate::repeats::RepeatedCauses;
use crate::session::StoreRetry;

/// The result of a callback: of a checkpoint its name, of any other nothing.
pub(super) type CallbackResult = Result<Option<CheckpointName>, HandlerError>;

/// The state of the work on a partition.
#[derive(Debug, Default)]
pub(super) struct PartitionWork {
    pub(super) local: LocalState,
    running: Option<RunningTask>,
    /// The task that failed last, and when it is retried.
    failed: Option<(Task, Instant)>,
    /// Why the handoff that `local` records as failed cannot succeed on this pod.
    pub(super) failure: Option<String>,
    back_off: StoreRetry,
    pub(super) checkpoints: Checkpoints,
    /// The handoff of which the service was told that routers stop.
    pub(super) left: Option<HandoffId>,
}

#[derive(Debug)]
struct RunningTask {
    task: Task,
    since: Instant,
    abort: AbortHandle,
}

impl PartitionWork {
    /// Records that the ownership the state was for is lost.
    pub(super) fn invalidate(&mut self) {
        self.local.invalidate();
        self.checkpoints = Checkpoints::default();
    }

    /// Returns whether the process has state of the partition, complete or not.
    pub(super) fn has_begun(&self) -> bool {
        self.local.loaded.is_some()
    }

    /// Returns whether a callback runs.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns whether a callback runs, and stops it unless it is for `wanted`.
    pub(super) fn stop_unless(&self, wanted: Option<PodAction>) -> bool {
        let Some(running) = &self.running else { return false };
        if wanted != Some(PodAction::Run(running.task)) {
            running.abort.abort();
        }
        true
    }

    /// Returns until when this task rests after it has failed.
    pub(super) fn rests_until(&mut self, task: Task) -> Option<Instant> {
        let again = self.failed.filter(|(failed, _)| *failed == task).map(|(_, again)| again);
        if again.is_none() {
            self.back_off.reset();
        }
        again.filter(|again| Instant::now() < *again)
    }

    /// Notes that this task has begun.
    pub(super) fn begin(&mut self, task: Task, has_tail: bool, abort: AbortHandle) {
        self.local.begin(task, has_tail);
        self.running = Some(RunningTask { task, since: Instant::now(), abort });
    }

    /// Notes the result of the callback that ran, or that it was aborted. `failures`: those of all partitions that were told.
    pub(super) fn ended(
        &mut self,
        pod: &Membership,
        partition: PartitionId,
        result: Option<CallbackResult>,
        failures: &mut RepeatedCauses,
    ) {
        let Some(RunningTask { task, since, .. }) = self.running.take() else { return };
        let (callback, took) = (task.callback.as_str(), since.elapsed());
        match result {
            Some(Ok(name)) if task.callback == Callback::Checkpoint => {
                self.failed = None;
                self.checkpoints.made(pod, partition, task.epoch, name);
            }
            Some(Ok(_)) => {
                debug!(
                    partition = partition.get(),
                    epoch = task.epoch.get(),
                    handoff = task.handoff.get(),
                    ?took,
                    "{callback} done"
                );
                self.failed = None;
                self.local.end(task);
                if task.callback == Callback::Leaving {
                    self.left = Some(task.handoff);
                }
            }
            Some(Err(error)) => {
                let again = self.back_off.next();
                match error.downcast_ref::<PermanentFailure>().filter(|_| self.local.fail(task)) {
                    Some(failure) => {
                        self.failure = Some(failure.reason().to_owned());
                        warn!(partition = partition.get(), epoch = task.epoch.get(), handoff = task.handoff.get(), %error, "{callback} failed for good; asking for another pod");
                    }
                    None => {
                        let (partition, again_in_ms) = (partition.get(), again.as_millis() as u64);
                        if let Some(times) = failures.note(&format!("{callback}: {error}"), Instant::now()) {
                            warn!(partition, handoff = task.handoff.get(), %error, times, "{callback} failed; retrying");
                        }
                        debug!(partition, handoff = task.handoff.get(), %error, again_in_ms, "{callback} failed");
                    }
                }
                self.failed = Some((task, Instant::now() + again));
            }
            None if task.callback == Callback::Checkpoint => debug!(partition = partition.get(), "checkpoint given up"),
            None => debug!(
                partition = partition.get(),
                epoch = task.epoch.get(),
                handoff = task.handoff.get(),
                ?took,
                "{callback} cancelled"
            ),
        }
    }
}

/// Runs a callback.
pub(super) async fn call(
    handler: Arc<dyn HandoffHandler>,
    ownership: Arc<Ownership>,
    callback: Callback,
    subject: HandoffContext,
) -> CallbackResult {
    match callback {
        Callback::Warm => handler.warm(&subject).await?,
        Callback::Sync => handler.sync(&subject).await?,
        Callback::Leaving => handler.leaving(&subject).await?,
        Callback::Drain => {
            ownership.idle(subject.partition).await;
            handler.drain(&subject).await?;
        }
        Callback::Release => {
            ownership.idle(subject.partition).await;
            handler.release(&subject).await?;
        }
        Callback::Checkpoint => {
            return Ok(handler.checkpoint(&subject).await?.map(CheckpointName::try_from).transpose()?);
        }
    }
    Ok(None)
}
