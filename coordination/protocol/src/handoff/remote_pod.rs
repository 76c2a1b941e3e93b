//! Decides what a pod in another process is told, and what its reports mean.
//!
//! A pod that takes part through the coordinators' gRPC service runs its callbacks itself. It may connect to another
//! instance at any moment, so an instance relies only on the store and on what it has told the pod on the current
//! stream. All other decisions are those of [`pod_reconcile`](super::pod_reconcile), with the view in place of the
//! callbacks' results.
//!
//! # Invariants
//!
//! * A pod is told to serve an epoch only if it has the state of that epoch, with its tail.
//! * A task whose report the store needs is due until the view shows the report.
//! * A new [`RemotePod`] tells everything again, so a lost message does no harm.
//! * A checkpoint that the pod was told to make is never dropped: its report is true of the epoch that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::advance::{Ack, acknowledge};
use super::checkpoint::{Schedule, Waits};
use super::parties::Parties;
use super::pod::{Duty, duty, leaving, warmed};
use super::pod_reconcile::{Callback, Completeness, LoadedState, LocalState, PodAction, PodReport, Task, decide};
use crate::ids::{Epoch, HandoffId, Incarnation, PartitionId};
use crate::records::{Phase, PodAck, PodAckKind};
use crate::txn::Txn;
use crate::view::View;

/// A pod in another process, and what it has been told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePod {
    name: String,
    incarnation: Incarnation,
    told: BTreeMap<PartitionId, DeliveredState>,
    /// The handoffs of which the pod was told that routers stop.
    leaving: BTreeMap<PartitionId, HandoffId>,
}

/// The last messages to a pod about a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct DeliveredState {
    /// The pod's state, as far as the view shows it.
    local: LocalState,
    /// The epoch of that state took effect.
    was_effective: bool,
    owned: Option<Epoch>,
    task: Option<RemoteTask>,
    schedule: Schedule,
    /// Until when a `Warm` waits for a checkpoint of the old owner.
    waits: Option<Duration>,
}

/// The part of the view that [`DeliveredState::tell`] needs beside the duty.
#[derive(Debug, Clone, Copy)]
struct Facts {
    /// The handoff comes from an old owner.
    brings: bool,
    /// The pod has the capability `sync`.
    syncs: bool,
    /// The epoch of which a checkpoint is due.
    checkpoint: Option<Epoch>,
    /// A new owner waits for a checkpoint before it warms.
    waits: bool,
}

/// A callback that a pod has to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteTask {
    /// The partition.
    pub partition: PartitionId,
    /// Which callback.
    pub callback: Callback,
    /// The handoff that the report has to name; 0 without a handoff.
    pub handoff: HandoffId,
    /// The epoch that begins (warm, sync), ends (leaving, drain, release) or lasts (checkpoint).
    pub epoch: Epoch,
    /// Whether the epoch of a `Release` never took effect.
    pub cancelled: bool,
}

/// The messages that are due to a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodMessages {
    /// Partitions to serve, each at this epoch and no other.
    pub owned: Vec<(PartitionId, Epoch)>,
    /// Partitions to refuse.
    pub gone: Vec<PartitionId>,
    /// Tasks that are newly due. Each takes the place of the partition's earlier one.
    pub tasks: Vec<RemoteTask>,
    /// Tasks that are not due any more and that nothing replaces.
    pub dropped: Vec<(PartitionId, HandoffId)>,
}

impl PodMessages {
    /// Returns whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.owned.is_empty() && self.gone.is_empty() && self.tasks.is_empty() && self.dropped.is_empty()
    }
}

