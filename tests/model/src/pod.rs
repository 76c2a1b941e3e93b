//! A pod of the model. [`duty`] says what it has to do, [`pod_reconcile::decide`] in which order, and [`known_epoch`]
//! which requests it accepts. Its service is modelled as a copy of the state: the set of writes that it contains.
//!
//! Mirrors `pod::driver` and `pod::work` of `segue-coordination`. Callbacks take no time: a slow callback is the same as
//! a late write of the ack that follows it. A pod without `fence` accepts every request and knows no lease clock. A pod
//! without `drained` does not even refuse what it has been told to drain.

use segue_protocol::handoff::advance::{Ack, acknowledge};
use segue_protocol::handoff::epoch_fence::{EpochCheck, known_epoch};
use segue_protocol::handoff::pod::{Duty, duty, warmed};
use segue_protocol::handoff::pod_reconcile::{
    self, Callback, Completeness, Decision, LocalState, PodAction, PodReport, Task,
};
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, PartitionId};
use segue_protocol::records::PodAck;
use segue_protocol::view::View;

use crate::cluster::{Cluster, PodAsks};
use crate::rules::Rule;
use crate::state::{Clock, Exchange, Part, Pod, Reached, Request, Stage, State, Target, Violation};
use crate::store::{StoreRef, TxnRef};

/// More than a pod ever has to do about a partition before it sees something new.
const MOST_ACTS: usize = 16;

/// A pod that cannot read its own record accepts nothing and loses nothing.
fn duty_of(view: &View, me: &str, incarnation: Incarnation, partition: PartitionId) -> Duty {
    let is_unreadable = view.live_pod(me, incarnation).is_none() && view.incarnation_of(me) == incarnation;
    match is_unreadable && incarnation != Incarnation::NONE {
        true => Duty::Stand { handoff: HandoffId::NONE, epoch: Epoch::default() },
        false => duty(view, me, incarnation, partition),
    }
}

impl Pod {
    pub(crate) fn down(partitions: u8) -> Self {
        let parts = vec![Part::default(); usize::from(partitions)];
        Pod { is_up: false, incarnation: Incarnation::NONE, clock: Clock::Held, view: None, hangs: false, parts }
    }
}

impl Cluster {
    /// Does all that is to be done without the store.
    pub(crate) fn reconcile_pod(&self, state: &mut State, pod: u8) {
        if !state.pods[usize::from(pod)].is_up {
            return;
        }
        for partition in 0..self.scenario.partitions {
            self.reconcile_part(state, pod, partition);
        }
    }

    fn reconcile_part(&self, state: &mut State, pod: u8, partition: u8) {
        let capabilities = self.capabilities(pod);
        for _ in 0..MOST_ACTS {
            let it = &state.pods[usize::from(pod)];
            let seen = it.view.map(|at| self.duty(at, pod, it.incarnation, partition));
            let (duty, assigned, has_tail) = seen.unwrap_or((Duty::Idle, None, false));
            let is_idle = !self.is_working(state, pod, partition);
            let log = state.ledgers[usize::from(partition)].log;
            let part = state.part(pod, partition);
            let Decision { accept, action } = pod_reconcile::decide(duty, &part.local, capabilities.sync);
            part.fence.set(accept, known_epoch(accept, duty, assigned));
            self.keep_checkpoint(state, pod, partition, accept);
            let part = state.part(pod, partition);
            if accept.is_some() {
                part.local.reopen();
                part.refuses = false;
            }
            if matches!(duty, Duty::Drain { .. }) {
                part.refuses = true;
            }
            if self.without(Rule::TailAtRest)
                && let (Duty::Stand { handoff, epoch }, Some(loaded)) = (duty, part.local.loaded)
                && (loaded.handoff, loaded.completeness) == (handoff, Completeness::Warm)
            {
                part.local.end(Task { callback: Callback::Sync, handoff, epoch });
                part.state = log;
            }
            let Some(PodAction::Run(task)) = action else { return };
            let must_wait = matches!(task.callback, Callback::Drain | Callback::Release) && !is_idle;
            if must_wait && !(task.callback == Callback::Drain && self.without(Rule::OldOwnerConfirms)) {
                return;
            }
            if self.waits_for_checkpoint(state, pod, partition, task) {
                return;
            }
            if task.callback == Callback::Warm {
                self.judge_start(state, pod, partition, task);
            }
            let part = state.part(pod, partition);
            part.local.begin(task, has_tail);
            part.local.end(task);
            match task.callback {
                Callback::Warm | Callback::Sync => part.state = log,
                Callback::Release => part.state = 0,
                Callback::Leaving | Callback::Drain | Callback::Checkpoint => {}
            }
        }
        // It continues for ever, with nothing new to see.
        state.violate(Violation::Converges);
    }

