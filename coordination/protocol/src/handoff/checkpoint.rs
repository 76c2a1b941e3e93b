//! Decides when an owner makes a checkpoint, and from which one a new owner starts.
//!
//! Pure. The owner itself, or the instance of the gRPC service that speaks for it, derives from its view what is due: a
//! checkpoint per interval, and one when the partition is about to move away and its new owner has not begun to warm. No
//! coordinator takes part, so none has to remember anything. Not here: what a checkpoint is. To Segue it is a text.
//!
//! # Invariants
//!
//! * Nothing depends on a checkpoint but where a new owner starts: not who owns, nor which phase follows. The new owner
//!   waits at most for [`CheckpointTimes::timeout`](crate::records::CheckpointTimes), and the old owner serves meanwhile.
//! * A wait that is over does not begin anew, not even in another process, provided that the pod reports the progress of its
//!   `Warm`. An owner that has let one new owner wait in vain lets no other wait before it has made a checkpoint.
//! * No checkpoint becomes due while requests are held.
//! * Only the owner of an epoch records a checkpoint of it. A late one is refused by the store.
//! * Times are counted by one process's own clock, from the view in which a record was first seen.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{Epoch, HandoffId, Incarnation, PartitionId, Revision};
use crate::records::{Checkpoint, CheckpointName, Handoff, Phase, encode};
use crate::txn::{Compare, Op, Txn};
use crate::view::{Versioned, View};

/// A partition's schedule, in the process that makes its checkpoints or asks for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Schedule {
    /// The ownership and the record that the present interval began with.
    began_with: Option<(Epoch, Revision)>,
    /// When it began.
    began: Duration,
}

/// The waits of new owners for checkpoints, in the process that warms or that tells pods to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waits {
    /// The last wait of each partition.
    last: BTreeMap<PartitionId, CheckpointWait>,
    /// The owners that have made no checkpoint in time, and the revision of the view by then.
    late: BTreeMap<(String, Incarnation), Revision>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CheckpointWait {
    handoff: HandoffId,
    since: Duration,
    is_over: bool,
}

/// A checkpoint on its way into the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PendingCheckpoint {
    /// The epoch in which it was made.
    pub epoch: Epoch,
    /// Its name. `None`: the pod has nothing newer than what is recorded.
    pub name: Option<CheckpointName>,
    /// When it was made, in Unix milliseconds. Informational.
    pub at: u64,
    /// When the partition's record had been put last as it was made ([`recorded_at`]). Two checkpoints may have the same
    /// name.
    pub replaces: Revision,
}

impl Schedule {
    /// Returns the epoch of which this pod has to make a checkpoint now. `now` is the time since a fixed moment of this
    /// process.
    ///
    /// The moments of a partition are apart by the interval, and those of different partitions are spread evenly over
    /// it. The first is at least one boundary away, so the partitions of a new owner are not all due at once.
    pub fn due(
        &mut self,
        view: &View,
        me: &str,
        incarnation: Incarnation,
        partition: PartitionId,
        now: Duration,
    ) -> Option<Epoch> {
        let Some(epoch) = able_owner(view, me, incarnation, partition) else {
            *self = Schedule::default();
            return None;
        };
        let times = view.settings()?.checkpoint_times()?;
        let recorded = recorded_at(view, partition);
        if self.began_with.replace((epoch, recorded)) != Some((epoch, recorded)) {
            self.began = now;
        }
        if let Some(handoff) = view.handoffs.get(&partition) {
            if handoff.value.phase != Phase::Warming {
                return None;
            }
            if asked_by(view, partition).is_some_and(|asks| asks.id() == handoff.id()) {
                return Some(epoch);
            }
        }
        let period = |at: Duration| (at + offset(partition, times.interval)).as_nanos() / times.interval.as_nanos();
        (period(now) > period(self.began)).then_some(epoch)
    }

    /// Begins the next interval although nothing was recorded: the pod has nothing new.
    pub fn rest(&mut self, now: Duration) {
        self.began = now;
    }
}

impl Waits {
    /// Returns until when the new owner of a handoff waits for a checkpoint before it warms. `None` if it may warm now.
    /// `now` is the time since a fixed moment of this process.
    pub fn until(
        &mut self,
        view: &View,
        partition: PartitionId,
        handoff: HandoffId,
        now: Duration,
    ) -> Option<Duration> {
        let old = awaited(view, partition, handoff)?;
        let life = view.incarnation_of(old);
        let is_late = self.is_late(view, old, life);
        let begins = CheckpointWait { handoff, since: now, is_over: false };
        let wait = self.last.entry(partition).or_insert(begins);
        if wait.handoff != handoff {
            *wait = begins;
        }
        let until = wait.since + timeout(view);
        if !wait.is_over && now >= until {
            self.late.retain(|(pod, life), _| view.incarnation_of(pod) == *life);
            self.late.insert((old.to_owned(), life), view.revision);
        }
        wait.is_over |= is_late || now >= until;
        (!wait.is_over).then_some(until)
    }

    /// Ends the wait of a handoff's new owner, which has been told to warm: another process had waited for it.
    pub fn told(&mut self, partition: PartitionId, handoff: HandoffId) {
        self.last.insert(partition, CheckpointWait { handoff, since: Duration::ZERO, is_over: true });
    }

