//! The shell's work on one partition: it makes the running callbacks, the accepted epoch and the written
//! acknowledgements agree with the pod's duty.
//!
//! [`pod_reconcile`](segue_protocol::handoff::pod_reconcile) decides what to do. This module starts it, stops it, and
//! retries it when it failed.
//!
//! # Invariants
//!
//! * A partition is closed before anything begins that requires it closed.
//! * One callback runs at a time, and the next begins only when the one before it has really ended.

use std::time::Duration;

use segue_protocol::handoff::advance::{Ack, acknowledge};
use segue_protocol::handoff::epoch_fence::known_epoch;
use segue_protocol::handoff::pod::{Duty, duty, leaving, warmed};
use segue_protocol::handoff::pod_reconcile::{Callback, Decision, LocalState, PodAction, PodReport, Task, decide};
use segue_protocol::ids::{Epoch, HandoffId, PartitionId};
use segue_protocol::records::{CheckpointName, PodAck, PodAckKind, PodRecord, PodStatus, encode};
use segue_protocol::txn::{Compare, Op, Txn};
use tokio::task::{self, AbortHandle, JoinError};
use tokio::time::Instant;
use tracing::{Instrument as _, debug, info, warn};

use super::PermanentFailure;
use super::checkpoints::Checkpoints;
use super::driver::{CallbackResult, Driver, Intent};
use crate::session::{StoreRetry, WriteResults, unix_millis};

/// How long a write rests after one of its guards failed.
pub(super) const WRITE_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The state of the work on a partition.
#[derive(Debug, Default)]
pub(super) struct PartitionWork {
    local: LocalState,
    running: Option<Running>,
    /// The task that failed last, and when it is retried.
    failed: Option<(Task, Instant)>,
    /// Why the handoff that `local` records as failed cannot succeed on this pod.
    failure: Option<String>,
    back_off: StoreRetry,
    pub(super) checkpoints: Checkpoints,
    /// The handoff of which the service was told that routers stop.
    left: Option<HandoffId>,
}

#[derive(Debug)]
struct Running {
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

    /// Returns whether a callback runs.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns whether the process has state of the partition, complete or not.
    pub(super) fn has_begun(&self) -> bool {
        self.local.loaded.is_some()
    }
}

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

impl Driver {
    /// Makes the work on a partition agree with the pod's duty.
    pub(super) fn reconcile(&mut self, partition: PartitionId) {
        let duty = self.duty(partition);
        let work = self.work.entry(partition).or_default();
        let Decision { accept, action } = decide(duty, &work.local, self.settings.capabilities.sync);
        let accept = accept.filter(|_| !self.refusing);
        self.accept(partition, duty, accept);
        let work = self.work.entry(partition).or_default();
        if accept.is_some() {
            work.local.reopen();
        }
        let action = action.or_else(|| self.leave(partition, accept)).or_else(|| self.checkpoint(partition, accept));
        let work = self.work.entry(partition).or_default();
        if let Some(running) = &work.running {
            // The next callback begins when this one has ended.
            if action != Some(PodAction::Run(running.task)) {
                running.abort.abort();
            }
            return;
        }
        match action {
            Some(PodAction::Run(task)) => self.start(partition, task),
            Some(PodAction::Report(report, handoff)) => self.report(partition, handoff, report),
            None if !work.has_begun() => drop(self.work.remove(&partition)),
            None => {}
        }
    }

    /// Returns the callback that tells the service that routers stop, unless it has been told.
    fn leave(&self, partition: PartitionId, accept: Option<Epoch>) -> Option<PodAction> {
        let (handoff, epoch) = leaving(&self.view, &self.settings.name, self.incarnation, partition)?;
        let is_told = self.work.get(&partition).is_some_and(|work| work.left == Some(handoff));
        let task = Task { callback: Callback::Leaving, handoff, epoch };
        (accept == Some(epoch) && !is_told).then_some(PodAction::Run(task))
    }

    fn duty(&self, partition: PartitionId) -> Duty {
        if self.view.is_malformed(partition) || self.is_unreadable() {
            // The owner cannot be read at the moment: accept nothing, and release nothing.
            return Duty::Stand { handoff: HandoffId::NONE, epoch: Epoch::default() };
        }
        match duty(&self.view, &self.settings.name, self.incarnation, partition) {
            // At its end a pod only gives partitions up.
            duty if self.ending && !matches!(duty, Duty::Drain { .. } | Duty::Release { .. }) => Duty::Idle,
            duty => duty,
        }
    }

