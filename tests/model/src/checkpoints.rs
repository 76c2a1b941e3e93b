//! The checkpoints of the model. Production's [`Schedule`] says when an owner makes one, [`record`] how it is written, and
//! [`Waits`] for how long a new owner waits for one before it warms.
//!
//! Mirrors `pod::checkpoints` of `segue-coordination`. A checkpoint is made in one step and recorded in a later one, so a
//! slow callback is one that begins late. A callback may hang for good. How often the interval passes is part of the
//! budget; that time passes for a new owner that waits is a step of the protocol. Left out: an owner that has let one new
//! owner wait in vain lets no other wait.
//!
//! # Invariants
//!
//! * A checkpoint is recorded while its maker owns the partition at the epoch in which it was made.
//! * A new owner starts from no checkpoint of a later epoch than that of the owner that it follows.
//! * It starts before its wait is over only from the checkpoint that this owner recorded for this very handoff.

use std::time::Duration;

use segue_protocol::handoff::checkpoint::{PendingCheckpoint, Schedule, Waits, is_recorded, record, recorded_at};
use segue_protocol::handoff::pod_reconcile::{self, Callback, PodAction, Task};
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, PartitionId, Revision};
use segue_protocol::keys::KeyName;
use segue_protocol::records::{Checkpoint, CheckpointName};
use segue_protocol::txn::{Keys, Txn};
use segue_protocol::view::{Versioned, View};

use crate::action::Step;
use crate::cluster::{Cluster, PodAsks};
use crate::rules::Rule;
use crate::state::{Reached, Requests, State, Violation};
use crate::store::{StoreRef, TxnRef};
use crate::writes::{Post, StepResult};

/// Time between two checkpoints of a partition.
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);
/// A moment by which an interval has passed that began at the beginning.
const LATER: Duration = Duration::from_secs(100);

/// A checkpoint that is not in the store yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Taken {
    pub(crate) epoch: Epoch,
    /// The writes in it. `None`: there is nothing newer than what is recorded.
    writes: Option<Requests>,
}

/// What a view asks of a pod about the checkpoints of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The epoch of which a checkpoint is due at once …
    at_once: Option<Epoch>,
    /// … and once an interval has passed.
    in_time: Option<Epoch>,
    /// The handoff whose new owner waits for a checkpoint, and whether its wait ends by itself.
    waits: Option<(HandoffId, bool)>,
    /// What a record is guarded by, and answers.
    seen: [Revision; 3],
}

impl Taken {
    fn made(self) -> PendingCheckpoint {
        PendingCheckpoint { epoch: self.epoch, name: self.writes.map(name_of), at: 0, replaces: Revision::ZERO }
    }
}

/// In one epoch a later checkpoint has another name, or is not made at all.
fn name_of(writes: Requests) -> CheckpointName {
    CheckpointName::try_from(format!("writes {writes}")).expect("a short text on one line")
}

impl Cluster {
    /// What the view at `at` asks of a pod.
    pub(crate) fn asked(&self, at: StoreRef, pod: u8, incarnation: Incarnation, partition: u8) -> Asked {
        let asks = PodAsks { view: at.id(), pod, incarnation, partition };
        self.remember(|memory| &mut memory.asked, asks, || self.asked_by(self.followed(at), asks))
    }

    fn asked_by(&self, view: &View, asks: PodAsks) -> Asked {
        let (me, partition) = (&self.pod_names[usize::from(asks.pod)], PartitionId::new(asks.partition.into()));
        let mut schedule = Schedule::default();
        let mut due = |now| schedule.due(view, me, asks.incarnation, partition, now);
        let (at_once, in_time) = (due(Duration::ZERO), due(LATER));
        let handoff = view.handoffs.get(&partition).map(Versioned::id);
        let mut waits = Waits::default();
        let waits = handoff.and_then(|handoff| {
            let until = waits.until(view, partition, handoff, Duration::ZERO)?;
            Some((handoff, waits.until(view, partition, handoff, until).is_none()))
        });
        let assigned = view.assignments.get(&partition).map_or(Revision::ZERO, |it| it.mod_revision);
        let seen = [assigned, handoff.unwrap_or(HandoffId::NONE).revision(), recorded_at(view, partition)];
        Asked { at_once, in_time, waits, seen }
    }

    /// What its own view asks of a pod that is registered.
    fn asked_now(&self, state: &State, pod: u8, partition: u8) -> Option<Asked> {
        let it = &state.pods[usize::from(pod)];
        let at = it.view.filter(|_| it.is_up && it.incarnation != Incarnation::NONE)?;
        Some(self.asked(at, pod, it.incarnation, partition))
    }