    /// What a pod has to do, the epoch of the assignment, and whether a handoff from an old owner stands.
    pub(crate) fn duty(
        &self,
        at: StoreRef,
        pod: u8,
        incarnation: Incarnation,
        partition: u8,
    ) -> (Duty, Option<Epoch>, bool) {
        let asks = PodAsks { view: at.id(), pod, incarnation, partition };
        self.remember(
            |memory| &mut memory.duties,
            asks,
            || {
                let (view, partition) = (self.followed(at), PartitionId::new(partition.into()));
                let duty = duty_of(view, &self.pod_names[usize::from(pod)], asks.incarnation, partition);
                let assigned = view.assignments.get(&partition).map(|assignment| assignment.value.epoch);
                let has_tail = view.handoffs.get(&partition).is_some_and(|it| it.value.old_owner.is_some());
                (duty, assigned, has_tail)
            },
        )
    }

    fn is_working(&self, state: &State, pod: u8, partition: u8) -> bool {
        let is_here = |exchange: &Exchange| {
            let is_working = exchange.stage == Stage::Working && exchange.target.pod == pod;
            is_working && self.partition_of(exchange.request) == partition
        };
        state.exchanges.iter().any(is_here)
    }

    /// The report that a pod wants to write and that is not in the store yet.
    pub(crate) fn pod_write(&self, state: &State, pod: u8, partition: u8) -> Option<TxnRef> {
        let it = &state.pods[usize::from(pod)];
        let at = it.view.filter(|_| it.is_up && it.incarnation != Incarnation::NONE)?;
        let asks = PodAsks { view: at.id(), pod, incarnation: it.incarnation, partition };
        let local = it.parts[usize::from(partition)].local;
        let (txn, handoff, report) =
            self.remember(|memory| &mut memory.reports, (asks, local), || self.report(self.followed(at), asks, local))?;
        let stands = |kind| {
            let me = &self.pod_names[usize::from(pod)];
            self.view(state.now()).pod_ack(PartitionId::new(partition.into()), me, kind, handoff).is_some()
        };
        (!report.ack().is_some_and(stands)).then_some(txn)
    }

    fn report(&self, view: &View, asks: PodAsks, local: LocalState) -> Option<(TxnRef, HandoffId, PodReport)> {
        let (me, partition) = (&self.pod_names[usize::from(asks.pod)], PartitionId::new(asks.partition.into()));
        let duty = duty_of(view, me, asks.incarnation, partition);
        let Some(PodAction::Report(report, handoff)) =
            pod_reconcile::decide(duty, &local, self.capabilities(asks.pod).sync).action
        else {
            return None;
        };
        let txn = match report.ack() {
            None => warmed(view, me, asks.incarnation, handoff, partition, 0)?,
            Some(kind) if view.pod_ack(partition, me, kind, handoff).is_some() => return None,
            Some(ack) => {
                let ack = Ack::Pod(PodAck::new(me.clone(), partition, handoff, ack));
                acknowledge(view, &ack, view.keys().pod(me), asks.incarnation, 0)
            }
        };
        Some((self.store.txn(self.struck(txn, view, false)), handoff, report))
    }

    /// What a pod says to a request that reaches it. `None`: it lets it wait for its view to catch up.
    pub(crate) fn answer_of(&self, state: &State, exchange: &Exchange) -> EpochCheck {
        let pod = &state.pods[usize::from(exchange.target.pod)];
        let part = &pod.parts[usize::from(self.partition_of(exchange.request))];
        let capabilities = self.capabilities(exchange.target.pod);
        if !capabilities.fence {
            // It does not listen at its address before its earlier key is gone.
            if pod.view.is_none() {
                return EpochCheck::NotOwner;
            }
            return if capabilities.drained && part.refuses { EpochCheck::NotOwner } else { EpochCheck::Accept };
        }
        if pod.view.is_none() || (pod.clock == Clock::RunOut && !self.without(Rule::PodLeaseClock)) {
            return EpochCheck::NotOwner;
        }
        if self.without(Rule::FencingEpoch) {
            return if part.refuses { EpochCheck::NotOwner } else { EpochCheck::Accept };
        }
        part.fence.check(exchange.target.epoch)
    }