    fn accept(&mut self, partition: PartitionId, duty: Duty, accept: Option<Epoch>) {
        let assigned = self.view.assignments.get(&partition).map(|assignment| assignment.value.epoch);
        if accept.is_some() && self.state.borrow().owned.get(&partition) != accept.as_ref() {
            self.service.accepts(partition);
        }
        self.ownership.set(partition, accept, known_epoch(accept, duty, assigned));
        self.state.send_if_modified(|state| {
            let before = match accept {
                Some(epoch) => state.owned.insert(partition, epoch),
                None => state.owned.remove(&partition),
            };
            match (before, accept) {
                (before, Some(epoch)) if before != accept => {
                    info!(partition = partition.get(), epoch = epoch.get(), "serving")
                }
                (Some(epoch), None) => info!(partition = partition.get(), epoch = epoch.get(), ?duty, "refusing"),
                _ => {}
            }
            before != accept
        });
    }

    fn start(&mut self, partition: PartitionId, task: Task) {
        let now = Instant::now();
        let has_tail = self.view.handoffs.get(&partition).is_some_and(|it| it.value.old_owner.is_some());
        let work = self.work.entry(partition).or_default();
        match work.failed {
            Some((failed, again)) if failed == task && now < again => {
                self.timers.insert((again, Some(partition)));
                return;
            }
            Some((failed, _)) if failed == task => {}
            _ => work.back_off.reset(),
        }
        if self.waits_for_checkpoint(partition, task) {
            return;
        }
        let (handler, ownership) = (self.handler.clone(), self.ownership.clone());
        let part = self.context(partition, task);
        let callback = async move {
            match task.callback {
                Callback::Warm => handler.warm(&part).await?,
                Callback::Sync => handler.sync(&part).await?,
                Callback::Leaving => handler.leaving(&part).await?,
                Callback::Drain => {
                    ownership.idle(partition).await;
                    handler.drain(&part).await?;
                }
                Callback::Release => {
                    ownership.idle(partition).await;
                    handler.release(&part).await?;
                }
                Callback::Checkpoint => {
                    return Ok(handler.checkpoint(&part).await?.map(CheckpointName::try_from).transpose()?);
                }
            }
            Ok(None)
        };
        let abort = self.callbacks.spawn(callback.in_current_span());
        let work = self.work.entry(partition).or_default();
        work.local.begin(task, has_tail);
        self.running.insert(abort.id(), partition);
        work.running = Some(Running { task, since: now, abort });
    }

    /// Handles the end of a callback: success, failure, panic or abort.
    pub(super) fn ended(&mut self, ended: Result<(task::Id, CallbackResult), JoinError>) {
        let (id, result) = match ended {
            Ok((id, result)) => (id, Some(result)),
            Err(error) if error.is_cancelled() => (error.id(), None),
            Err(error) => (error.id(), Some(Err("it panicked".into()))),
        };
        let Some(partition) = self.running.remove(&id) else { return };
        let work = self.work.entry(partition).or_default();
        let Some(Running { task, since, .. }) = work.running.take() else { return };
        let (callback, took) = (task.callback.as_str(), since.elapsed());
        match result {
            Some(Ok(name)) if task.callback == Callback::Checkpoint => {
                work.failed = None;
                self.checkpoint_made(partition, task.epoch, name);
            }
            Some(Ok(_)) => {
                info!(
                    partition = partition.get(),
                    epoch = task.epoch.get(),
                    handoff = task.handoff.get(),
                    ?took,
                    "{callback} done"
                );
                work.failed = None;
                work.local.end(task);
                if task.callback == Callback::Leaving {
                    work.left = Some(task.handoff);
                }
            }
            Some(Err(error)) => {
                let again = work.back_off.next();
                match error.downcast_ref::<PermanentFailure>().filter(|_| work.local.fail(task)) {
                    Some(failure) => {
                        work.failure = Some(failure.reason().to_owned());
                        warn!(partition = partition.get(), epoch = task.epoch.get(), handoff = task.handoff.get(), %error, "{callback} failed for good; asking for another pod");
                    }
                    None => {
                        warn!(partition = partition.get(), epoch = task.epoch.get(), handoff = task.handoff.get(), %error, ?again, "{callback} failed; retrying");
                    }
                }
                work.failed = Some((task, Instant::now() + again));
            }
            None if task.callback == Callback::Checkpoint => debug!(partition = partition.get(), "checkpoint given up"),
            None => info!(
                partition = partition.get(),
                epoch = task.epoch.get(),
                handoff = task.handoff.get(),
                ?took,
                "{callback} cancelled"
            ),
        }
        self.reconcile(partition);
    }