    /// Calls `each` with every step of checkpoints until it says to stop. Returns whether it did.
    pub(crate) fn each_checkpoint_progress(&self, state: &State, each: &mut dyn FnMut(Step) -> bool) -> bool {
        self.each_part(|pod, partition| {
            let steps = [
                self.taken(state, pod, partition, false).map(|_| Step::MakeCheckpoint { pod, partition }),
                self.checkpoint_write(state, pod, partition).map(|_| Step::RecordCheckpoint { pod, partition }),
                self.wait_that_ends(state, pod, partition).map(|_| Step::StopWaiting { pod, partition }),
            ];
            steps.into_iter().flatten().any(&mut *each)
        })
    }

    /// What the budget lets happen to checkpoints.
    pub(crate) fn checkpoint_faults(&self, state: &State, steps: &mut Vec<Step>) {
        self.each_part(|pod, partition| {
            let is_due = state.budget.intervals > 0 && self.taken(state, pod, partition, true).is_some();
            steps.extend(is_due.then_some(Step::IntervalPasses { pod, partition }));
            let it = &state.pods[usize::from(pod)];
            let hangs = state.budget.hangs > 0 && partition == 0 && it.is_up && !it.hangs;
            steps.extend(hangs.then_some(Step::Hang { pod }));
            false
        });
    }

    /// Whether `is_it` is so of any partition of any pod. No pod has anything to do with checkpoints where they are off.
    fn each_part(&self, mut is_it: impl FnMut(u8, u8) -> bool) -> bool {
        let pods = if self.scenario.checkpoints { self.scenario.pods.len() as u8 } else { 0 };
        (0..pods).any(|pod| (0..self.scenario.partitions).any(|partition| is_it(pod, partition)))
    }

    /// The checkpoint that a pod makes now, or at the end of the interval.
    fn taken(&self, state: &State, pod: u8, partition: u8, after_interval: bool) -> Option<Taken> {
        let asked = self.asked_now(state, pod, partition)?;
        let due = match after_interval {
            true => asked.in_time.filter(|_| asked.at_once.is_none()),
            false => asked.at_once,
        };
        let it = &state.pods[usize::from(pod)];
        let part = &it.parts[usize::from(partition)];
        let epoch = due.filter(|_| part.made.is_none())?;
        let accepts = part.fence.accepted == Some(epoch);
        if accepts && it.hangs {
            return None;
        }
        let view = self.followed(it.view?);
        let writes = part.state & self.matter(state, partition);
        let stands =
            |it: &Versioned<Checkpoint>| (it.value.epoch, &it.value.checkpoint) == (epoch, &Some(name_of(writes)));
        let partition = PartitionId::new(partition.into());
        let has_more = !view.checkpoints.get(&partition).is_some_and(stands);
        let taken = Taken { epoch, writes: Some(writes).filter(|_| accepts && has_more) };
        (!is_recorded(view, partition, &taken.made())).then_some(taken)
    }

    pub(crate) fn make_checkpoint(
        &self,
        state: &mut State,
        pod: u8,
        partition: u8,
        after_interval: bool,
    ) -> StepResult {
        let taken = self.taken(state, pod, partition, after_interval)?;
        state.part(pod, partition).made = Some(taken);
        Some(())
    }

    /// Drops a checkpoint that the pod sees recorded, or that is not of the epoch that it serves.
    pub(crate) fn keep_checkpoint(&self, state: &mut State, pod: u8, partition: u8, accept: Option<Epoch>) {
        let it = &state.pods[usize::from(pod)];
        let Some(taken) = it.parts[usize::from(partition)].made else { return };
        let due = self.asked_now(state, pod, partition).and_then(|asked| asked.at_once);
        let stands = if taken.writes.is_some() { accept } else { due };
        let is_seen = |at| is_recorded(self.followed(at), PartitionId::new(partition.into()), &taken.made());
        if stands != Some(taken.epoch) || it.view.is_none_or(is_seen) {
            state.part(pod, partition).made = None;
        }
    }

    /// The record of a checkpoint that is made and not in the store yet.
    fn checkpoint_write(&self, state: &State, pod: u8, partition: u8) -> Option<TxnRef> {
        let it = &state.pods[usize::from(pod)];
        let made = it.parts[usize::from(partition)].made?.made();
        let (view, me, partition) = (self.followed(it.view?), &self.pod_names[usize::from(pod)], partition.into());
        let partition = PartitionId::new(partition);
        if is_recorded(self.view(state.now()), partition, &made) {
            return None;
        }
        let Txn { mut when, then, otherwise } = record(view, me, it.incarnation, partition, &made)?;
        when.retain(|compare| {
            let Keys::One(key) = &compare.keys else { return true };
            !match self.store.keys.parse(key) {
                Some(KeyName::Assignment(_)) => self.without(Rule::CheckpointOfTheOwner),
                Some(KeyName::Pod(_)) => self.without(Rule::CheckpointOfTheLiving),
                _ => false,
            }
        });
        let txn = self.store.txn(Txn { when, then, otherwise });
        self.store.commit(state.now(), txn).map(|_| txn)
    }

