//! The way of writes to the store: at once, or so slowly that the writer may take them for failed.

use segue_protocol::ids::{Epoch, Revision};
use segue_protocol::records::Mode;
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use segue_protocol::view::View;

use crate::action::Process;
use crate::cluster::Cluster;
use crate::state::{Decided, Reached, SlowWrite, State, Violation};
use crate::store::{StoreRef, TxnRef};

/// `None`: the step leads nowhere.
pub(crate) type StepResult = Option<()>;

/// How writes reach the store in this step.
pub(crate) struct Post {
    /// The first one is on its way for a while.
    pub(crate) is_slow: bool,
    /// It was.
    pub(crate) was_slow: bool,
}

impl Cluster {
    /// Routers and pods write what they want to say as soon as they know it: that they are slow is the same as that they
    /// see the store late.
    pub(crate) fn write_what_is_due(&self, state: &mut State, post: &mut Post) {
        for partition in 0..self.scenario.partitions {
            for who in self.processes() {
                if state.slow.iter().any(|slow| slow.writer == Some((who, partition))) {
                    continue;
                }
                let txn = match who {
                    Process::Router(router) => self.router_write(state, router, partition),
                    Process::Pod(pod) => self.pod_write(state, pod, partition),
                };
                // With rounds the coordinators are slow. What slow acks lead to is searched with a leader.
                match txn {
                    Some(txn) if self.has_rounds() => _ = self.commit(state, txn),
                    Some(txn) => _ = self.post(state, txn, Some((who, partition)), post),
                    None => {}
                }
            }
        }
    }

    /// Commits a write, or sets it on its way.
    pub(crate) fn post(
        &self,
        state: &mut State,
        txn: TxnRef,
        writer: Option<(Process, u8)>,
        post: &mut Post,
    ) -> StepResult {
        if !post.is_slow || post.was_slow {
            return self.commit(state, txn);
        }
        self.store.commit(state.now(), txn)?;
        post.was_slow = true;
        state.budget.delays -= 1;
        state.slow.push(SlowWrite { txn, decided: None, writer });
        Some(())
    }

    /// Commits a coordinator's write, or sets it on its way.
    pub(crate) fn post_decided(
        &self,
        state: &mut State,
        txn: TxnRef,
        decided: Option<Decided>,
        post: &mut Post,
    ) -> StepResult {
        let (before, on_their_way) = (state.now(), state.slow.len());
        self.post(state, txn, None, post)?;
        if let Some(slow) = state.slow.get_mut(on_their_way) {
            slow.decided = decided;
        } else if let Some(decided) = decided {
            self.judge_accepted(state, before, &decided);
        }
        Some(())
    }

    /// A write that was on its way arrives.
    pub(crate) fn arrive(&self, state: &mut State, slow: SlowWrite) {
        let before = state.now();
        // Refused, it is gone all the same.
        if self.commit(state, slow.txn).is_some()
            && let Some(decided) = slow.decided
        {
            self.judge_accepted(state, before, &decided);
        }
    }

    pub(crate) fn commit(&self, state: &mut State, txn: TxnRef) -> StepResult {
        let before = state.now();
        let after = self.store.commit(before, txn)?;
        self.note(before, after);
        if self.flips_to_the_dead(before, after) {
            state.violate(Violation::OwnerLives);
        }
        if self.scenario.checkpoints && self.records_wrongly(before, after) {
            state.violate(Violation::Checkpoint);
        }
        self.judge_rounds(state, after);
        self.judge_epochs(state, before, after);
        state.history.push(after);
        Some(())
    }

    /// Whether a commit gives a partition to a life that is over. In independent mode the record's deletion may: the new owner
    /// was the owner from `Ready` on.
    fn flips_to_the_dead(&self, before: StoreRef, after: StoreRef) -> bool {
        let (before, after) = (self.store.view(before), self.store.view(after));
        after.assignments.iter().any(|(partition, assigned)| {
            let is_new = before.assignments.get(partition).is_none_or(|known| known.value != assigned.value);
            let is_abandoned = !after.handoffs.contains_key(partition)
                && before.handoffs.get(partition).is_some_and(|handoff| handoff.value.mode == Mode::Independent);
            is_new && !is_abandoned && after.incarnation_of(&assigned.value.owner) != assigned.value.incarnation
        })
    }

    /// No two handoffs of a partition have one epoch.
    fn judge_epochs(&self, state: &mut State, before: StoreRef, after: StoreRef) {
        if !self.has_rounds() {
            return;
        }
        let (before, after) = (self.store.view(before), self.store.view(after));
        for (partition, handoff) in &after.handoffs {
            let known = before.handoffs.get(partition).map(|it| it.create_revision);
            if known == Some(handoff.create_revision) {
                continue;
            }
            let given = &mut state.ledgers[partition.get() as usize].given;
            let is_again = handoff.value.epoch <= *given;
            *given = handoff.value.epoch;
            if is_again {
                state.violate(Violation::EpochsGrow);
            }
        }
    }

    /// What a commit shows that was reached.
    pub(crate) fn note(&self, before: StoreRef, after: StoreRef) {
        let (before, after) = (self.store.view(before), self.store.view(after));
        let rounds = |view: &View| view.rounds.current.as_ref().map(|current| current.value.number);
        if rounds(after) > rounds(before) {
            self.reach(Reached::Rounds);
        }
        for (partition, handoff) in &before.handoffs {
            let stands = after.handoffs.get(partition).is_some_and(|it| it.create_revision == handoff.create_revision);
            if !stands {
                let epoch =
                    after.assignments.get(partition).map_or_else(Epoch::default, |assignment| assignment.value.epoch);
                let is_dead = after.live_new_owner(&handoff.value).is_none();
                self.reach(match epoch >= handoff.value.epoch {
                    true if is_dead => Reached::Abandoned,
                    true => Reached::Completed,
                    false => Reached::Cancelled,
                });
            }
        }
    }

    pub(crate) fn put(&self, state: &mut State, key: String, value: Vec<u8>) -> StepResult {
        let when = vec![Compare::created_at(key.clone(), Revision::ZERO)];
        let lease = self.lease_of(&key);
        let txn = Txn { when, then: vec![Op::Put { key, value, lease }], otherwise: None };
        self.commit(state, self.store.txn(txn))
    }

    /// Puts over what stands.
    pub(crate) fn overwrite(&self, state: &mut State, key: String, value: Vec<u8>, with_lease: bool) -> StepResult {
        let lease = self.lease_of(&key).filter(|_| with_lease);
        let txn = Txn { when: Vec::new(), then: vec![Op::Put { key, value, lease }], otherwise: None };
        self.commit(state, self.store.txn(txn))
    }

    pub(crate) fn delete(&self, state: &mut State, key: String) -> StepResult {
        let txn = Txn { when: Vec::new(), then: vec![Op::Delete(Keys::One(key))], otherwise: None };
        self.commit(state, self.store.txn(txn))
    }
}
