//! The shell's work on all partitions: it makes the running callbacks, the accepted epochs and the written acknowledgements
//! agree with the pod's duty.
//!
//! [`pod_reconcile`](segue_protocol::handoff::pod_reconcile) decides what to do. This module starts it, stops it, and
//! retries it when it failed.
//!
//! # Invariants
//!
//! * A partition is closed before anything begins that requires it closed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::advance::{Ack, acknowledge};
use segue_protocol::handoff::checkpoint::Waits;
use segue_protocol::handoff::epoch_fence::known_epoch;
use segue_protocol::handoff::pod::{Duty, duty, leaving, warmed};
use segue_protocol::handoff::pod_reconcile::{Callback, Decision, PodAction, PodReport, Task, decide};
use segue_protocol::ids::{Epoch, HandoffId, PartitionId};
use segue_protocol::records::{PodAck, PodAckKind};
use segue_protocol::txn::Txn;
use segue_protocol::view::ViewDelta;
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::Instant;
use tracing::{Instrument as _, debug, info};

use super::HandoffHandler;
use super::checkpoints::{CheckpointStep, awaits_checkpoint, look_interval};
use super::context::context;
use super::membership::Membership;
use super::ownership::Ownership;
use super::partition_work::{CallbackResult, PartitionWork, call};
use super::service::Service;
use crate::repeats::RepeatedCauses;
use crate::session::{WriteQueue, WriteResults, boottime, unix_millis};
use crate::store::Store;

/// How long a write rests after one of its guards failed.
const WRITE_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How long changes of what the pod owns are added up for a line of the log.
const CHANGES_PAUSE: Duration = Duration::from_secs(1);

/// A write of the pod to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PendingWrite {
    Report(PartitionId, HandoffId, PodReport),
    Checkpoint(PartitionId),
    Status,
}

impl PendingWrite {
    fn partition(self) -> Option<PartitionId> {
        match self {
            PendingWrite::Report(partition, ..) | PendingWrite::Checkpoint(partition) => Some(partition),
            PendingWrite::Status => None,
        }
    }
}

/// The work of a pod on all partitions.
pub(super) struct Work {
    pub(super) pod: Membership,
    handler: Arc<dyn HandoffHandler>,
    service: Arc<dyn Service>,
    ownership: Arc<Ownership>,
    // Ordered, because a simulated run has to repeat exactly.
    partitions: BTreeMap<PartitionId, PartitionWork>,
    pub(super) callbacks: JoinSet<CallbackResult>,
    running: HashMap<task::Id, PartitionId>,
    pub(super) writes: WriteQueue<PendingWrite>,
    /// When to reconsider a partition or, without one, the own record.
    timers: BTreeSet<(Instant, Option<PartitionId>)>,
    /// When to look for checkpoints that have become due.
    next_look: Option<Instant>,
    waits: Waits,
    changes: OwnedChanges,
    /// The failures of callbacks that the log has told.
    failures: RepeatedCauses,
}

/// The changes of what the pod owns since the log told of them.
#[derive(Debug, Default)]
struct OwnedChanges {
    gained: usize,
    lost: usize,
    /// Until when further changes are added.
    until: Option<Instant>,
}

impl Work {
    pub(super) fn new(
        store: Arc<dyn Store>,
        pod: Membership,
        (handler, service): (Arc<dyn HandoffHandler>, Arc<dyn Service>),
        ownership: Arc<Ownership>,
    ) -> Self {
        Work {
            pod,
            handler,
            service,
            ownership,
            partitions: BTreeMap::new(),
            callbacks: JoinSet::new(),
            running: HashMap::new(),
            writes: WriteQueue::new(store, "pod report cannot be written; retrying", WRITE_RETRY_PAUSE),
            timers: BTreeSet::new(),
            next_look: None,
            waits: Waits::default(),
            changes: OwnedChanges::default(),
            failures: RepeatedCauses::default(),
        }
    }

