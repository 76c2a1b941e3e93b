//! Lists the actions that are enabled in a state: the steps of the protocol, and the faults that the budget still
//! allows.
//!
//! The environment's rules live here: when a lease can end, what waits for what, and when a refused pod is tried again.

use segue_protocol::handoff::advance::pending_bound;
use segue_protocol::handoff::epoch_fence::EpochCheck;
use segue_protocol::ids::{Incarnation, PartitionId, Revision};

use crate::action::{Process, Step, Write};
use crate::cluster::{Cluster, RouterStep};
use crate::leader::Planned;
use crate::rules::Rule;
use crate::state::{Clock, Decided, Exchange, Request, Stage, State};
use crate::store::{StoreRef, TxnRef};

impl Cluster {
    /// Whether the process runs, the registration that it believes in, its lease clock, and what it sees.
    pub(crate) fn facts(state: &State, who: Process) -> (bool, Incarnation, Clock, Option<StoreRef>) {
        match who {
            Process::Router(router) => {
                let it = &state.routers[usize::from(router)];
                (it.is_up, it.incarnation, it.clock, it.view)
            }
            Process::Pod(pod) => {
                let it = &state.pods[usize::from(pod)];
                (it.is_up, it.incarnation, it.clock, it.view)
            }
        }
    }

    /// Calls `each` with every step of the protocol until it says to stop. Returns whether it did.
    pub(crate) fn each_progress(&self, state: &State, each: &mut dyn FnMut(Step) -> bool) -> bool {
        let now = state.now();
        for who in self.processes() {
            let (is_up, incarnation, clock, view) = Self::facts(state, who);
            let stands = self.stands(now, who);
            if is_up && incarnation == Incarnation::NONE && stands == Incarnation::NONE && each(Step::Register(who)) {
                return true;
            }
            if is_up && incarnation != Incarnation::NONE {
                let seen = view.map(|view| state.history.iter().position(|at| *at == view).unwrap_or(0));
                let behind = seen.map_or(1, |seen| state.history.len() - 1 - seen).min(usize::from(u8::MAX)) as u8;
                // The next revision, or all that there are in one go. Without a view it is a snapshot.
                if behind > 0 && each(Step::Deliver { to: who, ahead: 1 }) {
                    return true;
                }
                if behind > 1 && each(Step::Deliver { to: who, ahead: behind }) {
                    return true;
                }
                if clock == Clock::RunOut && stands == incarnation && each(Step::Regain(who)) {
                    return true;
                }
            }
            let is_held = is_up && stands == incarnation;
            let is_detached = self.is_detached(now, who);
            if let Process::Pod(pod) = who
                && is_detached
                && each(if is_held { Step::PutBack { pod } } else { Step::Forget { pod } })
            {
                return true;
            }
            let may_end = stands != Incarnation::NONE
                && !is_detached
                && (!is_held || (clock == Clock::RunOut && !self.must_end_work_first(state, who)));
            if may_end && each(Step::EndLease(who)) {
                return true;
            }
            if let Process::Router(router) = who
                && let Some(at) = state.routers[usize::from(router)].assignments
                && at != state.now()
                && each(Step::DeliverAssignments { to: router })
            {
                return true;
            }
        }
        if self.each_round_progress(state, each) || self.each_checkpoint_progress(state, each) {
            return true;
        }
        if !self.has_rounds() && self.leads(now) == Revision::ZERO && each(Step::Elect) {
            return true;
        }
        if self.bound_may_pass(state) && each(Step::BoundPasses) {
            return true;
        }
        for write in self.writes(state) {
            if each(Step::Write(write)) {
                return true;
            }
        }
        for (index, slow) in (0..).zip(&state.slow) {
            if slow.writer.is_some() && each(Step::Commit { index }) {
                return true;
            }
        }
        for (index, exchange) in (0..).zip(&state.exchanges) {
            if each(self.move_of(state, index, exchange)) {
                return true;
            }
        }
        for (request, planned) in (0..).zip(&self.scenario.requests) {
            let router = &state.routers[usize::from(planned.router)];
            let is_next = (0..request).all(|earlier| {
                let other = self.scenario.requests[usize::from(earlier)];
                other.router != planned.router || state.requests[usize::from(earlier)] != Request::Unsent
            });
            let comes = state.requests[usize::from(request)] == Request::Unsent && is_next;
            if comes && router.is_up && router.view.is_some() && each(Step::Take { request }) {
                return true;
            }
        }
        for router in 0..state.routers.len() as u8 {
            for partition in 0..self.scenario.partitions {
                if self.may_retry(state, router, partition) && each(Step::EndBackOff { router, partition }) {
                    return true;
                }
            }
        }
        (0..state.pods.len() as u8)
            .any(|pod| self.must_end_work_first(state, Process::Pod(pod)) && each(Step::AbortWork { pod }))
    }