    pub(crate) fn record_checkpoint(&self, state: &mut State, pod: u8, partition: u8, post: &mut Post) -> StepResult {
        let txn = self.checkpoint_write(state, pod, partition)?;
        self.post(state, txn, None, post)
    }

    /// Whether a warm-up waits for a checkpoint of the old owner.
    pub(crate) fn waits_for_checkpoint(&self, state: &State, pod: u8, partition: u8, task: Task) -> bool {
        let part = &state.pods[usize::from(pod)].parts[usize::from(partition)];
        let may_wait = self.scenario.checkpoints && task.callback == Callback::Warm && part.local.loaded.is_none();
        let waits = || self.asked_now(state, pod, partition).and_then(|asked| asked.waits);
        may_wait && part.waited != Some(task.handoff) && waits().is_some_and(|(handoff, _)| handoff == task.handoff)
    }

    /// The handoff whose new owner has waited long enough.
    fn wait_that_ends(&self, state: &State, pod: u8, partition: u8) -> Option<HandoffId> {
        let it = &state.pods[usize::from(pod)];
        let (handoff, ends) = self.asked_now(state, pod, partition)?.waits?;
        let (duty, ..) = self.duty(it.view?, pod, it.incarnation, partition);
        let local = &it.parts[usize::from(partition)].local;
        let action = pod_reconcile::decide(duty, local, self.capabilities(pod).sync).action;
        let waits =
            matches!(action, Some(PodAction::Run(task)) if self.waits_for_checkpoint(state, pod, partition, task));
        (waits && ends && !self.without(Rule::CheckpointWaitEnds)).then_some(handoff)
    }

    pub(crate) fn stop_waiting(&self, state: &mut State, pod: u8, partition: u8) -> StepResult {
        let handoff = self.wait_that_ends(state, pod, partition)?;
        self.reach(Reached::WaitedInVain);
        state.part(pod, partition).waited = Some(handoff);
        self.reconcile_pod(state, pod);
        Some(())
    }

    /// Judges what a new owner starts from.
    pub(crate) fn judge_start(&self, state: &mut State, pod: u8, partition: u8, task: Task) {
        let it = &state.pods[usize::from(pod)];
        let Some(at) = it.view.filter(|_| self.scenario.checkpoints) else { return };
        let was_late = it.parts[usize::from(partition)].waited == Some(task.handoff);
        let (view, partition) = (self.store.view(at), PartitionId::new(partition.into()));
        let start = view.checkpoints.get(&partition).map(|it| &it.value);
        let owner = view.assignments.get(&partition).map(|it| &it.value);
        let is_for_it = start.is_some_and(|it| it.handoff == task.handoff);
        let is_able = owner.is_some_and(|owner| {
            view.live_pod(&owner.owner, owner.incarnation).is_some_and(|pod| pod.capabilities.checkpoint)
        });
        let moves = view.handoffs.get(&partition).is_some_and(|handoff| handoff.id() == task.handoff);
        let is_later = start.is_some_and(|start| owner.is_none_or(|owner| start.epoch > owner.epoch));
        if moves && (is_later || (is_able && !was_late && !is_for_it)) {
            state.violate(Violation::Checkpoint);
        }
        if moves && is_for_it && start.is_some_and(|start| start.checkpoint.is_some()) {
            self.reach(Reached::StartedFromCheckpoint);
        }
    }

    /// Whether a commit records a checkpoint that is not of the owner at that moment.
    pub(crate) fn records_wrongly(&self, before: StoreRef, after: StoreRef) -> bool {
        let (before, after) = (self.store.view(before), self.store.view(after));
        after.checkpoints.iter().any(|(partition, it)| {
            let facts = |it: &Versioned<Checkpoint>| {
                let Checkpoint { epoch, checkpoint, pod_name, .. } = it.value.clone();
                (epoch, checkpoint, pod_name)
            };
            let is_new = before.checkpoints.get(partition).is_none_or(|known| facts(known) != facts(it));
            let owner = before.assignments.get(partition).map(|owner| (owner.value.epoch, &owner.value.owner));
            is_new && owner != Some((it.value.epoch, &it.value.pod_name))
        })
    }
}
