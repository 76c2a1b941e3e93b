//! Limits how many moves are in flight at a time, and decides which go first.
//!
//! `max_concurrent_handoffs` limits all of them together. Planned moves, whose partitions are served meanwhile, take at
//! most half of the places. A long rebalance therefore leaves room for partitions without a live owner, whose clients
//! are waiting. If those find no place all the same, planned moves that are still warming are cancelled (`make_room`).
//!
//! # Invariants
//!
//! * A move is counted by whether its old owner lives *now*, so a new leader counts the same.

use super::{Policy, is_dead};
use crate::records::{Handoff, Phase};
use crate::view::{Versioned, View};

/// The cause of a move, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MoveCause {
    /// The owner is dead.
    DeadOwner,
    /// The partition never had an owner.
    FirstPlacement,
    /// The owner is draining.
    DrainingOwner,
    /// An operator wants the partition elsewhere.
    Operator,
    /// The owner has more than its share.
    Balance,
}

impl MoveCause {
    /// All causes.
    pub const ALL: [MoveCause; 5] = [
        MoveCause::DeadOwner,
        MoveCause::FirstPlacement,
        MoveCause::DrainingOwner,
        MoveCause::Operator,
        MoveCause::Balance,
    ];

    /// Returns why a standing handoff was planned, as far as the view shows it. What has happened to the old owner since
    /// looks like the cause.
    pub fn of(view: &View, handoff: &Handoff) -> Self {
        let Some(owner) = &handoff.old_owner else { return MoveCause::FirstPlacement };
        match view.live_pod(owner, handoff.old_incarnation) {
            None => MoveCause::DeadOwner,
            Some(_) if view.is_draining(owner) => MoveCause::DrainingOwner,
            Some(_) if view.is_pinned_to(handoff.partition, &handoff.new_owner) => MoveCause::Operator,
            Some(_) => MoveCause::Balance,
        }
    }

    /// Returns whether no live pod serves the partition meanwhile.
    pub fn is_urgent(self) -> bool {
        matches!(self, MoveCause::DeadOwner | MoveCause::FirstPlacement)
    }

    /// Returns the cause's name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            MoveCause::DeadOwner => "dead_owner",
            MoveCause::FirstPlacement => "first_placement",
            MoveCause::DrainingOwner => "draining_owner",
            MoveCause::Operator => "operator",
            MoveCause::Balance => "balance",
        }
    }
}

/// The free places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Budget {
    free: usize,
    /// How many of the free places planned moves may take.
    planned: usize,
}

impl Budget {
    /// Returns the places that the handoffs in flight leave free.
    pub(super) fn left(view: &View, policy: &Policy) -> Self {
        let planned = view.handoffs.values().filter(|handoff| is_planned(view, handoff)).count();
        let limit = policy.max_concurrent_handoffs;
        let (free, half) = (limit.saturating_sub(view.handoffs.len()), (limit / 2).max(1));
        Budget { free, planned: half.saturating_sub(planned) }
    }

    /// Takes a place. Returns `false` if none is free.
    pub(super) fn take(&mut self, cause: MoveCause) -> bool {
        let is_free = self.free > 0 && (cause.is_urgent() || self.planned > 0);
        if is_free {
            self.free -= 1;
            self.planned -= usize::from(!cause.is_urgent());
        }
        is_free
    }
}

/// Returns the planned moves that give their places up to `urgent` others: those that are still warming, the youngest
/// first.
pub(super) fn make_room(view: &View, urgent: usize) -> impl Iterator<Item = &Versioned<Handoff>> {
    let warms = |handoff: &&Versioned<Handoff>| handoff.value.phase == Phase::Warming && is_planned(view, handoff);
    let mut warming: Vec<_> = view.handoffs.values().filter(warms).collect();
    warming.sort_unstable_by_key(|handoff| std::cmp::Reverse(handoff.create_revision));
    warming.into_iter().take(urgent)
}

/// Returns whether a live pod serves the partition meanwhile.
pub(super) fn is_planned(view: &View, handoff: &Versioned<Handoff>) -> bool {
    let record = &handoff.value;
    record.old_owner.as_deref().is_some_and(|old| !is_dead(view, old, record.old_incarnation))
}
