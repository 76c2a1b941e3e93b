//! Remembers which partitions have moved recently, so that they do not move again for balance too soon.
//!
//! Each move costs the new owner a warm-up and clients a short wait. Without a cool-down, a pod that comes and goes
//! would take the same partitions back and forth. Only moves for balance wait for it: partitions of a dead or draining
//! owner move at once. A first placement starts no cool-down, so that pods that start one after the other can share the
//! partitions of the first one.
//!
//! Cool-downs are kept in the planner's memory, not in the store. A new leader may move a partition sooner, which is
//! harmless.
//!
//! # Invariants
//!
//! * A cool-down begins when this planner last saw that a new owner takes over or has taken over. Moves that it has begun
//!   itself count although all their phases pass between two of its views.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Policy;
use crate::ids::{Epoch, PartitionId};
use crate::records::Handoff;
use crate::view::View;

/// The time of each partition's last move.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct CoolDowns {
    moved: BTreeMap<PartitionId, Duration>,
    /// The epochs of new owners in moves that this planner has begun and no view has shown yet. A move that could not be
    /// written stays here until the partition moves, or is to be moved, again.
    begun: BTreeMap<PartitionId, Epoch>,
}

impl CoolDowns {
    /// Records a move that this planner begins.
    pub(super) fn begins(&mut self, policy: &Policy, handoff: &Handoff) {
        if handoff.old_owner.is_some() && !policy.cool_down.is_zero() {
            self.begun.insert(handoff.partition, handoff.epoch);
        }
    }

    /// Records moves that have begun and ended between two views.
    pub(super) fn observe(&mut self, view: &View, now: Duration) {
        let moved = &mut self.moved;
        self.begun.retain(|partition, epoch| {
            let has_moved = view.assignments.get(partition).is_some_and(|is| is.value.epoch >= *epoch);
            if has_moved {
                moved.insert(*partition, now);
            }
            // `PhaseTimeouts` reports the moves of handoffs that a view shows.
            !has_moved && !view.handoffs.contains_key(partition)
        });
    }

    /// Records that the partition's new owner takes over.
    pub(super) fn moved(&mut self, partition: PartitionId, now: Duration) {
        self.moved.insert(partition, now);
    }

    /// Returns until when the partition does not move for balance, if that is later than `now`.
    pub(super) fn ends(&self, policy: &Policy, partition: PartitionId, now: Duration) -> Option<Duration> {
        self.moved.get(&partition).map(|moved| *moved + policy.cool_down).filter(|ends| *ends > now)
    }

    /// Drops the cool-downs that are over.
    pub(super) fn forget_old(&mut self, policy: &Policy, now: Duration) {
        self.moved.retain(|_, moved| *moved + policy.cool_down > now);
    }
}
