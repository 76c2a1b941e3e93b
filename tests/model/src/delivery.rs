//! The delivery of the store to participants: registrations, snapshots and the events of a watch.

use segue_protocol::ids::Incarnation;
use segue_protocol::records::encode;
use segue_proxy::routing::gate::GateState;

use crate::action::Process;
use crate::cluster::{Cluster, RouterStep};
use crate::rules::Rule;
use crate::state::{Clock, Gate, Reached, State};
use crate::store::StoreRef;
use crate::writes::StepResult;

impl Cluster {
    pub(crate) fn deliver(&self, state: &mut State, to: Process, ahead: usize) -> StepResult {
        let (_, incarnation, _, view) = Self::facts(state, to);
        let at = match view {
            None => state.now(),
            Some(view) => {
                let seen = state.history.iter().position(|at| *at == view)?;
                *state.history.get(seen + ahead)?
            }
        };
        let is_registered = self.stands(at, to) == incarnation;
        match to {
            Process::Router(router) => {
                let it = state.router(router);
                it.view = Some(at);
                if view.is_none() && self.without(Rule::OneRevision) {
                    it.assignments = Some(at);
                }
                it.gates.iter_mut().for_each(|gate| gate.backing_off = false);
                if !is_registered {
                    (it.incarnation, it.clock) = (Incarnation::NONE, Clock::Held);
                    self.reach(Reached::Fenced);
                }
                self.reconcile_router(state, router);
                if !is_registered {
                    // What it saw is of an earlier registration.
                    let it = state.router(router);
                    (it.view, it.assignments) = (None, None);
                }
            }
            Process::Pod(pod) if is_registered => {
                state.pod(pod).view = Some(at);
                self.reconcile_pod(state, pod);
            }
            Process::Pod(pod) => self.lose_registration(state, pod),
        }
        Some(())
    }

    /// A process that has nothing to do before and after a revision sees it at once: when it does makes no difference.
    /// One that has still to write an ack for what it sees now is left to lag, since its ack moves the phase on or not
    /// by what it has seen.
    pub(crate) fn deliver_what_changes_nothing(&self, state: &mut State) {
        // Whether a key can be read decides what a pod may write, and is no part of what it has to do.
        let pods = if self.scenario.budget.detachments > 0 { 0 } else { state.pods.len() as u8 };
        for pod in 0..pods {
            let it = &state.pods[usize::from(pod)];
            let Some(view) = it.view.filter(|_| it.incarnation != Incarnation::NONE) else { continue };
            let incarnation = it.incarnation;
            let seen = state.history.iter().position(|at| *at == view).unwrap_or(0);
            let is_same = |at: &&StoreRef| {
                let duties =
                    |at| (0..self.scenario.partitions).map(move |number| self.duty(at, pod, incarnation, number));
                let asked = |at| (0..self.scenario.partitions).map(move |it| self.asked(at, pod, incarnation, it));
                let asks_the_same = || !self.scenario.checkpoints || asked(**at).eq(asked(view));
                self.stands(**at, Process::Pod(pod)) == incarnation && duties(**at).eq(duties(view)) && asks_the_same()
            };
            let same = state.history[seen + 1..].iter().take_while(is_same).last().copied();
            if let Some(same) = same {
                state.pod(pod).view = Some(same);
            }
        }
        for router in 0..state.routers.len() as u8 {
            while let Some(next) = self.next_of_no_matter(state, router) {
                state.router(router).view = Some(next);
            }
        }
    }

    pub(crate) fn next_of_no_matter(&self, state: &mut State, router: u8) -> Option<StoreRef> {
        let it = &state.routers[usize::from(router)];
        let view = it.view.filter(|_| it.incarnation != Incarnation::NONE && it.assignments.is_none())?;
        let is_settled =
            |gate: &Gate| matches!(gate.position, GateState::Open | GateState::Closed) && !gate.backing_off;
        let seen = state.history.iter().position(|at| *at == view)?;
        let next = *state.history.get(seen + 1)?;
        if !it.gates.iter().all(is_settled) || self.stands(next, Process::Router(router)) != it.incarnation {
            return None;
        }
        let rests = |state: &State| {
            (0..self.scenario.partitions).all(|partition| match self.router_step(state, router, partition) {
                None => true,
                Some(RouterStep::Acknowledge(_)) => self.router_write(state, router, partition).is_none(),
                Some(RouterStep::Stop | RouterStep::Switch(_)) => false,
            })
        };
        if !rests(state) {
            return None;
        }
        state.router(router).view = Some(next);
        let still_rests = rests(state);
        state.router(router).view = Some(view);
        still_rests.then_some(next)
    }

    pub(crate) fn register(&self, state: &mut State, who: Process) -> StepResult {
        let key = self.key_of(who);
        let value = match who {
            Process::Router(router) => self.router_record(router),
            Process::Pod(pod) => encode(&self.pod_record(pod, self.status(pod))),
        };
        self.put(state, key, value)?;
        let created = self.stands(state.now(), who);
        match who {
            Process::Router(router) => {
                let it = state.router(router);
                it.incarnation = created;
                self.reconcile_router(state, router);
            }
            Process::Pod(pod) => state.pod(pod).incarnation = created,
        }
        Some(())
    }

    pub(crate) fn set_clock(&self, state: &mut State, who: Process, clock: Clock) {
        match who {
            Process::Router(router) => {
                state.router(router).clock = clock;
                self.reconcile_router(state, router);
            }
            Process::Pod(pod) => state.pod(pod).clock = clock,
        }
    }
}
