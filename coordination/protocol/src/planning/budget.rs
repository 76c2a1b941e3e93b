//! How many moves are in flight at a time, and which go first.
//!
//! `max_concurrent_handoffs` counts all of them. Moves that nobody waits for take at most half of the places, so that a
//! long rebalance leaves room for partitions that nobody alive owns, whose clients wait. If these find no place all the
//! same, planned moves that still warm make room (`make_room`).
//! Must stay true: a move is counted by whether its old owner lives *now*, so that a new leader counts the same.

use super::{Policy, is_dead};
use crate::records::{Handoff, Phase};
use crate::view::{Stamped, View};

/// Why a partition has to move; the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MoveCause {
    /// Its owner is dead.
    DeadOwner,
    /// It never had an owner.
    FirstPlacement,
    /// Its owner is draining.
    DrainingOwner,
    /// Its owner has more than its share.
    Balance,
}

impl MoveCause {
    /// Whether nobody alive serves the partition meanwhile.
    pub fn is_urgent(self) -> bool {
        matches!(self, MoveCause::DeadOwner | MoveCause::FirstPlacement)
    }

    /// The cause as metrics and logs name it.
    pub fn as_str(self) -> &'static str {
        match self {
            MoveCause::DeadOwner => "dead_owner",
            MoveCause::FirstPlacement => "first_placement",
            MoveCause::DrainingOwner => "draining_owner",
            MoveCause::Balance => "balance",
        }
    }
}

/// The places that are still free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Budget {
    free: usize,
    /// How many of them planned moves may take.
    planned: usize,
}

impl Budget {
    /// What the handoffs in flight leave free.
    pub(super) fn left(view: &View, policy: &Policy) -> Self {
        let planned = view.handoffs.values().filter(|handoff| is_planned(view, handoff)).count();
        let limit = policy.max_concurrent_handoffs;
        let (free, half) = (limit.saturating_sub(view.handoffs.len()), (limit / 2).max(1));
        Budget { free, planned: half.saturating_sub(planned) }
    }

    /// Takes a place, if one is free.
    pub(super) fn take(&mut self, cause: MoveCause) -> bool {
        let is_free = self.free > 0 && (cause.is_urgent() || self.planned > 0);
        if is_free {
            self.free -= 1;
            self.planned -= usize::from(!cause.is_urgent());
        }
        is_free
    }
}

/// The planned moves that give their places up to `urgent` others: those that still warm, the youngest first.
pub(super) fn make_room(view: &View, urgent: usize) -> impl Iterator<Item = &Stamped<Handoff>> {
    let warms = |handoff: &&Stamped<Handoff>| handoff.value.phase == Phase::Warming && is_planned(view, handoff);
    let mut warming: Vec<_> = view.handoffs.values().filter(warms).collect();
    warming.sort_unstable_by_key(|handoff| std::cmp::Reverse(handoff.create_revision));
    warming.into_iter().take(urgent)
}

/// Whether somebody alive serves the partition meanwhile.
pub(super) fn is_planned(view: &View, handoff: &Stamped<Handoff>) -> bool {
    let record = &handoff.value;
    record.old_owner.as_deref().is_some_and(|old| !is_dead(view, old, record.old_incarnation))
}