    /// The leader sees the key of the bounded owner gone, and its work ends within the bound.
    fn bound_may_pass(&self, state: &State) -> bool {
        let works = |exchange: &Exchange| exchange.target.pod == 0 && exchange.stage == Stage::Working;
        let waits = |partition: u8| pending_bound(self.view(state.now()), PartitionId::new(partition.into())).is_some();
        self.scenario.is_bounded
            && !state.bound_passed
            && self.leads(state.now()) != Revision::ZERO
            && !state.exchanges.iter().any(works)
            && (0..self.scenario.partitions).any(waits)
    }

    /// Another hand has put the registration without its lease.
    fn is_detached(&self, at: StoreRef, who: Process) -> bool {
        self.scenario.budget.detachments > 0 && self.store.is_leaseless(at, &self.key_of(who))
    }

    /// A pod with `fence` whose lease can end soon has to end its work before.
    pub(crate) fn must_end_work_first(&self, state: &State, who: Process) -> bool {
        let Process::Pod(pod) = who else { return false };
        let it = &state.pods[usize::from(pod)];
        let works = |exchange: &Exchange| exchange.target.pod == pod && exchange.stage == Stage::Working;
        let runs_out = it.is_up && it.clock == Clock::RunOut && self.capabilities(pod).fence;
        runs_out && !self.without(Rule::EndAcceptedWork) && state.exchanges.iter().any(works)
    }

    pub(crate) fn move_of(&self, state: &State, index: u8, exchange: &Exchange) -> Step {
        match exchange.stage {
            Stage::Sent => match self.answer_of(state, exchange) {
                EpochCheck::Wait => Step::CatchUpTimeout { exchange: index },
                _ => Step::Arrive { exchange: index },
            },
            Stage::Working => Step::Finish { exchange: index },
            Stage::NotSent => Step::ConnectFails { exchange: index },
        }
    }

    /// A pod that refused is tried again by a timer. The only try that matters is one that is not refused.
    pub(crate) fn may_retry(&self, state: &State, router: u8, partition: u8) -> bool {
        let gate = &state.routers[usize::from(router)].gates[usize::from(partition)];
        if !gate.backing_off {
            return false;
        }
        let mut rested = state.clone();
        rested.gate(router, partition).backing_off = false;
        let Some(RouterStep::Switch(target)) = self.router_step(&rested, router, partition) else { return false };
        let request = self.scenario.requests.iter().position(|planned| planned.partition == partition);
        let Some(request) = request else { return false };
        let exchange =
            Exchange { request: request as u8, router, target, is_tried: false, stage: Stage::Sent, is_counted: false };
        state.pods[usize::from(target.pod)].is_up && self.answer_of(state, &exchange) == EpochCheck::Accept
    }

    /// Every write that a coordinator wants to make now.
    pub(crate) fn writes(&self, state: &State) -> Vec<Write> {
        let mut writes = vec![Write::EndRounds];
        for by in self.authors() {
            writes.extend((0..self.planned(state, by, false).len() as u8).map(|index| Write::Plan { by, index }));
            writes.extend((0..self.scenario.partitions).map(|partition| Write::Advance { by, partition }));
        }
        let lands = |write: &Write| {
            let written = self.write_of(state, *write);
            written.is_some_and(|(txn, _)| self.store.commit(state.now(), txn).is_some())
        };
        writes.retain(lands);
        writes
    }

