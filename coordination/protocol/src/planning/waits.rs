//! Until when a wanted move waits, and what for. Places in the budget are in [`budget`](super::budget).

use std::time::Duration;

use super::budget::MoveCause;
use super::context::Context;
use super::held_back::HeldFor;
use crate::ids::{Incarnation, PartitionId};

impl Context<'_> {
    /// Returns until when a move waits, and what for. `barred_until` is when a pod may take the partition again, if none may
    /// now.
    pub(super) fn waits(
        &self,
        cause: MoveCause,
        partition: PartitionId,
        (to, has_come_back): (&str, bool),
        barred_until: Option<Duration>,
    ) -> Option<(Duration, HeldFor)> {
        let barred = || barred_until.map(|until| (until, HeldFor::Rest));
        let rests = self.backs_off(cause, partition, to).or_else(barred);
        let returns = || self.waits_for_return(cause, partition, has_come_back);
        rests.or_else(returns).or_else(|| self.balance_waits(cause, partition))
    }

    /// Returns until when the partition rests before it moves to this pod, and after what. An operator who wants it there ends
    /// a rest that the deaths of its owners have caused.
    pub(super) fn backs_off(&self, cause: MoveCause, partition: PartitionId, to: &str) -> Option<(Duration, HeldFor)> {
        let cancels = self.backoffs.partition_waits(partition, cause.is_urgent(), self.now);
        let deaths = self.backoffs.deaths_rest(partition, self.now).filter(|_| !self.view.is_pinned_to(partition, to));
        let rests = [cancels.map(|until| (until, HeldFor::Rest)), deaths.map(|until| (until, HeldFor::Deaths))];
        rests.into_iter().flatten().max_by_key(|(until, _)| *until)
    }

    /// Returns whether this life of a pod gets no more partitions while there is another pod.
    pub(super) fn is_shunned(&self, pod: &str, life: Incarnation) -> bool {
        self.backoffs.is_shunned(pod, self.now)
            || self.heartbeats.is_suspected(pod, self.now)
            || self.slow_warms.is_slow(life)
    }

    /// Returns until when a move for balance waits, and why: the partition has just moved, or pods restart one by one.
    pub(super) fn balance_waits(&self, cause: MoveCause, partition: PartitionId) -> Option<(Duration, HeldFor)> {
        let cools = self.cool_downs.ends(self.policy, partition, self.now).map(|ends| (ends, HeldFor::CoolDown));
        let rolls = self.roll_ends.map(|ends| (ends, HeldFor::Roll));
        cools.into_iter().chain(rolls).filter(|_| cause.is_balance()).max_by_key(|(ends, _)| *ends)
    }

    /// Returns until when a dead owner's partition waits for the next life of the same pod, which is preferred.
    fn waits_for_return(
        &self,
        cause: MoveCause,
        partition: PartitionId,
        has_come_back: bool,
    ) -> Option<(Duration, HeldFor)> {
        let assignment = &self.view.assignments.get(&partition)?.value;
        let is_preferred = self.backoffs.avoids(partition, &assignment.owner, self.now).is_none();
        let is_waited_for = cause == MoveCause::DeadOwner && !has_come_back && is_preferred;
        let ends = self.departures.grace_ends(&assignment.owner, assignment.incarnation, self.now);
        ends.filter(|_| is_waited_for).map(|ends| (ends, HeldFor::Return(assignment.owner.clone())))
    }
}