impl RemotePod {
    /// Returns a pod that has been told nothing yet. `holdings` are the partitions whose state the pod reports to have,
    /// with the epochs of that state.
    pub fn new(
        view: &View,
        name: impl Into<String>,
        incarnation: Incarnation,
        holdings: impl IntoIterator<Item = (PartitionId, Epoch)>,
    ) -> Self {
        let mut pod = RemotePod { name: name.into(), incarnation, told: BTreeMap::new(), leaving: BTreeMap::new() };
        for (partition, epoch) in holdings {
            // Epochs never come back, so the epoch tells which handoff brought the state.
            let brought = view.handoffs.get(&partition).filter(|record| {
                let value = &record.value;
                (value.new_owner == pod.name, value.new_incarnation, value.epoch) == (true, incarnation, epoch)
            });
            let loaded = match brought {
                Some(record) => LoadedState {
                    handoff: record.id(),
                    epoch,
                    has_tail: record.value.old_owner.is_some(),
                    completeness: Completeness::Warm,
                },
                None => {
                    LoadedState { handoff: HandoffId::NONE, epoch, has_tail: false, completeness: Completeness::Synced }
                }
            };
            let was_effective = view.assignments.get(&partition).is_some_and(|it| it.value.epoch >= epoch);
            let local = LocalState { loaded: Some(loaded), ..LocalState::default() };
            pod.told.insert(partition, DeliveredState { local, was_effective, ..DeliveredState::default() });
        }
        pod
    }

    /// Returns the partitions that the pod may have to be told about, whatever has changed.
    pub fn concerned(&self, parties: &Parties) -> BTreeSet<PartitionId> {
        parties.partitions(&self.name).chain(self.told.keys().copied()).collect()
    }

    /// Returns the tasks that the pod was told last and that are still due.
    pub fn tasks(&self) -> impl Iterator<Item = RemoteTask> {
        self.told.values().filter_map(|told| told.task)
    }

    /// Takes the tasks that the pod works on. Another instance may have told it, so a `Warm` among them waits no longer for
    /// a checkpoint. Tasks of other pods and of handoffs that are over have no effect.
    pub fn works_on(&self, view: &View, tasks: impl IntoIterator<Item = (PartitionId, HandoffId)>, waits: &mut Waits) {
        for (partition, handoff) in tasks {
            let is_own = view.handoffs.get(&partition).is_some_and(|record| {
                let (new_owner, incarnation) = (&record.value.new_owner, record.value.new_incarnation);
                record.id() == handoff && *new_owner == self.name && incarnation == self.incarnation
            });
            if is_own {
                waits.told(partition, handoff);
            }
        }
    }

    /// Returns what the pod has to be told about these partitions, and records it as told. `now` is the time since a fixed
    /// moment of this process, which keeps `waits` longer than any of its pods: a wait for a checkpoint of an old owner
    /// outlasts the look that it began with.
    ///
    /// A caller that keeps no `RemotePod` from one look to the next asks for checkpoints only before handoffs.
    pub fn update(
        &mut self,
        view: &View,
        partitions: impl IntoIterator<Item = PartitionId>,
        now: Duration,
        waits: &mut Waits,
    ) -> PodMessages {
        let mut changes = PodMessages::default();
        let record = view.live_pod(&self.name, self.incarnation);
        for partition in partitions {
            let told = self.told.entry(partition).or_default();
            match record {
                Some(record) if !view.is_malformed(partition) => {
                    let duty = duty(view, &self.name, self.incarnation, partition);
                    let said = |kind, handoff| view.pod_ack(partition, &self.name, kind, handoff).is_some();
                    told.local.witness(duty, said);
                    let facts = Facts {
                        brings: view.handoffs.get(&partition).is_some_and(|record| record.value.old_owner.is_some()),
                        syncs: record.capabilities.sync,
                        checkpoint: told.schedule.due(view, &self.name, self.incarnation, partition, now),
                        waits: told.waits(view, partition, duty, now, waits),
                    };
                    told.tell(partition, duty, facts, &mut changes);
                }
                // The view cannot tell who owns the partition, so the pod accepts nothing and releases nothing.
                _ => told.own(partition, None, &mut changes),
            }
            if *told == DeliveredState::default() {
                self.told.remove(&partition);
            }
        }
        changes
    }

