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
//! * A cool-down begins when this planner last saw that a new owner takes over or has taken over.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Policy;
use crate::ids::PartitionId;

/// The time of each partition's last move.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct CoolDowns {
    moved: BTreeMap<PartitionId, Duration>,
}

impl CoolDowns {
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
