//! Follows the pods' heartbeats: which pods are suspected, and which have been overloaded for several heartbeats. Tells
//! pods whether planning has a use for their load.
//!
//! A suspected pod has missed heartbeats although its lease has not ended. It keeps its partitions and gets no more.
//! Times are measured from the view in which a heartbeat was first seen, by this process's clock, so no clocks are
//! compared.
//!
//! # Invariants
//!
//! * A pod that has never sent a heartbeat in its present life is not suspected.
//! * No partition moves because its owner is suspected.
//! * A pod counts as overloaded only after [`OVERLOADS_BEFORE_MOVE`] heartbeats in a row of its present life since
//!   partitions last moved.

use std::collections::BTreeMap;
use std::time::Duration;

use super::notice::Notice;
use super::patience::MISSED_BEFORE_SUSPECTED;
use super::{Policy, Strategy, in_force};
use crate::ids::{Incarnation, PartitionId, Revision};
use crate::records::PodLoad;
use crate::view::{Versioned, View};

/// Time between two heartbeats of a pod whose own settings name none, while planning has a use for them.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Number of heartbeats in a row that show an overload before a partition moves for it.
pub const OVERLOADS_BEFORE_MOVE: u32 = 3;
/// How long pods may take to report keys, once they are bounded.
const KEYS_MISSED_AFTER: Duration = Duration::from_secs(60);
/// A pod is overloaded with more than this percentage of its share of the load.
const OVERLOAD_PERCENT: u128 = 125;
/// The interval of a pod that announces a shorter one.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Returns whether planning has a use for the pods' load, by the settings of the keyspace. Otherwise pods send no
/// heartbeats unless their own settings say so, and no load of single partitions.
pub fn uses_load(view: &View) -> bool {
    let policy = in_force(view, &Policy::default());
    policy.max_keys_per_partition > 0 || (policy.balance_load && policy.strategy == Strategy::Sticky)
}

/// The last heartbeat of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Beat {
    /// The life of the pod that sent it.
    incarnation: Incarnation,
    seen: Revision,
    /// When the pod becomes suspected without another heartbeat.
    suspected_at: Duration,
    overloads: u32,
    /// A partition with too many keys, and their number when it was named. It stays named so until it has doubled, so
    /// that an operator is told once and not with each heartbeat.
    too_many_keys: Option<(PartitionId, u64)>,
}

/// The last heartbeats of all pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Heartbeats {
    beats: BTreeMap<String, Beat>,
    /// Since when keys are bounded, there are pods, and none reports keys.
    without_keys_since: Option<Duration>,
}

impl Heartbeats {
    /// Records the heartbeats that this view shows for the first time.
    pub(super) fn observe(&mut self, view: &View, policy: &Policy, now: Duration) {
        self.beats.retain(|pod, _| view.load(pod).is_some());
        let mut share = None;
        for (pod, load) in view.loads.iter().filter(|(pod, _)| view.load(pod).is_some()) {
            // One look may show the end of a life together with the first heartbeat of the next.
            let known = self.beats.get(pod).filter(|beat| beat.incarnation == load.value.incarnation);
            if known.is_some_and(|beat| beat.seen == load.mod_revision) {
                continue;
            }
            let share = share.get_or_insert_with(|| LoadTotal::of(view));
            let is_over = share.exceeded(view, pod, load);
            let overloads = if is_over { known.map_or(0, |beat| beat.overloads).saturating_add(1) } else { 0 };
            let interval = Duration::from_millis(load.value.interval_ms).max(MIN_INTERVAL);
            let beat = Beat {
                incarnation: load.value.incarnation,
                seen: load.mod_revision,
                suspected_at: now.saturating_add(interval.saturating_mul(MISSED_BEFORE_SUSPECTED)),
                overloads,
                too_many_keys: too_many_keys(&load.value, policy, known.and_then(|beat| beat.too_many_keys)),
            };
            self.beats.insert(pod.clone(), beat);
        }
        let reports =
            |load: &Versioned<PodLoad>| load.value.partitions.values().any(|partition| partition.keys.is_some());
        let is_awaited = policy.max_keys_per_partition > 0 && !view.pods.is_empty();
        let is_missed = is_awaited && !view.loads.values().any(reports);
        self.without_keys_since = is_missed.then(|| self.without_keys_since.unwrap_or(now));
    }

