//! The canonical form of a state: one for all states that cannot be told apart.
//!
//! State without a future is dropped, and revisions are renumbered. A revision is an identity: decisions and guards
//! only compare two for equality, and ask of a router's registration whether it is newer than a view. So revisions up
//! to the oldest view in use are numbered in the order in which they are met, and later ones keep their order. An epoch
//! begins as a revision, but only the order of epochs matters: they are numbered from 1 by their order, and revisions
//! above all epochs, so that the next epoch is the newest again.
//!
//! # Invariants
//!
//! * The enabled actions of a state and of its canonical form are the same, up to canonical form. A test walks at
//!   random and compares.

use segue_protocol::handoff::pod_reconcile::Completeness;
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, PartitionId, Revision};
use segue_protocol::keys::KeyName;
use segue_protocol::records::Mode;
use segue_protocol::view::View;
use segue_proxy::routing::gate::GateState;

use crate::cluster::Cluster;
use crate::rules::Rule;
use crate::state::{Exchange, Request, Requests, Stage, State, Target};
use crate::store::StoreRef;

/// States with a revision as high as this keep their numbers.
const MOST: usize = 128;

/// Revisions that are numbered anew have higher numbers than this, and epochs lower ones.
const MOST_EPOCHS: u8 = 24;

/// No handoff has this number: the first revision of all creates something else.
const NO_HANDOFF_AT: Revision = Revision::new(1);
const NO_HANDOFF: HandoffId = HandoffId::created_at(NO_HANDOFF_AT);

/// The new numbers of revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Numbers {
    /// By the number that each had; 0: not met.
    of: [u8; MOST],
    /// The last that was given.
    last: u8,
    /// The revision of the oldest view that anybody has.
    oldest: Revision,
    /// The epochs that were met, as a set of bits.
    epochs: u128,
}

impl Numbers {
    fn new(oldest: Revision) -> Self {
        Numbers { of: [0; MOST], last: MOST_EPOCHS, oldest, epochs: 0 }
    }

    /// Meets a revision.
    fn meet(&mut self, revision: Revision) {
        let is_old = revision > NO_HANDOFF_AT && revision <= self.oldest;
        if is_old && self.of[revision.get() as usize] == 0 {
            self.last += 1;
            self.of[revision.get() as usize] = self.last;
        }
    }

    fn meet_epoch(&mut self, epoch: Epoch) {
        self.epochs |= u128::from(epoch != Epoch::default()) << epoch.get();
    }

    /// The new number of an epoch.
    pub(crate) fn of_epoch(&self, epoch: Epoch) -> Epoch {
        Epoch::new((self.epochs & (u128::MAX >> (127 - epoch.get()))).count_ones().into())
    }

    /// The new number of what is identified by this revision.
    pub(crate) fn of(&self, revision: Revision) -> Revision {
        match revision {
            Revision::ZERO | NO_HANDOFF_AT => revision,
            newer if newer > self.oldest => self.of_view(newer),
            old => {
                let new = self.of[old.get() as usize];
                assert_ne!(new, 0, "revision {old} was not met");
                Revision::new(new.into())
            }
        }
    }

    /// The new number of the revision of a view: none that is older is above it.
    pub(crate) fn of_view(&self, revision: Revision) -> Revision {
        Revision::new(u64::from(self.last) + revision.get() - self.oldest.get())
    }

    fn change_nothing(&self) -> bool {
        let is_same = |(old, new): (usize, &u8)| *new == 0 || usize::from(*new) == old;
        let epochs = self.epochs.count_ones();
        assert!(epochs < u32::from(MOST_EPOCHS), "too many epochs to tell them from revisions");
        let are_dense = self.epochs == (1u128 << (epochs + 1)) - 2 || self.epochs == 0;
        are_dense && u64::from(self.last) == self.oldest.get() && self.of.iter().enumerate().all(is_same)
    }
}