    /// Returns the tasks by which the pod learns that routers stop sending it requests of these partitions, and records
    /// them as told. Nobody waits for such a task, so it is never due: it replaces none and is not dropped.
    pub fn tell_leaving(&mut self, view: &View, partitions: impl IntoIterator<Item = PartitionId>) -> Vec<RemoteTask> {
        let mut tasks = Vec::new();
        for partition in partitions {
            let Some((handoff, epoch)) = leaving(view, &self.name, self.incarnation, partition) else {
                self.leaving.remove(&partition);
                continue;
            };
            if self.leaving.insert(partition, handoff) != Some(handoff) {
                tasks.push(RemoteTask { partition, callback: Callback::Leaving, handoff, epoch, cancelled: false });
            }
        }
        tasks
    }

    /// Returns the partitions about which the pod has to be told something because time has passed.
    pub fn overdue(&self, view: &View, now: Duration) -> Vec<PartitionId> {
        let is_overdue = |(partition, told): &(&PartitionId, &DeliveredState)| {
            let DeliveredState { mut schedule, owned, task, waits, .. } = **told;
            let mut asks = || schedule.due(view, &self.name, self.incarnation, **partition, now).is_some();
            let waited = waits.is_some_and(|until| now >= until);
            waited || (owned.is_some() && task.is_none() && asks())
        };
        self.told.iter().filter(is_overdue).map(|(partition, _)| *partition).collect()
    }

    /// Returns the first moment at which a `Warm` becomes due although the checkpoint that it waits for is not there.
    pub fn waits_until(&self) -> Option<Duration> {
        self.told.values().filter_map(|told| told.waits).min()
    }

    /// Records that the pod has no newer checkpoint of a partition than the one that is recorded.
    pub fn has_nothing_new(&mut self, partition: PartitionId, now: Duration) {
        let Some(told) = self.told.get_mut(&partition) else { return };
        told.schedule.rest(now);
        // A handoff may have begun to ask meanwhile. The pod is then told again.
        told.task.take_if(|task| task.callback == Callback::Checkpoint);
    }

    /// Records that the pod has warmed a partition that an operator assigned by hand. The store has no record of that.
    pub fn warmed_by_hand(&mut self, partition: PartitionId) {
        let loaded = self.told.get_mut(&partition).and_then(|told| told.local.loaded.as_mut());
        if let Some(loaded) = loaded.filter(|loaded| loaded.handoff == HandoffId::NONE) {
            loaded.completeness = Completeness::Synced;
        }
    }
}

impl LocalState {
    /// Records what the view shows of this pod's work.
    fn witness(&mut self, duty: Duty, has_said: impl Fn(PodAckKind, HandoffId) -> bool) {
        if let Duty::Warm { handoff, .. } | Duty::Sync { handoff, .. } = duty
            && has_said(PodAckKind::Failed, handoff)
        {
            self.failed = Some(handoff);
        }
        let Some(loaded) = &mut self.loaded else { return };
        if loaded.handoff == HandoffId::NONE {
            return;
        }
        match duty {
            // The assignment flips only after this pod has reported ready and, if it has the capability, synced.
            Duty::Serve { epoch } if epoch == loaded.epoch => loaded.completeness = Completeness::Synced,
            Duty::Stand { handoff, .. } | Duty::Sync { handoff, .. } if handoff == loaded.handoff => {
                loaded.completeness =
                    if has_said(PodAckKind::Synced, handoff) { Completeness::Synced } else { Completeness::Warm };
            }
            _ => {}
        }
    }
}

impl DeliveredState {
    /// Returns whether a `Warm` that has not been told yet waits for a checkpoint of the old owner.
    fn waits(&mut self, view: &View, partition: PartitionId, duty: Duty, now: Duration, waits: &mut Waits) -> bool {
        let is_told = |handoff| self.task.is_some_and(|it| (it.callback, it.handoff) == (Callback::Warm, handoff));
        self.waits = match duty {
            Duty::Warm { handoff, .. } if !is_told(handoff) => waits.until(view, partition, handoff, now),
            _ => None,
        };
        self.waits.is_some()
    }

