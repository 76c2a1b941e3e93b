//! How many moves are in flight at a time, and which go first.
//!
//! There are two budgets of `max_concurrent_handoffs` each, apart from one another: one for partitions that nobody alive
//! owns, whose clients wait, and one for the rest. So while pods live never more than `max_concurrent_handoffs` move,
//! and a long rebalance never makes a dead pod's partitions wait; at most twice as many are in flight.
//! Must stay true: a move is counted by whether its old owner lives *now*, so that a new leader counts the same.

use super::Policy;
use crate::protocol::view::View;

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
    urgent: usize,
    planned: usize,
}

impl Budget {
    /// What the handoffs in flight leave free.
    pub(super) fn left(view: &View, policy: &Policy) -> Self {
        let urgent = view.handoffs.values().filter(|handoff| view.live_old_owner(&handoff.value).is_none()).count();
        let limit = policy.max_concurrent_handoffs;
        Budget { urgent: limit.saturating_sub(urgent), planned: limit.saturating_sub(view.handoffs.len() - urgent) }
    }

    /// Takes a place, if one is free.
    pub(super) fn take(&mut self, cause: MoveCause) -> bool {
        let places = if cause.is_urgent() { &mut self.urgent } else { &mut self.planned };
        let free = *places > 0;
        *places -= usize::from(free);
        free
    }
}