/// Calls `each` with every revision that identifies something in a view.
pub(crate) fn identities(view: &View, mut each: impl FnMut(Revision)) {
    view.config.iter().for_each(|config| each(config.mod_revision));
    if let Some(leader) = &view.leader {
        each(leader.create_revision);
        each(leader.mod_revision);
    }
    if let Some(current) = &view.rounds.current {
        each(current.mod_revision);
        current.value.participants.values().for_each(|life| each(life.revision()));
    }
    view.rounds.gathering.iter().for_each(|gathering| each(gathering.mod_revision));
    view.rounds.participants.values().for_each(|it| each(it.create_revision));
    for pod in view.pods.values() {
        each(pod.create_revision);
        each(pod.mod_revision);
    }
    let unreadable = view.malformed.keys().filter_map(|key| match view.keys().parse(key)? {
        KeyName::Pod(pod) => view.pod_key(&pod),
        _ => None,
    });
    for pod in unreadable {
        each(pod.create_revision);
        each(pod.mod_revision);
    }
    // Without the barrier it matters as well which routers registered since the handoff was created: their order stays.
    let unbarred = view.handoffs.values().filter(|handoff| handoff.value.mode == Mode::Independent);
    let mut in_order: Vec<Revision> = unbarred.map(|handoff| handoff.create_revision).collect();
    if in_order.is_empty() {
        view.routers.values().for_each(|router| each(router.create_revision));
    } else {
        in_order.extend(view.routers.values().map(|router| router.create_revision));
        in_order.sort_unstable();
        in_order.into_iter().for_each(&mut each);
    }
    for assignment in view.assignments.values() {
        each(assignment.mod_revision);
        each(assignment.value.incarnation.revision());
    }
    for handoff in view.handoffs.values() {
        each(handoff.create_revision);
        each(handoff.mod_revision);
        each(handoff.value.old_incarnation.revision());
        each(handoff.value.new_incarnation.revision());
    }
    for acks in view.acks.values() {
        acks.drained.values().for_each(|ack| each(ack.handoff.revision()));
        acks.cutover.values().for_each(|ack| each(ack.handoff.revision()));
        acks.pods.values().for_each(|ack| each(ack.handoff.revision()));
    }
    for checkpoint in view.checkpoints.values() {
        each(checkpoint.mod_revision);
        each(checkpoint.value.handoff.revision());
    }
}

/// Calls `each` with every epoch in a view.
pub(crate) fn epochs(view: &View, mut each: impl FnMut(Epoch)) {
    view.assignments.values().for_each(|assignment| each(assignment.value.epoch));
    view.handoffs.values().for_each(|handoff| each(handoff.value.epoch));
    view.checkpoints.values().for_each(|checkpoint| each(checkpoint.value.epoch));
}

impl Cluster {
    pub(crate) fn make_canonical(&self, state: &mut State) {
        state.tidy();
        self.forget_what_has_no_future(state);
        // A write that is on its way keeps the numbers that it compares.
        if state.slow.is_empty() {
            self.renumber(state);
        }
    }

    fn forget_what_has_no_future(&self, state: &mut State) {
        let open: Vec<bool> = state.requests.iter().map(|request| request.is_open()).collect();
        for (request, beside) in state.beside.iter_mut().enumerate() {
            let still = |earlier: &usize| open[*earlier] && *beside & (1 << earlier) != 0;
            let kept = (0..open.len()).filter(still).fold(0, |set, earlier| set | 1 << earlier);
            *beside = if open[request] { kept } else { 0 };
        }
        for exchange in &mut state.exchanges {
            if !exchange.is_counted {
                // Its pod continues; nothing waits for it.
                let epoch = if exchange.stage == Stage::Working { Epoch::default() } else { exchange.target.epoch };
                let target = Target { incarnation: Incarnation::NONE, epoch, ..exchange.target };
                *exchange = Exchange { router: 0, is_tried: false, target, ..*exchange };
            } else if !self.scenario.has_lines() {
                exchange.target.incarnation = Incarnation::NONE;
            }
        }
        for partition in 0..usize::from(self.scenario.partitions) {
            let matter = self.matter(state, partition as u8);
            state.ledgers[partition].log &= matter;
            for pod in 0..state.pods.len() {
                self.forget_in_part(state, pod, partition, matter);
            }
        }
        for router in 0..state.routers.len() as u8 {
            for partition in 0..self.scenario.partitions {
                let gate = &state.routers[usize::from(router)].gates[usize::from(partition)];
                if gate.position == GateState::Closed && gate.target.is_some() {
                    state.gate(router, partition).target = None;
                }
            }
        }
    }

    /// The writes of a partition that are not over. One that has failed and that no pod works on is neither missed nor
    /// made twice.
    pub(crate) fn matter(&self, state: &State, partition: u8) -> Requests {
        let matters = |request: &usize| {
            let is_here = self.scenario.requests[*request].partition == partition;
            let is_over = state.requests[*request] == Request::Failed;
            let is_under_way = || state.exchanges.iter().any(|exchange| usize::from(exchange.request) == *request);
            is_here && (!is_over || is_under_way())
        };
        (0..state.requests.len()).filter(matters).fold(0, |set, one| set | 1 << one)
    }

    fn forget_in_part(&self, state: &mut State, pod: usize, partition: usize, matter: u8) {
        let stands = |handoff: HandoffId| {
            let is_it = |at: &StoreRef| {
                let handoffs = &self.store.view(*at).handoffs;
                handoffs.get(&PartitionId::new(partition as u32)).is_some_and(|it| it.id() == handoff)
            };
            handoff == HandoffId::NONE || handoff == NO_HANDOFF || state.history.iter().any(is_it)
        };
        let part = &state.pods[pod].parts[partition];
        let mut kept = *part;
        let is_usable = kept.local.loaded.is_some_and(|loaded| loaded.completeness != Completeness::Invalid);
        kept.state &= if is_usable { matter } else { 0 };
        kept.fence.last = Epoch::default();
        if self.scenario.pods[pod].fence && !self.without(Rule::FencingEpoch) {
            kept.refuses = false;
        }
        if let Some(loaded) = kept.local.loaded.as_mut().filter(|loaded| !stands(loaded.handoff)) {
            loaded.handoff = NO_HANDOFF;
        }
        kept.local.drained = kept.local.drained.filter(|handoff| stands(*handoff));
        kept.waited = kept.waited.filter(|handoff| stands(*handoff));
        if kept != *part {
            *state.part(pod as u8, partition as u8) = kept;
        }
    }