    fn report(&mut self, partition: PartitionId, handoff: HandoffId, report: PodReport) {
        let is_written = report.ack().is_some_and(|kind| self.has_acknowledged(partition, kind, handoff));
        if !is_written {
            self.write(PendingWrite::Report(partition, handoff, report));
        }
    }

    fn has_acknowledged(&self, partition: PartitionId, kind: PodAckKind, handoff: HandoffId) -> bool {
        self.view.pod_ack(partition, &self.settings.name, kind, handoff).is_some()
    }

    /// Makes the own record state whether the pod is draining.
    pub(super) fn keep_record(&mut self) {
        let own = self.view.live_pod(&self.settings.name, self.incarnation);
        if own.is_some_and(|own| own.status == PodStatus::Ready) {
            // This also applies if an operator has just undone a drain: the cause of the drain is now the service.
            self.drains_for_service = self.is_sick();
        }
        if self.status_change().is_some() {
            self.write(PendingWrite::Status);
        }
    }

    fn status_change(&self) -> Option<Txn> {
        let key = self.keys.pod(&self.settings.name);
        let own = self.view.pods.get(&self.settings.name).filter(|own| own.incarnation() == self.incarnation)?;
        // An operator's drain is not undone.
        let status = match own.value.status {
            PodStatus::Ready if *self.intent.borrow() != Intent::Serve || self.is_sick() => PodStatus::Draining,
            PodStatus::Draining
                if self.drains_for_service && *self.intent.borrow() == Intent::Serve && !self.is_sick() =>
            {
                PodStatus::Ready
            }
            // Its service is healthy again, so others may give way to it.
            status if own.value.gives_way && !self.gives_way => status,
            _ => return None,
        };
        let gives_way = self.gives_way;
        let value = PodRecord { status, gives_way, last_heartbeat: unix_millis(), ..own.value.clone() };
        Some(Txn {
            // The guard implies that the record is this life's, and that no operator's change is undone.
            when: vec![Compare::unchanged_since(key.clone(), own.mod_revision)],
            then: vec![Op::Put { key, value: encode(&value), lease: self.lease }],
            otherwise: None,
        })
    }

    /// Returns whether the service is down and the pod cannot vouch for the end of its work. Its partitions must be
    /// handed over then.
    pub(super) fn is_sick(&self) -> bool {
        self.refusing && !self.settings.capabilities.fence
    }

    fn report_txn(&self, partition: PartitionId, handoff: HandoffId, report: PodReport) -> Option<Txn> {
        let (me, now) = (&self.settings.name, unix_millis());
        let Some(ack) = report.ack() else {
            return warmed(&self.view, me, self.incarnation, handoff, partition, now);
        };
        let failure = self.work.get(&partition).and_then(|work| work.failure.clone());
        let reason = failure.filter(|_| report == PodReport::Failed);
        let ack = Ack::Pod(PodAck { acked_at: now, reason, ..PodAck::new(me, partition, handoff, ack) });
        Some(acknowledge(&self.view, &ack, self.keys.pod(me), self.incarnation, now))
    }

    pub(super) fn write(&mut self, what: PendingWrite) {
        if let Some(again) = self.writes.want(what, self.view.revision) {
            self.timers.insert((again, what.partition()));
        }
    }

    pub(super) fn send_writes(&mut self) {
        let due = self.writes.take_due();
        let txns: Vec<Option<Txn>> = due
            .iter()
            .map(|what| match *what {
                PendingWrite::Report(partition, handoff, report) => self.report_txn(partition, handoff, report),
                PendingWrite::Checkpoint(partition) => self.checkpoint_txn(partition),
                PendingWrite::Status => self.status_change(),
            })
            .collect();
        self.writes.send(due.into_iter().zip(txns));
    }

    pub(super) fn written(&mut self, results: WriteResults<PendingWrite>) {
        for (what, result) in &results {
            match result {
                Ok(outcome) if outcome.committed() && matches!(what, PendingWrite::Checkpoint(_)) => {
                    debug!(?what, "recorded");
                }
                Ok(outcome) if outcome.committed() => info!(?what, "said"),
                Ok(_) | Err(_) => {}
            }
        }
        let (view, work) = (&self.view, &self.work);
        self.writes.forget(|write| match write {
            PendingWrite::Report(partition, handoff, _) => {
                view.handoffs.get(partition).is_none_or(|record| record.id() != *handoff)
            }
            PendingWrite::Checkpoint(partition) => work.get(partition).is_none_or(|work| work.checkpoints.is_written()),
            PendingWrite::Status => false,
        });
        for (what, _) in results {
            match what.partition() {
                Some(partition) => self.reconcile(partition),
                None => self.keep_record(),
            }
        }
    }
}
