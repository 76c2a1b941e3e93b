//! The coordinators' and the store's part: moves of the partition, and the ends of registrations.

use segue_protocol::handoff::advance::advance;
use segue_protocol::ids::{Epoch, Incarnation};
use segue_protocol::records::{Handoff, Phase, encode};
use segue_protocol::registration::withdraw;
use segue_protocol::txn::{Keys, Op, Txn};
use segue_protocol::view::View;

use super::state::State;
use super::{PARTITION, PODS, Streams};

impl Streams {
    pub(super) fn commit(&self, state: &mut State, txn: Txn) -> bool {
        let after = self.store.commit(state.now, self.store.txn(txn));
        state.now = after.unwrap_or(state.now);
        after.is_some()
    }

    pub(super) fn advance(&self, state: &mut State) {
        if let Some(next) = advance(self.store.view(state.now), PARTITION, 0) {
            self.commit(state, next.txn);
        }
    }

    /// Begins a handoff from a living owner to the other pod.
    pub(super) fn plan(&self, state: &mut State) {
        let view = self.store.view(state.now);
        let owner = view.live_owner(PARTITION).map(|(assignment, _)| assignment.owner.clone());
        if let Some(owner) = owner {
            self.begin(state, usize::from(owner == PODS[0]));
        }
    }

    fn begin(&self, state: &mut State, to: usize) {
        let view = self.store.view(state.now);
        let new_incarnation = view.incarnation_of(PODS[to]);
        if view.handoffs.contains_key(&PARTITION) || new_incarnation == Incarnation::NONE {
            return;
        }
        let owner = view.assignments.get(&PARTITION).map(|assignment| assignment.value.clone());
        let after = owner.as_ref().map_or(0, |owner| owner.epoch.get() + 1);
        let epoch = Epoch::new(after.max(view.revision.get()));
        let mut record = Handoff::new(PARTITION, PODS[to], new_incarnation, epoch);
        if let Some(owner) = owner {
            record = record.taken_from(owner.owner, owner.incarnation);
        }
        let put = Op::Put { key: self.store.keys.handoff(PARTITION), value: encode(&record), lease: None };
        self.commit(state, Txn { then: vec![put], ..Txn::default() });
    }

    /// Ends a handoff to a dead owner, or begins one for a partition that has no living owner.
    pub(super) fn repair(&self, state: &mut State) {
        let view = self.store.view(state.now);
        match view.handoffs.get(&PARTITION) {
            Some(handoff) if view.live_new_owner(&handoff.value).is_none() => self.end(state),
            Some(_) => {}
            None if view.live_owner(PARTITION).is_some() => {}
            // The first of them that is registered. A pod that comes back is preferred in production.
            None => (0..PODS.len()).for_each(|to| self.begin(state, to)),
        }
    }

    pub(super) fn cancel(&self, state: &mut State) {
        let view = self.store.view(state.now);
        if view.handoffs.get(&PARTITION).is_some_and(|handoff| handoff.value.phase < Phase::Switching) {
            self.end(state);
        }
    }

    fn end(&self, state: &mut State) {
        let keys = &self.store.keys;
        let acks = keys.acks_of(PARTITION).map(|prefix| Op::Delete(Keys::Prefix(prefix)));
        let record = Op::Delete(Keys::One(keys.handoff(PARTITION)));
        self.commit(state, Txn { then: std::iter::once(record).chain(acks).collect(), ..Txn::default() });
    }

    /// The lease of a registration ends whose token no process has.
    pub(super) fn end_lease(&self, state: &mut State, pod: usize) {
        let life = self.store.view(state.now).incarnation_of(PODS[pod]);
        let is_on_its_way = state.streams[pod].as_ref().is_some_and(|stream| stream.life == life);
        if life != Incarnation::NONE && state.clients[pod].token != Some(life) && !is_on_its_way {
            self.commit(state, withdraw(&self.store.keys.pod(PODS[pod]), life));
        }
    }

    /// An instance ends a registration whose token it has not sent.
    pub(super) fn end_hold(&self, state: &mut State, hold: usize) {
        let (pod, life) = state.holds.remove(hold);
        self.commit(state, withdraw(&self.store.keys.pod(PODS[pod]), life));
    }

    /// Whether this life of the pod is registered.
    pub(super) fn stands(view: &View, pod: usize, life: Incarnation) -> bool {
        view.live_pod(PODS[pod], life).is_some()
    }
}