    /// Tells the log how many partitions the pod has got and given up, a moment after the first of them.
    pub(super) fn tell_changes(&mut self, now: Instant) {
        let OwnedChanges { gained, lost, .. } = self.changes;
        if gained + lost == 0 {
            return;
        }
        if now < *self.changes.until.get_or_insert(now + CHANGES_PAUSE) {
            return;
        }
        self.changes = OwnedChanges::default();
        info!(gained, lost, owned = self.pod.state.borrow().owned.len(), "partitions of this pod have changed");
    }

    /// Returns whether nothing is left of any partition.
    pub(super) fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Returns whether nothing is left of any partition, and nothing is being written.
    pub(super) fn is_done(&self) -> bool {
        self.is_empty() && self.writes.is_empty()
    }

    /// Returns whether the pod owns nothing, holds no state and hands nothing over.
    pub(super) fn is_emptied(&self) -> bool {
        self.is_empty() && self.pod.has_handed_over()
    }

    /// Ends the pod's life: nothing that was done in it is vouched for any more. The pod must have fenced before.
    pub(super) fn end_life(&mut self) {
        self.pod.end();
        self.writes.clear();
        for work in self.partitions.values_mut() {
            work.invalidate();
        }
        self.reconcile_all();
    }

    /// Reconsiders everything after a snapshot.
    pub(super) fn resync(&mut self) {
        self.writes.forget(|_| true);
        self.reconcile_all();
    }

    /// Makes the work on all partitions agree with the pod's duty.
    pub(super) fn reconcile_all(&mut self) {
        let view = &self.pod.view;
        let known = view.assignments.keys().chain(view.handoffs.keys()).chain(self.partitions.keys());
        for partition in known.copied().collect::<BTreeSet<_>>() {
            self.reconcile(partition);
        }
        self.keep_record();
    }

    /// Does the same for the partitions that changes affect.
    pub(super) fn reconsider(&mut self, delta: &ViewDelta) {
        let Some(mut affected) = delta.affected(&self.pod.view) else { return self.reconcile_all() };
        if delta.pods.contains(&self.pod.settings.name) {
            // There may be work on a partition that no record connects with this pod any more.
            affected.extend(self.partitions.keys());
            self.keep_record();
        }
        affected.into_iter().for_each(|partition| self.reconcile(partition));
    }

