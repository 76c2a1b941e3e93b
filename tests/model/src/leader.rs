//! The coordinators of the model: `plan` and `advance` over what the store holds now, in the name of the leader or of a
//! participant in the assignment round that is in force.
//!
//! Coordinators have no state of their own: a new one has none, so any of them may lose it. One that acts on an old view,
//! or does not know that its authority has ended, is a delayed write here. A time-out is a second look at the same
//! view with all its times passed.

use std::time::Duration;

use segue_protocol::authority::Authority;
use segue_protocol::handoff::advance::{advance, advance_past_bound, pending_bound};
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::{Coordination, Memory, PlannedWrite, Policy, REBIRTH_GRACE, plan, txn};
use segue_protocol::txn::{Keys, Op, Txn};

use crate::action::Author;
use crate::checkpoints::INTERVAL;
use crate::cluster::Cluster;
use crate::rules::{Rule, cancel_whatever, unpinned};
use crate::state::State;
use crate::store::{StoreRef, TxnRef};

const LONG: Duration = Duration::from_secs(1_000_000);

/// A write that planning has decided on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub(crate) txn: TxnRef,
    pub(crate) partition: Option<PartitionId>,
}

impl Cluster {
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            partitions: u32::from(self.scenario.partitions),
            mode: self.scenario.mode,
            coordination: if self.has_rounds() { Coordination::Rounds } else { Coordination::Leader },
            settle: Duration::ZERO,
            settle_max: Duration::ZERO,
            min_interval: Duration::ZERO,
            heartbeat: LONG * 1000,
            checkpoint_interval: if self.scenario.checkpoints { INTERVAL } else { Duration::ZERO },
            warm_timeout: LONG / 2,
            phase_timeout: LONG / 2,
            max_concurrent_handoffs: 8,
            max_warming_per_pod: 8,
            ..Policy::default()
        }
    }

    /// What a coordinator would write, at once or when every time-out has passed.
    pub(crate) fn planned(&self, state: &State, by: Author, overdue: bool) -> Vec<Planned> {
        if !Self::acts(state, by) {
            return Vec::new();
        }
        let at = state.now();
        self.remember(
            |memory| &mut memory.plans,
            (at.id(), by, overdue),
            || {
                let view = self.view(at);
                let Some(authority) = self.authority_to_act(at, by) else { return Vec::new() };
                let policy = self.policy();
                let mut memory = Memory::default();
                let seen = if self.without(Rule::Pinning) { &unpinned(view) } else { view };
                // Dead owners' partitions wait for a moment.
                let _ = plan(seen, &policy, &authority, &mut memory, Duration::ZERO);
                let mut actions = plan(seen, &policy, &authority, &mut memory, REBIRTH_GRACE).actions;
                if overdue {
                    let at_once = actions;
                    actions = plan(seen, &policy, &authority, &mut memory, LONG).actions;
                    actions
                        .retain(|action| !at_once.contains(action) && !matches!(action, PlannedWrite::Create { .. }));
                }
                let write = |action: &PlannedWrite| {
                    let txn = txn(view, action, &authority, 0)?;
                    Some(Planned { txn: self.store.txn(self.struck(txn, view, true)), partition: action.partition() })
                };
                actions.iter().filter_map(write).collect()
            },
        )
    }

    fn authority_to_act(&self, at: StoreRef, by: Author) -> Option<Authority> {
        self.authority(at, by).filter(|_| !self.must_end_rounds(at, by))
    }

    /// How a leader ends the rounds.
    pub(crate) fn end_rounds(&self, state: &State) -> Option<TxnRef> {
        let at = state.now();
        let authority = self.authority(at, Author::Leader).filter(|_| self.must_end_rounds(at, Author::Leader))?;
        let keys = &self.store.keys;
        let then = vec![Op::Delete(Keys::One(keys.round()))];
        Some(self.store.txn(Txn { when: authority.guards(keys), then, otherwise: None }))
    }

    /// How a coordinator would move a phase on.
    pub(crate) fn advanced(&self, state: &State, by: Author, partition: u8) -> Option<TxnRef> {
        if !Self::acts(state, by) {
            return None;
        }
        let at = state.now();
        let past_bound = state.bound_passed || self.without(Rule::BoundIsWaitedOut);
        self.remember(
            |memory| &mut memory.advances,
            (at.id(), by, partition, past_bound),
            || {
                let view = self.view(at);
                let partition = PartitionId::new(partition.into());
                let authority = self.authority_to_act(at, by).filter(|it| it.acts_for(Some(partition)))?;
                let waits_for_bound = pending_bound(view, partition).is_some();
                let step = if waits_for_bound && past_bound {
                    advance_past_bound(view, partition, 0)
                } else {
                    advance(view, partition, 0)
                };
                let mut txn = step?.txn;
                txn.when.extend(authority.guards(view.keys()));
                Some(self.store.txn(self.struck(txn, view, true)))
            },
        )
    }

    /// What somebody would write who ignores the rule that is taken out.
    pub(crate) fn broken_write(&self, state: &State, partition: u8) -> Option<TxnRef> {
        use segue_protocol::records::Phase;
        let view = self.view(state.now());
        let phase = view.handoffs.get(&PartitionId::new(partition.into()))?.value.phase;
        let breaks = match self.scenario.without? {
            Rule::CancelBeforeSwitching => phase == Phase::Switching,
            _ => false,
        };
        let txn = breaks.then(|| cancel_whatever(view, PartitionId::new(partition.into())))?;
        txn.map(|txn| self.store.txn(txn))
    }
}