    /// A pod begins to work on a request.
    pub(crate) fn accept(&self, state: &mut State, index: usize) {
        let exchange = state.exchanges[index];
        let (pod, partition) = (exchange.target.pod, self.partition_of(exchange.request));
        self.check_order(state, exchange);
        let is_elsewhere = |it: &Exchange| {
            it.stage == Stage::Working && it.target.pod != pod && self.partition_of(it.request) == partition
        };
        let ledger = state.ledgers[usize::from(partition)];
        let life = state.pods[usize::from(pod)].incarnation;
        let fence = state.pods[usize::from(pod)].parts[usize::from(partition)].fence;
        let epoch = if self.capabilities(pod).fence {
            fence.accepted.unwrap_or(exchange.target.epoch)
        } else {
            exchange.target.epoch
        };
        let newer_elsewhere = ledger.owner.is_some_and(|owner| owner.epoch > epoch && owner.pod != pod);
        let same_elsewhere = ledger.owner.is_some_and(|owner| owner.epoch == epoch && owner.pod != pod);
        if state.exchanges.iter().any(is_elsewhere) || newer_elsewhere || same_elsewhere {
            state.violate(Violation::SingleWriter);
        }
        if ledger.owner.is_some_and(|owner| owner.epoch > epoch) {
            state.violate(Violation::EpochsGrow);
        }
        let is_first = ledger.owner.is_none_or(|owner| owner.epoch < epoch);
        if is_first {
            let owner = Target { pod, incarnation: life, epoch };
            state.ledgers[usize::from(partition)].owner = Some(owner);
            if !self.capabilities(pod).sync {
                // It reads the tail itself before its first request.
                state.part(pod, partition).state = ledger.log;
            }
        }
        state.exchanges[index].stage = Stage::Working;
        self.check_state(state, partition);
    }

    /// The work of a request takes effect, and its router gets the answer.
    pub(crate) fn finish(&self, state: &mut State, index: usize) {
        let exchange = state.exchanges[index];
        let (pod, request, partition) = (exchange.target.pod, exchange.request, self.partition_of(exchange.request));
        let ledger = &mut state.ledgers[usize::from(partition)];
        let is_again = ledger.log & (1 << request) != 0;
        ledger.log |= 1 << request;
        if is_again {
            state.violate(Violation::NoDoubleApply);
        }
        state.part(pod, partition).state |= 1 << request;
        if exchange.is_counted && state.requests[usize::from(request)] == Request::Going {
            state.requests[usize::from(request)] = Request::Acked;
        }
        self.end(state, index);
        self.check_state(state, partition);
        self.reconcile_pod(state, pod);
    }

    /// Every write that was acknowledged is in the state of the pod that has accepted the newest epoch.
    pub(crate) fn check_state(&self, state: &mut State, partition: u8) {
        let Some(owner) = state.ledgers[usize::from(partition)].owner else { return };
        let pod = &state.pods[usize::from(owner.pod)];
        let part = &pod.parts[usize::from(partition)];
        let serves = pod.is_up && pod.incarnation == owner.incarnation && part.fence.accepted == Some(owner.epoch);
        let acked = self.acked(state, partition);
        if serves && acked & !part.state != 0 {
            state.violate(Violation::NoLostRequest);
        }
    }

    fn acked(&self, state: &State, partition: u8) -> u8 {
        let acked = |(number, request): (usize, &Request)| {
            let is_acked = *request == Request::Acked && self.partition_of(number as u8) == partition;
            if is_acked { 1 << number } else { 0 }
        };
        state.requests.iter().enumerate().map(acked).fold(0, |set, one| set | one)
    }

    /// A pod that sees its registration gone: it lets in nothing any more, and all that it accepted fails.
    pub(crate) fn lose_registration(&self, state: &mut State, pod: u8) {
        if self.capabilities(pod).fence {
            self.abort_work(state, pod);
        }
        let it = state.pod(pod);
        (it.incarnation, it.view, it.clock) = (Incarnation::NONE, None, Clock::Held);
        for part in &mut it.parts {
            part.made = None;
            part.local.invalidate();
            part.fence = Default::default();
        }
        self.reach(Reached::Fenced);
        self.reconcile_pod(state, pod);
    }

    /// Ends all that a pod works on: none of it takes effect or is acknowledged.
    pub(crate) fn abort_work(&self, state: &mut State, pod: u8) {
        self.fail_all(state, |exchange| exchange.target.pod == pod && exchange.stage == Stage::Working);
    }

    /// A pod's process is gone, with all that it worked on and what was on the wire to it.
    /// With a bound it is the sidecar's process that is gone, and its service works on.
    pub(crate) fn crash_pod(&self, state: &mut State, pod: u8) {
        *state.pod(pod) = Pod::down(self.scenario.partitions);
        if self.bound_of(pod).is_some() {
            let works = |it: &Exchange| it.target.pod == pod && it.stage == Stage::Working && it.is_counted;
            while let Some(index) = state.exchanges.iter().position(works) {
                self.cut(state, index);
            }
            return self.fail_all(state, |exchange| exchange.target.pod == pod && exchange.stage == Stage::Sent);
        }
        self.fail_all(state, |exchange| exchange.target.pod == pod && exchange.stage != Stage::NotSent);
    }

    fn fail_all(&self, state: &mut State, which: impl Fn(&Exchange) -> bool) {
        while let Some(index) = state.exchanges.iter().position(&which) {
            self.fail(state, index);
        }
    }
}