    /// Returns when something is due without any event.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what has become due.
    pub(super) fn due(&mut self) {
        let now = Instant::now();
        while let Some(&(at, what)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, what));
            self.reconsider_one(what);
        }
    }

    fn reconsider_one(&mut self, what: Option<PartitionId>) {
        match what {
            Some(partition) => self.reconcile(partition),
            None => self.keep_record(),
        }
    }

    /// Makes the work on a partition agree with the pod's duty.
    fn reconcile(&mut self, partition: PartitionId) {
        let duty = self.duty(partition);
        let work = self.partitions.entry(partition).or_default();
        let Decision { accept, action } = decide(duty, &work.local, self.pod.settings.capabilities.sync);
        let accept = accept.filter(|_| !self.pod.refusing);
        self.accept(partition, duty, accept);
        let work = self.partitions.entry(partition).or_default();
        if accept.is_some() {
            work.local.reopen();
        }
        let action = action.or_else(|| self.leave(partition, accept)).or_else(|| self.checkpoint(partition, accept));
        let work = self.partitions.entry(partition).or_default();
        // The next callback begins when the one that runs has ended.
        if work.stop_unless(action) {
            return;
        }
        match action {
            Some(PodAction::Run(task)) => self.start(partition, task),
            Some(PodAction::Report(report, handoff)) => self.report(partition, handoff, report),
            None if !work.has_begun() => drop(self.partitions.remove(&partition)),
            None => {}
        }
    }

    /// Returns the callback that tells the service that routers stop, unless it has been told.
    fn leave(&self, partition: PartitionId, accept: Option<Epoch>) -> Option<PodAction> {
        let (handoff, epoch) = leaving(&self.pod.view, &self.pod.settings.name, self.pod.incarnation, partition)?;
        let is_told = self.partitions.get(&partition).is_some_and(|work| work.left == Some(handoff));
        let task = Task { callback: Callback::Leaving, handoff, epoch };
        (accept == Some(epoch) && !is_told).then_some(PodAction::Run(task))
    }

    /// Returns the checkpoint to make now. Writes the one that has been made.
    fn checkpoint(&mut self, partition: PartitionId, accept: Option<Epoch>) -> Option<PodAction> {
        match self.partitions.get_mut(&partition)?.checkpoints.step(&self.pod, partition, accept)? {
            CheckpointStep::Make(task) => Some(PodAction::Run(task)),
            CheckpointStep::Write => {
                self.write(PendingWrite::Checkpoint(partition));
                None
            }
        }
    }

    /// Begins the checkpoints that have become due. Returns when to look again.
    pub(super) fn look_for_checkpoints(&mut self) -> Option<Instant> {
        let (now, interval) = (Instant::now(), look_interval(&self.pod)?);
        if let Some(next) = self.next_look.filter(|next| *next > now && *next <= now + interval) {
            return Some(next);
        }
        let at = boottime();
        let is_due = |(partition, work): &(&PartitionId, &PartitionWork)| {
            !work.is_running() && work.checkpoints.are_due(&self.pod, **partition, at)
        };
        let due: Vec<PartitionId> = self.partitions.iter().filter(is_due).map(|(partition, _)| *partition).collect();
        due.into_iter().for_each(|partition| self.reconcile(partition));
        self.next_look = Some(now + interval);
        self.next_look
    }

    fn duty(&self, partition: PartitionId) -> Duty {
        let pod = &self.pod;
        if pod.view.is_malformed(partition) || pod.is_unreadable() {
            // The owner cannot be read at the moment: accept nothing, and release nothing.
            return Duty::Stand { handoff: HandoffId::NONE, epoch: Epoch::default() };
        }
        match duty(&pod.view, &pod.settings.name, pod.incarnation, partition) {
            // At its end a pod only gives partitions up.
            duty if pod.ending && !matches!(duty, Duty::Drain { .. } | Duty::Release { .. }) => Duty::Idle,
            duty => duty,
        }
    }

    fn accept(&mut self, partition: PartitionId, duty: Duty, accept: Option<Epoch>) {
        let assigned = self.pod.view.assignments.get(&partition).map(|assignment| assignment.value.epoch);
        if accept.is_some() && self.pod.state.borrow().owned.get(&partition) != accept.as_ref() {
            self.service.accepts(partition);
        }
        self.ownership.set(partition, accept, known_epoch(accept, duty, assigned));
        let changes = &mut self.changes;
        self.pod.state.send_if_modified(|state| {
            let before = match accept {
                Some(epoch) => state.owned.insert(partition, epoch),
                None => state.owned.remove(&partition),
            };
            match (before, accept) {
                (before, Some(epoch)) if before != accept => {
                    changes.gained += usize::from(before.is_none());
                    debug!(partition = partition.get(), epoch = epoch.get(), "serving");
                }
                (Some(epoch), None) => {
                    changes.lost += 1;
                    debug!(partition = partition.get(), epoch = epoch.get(), ?duty, "refusing");
                }
                _ => {}
            }
            before != accept
        });
    }

    fn start(&mut self, partition: PartitionId, task: Task) {
        let has_tail = self.pod.view.handoffs.get(&partition).is_some_and(|it| it.value.old_owner.is_some());
        let work = self.partitions.entry(partition).or_default();
        let rests_until = work.rests_until(task).or_else(|| {
            // A warm-up that has begun goes on: its state comes from somewhere already.
            let is_new = !work.has_begun();
            is_new.then(|| awaits_checkpoint(&mut self.waits, &self.pod, partition, task)).flatten()
        });
        if let Some(until) = rests_until {
            self.timers.insert((until, Some(partition)));
            return;
        }
        let subject = context(&self.pod, self.ownership.keyspace(), partition, task);
        let callback = call(self.handler.clone(), self.ownership.clone(), task.callback, subject);
        let abort = self.callbacks.spawn(callback.in_current_span());
        self.running.insert(abort.id(), partition);
        work.begin(task, has_tail, abort);
    }

    /// Handles the end of a callback: success, failure, panic or abort.
    pub(super) fn ended(&mut self, ended: Result<(task::Id, CallbackResult), JoinError>) {
        let (id, result) = match ended {
            Ok((id, result)) => (id, Some(result)),
            Err(error) if error.is_cancelled() => (error.id(), None),
            Err(error) => (error.id(), Some(Err("it panicked".into()))),
        };
        let Some(partition) = self.running.remove(&id) else { return };
        self.partitions.entry(partition).or_default().ended(&self.pod, partition, result, &mut self.failures);
        self.reconcile(partition);
    }

    fn report(&mut self, partition: PartitionId, handoff: HandoffId, report: PodReport) {
        let is_written = report.ack().is_some_and(|kind| self.has_acknowledged(partition, kind, handoff));
        if !is_written {
            self.write(PendingWrite::Report(partition, handoff, report));
        }
    }

    fn has_acknowledged(&self, partition: PartitionId, kind: PodAckKind, handoff: HandoffId) -> bool {
        self.pod.view.pod_ack(partition, &self.pod.settings.name, kind, handoff).is_some()
    }

    /// Makes the own record state whether the pod is draining.
    pub(super) fn keep_record(&mut self) {
        if self.pod.follow_record() {
            self.write(PendingWrite::Status);
        }
    }

    fn report_txn(&self, partition: PartitionId, handoff: HandoffId, report: PodReport) -> Option<Txn> {
        let (pod, now) = (&self.pod, unix_millis());
        let me = &pod.settings.name;
        let Some(ack) = report.ack() else {
            return warmed(&pod.view, me, pod.incarnation, handoff, partition, now);
        };
        let failure = self.partitions.get(&partition).and_then(|work| work.failure.clone());
        let reason = failure.filter(|_| report == PodReport::Failed);
        let ack = Ack::Pod(PodAck { acked_at: now, reason, ..PodAck::new(me, partition, handoff, ack) });
        Some(acknowledge(&pod.view, &ack, pod.keys.pod(me), pod.incarnation, now))
    }

    fn write(&mut self, what: PendingWrite) {
        if let Some(again) = self.writes.want(what, self.pod.view.revision) {
            self.timers.insert((again, what.partition()));
        }
    }

    fn txn(&self, what: PendingWrite) -> Option<Txn> {
        match what {
            PendingWrite::Report(partition, handoff, report) => self.report_txn(partition, handoff, report),
            PendingWrite::Checkpoint(partition) => {
                self.partitions.get(&partition)?.checkpoints.txn(&self.pod, partition)
            }
            PendingWrite::Status => self.pod.status_change(),
        }
    }

    /// Sends the writes that are due.
    pub(super) fn send_writes(&mut self) {
        let due = self.writes.take_due();
        let txns: Vec<Option<Txn>> = due.iter().map(|what| self.txn(*what)).collect();
        self.writes.send(due.into_iter().zip(txns));
    }

    /// Takes the results of a request.
    pub(super) fn written(&mut self, results: WriteResults<PendingWrite>) {
        for (what, result) in &results {
            match result {
                Ok(outcome) if outcome.committed() && matches!(what, PendingWrite::Checkpoint(_)) => {
                    debug!(?what, "recorded");
                }
                Ok(outcome) if outcome.committed() => debug!(?what, "said"),
                Ok(_) | Err(_) => {}
            }
        }
        let (view, partitions) = (&self.pod.view, &self.partitions);
        self.writes.forget(|write| match write {
            PendingWrite::Report(partition, handoff, _) => {
                view.handoffs.get(partition).is_none_or(|record| record.id() != *handoff)
            }
            PendingWrite::Checkpoint(partition) => {
                partitions.get(partition).is_none_or(|work| work.checkpoints.is_written())
            }
            PendingWrite::Status => false,
        });
        for (what, _) in results {
            self.reconsider_one(what.partition());
        }
    }
}