    fn renumber(&self, state: &mut State) {
        let revision = |at: StoreRef| self.store.view(at).revision;
        if revision(state.now()).get() as usize >= MOST {
            return;
        }
        let mut numbers = Numbers::new(revision(state.history[0]));
        let ids = |at: &StoreRef| self.store.get(*at).identities.iter().copied();
        ids(&state.history[0]).for_each(|id| numbers.meet(id));
        state.each_identity(&mut |id| numbers.meet(id));
        state.history[1..].iter().flat_map(ids).for_each(|id| numbers.meet(id));
        let epochs = |at: &StoreRef| self.store.get(*at).epochs.iter().copied();
        state.history.iter().flat_map(epochs).for_each(|epoch| numbers.meet_epoch(epoch));
        state.each_epoch(&mut |epoch| numbers.meet_epoch(epoch));
        let shows_ends = state.history.iter().any(|at| self.store.shows_ends(*at));
        if numbers.change_nothing() && !shows_ends {
            return;
        }
        let anew: Vec<StoreRef> = state.history.iter().map(|at| self.renumbered(*at, &numbers)).collect();
        let in_history = |at: &mut Option<StoreRef>, history: &[StoreRef]| {
            let index = at.and_then(|at| history.iter().position(|known| *known == at));
            *at = index.map(|index| anew[index]);
        };
        for router in 0..state.routers.len() {
            let mut it = (*state.routers[router]).clone();
            in_history(&mut it.view, &state.history);
            in_history(&mut it.assignments, &state.history);
            *state.router(router as u8) = it;
        }
        for pod in 0..state.pods.len() {
            let mut view = state.pods[pod].view;
            in_history(&mut view, &state.history);
            state.pod(pod as u8).view = view;
        }
        state.change_identities(|id| numbers.of(id));
        state.change_epochs(&mut |epoch| *epoch = numbers.of_epoch(*epoch));
        state.history = anew;
    }

    fn renumbered(&self, at: StoreRef, numbers: &Numbers) -> StoreRef {
        self.remember(|memory| &mut memory.renumbered, (at.id(), *numbers), || self.store.renumber(at, numbers))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stateright::Model;

    use super::*;
    use crate::action::Action;
    use crate::scenarios;

    fn canonical(cluster: &Cluster, state: &State) -> State {
        let mut state = state.clone();
        cluster.make_canonical(&mut state);
        state
    }

    fn actions(cluster: &Cluster, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        cluster.actions(state, &mut actions);
        actions
    }

    /// All that can come next, in canonical form, other than that nothing changes, and that a first write is set on its way:
    /// it keeps the numbers that it has.
    fn next(cluster: &Cluster, state: &State) -> BTreeSet<String> {
        let here = canonical(cluster, state);
        let after = actions(cluster, state).into_iter().filter_map(|action| cluster.after(state, action));
        let after = after.filter(|it| it.slow.is_empty() || !state.slow.is_empty());
        let after = after.map(|state| canonical(cluster, &state)).filter(|state| *state != here);
        after.map(|state| format!("{state:?}")).collect()
    }

    #[test]
    fn what_can_come_next_is_the_same_in_a_state_and_in_its_canonical_form() {
        let mut random = 1u64;
        let mut renumbered = 0;
        for scenario in scenarios::all() {
            let cluster = Cluster::new(scenario);
            for _ in 0..6 {
                let mut state = cluster.initial_state();
                for _ in 0..60 {
                    let form = canonical(&cluster, &state);
                    renumbered += usize::from(form.now() != state.now());
                    assert_eq!(canonical(&cluster, &form), form, "the canonical form has itself for its form");
                    let (here, there) = (next(&cluster, &state), next(&cluster, &form));
                    assert!(here == there, "{state:#?} and {form:#?}");
                    for property in cluster.properties() {
                        let holds = |state| (property.condition)(&cluster, state);
                        assert_eq!(holds(&state), holds(&form), "{}", property.name);
                    }
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let actions = actions(&cluster, &state);
                    let Some(action) = actions.get((random >> 33) as usize % actions.len().max(1)) else { break };
                    state = cluster.after(&state, *action).unwrap_or(state);
                }
            }
        }
        assert!(renumbered > 1000, "too few states to compare: {renumbered}");
    }
}