    /// Returns whether this life of an owner has made no checkpoint since a new owner waited for one in vain.
    fn is_late(&mut self, view: &View, pod: &str, life: Incarnation) -> bool {
        let key = (pod.to_owned(), life);
        let Some(by_then) = self.late.get(&key) else { return false };
        // A record that only repeats the one before has the name of the pod that made that one.
        let is_of = |partition: &PartitionId, checkpoint: &Checkpoint| {
            checkpoint.pod_name == pod || view.assignments.get(partition).is_some_and(|it| it.value.owner == pod)
        };
        let made = |(partition, it): (&PartitionId, &Versioned<Checkpoint>)| {
            it.mod_revision > *by_then && is_of(partition, &it.value)
        };
        let is_late = !view.checkpoints.iter().any(made);
        if !is_late {
            self.late.remove(&key);
        }
        is_late
    }
}

/// Returns the epoch at which this pod owns the partition, if it makes checkpoints.
fn able_owner(view: &View, me: &str, incarnation: Incarnation, partition: PartitionId) -> Option<Epoch> {
    let is_able = view.live_pod(me, incarnation).is_some_and(|pod| pod.capabilities.checkpoint);
    let assignment = &view.assignments.get(&partition)?.value;
    let is_owner = assignment.owner == me && assignment.incarnation == incarnation;
    let exists = partition.get() < view.partitions();
    (is_able && is_owner && exists && !view.is_malformed(partition)).then_some(assignment.epoch)
}

/// Returns how far a partition's moments are shifted. Multiples of the golden ratio spread evenly however many there are.
fn offset(partition: PartitionId, interval: Duration) -> Duration {
    let share = u64::from(partition.get()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    interval.mul_f64(share as f64 / 2f64.powi(64))
}

/// Returns the handoff whose new owner would start from a checkpoint that the old owner has not made yet.
fn asked_by(view: &View, partition: PartitionId) -> Option<&Versioned<Handoff>> {
    let handoff = view.handoffs.get(&partition).filter(|it| it.value.phase == Phase::Warming)?;
    let answered = view.checkpoints.get(&partition).is_some_and(|it| it.value.handoff == handoff.id());
    (handoff.value.old_owner.is_some() && !answered).then_some(handoff)
}

/// Returns the pod whose checkpoint a new owner waits for before it warms, at most for the timeout of the settings. `None`
/// if it may warm now: the checkpoint is there, or nobody alive can make one.
pub fn awaited(view: &View, partition: PartitionId, handoff: HandoffId) -> Option<&str> {
    view.settings()?.checkpoint_times()?;
    let record = asked_by(view, partition).filter(|record| record.id() == handoff)?;
    let old = record.value.old_owner.as_deref()?;
    able_owner(view, old, record.value.old_incarnation, partition).map(|_| old)
}

/// Returns how long a new owner waits for a checkpoint.
pub fn timeout(view: &View) -> Duration {
    view.settings().and_then(|settings| settings.checkpoint_times()).map_or(Duration::ZERO, |times| times.timeout)
}

/// Returns the revision at which a partition's checkpoint was last recorded; 0 if there is none.
pub fn recorded_at(view: &View, partition: PartitionId) -> Revision {
    view.checkpoints.get(&partition).map_or(Revision::ZERO, |it| it.mod_revision)
}

/// Returns the checkpoint from which a new owner of the partition starts.
pub fn newest(view: &View, partition: PartitionId) -> Option<&CheckpointName> {
    view.checkpoints.get(&partition)?.value.checkpoint.as_ref()
}

/// Returns whether the store needs no record of this checkpoint any more: it has one or, where the pod has nothing new,
/// nobody asks.
pub fn is_recorded(view: &View, partition: PartitionId, made: &PendingCheckpoint) -> bool {
    match &made.name {
        Some(name) => view.checkpoints.get(&partition).is_some_and(|it| {
            it.mod_revision > made.replaces
                && (it.value.epoch, it.value.checkpoint.as_ref()) == (made.epoch, Some(name))
        }),
        None => asked_by(view, partition).is_none(),
    }
}

/// Returns the transaction by which the owner records a checkpoint. `None` if the pod is not the owner at that epoch.
/// Where the pod has nothing new, the checkpoint before is recorded again, and the next one is due an interval later.
///
/// The record answers a handoff that has begun meanwhile: the checkpoint is newer than anything else that it could wait
/// for.
pub fn record(
    view: &View,
    me: &str,
    incarnation: Incarnation,
    partition: PartitionId,
    made: &PendingCheckpoint,
) -> Option<Txn> {
    able_owner(view, me, incarnation, partition).filter(|epoch| *epoch == made.epoch)?;
    let assignment = view.assignments.get(&partition)?;
    let handoff = view.handoffs.get(&partition).map_or(HandoffId::NONE, Versioned::id);
    let before = view.checkpoints.get(&partition).map(|it| it.value.clone());
    let new = |checkpoint| {
        let (pod_name, epoch, taken_at) = (me.to_owned(), made.epoch, made.at);
        Checkpoint { partition, checkpoint, pod_name, epoch, taken_at, handoff }
    };
    let value = match (&made.name, before) {
        (Some(name), _) => new(Some(name.clone())),
        (None, Some(before)) => Checkpoint { handoff, ..before },
        (None, None) => new(None),
    };
    let keys = view.keys();
    Some(Txn::guarded(
        [
            Compare::created_at(keys.pod(me), incarnation.revision()),
            Compare::unchanged_since(keys.assignment(partition), assignment.mod_revision),
        ],
        [Op::put(keys.checkpoint(partition), encode(&value))],
    ))
}