    fn tell(&mut self, partition: PartitionId, duty: Duty, facts: Facts, changes: &mut PodMessages) {
        let due = |callback, handoff, epoch| RemoteTask { partition, callback, handoff, epoch, cancelled: false };
        loop {
            let decision = decide(duty, &self.local, facts.syncs);
            self.own(partition, decision.accept, changes);
            self.was_effective |= decision.accept.is_some();
            let task = match (duty, decision.action) {
                (Duty::Release { handoff }, _) => {
                    let epoch = self.local.loaded.take().map(|loaded| loaded.epoch);
                    let told = self.task.filter(|task| (task.callback, task.handoff) == (Callback::Release, handoff));
                    told.or_else(|| Some(due(Callback::Release, handoff, epoch.unwrap_or_default())))
                }
                (_, Some(PodAction::Run(task))) if task.callback == Callback::Release => {
                    // Nothing in the store waits for it, so it is sent once and presumed to be done. A pod that misses
                    // it lists the state when it reconnects.
                    let cancelled = !self.was_effective;
                    changes.tasks.push(RemoteTask { cancelled, ..due(task.callback, task.handoff, task.epoch) });
                    *self = DeliveredState { waits: self.waits, ..DeliveredState::default() };
                    continue;
                }
                (_, Some(PodAction::Run(task))) if facts.waits && task.callback == Callback::Warm => None,
                (_, Some(PodAction::Run(task))) => {
                    self.local.begin(task, facts.brings);
                    Some(due(task.callback, task.handoff, task.epoch))
                }
                // The view does not show the report yet.
                (duty, Some(PodAction::Report(report, handoff))) => {
                    awaited(duty, report).map(|Task { callback, epoch, .. }| due(callback, handoff, epoch))
                }
                (_, None) => facts
                    .checkpoint
                    .filter(|epoch| decision.accept == Some(*epoch))
                    .map(|epoch| due(Callback::Checkpoint, HandoffId::NONE, epoch)),
            };
            let before = std::mem::replace(&mut self.task, task);
            match (before, task) {
                (before, Some(task)) if before != Some(task) => changes.tasks.push(task),
                (Some(before), None) if before.callback == Callback::Drain && decision.accept.is_some() => {
                    changes.dropped.push((partition, before.handoff));
                }
                _ => {}
            }
            return;
        }
    }

    fn own(&mut self, partition: PartitionId, accept: Option<Epoch>, changes: &mut PodMessages) {
        match (std::mem::replace(&mut self.owned, accept), accept) {
            (before, Some(epoch)) if before != accept => changes.owned.push((partition, epoch)),
            (Some(_), None) => changes.gone.push(partition),
            _ => {}
        }
    }
}

/// Returns the task that this report completes.
fn awaited(duty: Duty, report: PodReport) -> Option<Task> {
    let callback = match report {
        PodReport::Ready => Callback::Warm,
        PodReport::Synced => Callback::Sync,
        PodReport::Drained => Callback::Drain,
        PodReport::Released => Callback::Release,
        // The store has this report. The coordinator cancels the handoff.
        PodReport::Failed => return None,
    };
    match duty {
        Duty::Warm { handoff, epoch } | Duty::Sync { handoff, epoch } | Duty::Drain { handoff, epoch } => {
            Some(Task { callback, handoff, epoch })
        }
        _ => None,
    }
}

/// The consequence of a pod's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportVerdict {
    /// The transaction has to be committed. If a guard fails, the view is stale.
    Commit(Box<Txn>),
    /// The store already has the report.
    Known,
    /// The handoff or task that the report is about is over.
    Stale,
    /// The view does not show yet that the task is due.
    TooEarly,
}

