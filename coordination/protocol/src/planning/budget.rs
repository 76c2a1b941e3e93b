//! Limits how many moves are in flight at a time, and decides which go first.
//!
//! `max_concurrent_handoffs` limits all of them together. Planned moves, whose partitions are served meanwhile, take at
//! most half of the places. A long rebalance therefore leaves room for partitions without a live owner, whose clients
//! are waiting. `max_warming_per_pod` limits how many partitions one pod warms at a time, because the pod serves other
//! partitions meanwhile. If urgent moves still find no place, `make_room` cancels planned moves that are warming: any
//! of them if the limit on all moves is reached, or those to the same pod if the limit of that pod is reached.
//!
//! # Invariants
//!
//! * A move is counted by whether its old owner lives *now*, so a new leader counts the same.

use std::collections::BTreeMap;

use super::{Policy, is_dead};
use crate::ids::Incarnation;
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
    /// The key `wanted` names another owner.
    Wanted,
    /// The owner has more than its share.
    Balance,
}

impl MoveCause {
    /// All causes.
    pub const ALL: [MoveCause; 6] = [
        MoveCause::DeadOwner,
        MoveCause::FirstPlacement,
        MoveCause::DrainingOwner,
        MoveCause::Operator,
        MoveCause::Wanted,
        MoveCause::Balance,
    ];

    /// Returns why a standing handoff was planned, as far as the view shows it. What has happened to the old owner
    /// since looks like the cause.
    pub fn of(view: &View, handoff: &Handoff) -> Self {
        let Some(owner) = &handoff.old_owner else { return MoveCause::FirstPlacement };
        match view.live_pod(owner, handoff.old_incarnation) {
            None => MoveCause::DeadOwner,
            Some(_) if view.is_draining(owner) => MoveCause::DrainingOwner,
            Some(_) if view.is_pinned_to(handoff.partition, &handoff.new_owner) => MoveCause::Operator,
            Some(_) if is_wanted(view, handoff) => MoveCause::Wanted,
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
            MoveCause::Wanted => "wanted",
            MoveCause::Balance => "balance",
        }
    }
}

/// Returns whether the key `wanted` names the new owner, so that the strategy `external` may have planned the move.
fn is_wanted(view: &View, handoff: &Handoff) -> bool {
    let wanted = view.wanted.as_ref().and_then(|wanted| wanted.value.owners.get(&handoff.partition));
    wanted.is_some_and(|pod| *pod == handoff.new_owner)
}

/// The free places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Budget<'a> {
    free: usize,
    /// How many of the free places planned moves may take.
    planned: usize,
    /// Number of warming handoffs to each incarnation of a pod.
    warming: BTreeMap<(&'a str, Incarnation), usize>,
    most_warming: usize,
}

/// The limit that a move has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The limit on all moves, or on all planned ones.
    InAll,
    /// The limit on warming moves to the new owner.
    NewOwner,
}

impl<'a> Budget<'a> {
    /// Returns the places that the handoffs in flight leave free.
    pub(super) fn left(view: &'a View, policy: &Policy) -> Self {
        let planned = view.handoffs.values().filter(|handoff| is_planned(view, handoff)).count();
        let limit = policy.max_concurrent_handoffs;
        let (free, half) = (limit.saturating_sub(view.handoffs.len()), (limit / 2).max(1));
        let mut warming = BTreeMap::new();
        for handoff in view.handoffs.values().map(|handoff| &handoff.value) {
            if handoff.phase == Phase::Warming {
                *warming.entry((handoff.new_owner.as_str(), handoff.new_incarnation)).or_default() += 1;
            }
        }
        let planned = half.saturating_sub(planned);
        Budget { free, planned, warming, most_warming: policy.max_warming_per_pod }
    }

    /// Takes a place for a move to this incarnation of a pod.
    pub(super) fn take(&mut self, cause: MoveCause, to: &'a str, life: Incarnation) -> Result<(), Full> {
        let warming = self.warming.entry((to, life)).or_default();
        if *warming >= self.most_warming {
            return Err(Full::NewOwner);
        }
        if self.free == 0 || (!cause.is_urgent() && self.planned == 0) {
            return Err(Full::InAll);
        }
        *warming += 1;
        self.free -= 1;
        self.planned -= usize::from(!cause.is_urgent());
        Ok(())
    }
}

/// The urgent moves that found no place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Needed<'a> {
    in_all: usize,
    by_pod: BTreeMap<&'a str, usize>,
}

impl<'a> Needed<'a> {
    /// Counts an urgent move to this pod.
    pub(super) fn add(&mut self, full: Full, to: &'a str) {
        match full {
            Full::InAll => self.in_all += 1,
            Full::NewOwner => *self.by_pod.entry(to).or_default() += 1,
        }
    }

    /// Assigns the place of a cancelled move to this pod to an urgent move. Returns `false` if no urgent move needs it.
    fn meet(&mut self, to: &str) -> bool {
        let here = self.by_pod.get_mut(to).filter(|needed| **needed > 0);
        let needed = here.unwrap_or(&mut self.in_all);
        let is_needed = *needed > 0;
        *needed -= usize::from(is_needed);
        is_needed
    }
}

/// Returns the planned moves to cancel in favour of urgent ones: those that are still warming, the youngest first.
pub(super) fn make_room<'a>(view: &'a View, mut needed: Needed<'_>) -> impl Iterator<Item = &'a Versioned<Handoff>> {
    let warms = |handoff: &&Versioned<Handoff>| handoff.value.phase == Phase::Warming && is_planned(view, handoff);
    let mut warming: Vec<_> = view.handoffs.values().filter(warms).collect();
    warming.sort_unstable_by_key(|handoff| std::cmp::Reverse(handoff.create_revision));
    warming.into_iter().filter(move |handoff| needed.meet(&handoff.value.new_owner))
}

/// Returns whether a live pod serves the partition meanwhile.
pub(super) fn is_planned(view: &View, handoff: &Versioned<Handoff>) -> bool {
    let record = &handoff.value;
    record.old_owner.as_deref().is_some_and(|old| !is_dead(view, old, record.old_incarnation))
}
