//! The cluster as stateright searches it: its first state, its steps, and its properties.

use std::sync::Arc;

use segue_protocol::ids::PartitionId;
use segue_protocol::records::PodStatus;
use segue_proxy::routing::gate::GateState;
use stateright::{Model, Property};

use crate::action::Action;
use crate::cluster::Cluster;
use crate::scenario::Planned;
use crate::state::{Gate, Request, Router, State, Target, Violation};
use crate::writes::Post;

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial_state()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violated != 0 {
            return;
        }
        let mut steps = Vec::new();
        self.each_progress(state, &mut |step| {
            steps.push(step);
            false
        });
        self.faults(state, &mut steps);
        for is_slow in [false, true] {
            let may = !is_slow || state.budget.delays > 0;
            actions.extend(steps.iter().filter(|_| may).map(|step| Action { step: *step, is_slow }));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = self.after(last, action)?;
        self.make_canonical(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("single_writer", |_, state: &State| !state.has_violated(Violation::SingleWriter)),
            Property::always("no_lost_request", |_, state: &State| !state.has_violated(Violation::NoLostRequest)),
            Property::always("no_overtaking", |_, state: &State| !state.has_violated(Violation::NoOvertaking)),
            Property::always("no_double_apply", |_, state: &State| !state.has_violated(Violation::NoDoubleApply)),
            Property::always("epochs_grow", |_, state: &State| !state.has_violated(Violation::EpochsGrow)),
            Property::always("owner_lives", |_, state: &State| !state.has_violated(Violation::OwnerLives)),
            Property::always("one_actor", |_, state: &State| !state.has_violated(Violation::OneActor)),
            Property::always("owners_checkpoint", |_, state: &State| !state.has_violated(Violation::Checkpoint)),
            Property::always("converges", |model: &Self, state: &State| {
                let goes_on = || model.each_progress(state, &mut |_| true);
                let comes_to_rest = !state.has_violated(Violation::Converges);
                comes_to_rest && (state.violated != 0 || goes_on() || model.has_converged(state))
            }),
        ]
    }
}

impl Cluster {
    /// What an action leads to, as it is.
    pub(crate) fn after(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let mut post = Post { is_slow: action.is_slow, was_slow: false };
        self.step(&mut state, action.step, &mut post)?;
        self.write_what_is_due(&mut state, &mut post);
        self.deliver_what_changes_nothing(&mut state);
        // Slow, and nothing was written that could be: no action.
        (action.is_slow == post.was_slow).then_some(state)
    }

    /// Returns whether a cluster in which nothing can happen any more is in a good state.
    fn has_converged(&self, state: &State) -> bool {
        let view = self.store.view(state.now());
        let pods: Vec<_> = view.pods.values().filter(|pod| pod.value.status == PodStatus::Ready).collect();
        let is_owned = |partition: PartitionId| {
            let owner = view.live_owner(partition);
            pods.is_empty() || owner.is_some_and(|(_, pod)| pod.status == PodStatus::Ready)
        };
        if !PartitionId::all(self.scenario.partitions.into()).all(is_owned) || !self.rounds_have_converged(state) {
            return false;
        }
        if pods.is_empty() {
            // No pod can own anything: requests are held until they have waited too long.
            return true;
        }
        let leads_right = |partition: usize, gate: &Gate| {
            let Some((assignment, _)) = view.live_owner(PartitionId::new(partition as u32)) else { return false };
            let pod = self.pod_number(&assignment.owner);
            let target = Target { pod, incarnation: assignment.incarnation, epoch: assignment.epoch };
            let accepts = state.pods[usize::from(pod)].parts[partition].fence.accepted == Some(assignment.epoch);
            gate.position == GateState::Open && gate.target == Some(target) && accepts
        };
        let routes =
            |router: &Arc<Router>| router.gates.iter().enumerate().all(|(number, gate)| leads_right(number, gate));
        let is_answered = |(request, planned): (&Request, &Planned)| {
            let is_up = state.routers[usize::from(planned.router)].is_up;
            !request.is_open() && (*request != Request::Unsent || !is_up)
        };
        view.handoffs.is_empty()
            && state.routers.iter().filter(|router| router.is_up).all(routes)
            && state.requests.iter().zip(&self.scenario.requests).all(is_answered)
            && state.exchanges.iter().all(|exchange| !exchange.is_counted)
    }
}
