//! Finds pods that warm partitions without getting anywhere, and partitions that should not wait for them.
//!
//! A pod makes progress when a partition that moves to it leaves `Warming`, or `Syncing`, in which it reads the tail. What its
//! service says of a single warm-up stays in the pod's process. A pod without progress for [`SLOW_WARM`] is slow: it keeps what
//! it has and gets no more while another pod can take it.
//!
//! Requests of a partition without a living owner are held, and refused after `max_wait`. Such a partition leaves a pod
//! without progress once half of that time has passed, if there is a pod that is not as far behind. Warm-ups may take longer
//! than that everywhere. Each time that it leaves a pod, the partition waits four times as long for the next one, and with a
//! leader that knows nothing it begins anew.
//!
//! # Invariants
//!
//! * A pod that warms nothing is not slow.
//! * A partition that a living pod serves leaves no pod because of this.
//! * A partition never leaves a pod for one that has been without progress for as long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::is_dead;
use super::notice::Notice;
use super::patience::SLOW_WARM;
use crate::handoff::advance::{PendingOn, pending_bound, waiting_for};
use crate::ids::{HandoffId, Incarnation, PartitionId};
use crate::records::{Handoff, Phase};
use crate::view::{Versioned, View};

/// How much longer a partition waits for its next new owner than for the one before.
const LONGER: u32 = 4;

/// The warm-ups in flight, by the life of the new owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct SlowWarms {
    /// Since when each life has warmed without progress.
    since: BTreeMap<Incarnation, Duration>,
    slow: BTreeSet<Incarnation>,
    /// The handoffs whose partitions leave their new owner.
    leaving: BTreeMap<PartitionId, HandoffId>,
    /// How many new owners a partition without a living owner has left.
    left: BTreeMap<PartitionId, u32>,
}

/// Returns whether the handoff waits for its new owner alone, which warms the partition or reads the tail.
fn is_up_to_the_new_owner(view: &View, handoff: &Handoff) -> bool {
    let reads_the_tail = || {
        let waiting = waiting_for(view, handoff.partition);
        let synced = |who: &PendingOn| matches!(who, PendingOn::PodSynced(_));
        pending_bound(view, handoff.partition).is_none() && !waiting.is_empty() && waiting.iter().all(synced)
    };
    handoff.phase == Phase::Warming || (handoff.phase == Phase::Syncing && reads_the_tail())
}

impl SlowWarms {
    /// Records the warm-ups in flight, and the lives that have completed one. Returns whether other pods are slow than before.
    pub(super) fn observe(&mut self, view: &View, warmed: &[Incarnation], now: Duration) -> bool {
        let warms = view.handoffs.values().filter(|handoff| is_up_to_the_new_owner(view, &handoff.value));
        let warming: BTreeSet<Incarnation> = warms.map(|handoff| handoff.value.new_incarnation).collect();
        self.since.retain(|life, _| warming.contains(life));
        for life in warming {
            let since = self.since.entry(life).or_insert(now);
            if warmed.contains(&life) {
                *since = now;
            }
        }
        let left = &mut self.left;
        self.leaving.retain(|partition, id| {
            let stands = view.handoffs.get(partition).is_some_and(|handoff| handoff.id() == *id);
            if !stands {
                *left.entry(*partition).or_default() += 1;
            }
            stands
        });
        self.left.retain(|partition, _| view.live_owner(*partition).is_none());
        let slow = self.since.keys().copied().filter(|life| self.waited(*life, now) >= SLOW_WARM).collect();
        std::mem::replace(&mut self.slow, slow) != self.slow
    }

    /// Returns how long this life of a pod has warmed without progress.
    pub(super) fn waited(&self, life: Incarnation, now: Duration) -> Duration {
        self.since.get(&life).map_or(Duration::ZERO, |since| now.saturating_sub(*since))
    }

    /// Returns whether other pods are preferred to this life of a pod.
    pub(super) fn is_slow(&self, life: Incarnation) -> bool {
        self.slow.contains(&life)
    }

    /// Returns a notice for each slow pod.
    pub(super) fn notices(&self, view: &View) -> impl Iterator<Item = Notice> {
        let slow = view.pods.iter().filter(|(_, record)| self.slow.contains(&record.incarnation()));
        slow.map(|(pod, _)| Notice::WarmsSlowly { pod: pod.clone() })
    }

    /// Starts the time of these warm-ups anew.
    pub(super) fn restart(&mut self, now: Duration) {
        self.since.values_mut().for_each(|since| *since = now);
    }

    /// Returns how long the handoff may wait for its new owner before its partition prefers another pod. `None` if its requests
    /// are not held, or somebody else is waited for.
    fn bound(&self, view: &View, handoff: &Handoff) -> Option<Duration> {
        let has_living_owner =
            handoff.old_owner.as_deref().is_some_and(|old| !is_dead(view, old, handoff.old_incarnation));
        if has_living_owner || !is_up_to_the_new_owner(view, handoff) {
            return None;
        }
        let shortest = view.routers.values().map(|router| router.value.max_wait_ms).min()?;
        let times = LONGER.saturating_pow(self.left.get(&handoff.partition).copied().unwrap_or(0));
        Some((Duration::from_millis(shortest) / 2).saturating_mul(times))
    }

    /// Returns whether the partition leaves its new owner, given how long it has warmed there. `may_take` tells which pods accept
    /// the partition.
    pub(super) fn leaves(
        &mut self,
        view: &View,
        handoff: &Versioned<Handoff>,
        age: Duration,
        may_take: impl Fn(&str) -> bool,
        now: Duration,
    ) -> bool {
        let (id, handoff) = (handoff.id(), &handoff.value);
        let Some(bound) = self.bound(view, handoff) else { return false };
        if self.leaving.get(&handoff.partition) == Some(&id) {
            return true;
        }
        let (pod, life) = (&handoff.new_owner, handoff.new_incarnation);
        let is_ahead = |other: &String| {
            let waited = view.pods.get(other).map(|record| self.waited(record.incarnation(), now));
            other != pod && waited.is_some_and(|waited| waited < bound) && may_take(other)
        };
        let leaves = age.min(self.waited(life, now)) >= bound
            && !view.is_pinned_to(handoff.partition, pod)
            && view.pods.keys().any(is_ahead);
        if leaves {
            self.leaving.insert(handoff.partition, id);
        }
        leaves
    }

    /// Returns when the next pod or partition has waited too long. `begun` tells since when a partition's handoff has been in
    /// its phase.
    pub(super) fn next_wake(
        &self,
        view: &View,
        begun: impl Fn(PartitionId) -> Option<Duration>,
        now: Duration,
    ) -> Option<Duration> {
        let pods = self.since.values().map(|since| *since + SLOW_WARM);
        let partitions = view.handoffs.values().filter_map(|handoff| {
            let since = *self.since.get(&handoff.value.new_incarnation)?;
            Some(since.max(begun(handoff.value.partition)?) + self.bound(view, &handoff.value)?)
        });
        pods.chain(partitions).filter(|at| *at > now).min()
    }
}
