//! The callbacks that a service has to run, and those that it has run last.
//!
//! # Invariants
//!
//! * A partition has one call at most. A new one takes the place of the one before, whose caller is told so.

use std::collections::BTreeMap;

use segue_coordination::pod::{HandoffContext, PermanentFailure, PodAddress};
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::RemoteTask;
use segue_protocol::ids::{Epoch, HandoffId, PartitionId};
use tokio::sync::oneshot;

/// The result of a task: of a checkpoint its name, of any other nothing.
pub(super) type TaskResult = Result<Option<String>, PermanentFailure>;

/// The calls of all partitions.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    by_partition: BTreeMap<PartitionId, Call>,
    /// The number of the last call.
    last: u64,
    /// The task of each partition that was done last.
    done: BTreeMap<PartitionId, RemoteTask>,
}

/// A callback that the service has to run.
#[derive(Debug)]
struct Call {
    number: u64,
    task: RemoteTask,
    context: HandoffContext,
    done: Option<oneshot::Sender<TaskResult>>,
}

/// A callback as the service is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DueCall {
    /// The number of the call.
    pub(super) number: u64,
    pub(super) task: RemoteTask,
    /// The checkpoint from which a `Warm` starts.
    pub(super) checkpoint: Option<String>,
    pub(super) from: Option<PodAddress>,
    pub(super) to: Option<PodAddress>,
}

/// The effect of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AckEffect {
    /// It has ended the call.
    Ended { callback: Callback, succeeded: bool },
    /// The call had ended before, or has failed and stays due.
    Known,
    /// There is no such call.
    Stale,
}

impl PendingCalls {
    /// Returns the calls that are due.
    pub(super) fn due(&self) -> BTreeMap<PartitionId, DueCall> {
        let due = self.by_partition.iter().filter(|(_, call)| call.done.is_some());
        due.map(|(partition, Call { number, task, context, .. })| {
            let HandoffContext { checkpoint, from, to, .. } = context.clone();
            (*partition, DueCall { number: *number, task: *task, checkpoint, from, to })
        })
        .collect()
    }

    pub(super) fn is_done(&self, task: &RemoteTask) -> bool {
        self.done.get(&task.partition) == Some(task)
    }

    /// Forgets which tasks were done.
    pub(super) fn forget_done(&mut self) {
        self.done.clear();
    }

    /// Makes a callback due and returns its number.
    pub(super) fn begin(
        &mut self,
        callback: Callback,
        context: &HandoffContext,
        cancelled: bool,
        done: oneshot::Sender<TaskResult>,
    ) -> u64 {
        let HandoffContext { partition, epoch, handoff, .. } = *context;
        // The protocol names a checkpoint by its epoch.
        let handoff = if callback == Callback::Checkpoint { HandoffId::NONE } else { handoff };
        self.last += 1;
        let task = RemoteTask { partition, callback, handoff, epoch: Epoch::new(epoch.get()), cancelled };
        self.done.remove(&partition);
        let call = Call { number: self.last, task, context: context.clone(), done: Some(done) };
        self.by_partition.insert(partition, call);
        self.last
    }

    /// Drops the call of this number, unless another one has taken its place.
    pub(super) fn remove(&mut self, partition: PartitionId, number: u64) {
        if self.by_partition.get(&partition).is_some_and(|call| call.number == number) {
            self.by_partition.remove(&partition);
        }
    }

    /// Ends the calls of these callbacks as if the service had done them.
    pub(super) fn complete(&mut self, is_it: impl Fn(Callback) -> bool) {
        for call in self.by_partition.values_mut().filter(|call| is_it(call.task.callback)) {
            call.finish(Ok(None));
        }
    }

    /// Takes the result of the task that `is_it` describes. Without a result the task has failed, and stays due.
    pub(super) fn acknowledge(
        &mut self,
        partition: PartitionId,
        is_it: impl Fn(&RemoteTask) -> bool,
        result: Option<TaskResult>,
    ) -> AckEffect {
        let is_due = |call: &&mut Call| call.done.is_some() && is_it(&call.task);
        let Some(call) = self.by_partition.get_mut(&partition).filter(is_due) else {
            let was_done = self.done.get(&partition).is_some_and(is_it);
            return if was_done { AckEffect::Known } else { AckEffect::Stale };
        };
        let Some(result) = result else { return AckEffect::Known };
        let (callback, succeeded) = (call.task.callback, result.is_ok());
        call.finish(result);
        self.done.insert(partition, call.task);
        AckEffect::Ended { callback, succeeded }
    }
}

impl Call {
    fn finish(&mut self, result: TaskResult) {
        if let Some(done) = self.done.take() {
            // The pod may have dropped the call.
            let _ = done.send(result);
        }
    }
}
