//! Remembers which partitions have moved lately, so that they rest before they move again for balance.
//!
//! Each move costs the new owner a warm-up and clients a short wait. A pod that comes and goes would otherwise take the
//! same partitions back and forth. Only moves for balance rest: a dead or draining owner's partitions move at once. A
//! first placement starts no rest, because pods that start one after the other are to share what the first one got.
//!
//! The rest is in the planner's memory, not in the store: a new leader may move a partition sooner, which is harmless.
//!
//! # Invariants
//!
//! * A partition rests from the moment at which this planner last saw that its new owner takes over or has taken over.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Policy;
use crate::ids::PartitionId;

/// When which partitions last moved.
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

    /// Drops the rests that are over.
    pub(super) fn forget_old(&mut self, policy: &Policy, now: Duration) {
        self.moved.retain(|_, moved| *moved + policy.cool_down > now);
    }
}