    /// A write, and what is remembered of a coordinator's while it is on its way.
    pub(crate) fn write_of(&self, state: &State, write: Write) -> Option<(TxnRef, Option<Decided>)> {
        let planned = |by, overdue, index| {
            let Planned { txn, partition } = *self.planned(state, by, overdue).get(usize::from(index))?;
            Some((txn, self.decided(state, by, partition)))
        };
        match write {
            Write::Plan { by, index } => planned(by, false, index),
            Write::Overdue { by, index } => planned(by, true, index),
            Write::Advance { by, partition } => {
                let decided = || self.decided(state, by, Some(PartitionId::new(partition.into())));
                self.advanced(state, by, partition).map(|txn| (txn, decided()))
            }
            Write::EndRounds => self.end_rounds(state).map(|txn| (txn, None)),
            Write::Broken { partition } => self.broken_write(state, partition).map(|txn| (txn, None)),
        }
    }

    pub(crate) fn faults(&self, state: &State, steps: &mut Vec<Step>) {
        let budget = state.budget;
        let now = state.now();
        for who in self.processes() {
            let (is_up, incarnation, clock, view) = Self::facts(state, who);
            let (crashes, starts, clocks, clock_is_kept) = match who {
                // It makes no difference which of two routers that are alike fails.
                Process::Router(1..) if self.scenario.routers_are_alike() => continue,
                Process::Router(_) => {
                    let kept = !self.without(Rule::RouterLeaseClock);
                    (budget.router_crashes, budget.router_starts, budget.router_clocks, kept)
                }
                Process::Pod(1..) if self.scenario.spares_new_owner => continue,
                Process::Pod(_) => {
                    (budget.pod_crashes, budget.pod_starts, budget.pod_clocks, !self.without(Rule::PodLeaseClock))
                }
            };
            if is_up && crashes > 0 {
                steps.push(Step::Crash(who));
            }
            if !is_up && starts > 0 {
                steps.push(Step::Start(who));
            }
            if let Process::Pod(pod) = who
                && budget.detachments > 0
                && self.stands(now, who) != Incarnation::NONE
            {
                steps.push(Step::Detach { pod });
            }
            let is_held = is_up && incarnation != Incarnation::NONE && clock == Clock::Held && view.is_some();
            if is_held && clocks > 0 {
                steps.push(Step::RunOut(who));
                if !clock_is_kept && self.stands(now, who) == incarnation {
                    steps.push(Step::EndLease(who));
                }
            }
        }
        self.round_faults(state, steps);
        self.checkpoint_faults(state, steps);
        if budget.leader_losses > 0 && self.is_led(now) {
            steps.push(Step::EndLeadersLease);
        }
        for partition in 0..self.scenario.partitions {
            if self.broken_write(state, partition).is_some() {
                steps.push(Step::Write(Write::Broken { partition }));
            }
            if budget.deletions > 0
                && self.store.view(state.now()).handoffs.contains_key(&PartitionId::new(partition.into()))
            {
                steps.push(Step::DeleteHandoff { partition });
            }
            for router in 0..state.routers.len() as u8 {
                if budget.drain_timeouts > 0 && self.drain_timed_out(state, router, partition).is_some() {
                    steps.push(Step::DrainTimeout { router, partition });
                }
            }
        }
        if budget.phase_timeouts > 0 {
            for by in self.authors() {
                let overdue = 0..self.planned(state, by, true).len() as u8;
                steps.extend(overdue.map(|index| Step::Write(Write::Overdue { by, index })));
            }
        }
        for (index, slow) in (0..).zip(&state.slow) {
            steps.push(match slow.writer {
                Some(_) => Step::GiveUpWrite { index },
                None => Step::CommitForgotten { index },
            });
        }
        for (index, exchange) in (0..).zip(&state.exchanges) {
            let is_open = exchange.is_counted && exchange.stage != Stage::NotSent;
            if budget.breaks > 0 && is_open {
                steps.push(Step::Break { exchange: index });
            }
        }
        for (request, is) in (0..).zip(&state.requests) {
            if budget.hang_ups > 0 && is.is_open() {
                steps.push(Step::HangUp { request });
            }
            if budget.expiries > 0 && matches!(is, Request::Held) {
                steps.push(Step::Expire { request });
            }
        }
    }
}