/// A pod's report on a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskReport {
    /// The partition.
    pub partition: PartitionId,
    /// The handoff that the task belongs to.
    pub handoff: HandoffId,
    /// The task's callback.
    pub callback: Callback,
    /// Why the callback can never succeed on this pod. `None`: it has succeeded.
    pub failure: Option<String>,
}

impl TaskReport {
    /// Returns whether another pod can take over what the callback failed to do. Otherwise the pod has to try again.
    pub fn can_fail(&self) -> bool {
        matches!(self.callback, Callback::Warm | Callback::Sync) && self.handoff != HandoffId::NONE
    }
}

/// Judges a report of a pod.
pub fn judge(view: &View, pod: &str, incarnation: Incarnation, report: &TaskReport, now: u64) -> ReportVerdict {
    let TaskReport { partition, handoff, callback, .. } = *report;
    if view.revision < handoff.revision().max(incarnation.revision()) || view.is_malformed(partition) {
        return ReportVerdict::TooEarly;
    }
    let Some(record) = view.handoffs.get(&partition).filter(|record| record.id() == handoff) else {
        return ReportVerdict::Stale;
    };
    let value = &record.value;
    let is_new = value.new_owner == pod && value.new_incarnation == incarnation;
    let is_old = value.old_owner.as_deref() == Some(pod) && value.old_incarnation == incarnation;
    let said = |kind| view.pod_ack(partition, pod, kind, handoff).is_some();
    let commit = |ack| {
        let reason = report.failure.clone();
        let ack = Ack::Pod(PodAck { acked_at: now, reason, ..PodAck::new(pod, partition, handoff, ack) });
        ReportVerdict::Commit(Box::new(acknowledge(view, &ack, view.keys().pod(pod), incarnation, now)))
    };
    let duty = duty(view, pod, incarnation, partition);
    if report.failure.is_some() {
        return match (callback, duty) {
            _ if !is_new || !report.can_fail() => ReportVerdict::Stale,
            _ if said(PodAckKind::Failed) => ReportVerdict::Known,
            (Callback::Warm, Duty::Warm { .. }) | (Callback::Sync, Duty::Sync { .. }) => commit(PodAckKind::Failed),
            (Callback::Sync, _) if value.phase <= Phase::Syncing && !said(PodAckKind::Synced) => {
                ReportVerdict::TooEarly
            }
            // Done already, or past the point of no return.
            _ => ReportVerdict::Stale,
        };
    }
    match (callback, duty) {
        (Callback::Warm, Duty::Warm { .. }) => warmed(view, pod, incarnation, handoff, partition, now)
            .map_or(ReportVerdict::TooEarly, |txn| ReportVerdict::Commit(Box::new(txn))),
        (Callback::Warm, _) if is_new && value.phase > Phase::Warming => ReportVerdict::Known,
        (Callback::Sync, _) if is_new && (said(PodAckKind::Synced) || value.phase > Phase::Syncing) => {
            ReportVerdict::Known
        }
        (Callback::Sync, Duty::Sync { .. }) => commit(PodAckKind::Synced),
        (Callback::Sync, _) if is_new => ReportVerdict::TooEarly,
        (Callback::Drain, _) if is_old && (said(PodAckKind::Drained) || value.phase > Phase::Syncing) => {
            ReportVerdict::Known
        }
        (Callback::Drain, Duty::Drain { .. }) => commit(PodAckKind::Drained),
        (Callback::Drain, _) if is_old => ReportVerdict::TooEarly,
        (Callback::Release, _) if is_old && said(PodAckKind::Released) => ReportVerdict::Known,
        (Callback::Release, Duty::Release { .. }) => commit(PodAckKind::Released),
        (Callback::Release, _) if is_old && value.phase < Phase::Complete => ReportVerdict::TooEarly,
        _ => ReportVerdict::Stale,
    }
}
