//! The coordinator of the model: `plan` and `advance` over what the store holds now, in the name of the leader.
//!
//! Coordinators have no state of their own: a new leader has none, so any leader may lose it. A leader that acts on an
//! old view, or does not know that it no longer leads, is a delayed write here. A time-out is a second look at the same
//! view with all its times passed.

use std::time::Duration;

use segue_protocol::handoff::advance::{advance, advance_past_bound, pending_bound};
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::{Action as Planned, Memory, Policy, REBIRTH_GRACE, plan, txn};
use segue_protocol::txn::Compare;

use crate::cluster::Cluster;
use crate::rules::{Rule, cancel_whatever, unpinned};
use crate::state::State;
use crate::store::TxnRef;

const LONG: Duration = Duration::from_secs(1_000_000);

impl Cluster {
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            partitions: u32::from(self.scenario.partitions),
            mode: self.scenario.mode,
            settle: Duration::ZERO,
            settle_max: Duration::ZERO,
            min_interval: Duration::ZERO,
            heartbeat: LONG * 1000,
            warm_timeout: LONG / 2,
            phase_timeout: LONG / 2,
            max_concurrent_handoffs: 8,
            max_warming_per_pod: 8,
            ..Policy::default()
        }
    }

    /// What the leader would write, at once or when every time-out has passed.
    pub(crate) fn planned(&self, state: &State, overdue: bool) -> Vec<TxnRef> {
        let at = state.now();
        self.remember(
            |memory| &mut memory.plans,
            (at.id(), overdue),
            || {
                let view = self.view(at);
                let Some(leader) = &view.leader else { return Vec::new() };
                let policy = self.policy();
                let mut memory = Memory::default();
                let seen = if self.without(Rule::Pinning) { &unpinned(view) } else { view };
                // Dead owners' partitions wait for a moment.
                let _ = plan(seen, &policy, &mut memory, Duration::ZERO);
                let mut actions = plan(seen, &policy, &mut memory, REBIRTH_GRACE).actions;
                if overdue {
                    let at_once = actions;
                    actions = plan(seen, &policy, &mut memory, LONG).actions;
                    actions.retain(|action| !at_once.contains(action) && !matches!(action, Planned::Create { .. }));
                }
                let write = |action: &Planned| {
                    let txn = txn(view, action, leader.create_revision, 0)?;
                    Some(self.store.txn(self.struck(txn, view, true)))
                };
                actions.iter().filter_map(write).collect()
            },
        )
    }

    /// How the leader would move a phase on.
    pub(crate) fn advanced(&self, state: &State, partition: u8) -> Option<TxnRef> {
        let at = state.now();
        let past_bound = state.bound_passed || self.without(Rule::BoundIsWaitedOut);
        self.remember(
            |memory| &mut memory.advances,
            (at.id(), partition, past_bound),
            || {
                let view = self.view(at);
                let leader = view.leader.as_ref()?;
                let partition = PartitionId::new(partition.into());
                let waits_for_bound = pending_bound(view, partition).is_some();
                let step = if waits_for_bound && past_bound {
                    advance_past_bound(view, partition, 0)
                } else {
                    advance(view, partition, 0)
                };
                let mut txn = step?.txn;
                txn.when.push(Compare::created_at(view.keys().leader(), leader.create_revision));
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