    /// Returns when it counts that no pod reports keys.
    fn keys_missed_at(&self) -> Option<Duration> {
        self.without_keys_since.map(|since| since.saturating_add(KEYS_MISSED_AFTER))
    }

    /// Counts overloads anew, because partitions move: earlier heartbeats do not show the load that follows.
    pub(super) fn count_anew(&mut self) {
        self.beats.values_mut().for_each(|beat| beat.overloads = 0);
    }

    /// Returns whether the pod has missed heartbeats.
    pub(super) fn is_suspected(&self, pod: &str, now: Duration) -> bool {
        self.beats.get(pod).is_some_and(|beat| beat.suspected_at <= now)
    }

    /// Returns whether the pod has been overloaded for long enough to give up load.
    pub(super) fn is_overloaded(&self, pod: &str) -> bool {
        self.beats.get(pod).is_some_and(|beat| beat.overloads >= OVERLOADS_BEFORE_MOVE)
    }

    /// Returns when the next pod becomes suspected, or it counts that none reports keys.
    pub(super) fn next_wake(&self, now: Duration) -> Option<Duration> {
        let suspected = self.beats.values().map(|beat| beat.suspected_at);
        suspected.chain(self.keys_missed_at()).filter(|at| *at > now).min()
    }

    /// Returns a notice for each suspected pod, for each pod with a partition of too many keys, and one if no pod reports keys.
    pub(super) fn notices(&self, policy: &Policy, now: Duration) -> impl Iterator<Item = Notice> {
        let most = policy.max_keys_per_partition;
        let named = self.beats.iter().flat_map(move |(pod, beat)| {
            let suspected = (beat.suspected_at <= now).then(|| Notice::Suspected { pod: pod.clone() });
            let large = beat.too_many_keys.filter(|(_, keys)| most > 0 && *keys > most);
            let large = large.map(|(partition, keys)| Notice::TooManyKeys { partition, pod: pod.clone(), keys, most });
            suspected.into_iter().chain(large)
        });
        let missed = self.keys_missed_at().is_some_and(|at| at <= now);
        named.chain(missed.then_some(Notice::NoKeys { most }))
    }
}

/// Returns the partition to name because it has too many keys, given the one that was named before.
fn too_many_keys(load: &PodLoad, policy: &Policy, named: Option<(PartitionId, u64)>) -> Option<(PartitionId, u64)> {
    let most = policy.max_keys_per_partition;
    let is_over = |keys: &u64| most > 0 && *keys > most;
    let keys = load.partitions.iter().filter_map(|(partition, it)| Some((*partition, it.keys.filter(is_over)?)));
    let largest = keys.max_by_key(|(_, keys)| *keys)?;
    let still =
        |partition: PartitionId| load.partitions.get(&partition).and_then(|it| it.keys).is_some_and(|it| is_over(&it));
    named.filter(|(partition, keys)| still(*partition) && largest.1 < keys.saturating_mul(2)).or(Some(largest))
}

/// The load of all pods that accept partitions, and the sum of their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoadTotal {
    load: u128,
    weight: u128,
}

impl LoadTotal {
    pub(super) fn of(view: &View) -> Self {
        let mut share = LoadTotal { load: 0, weight: 0 };
        for (pod, record) in view.pods.iter().filter(|(pod, _)| !view.is_draining(pod)) {
            let Some(load) = view.load(pod) else { continue };
            share.load += u128::from(load.total.0);
            share.weight += u128::from(record.value.weight.0);
        }
        share
    }

    /// Returns a pod's share of the load, in thousandths, by its weight in thousandths.
    pub(super) fn due(&self, weight: u32) -> u32 {
        u32::try_from(self.load * u128::from(weight) / self.weight.max(1)).unwrap_or(u32::MAX)
    }

    fn exceeded(&self, view: &View, pod: &str, load: &Versioned<PodLoad>) -> bool {
        let weight = view.pods.get(pod).map_or(0, |record| record.value.weight.0);
        u128::from(load.value.total.0) * 100 > u128::from(self.due(weight)) * OVERLOAD_PERCENT
    }
}
