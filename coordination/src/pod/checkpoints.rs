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

use segue_protocol::handoff::checkpoint::{Made, Schedule, awaited, is_recorded, newest, record, recorded_at};
use segue_protocol::handoff::pod_reconcile::{Callback, PodAction, Task};
use segue_protocol::ids::{Epoch, HandoffId, PartitionId};
use segue_protocol::records::{CheckpointName, Phase, PodRecord};
use segue_protocol::txn::Txn;
use tokio::time::Instant;
use tracing::{debug, info};

use super::driver::Driver;
use super::partition_work::{PartitionWork, PendingWrite};
use super::{HandoffContext, PodAddress};
use crate::session::{boottime, unix_millis};

/// Bounds of the time between two looks for checkpoints that have become due.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A partition's checkpoints in this process.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    schedule: Schedule,
    /// The checkpoint that is not yet in the store.
    made: Option<Made>,
}

impl Checkpoints {
    /// Returns whether nothing depends on this state.
    pub(super) fn is_written(&self) -> bool {
        self.made.is_none()
    }
}

impl Driver {
    /// Returns the checkpoint to make now, if this epoch of the partition is accepted and one is due. Writes the one that
    /// has been made.
    ///
    /// An owner that refuses requests makes none: its service may be down. It tells a new owner that waits for one that
    /// there is nothing newer.
    pub(super) fn checkpoint(&mut self, partition: PartitionId, accept: Option<Epoch>) -> Option<PodAction> {
        let (view, me) = (&self.view, self.settings.name.as_str());
        let work = &mut self.work.get_mut(&partition)?.checkpoints;
        let due = work.schedule.due(view, me, self.incarnation, partition, boottime());
        work.made.take_if(|made| {
            let stands = if made.name.is_some() { accept } else { due };
            Some(made.epoch) != stands || is_recorded(view, partition, made)
        });
        if work.made.is_none() {
            let epoch = due?;
            if accept == Some(epoch) {
                return Some(PodAction::Run(Task { callback: Callback::Checkpoint, handoff: HandoffId::NONE, epoch }));
            }
            let nothing = Made { epoch, name: None, at: unix_millis(), replaces: recorded_at(view, partition) };
            work.made = Some(nothing).filter(|nothing| !is_recorded(view, partition, nothing));
        }
        if work.made.is_some() {
            self.write(PendingWrite::Checkpoint(partition));
        }
        None
    }

    /// Returns whether a `warm` has to wait for a checkpoint of the old owner.
    pub(super) fn waits_for_checkpoint(&mut self, partition: PartitionId, task: Task) -> bool {
        // A warm-up that has begun goes on: its state comes from somewhere already.
        let has_begun = self.work.get(&partition).is_none_or(PartitionWork::has_begun);
        let old = awaited(&self.view, partition, task.handoff).filter(|_| task.callback == Callback::Warm);
        let Some(old) = old.filter(|_| !has_begun) else { return false };
        let now = boottime();
        let (number, handoff) = (partition.get(), task.handoff.get());
        let Some(until) = self.waits.until(&self.view, partition, task.handoff, now) else {
            info!(partition = number, handoff, pod = old, "no checkpoint in time; warming from the last one");
            return false;
        };
        debug!(partition = number, handoff, pod = old, "waiting for a checkpoint before warming");
        self.timers.insert((Instant::now() + (until - now), Some(partition)));
        true
    }

    /// Returns the subject of a callback.
    pub(super) fn context(&self, partition: PartitionId, task: Task) -> HandoffContext {
        let Task { callback, epoch, .. } = task;
        let moves = self.view.handoffs.get(&partition).filter(|it| it.value.phase == Phase::Warming);
        let handoff = match callback {
            Callback::Checkpoint => moves.map_or(HandoffId::NONE, |record| record.id()),
            _ => task.handoff,
        };
        let start = newest(&self.view, partition).filter(|_| callback == Callback::Warm);
        let checkpoint = start.map(|name| name.as_str().to_owned());
        let (from, to) = self.sides(partition, task);
        let (keyspace, partitions) = (self.ownership.keyspace().to_owned(), self.view.partitions());
        HandoffContext { keyspace, partition, epoch, handoff, checkpoint, partitions, from, to }
    }

    /// Returns the living pods of the handoff that moves the partition to this pod or away from it.
    fn sides(&self, partition: PartitionId, task: Task) -> (Option<PodAddress>, Option<PodAddress>) {
        let Some(standing) = self.view.handoffs.get(&partition) else { return (None, None) };
        let record = &standing.value;
        let (me, life) = (self.settings.name.as_str(), self.incarnation);
        let leaves = (record.old_owner.as_deref(), record.old_incarnation) == (Some(me), life);
        // The state of an earlier handoff may be released while another one begins.
        let comes = (record.new_owner.as_str(), record.new_incarnation, standing.id()) == (me, life, task.handoff);
        if !leaves && !comes {
            return (None, None);
        }
        let side = |pod: &PodRecord| PodAddress { pod: pod.pod_name.clone(), address: pod.address.clone() };
        (self.view.live_old_owner(record).map(side), self.view.live_new_owner(record).map(side))
    }

    /// Takes the result of a checkpoint that the service has made.
    pub(super) fn checkpoint_made(&mut self, partition: PartitionId, epoch: Epoch, name: Option<CheckpointName>) {
        let view = &self.view;
        let Some(work) = self.work.get_mut(&partition).map(|work| &mut work.checkpoints) else { return };
        debug!(partition = partition.get(), epoch = epoch.get(), name = ?name, "checkpoint made");
        let made = Made { epoch, name, at: unix_millis(), replaces: recorded_at(view, partition) };
        if is_recorded(view, partition, &made) {
            work.schedule.rest(boottime());
        } else {
            work.made = Some(made);
        }
    }

    /// Returns the transaction that records a partition's checkpoint.
    pub(super) fn checkpoint_txn(&self, partition: PartitionId) -> Option<Txn> {
        let made = self.work.get(&partition)?.checkpoints.made.as_ref();
        let made = made.filter(|made| !is_recorded(&self.view, partition, made))?;
        record(&self.view, &self.settings.name, self.incarnation, partition, made)
    }

    /// Returns the time between two looks for checkpoints that have become due. `None` if this pod makes none.
    fn look_interval(&self) -> Option<Duration> {
        let times = self.view.settings()?.checkpoint_times().filter(|_| self.settings.capabilities.checkpoint)?;
        Some((times.interval / 16).clamp(LOOKS.0, LOOKS.1))
    }

    /// Begins the checkpoints that have become due. Returns when to look again.
    pub(super) fn look_for_checkpoints(&mut self) -> Option<Instant> {
        let (now, interval) = (Instant::now(), self.look_interval()?);
        if let Some(next) = self.next_look.filter(|next| *next > now && *next <= now + interval) {
            return Some(next);
        }
        let (view, me, at) = (&self.view, self.settings.name.as_str(), boottime());
        let is_due = |(partition, work): &(&PartitionId, &PartitionWork)| {
            let mut schedule = work.checkpoints.schedule;
            !work.is_running() && schedule.due(view, me, self.incarnation, **partition, at).is_some()
        };
        let due: Vec<PartitionId> = self.work.iter().filter(is_due).map(|(partition, _)| *partition).collect();
        due.into_iter().for_each(|partition| self.reconcile(partition));
        self.next_look = Some(now + interval);
        self.next_look
    }
}
