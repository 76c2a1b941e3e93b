//! The shell's part in checkpoints: when a callback for one begins, what becomes of its result, and how long a new owner
//! waits for one.
//!
//! [`checkpoint`](segue_protocol::handoff::checkpoint) decides what is due. A checkpoint is begun beside the handoffs and
//! gives way to every other callback of its partition.
//!
//! # Invariants
//!
//! * A partition's next checkpoint begins when the one before is in the store, has failed or has told of nothing new.
//! * The wait of a new owner ends by this process's clock, whatever the store shows.

use std::time::Duration;

use segue_protocol::handoff::checkpoint::{
    PendingCheckpoint, Schedule, Waits, awaited, is_recorded, record, recorded_at,
};
use segue_protocol::handoff::pod_reconcile::{Callback, Task};
use segue_protocol::ids::{Epoch, HandoffId, PartitionId};
use segue_protocol::records::CheckpointName;
use segue_protocol::txn::Txn;
use tokio::time::Instant;
use tracing::debug;

use super::membership::Membership;
use crate::session::{boottime, unix_millis};

/// Bounds of the time between two looks for checkpoints that have become due.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A partition's checkpoints in this process.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    schedule: Schedule,
    /// The checkpoint that is not yet in the store.
    made: Option<PendingCheckpoint>,
}

/// The next step for a partition's checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckpointStep {
    /// The service makes one.
    Make(Task),
    /// The one that has been made goes to the store.
    Write,
}

impl Checkpoints {
    /// Returns whether nothing depends on this state.
    pub(super) fn is_written(&self) -> bool {
        self.made.is_none()
    }

    /// Returns whether a checkpoint is due.
    pub(super) fn are_due(&self, pod: &Membership, partition: PartitionId, at: Duration) -> bool {
        let mut schedule = self.schedule;
        schedule.due(&pod.view, &pod.settings.name, pod.incarnation, partition, at).is_some()
    }

    /// Returns what is due, while this epoch of the partition is accepted.
    ///
    /// An owner that refuses requests makes none: its service may be down. It tells a new owner that waits for one that
    /// there is nothing newer.
    pub(super) fn step(
        &mut self,
        pod: &Membership,
        partition: PartitionId,
        accept: Option<Epoch>,
    ) -> Option<CheckpointStep> {
        let (view, me) = (&pod.view, pod.settings.name.as_str());
        let due = self.schedule.due(view, me, pod.incarnation, partition, boottime());
        self.made.take_if(|made| {
            let stands = if made.name.is_some() { accept } else { due };
            Some(made.epoch) != stands || is_recorded(view, partition, made)
        });
        if self.made.is_none() {
            let epoch = due?;
            if accept == Some(epoch) {
                let task = Task { callback: Callback::Checkpoint, handoff: HandoffId::NONE, epoch };
                return Some(CheckpointStep::Make(task));
            }
            let nothing =
                PendingCheckpoint { epoch, name: None, at: unix_millis(), replaces: recorded_at(view, partition) };
            self.made = Some(nothing).filter(|nothing| !is_recorded(view, partition, nothing));
        }
        self.made.as_ref().map(|_| CheckpointStep::Write)
    }

    /// Takes the result of a checkpoint that the service has made.
    pub(super) fn made(
        &mut self,
        pod: &Membership,
        partition: PartitionId,
        epoch: Epoch,
        name: Option<CheckpointName>,
    ) {
        let view = &pod.view;
        debug!(partition = partition.get(), epoch = epoch.get(), name = ?name, "checkpoint made");
        let made = PendingCheckpoint { epoch, name, at: unix_millis(), replaces: recorded_at(view, partition) };
        if is_recorded(view, partition, &made) {
            self.schedule.rest(boottime());
        } else {
            self.made = Some(made);
        }
    }

    /// Returns the transaction that records the partition's checkpoint.
    pub(super) fn txn(&self, pod: &Membership, partition: PartitionId) -> Option<Txn> {
        let made = self.made.as_ref().filter(|made| !is_recorded(&pod.view, partition, made))?;
        record(&pod.view, &pod.settings.name, pod.incarnation, partition, made)
    }
}

/// Returns until when a `warm` has to wait for a checkpoint of the old owner, if it has to.
pub(super) fn awaits_checkpoint(
    waits: &mut Waits,
    pod: &Membership,
    partition: PartitionId,
    task: Task,
) -> Option<Instant> {
    let old = awaited(&pod.view, partition, task.handoff).filter(|_| task.callback == Callback::Warm)?;
    let now = boottime();
    let (number, handoff) = (partition.get(), task.handoff.get());
    let Some(until) = waits.until(&pod.view, partition, task.handoff, now) else {
        debug!(partition = number, handoff, pod = old, "no checkpoint in time; warming from the last one");
        return None;
    };
    debug!(partition = number, handoff, pod = old, "waiting for a checkpoint before warming");
    Some(Instant::now() + (until - now))
}

/// Returns the time between two looks for checkpoints that have become due. `None` if this pod makes none.
pub(super) fn look_interval(pod: &Membership) -> Option<Duration> {
    let times = pod.view.settings()?.checkpoint_times().filter(|_| pod.settings.capabilities.checkpoint)?;
    Some((times.interval / 16).clamp(LOOKS.0, LOOKS.1))
}
