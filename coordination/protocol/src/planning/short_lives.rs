//! Remembers lives of pods that end soon after partitions were flipped to them, and what rests because of it.
//!
//! A pod in a crash loop is registered again at once, and its lease hides each death for as long as it lasts. A planner
//! that prefers the name that is back would give it the same partitions for ever. A pod that dies within two lease times of
//! a flip to it has therefore failed:
//!
//! * **Name and partition.** The pod is not preferred for the partitions that it had just taken over, and another pod
//!   takes them if there is one.
//! * **Pod.** The pod is shunned: it gets no more partitions for a while. A pod that dies while it warms is shunned too.
//! * **Partition.** If another pod had died with the partition, within one lease time of the flip, the partition is the more
//!   likely cause. It rests instead of the pod, longer after each death. Of several partitions only those with the most deaths
//!   rest, and half of them for two lease times longer than the others, so that the next death tells which half it was.
//!
//! The end of a life is seen at the end of its lease, up to a lease time after its process died, so the windows are a lease time
//! longer. That of a partition is shorter than that of a pod: in a cascade the partitions of one pod go to the next that dies, and
//! are not its cause.
//!
//! A life that outlasts these windows ends the row of its pod and of its partition. A living owner that has handed the partition
//! over ends the row of that partition.
//!
//! The age of a flip is measured by revisions: this planner knows which revision it had seen at which time. A new leader
//! knows no deaths, and regards every flip before its first view as old. It counts anew from the next flip on.
//!
//! # Invariants
//!
//! * A flip that this planner has not seen happen never counts.
//! * The end of a life while this planner did not see the store never counts.
//! * Deaths under one name never make a partition rest: the cause is more likely the pod.
//! * A preference keeps no partition without an owner: the only pod gets what it had at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::failures::{FIRST_BACK_OFF, FailureRow, PodFailures};
use super::notice::Notice;
use crate::ids::{Incarnation, PartitionId, Revision};
use crate::view::View;

/// Longest rest of a partition whose owners die. It bounds how late a partition returns after a fault of all pods.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Lease time of a pod whose registration does not tell it.
const DEFAULT_LEASE_TTL: Duration = Duration::from_secs(15);
/// Longest lease time that is believed.
const LONGEST_LEASE_TTL: Duration = Duration::from_secs(300);
/// Number of lease times after a flip within which the end of a key is a failure of the pod.
const LEASE_TIMES_OF_POD: u32 = 3;
/// Number of lease times after a flip within which the end of a key may be the fault of the partition.
const LEASE_TIMES_OF_PARTITION: u32 = 2;
/// Number of deaths from which on the partition is the likely cause.
const DEATHS_BEFORE_REST: u32 = 2;

/// The life of a registered pod as last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PodLease {
    incarnation: Incarnation,
    lease_ttl: Duration,
}

impl PodLease {
    /// Returns how long after a flip its end is a failure of the pod.
    fn pod_window(&self) -> Duration {
        self.lease_ttl * LEASE_TIMES_OF_POD
    }

    /// Returns how long after a flip its end may be the fault of the partition.
    fn partition_window(&self) -> Duration {
        self.lease_ttl * LEASE_TIMES_OF_PARTITION
    }
}

/// The deaths of a partition's owners, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Deaths {
    number: u32,
    /// The pod that died last.
    last: String,
    until: Duration,
}

/// The lives that ended soon.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct ShortLives {
    lives: BTreeMap<String, PodLease>,
    seen: SeenRevisions,
    pods: PodFailures,
    partitions: BTreeMap<PartitionId, Deaths>,
    /// The last known owners of partitions with failures.
    owners: BTreeMap<PartitionId, (String, Incarnation)>,
}

impl ShortLives {
    /// Records which lives have ended in this view, and forgets failures that a longer life has disproved.
    pub(super) fn observe(&mut self, view: &View, are_blameless: bool, now: Duration) {
        let lives = lives(view);
        let longest = lives.values().chain(self.lives.values()).map(PodLease::pod_window).max();
        self.seen.observe(view.revision, now, longest.unwrap_or_default());
        let before = std::mem::replace(&mut self.lives, lives);
        self.forgive_what_was_handed_over(view);
        for (pod, life) in before {
            let has_ended = self.lives.get(&pod).is_none_or(|now| now.incarnation != life.incarnation);
            if has_ended && !are_blameless {
                self.ended(view, &pod, life, now);
            }
        }
        self.forgive(view, now);
    }

    /// Returns the partitions that this life had taken over within `window` before now.
    fn taken_over(&self, view: &View, pod: &str, life: PodLease, window: Duration, now: Duration) -> Vec<PartitionId> {
        let is_taken = |partition: &PartitionId| {
            let Some(assignment) = view.assignments.get(partition) else { return false };
            assignment.value.incarnation == life.incarnation
                && self.seen.is_recent(assignment.mod_revision, window, now)
        };
        // In `independent` mode the flip comes last, and requests may have reached the new owner before.
        let handoffs = view.handoffs.values().map(|handoff| &handoff.value).filter(|record| {
            (record.new_owner.as_str(), record.new_incarnation) == (pod, life.incarnation) && record.is_past_no_return()
        });
        let mut taken: Vec<PartitionId> = view.assigned_to(pod).filter(is_taken).collect();
        taken.extend(handoffs.map(|record| record.partition));
        taken.sort_unstable();
        taken.dedup();
        taken
    }

    /// Records the end of a life.
    fn ended(&mut self, view: &View, pod: &str, life: PodLease, now: Duration) {
        let lost = self.taken_over(view, pod, life, life.pod_window(), now);
        if lost.is_empty() {
            return;
        }
        for partition in &lost {
            self.pods.fail_with(*partition, pod, now);
        }
        let causes = self.count_deaths(&self.taken_over(view, pod, life, life.partition_window(), now), pod);
        if causes.is_empty() {
            return self.shun(pod, now);
        }
        let first_half = causes.len().div_ceil(2);
        for (index, partition) in causes.iter().enumerate() {
            let Some(deaths) = self.partitions.get_mut(partition) else { continue };
            let back_off = crate::back_off::BackOff { first: FIRST_BACK_OFF, longest: LONGEST_REST };
            let later = if index < first_half { Duration::ZERO } else { life.partition_window() };
            deaths.until = now + back_off.after(deaths.number - 1) + later;
        }
    }

    /// Counts a death of their owner against those of these partitions that had the most before. Returns the likely causes.
    fn count_deaths(&mut self, taken: &[PartitionId], pod: &str) -> Vec<PartitionId> {
        let deaths = |partition: &PartitionId| self.partitions.get(partition).map_or(0, |deaths| deaths.number);
        let Some(most) = taken.iter().map(deaths).max() else { return Vec::new() };
        let likely: Vec<PartitionId> = taken.iter().copied().filter(|partition| deaths(partition) == most).collect();
        for partition in &likely {
            let none = || Deaths { number: 0, last: String::new(), until: Duration::ZERO };
            let deaths = self.partitions.entry(*partition).or_insert_with(none);
            if deaths.number >= DEATHS_BEFORE_REST || deaths.last != pod {
                deaths.number = deaths.number.saturating_add(1);
            }
            pod.clone_into(&mut deaths.last);
        }
        let is_cause = |partition: &PartitionId| self.partitions[partition].number >= DEATHS_BEFORE_REST;
        likely.into_iter().filter(is_cause).collect()
    }

    /// Records that the pod died while it warmed, or soon after it had taken partitions over.
    pub(super) fn shun(&mut self, pod: &str, now: Duration) {
        self.pods.fail(pod, now);
    }

    /// Forgets the failures of partitions that have left an owner since the last view which has survived them.
    fn forgive_what_was_handed_over(&mut self, view: &View) {
        let partitions: BTreeSet<PartitionId> =
            self.partitions.keys().copied().chain(self.pods.partitions_with_pairs()).collect();
        let owner = |partition: &PartitionId| {
            let assignment = &view.assignments.get(partition)?.value;
            Some((*partition, (assignment.owner.clone(), assignment.incarnation)))
        };
        let owners: BTreeMap<_, _> = partitions.iter().filter_map(owner).collect();
        for (partition, (pod, incarnation)) in std::mem::replace(&mut self.owners, owners) {
            let has_left = self.owners.get(&partition).is_some_and(|(now, life)| (now, life) != (&pod, &incarnation));
            if has_left && self.lives.get(&pod).is_some_and(|life| life.incarnation == incarnation) {
                self.partitions.remove(&partition);
                self.pods.forget_pair(partition, &pod);
            }
        }
    }

    /// Forgets the failures of pods and partitions whose present owner has lived long enough.
    fn forgive(&mut self, view: &View, now: Duration) {
        let (lives, seen) = (&self.lives, &self.seen);
        let has_lasted = |partition: PartitionId, window: fn(&PodLease) -> Duration| {
            let assignment = view.assignments.get(&partition)?;
            let (owner, life) = lives.get_key_value(&assignment.value.owner)?;
            let lasts = assignment.value.incarnation == life.incarnation
                && !seen.is_recent(assignment.mod_revision, window(life), now);
            lasts.then_some(owner.as_str())
        };
        self.partitions.retain(|partition, deaths| {
            has_lasted(*partition, PodLease::partition_window).is_none()
                && now < deaths.until.saturating_add(super::MAX_BACK_OFF)
        });
        let has_lasted_with = |partition| has_lasted(partition, PodLease::pod_window);
        let has_lasted_as_pod = |pod: &str| view.assigned_to(pod).any(|it| has_lasted_with(it).is_some());
        self.pods.retain(
            |pod, back_off| !has_lasted_as_pod(pod) && !back_off.is_forgotten(now),
            |partition, pod, back_off| has_lasted_with(partition) != Some(pod) && !back_off.is_forgotten(now),
        );
    }

    /// Returns until when the partition rests because its owners die, if that is later than `now`.
    pub(super) fn partition_rests(&self, partition: PartitionId, now: Duration) -> Option<Duration> {
        Some(self.partitions.get(&partition)?.until).filter(|until| *until > now)
    }

    /// Returns until when this pod is not preferred for this partition, if that is later than `now`.
    pub(super) fn pair_rests(&self, partition: PartitionId, pod: &str, now: Duration) -> Option<Duration> {
        self.pods.pair(partition, pod)?.waits(false, now)
    }

    /// Returns whether some pod is not preferred for this partition.
    pub(super) fn any_rests(&self, partition: PartitionId, now: Duration) -> bool {
        self.pods.any_rests(partition, now)
    }

    /// Returns the back-off of this pod.
    pub(super) fn pod(&self, pod: &str) -> Option<&FailureRow> {
        self.pods.pod(pod)
    }

    /// Returns the back-offs of all pods.
    pub(super) fn pods(&self) -> impl Iterator<Item = (&String, &FailureRow)> {
        self.pods.pods()
    }

    /// Returns whether no failure is remembered.
    #[cfg(test)]
    pub(super) fn is_clear(&self) -> bool {
        self.pods.is_empty() && self.partitions.is_empty()
    }

    /// Returns a notice for each pod that is shunned and each partition that rests.
    pub(super) fn notices(&self, now: Duration) -> impl Iterator<Item = Notice> {
        let pods = self.pods.pods().filter(move |(_, back_off)| back_off.waits(false, now).is_some());
        let pods = pods.map(|(pod, back_off)| Notice::DiesEarly { pod: pod.clone(), failures: back_off.failures() });
        let resting = self.partitions.iter().filter(move |(_, deaths)| deaths.until > now);
        pods.chain(resting.map(|(partition, deaths)| Notice::OwnersDie {
            partition: *partition,
            deaths: deaths.number,
            last: deaths.last.clone(),
        }))
    }
}

fn lives(view: &View) -> BTreeMap<String, PodLease> {
    let life = |(pod, incarnation): (String, Incarnation)| {
        let told = view.pods.get(&pod).and_then(|record| record.value.lease_ttl_ms).map(Duration::from_millis);
        let lease_ttl = told.map_or(DEFAULT_LEASE_TTL, |ttl| ttl.min(LONGEST_LEASE_TTL));
        (pod, PodLease { incarnation, lease_ttl })
    };
    view.pod_lives().into_iter().map(life).collect()
}

/// Which revision was seen at which time, with few entries.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct SeenRevisions {
    /// The oldest first. Between two that are further apart than [`Self::DISTANCE`], nothing was seen.
    samples: VecDeque<(Duration, Revision)>,
}

impl SeenRevisions {
    /// Largest error of an age.
    const DISTANCE: Duration = Duration::from_millis(500);

    /// Records the revision that is seen now. Ages above `longest` are not asked for.
    fn observe(&mut self, revision: Revision, now: Duration, longest: Duration) {
        // After the store has gone back, revisions tell no ages.
        if self.samples.back().is_some_and(|(_, last)| *last > revision) {
            self.samples.clear();
        }
        let samples = self.samples.len();
        if samples > 1 && now < self.samples[samples - 2].0 + Self::DISTANCE {
            self.samples.pop_back();
        }
        self.samples.push_back((now, revision));
        while self.samples.get(1).is_some_and(|(at, _)| *at + longest <= now) {
            self.samples.pop_front();
        }
    }

    /// Returns whether a write at this revision was seen to happen within `window` before `now`.
    fn is_recent(&self, revision: Revision, window: Duration, now: Duration) -> bool {
        let before = self.samples.partition_point(|(at, _)| *at + window <= now);
        let reached = self.samples.get(before.saturating_sub(1)).map(|(_, reached)| *reached);
        reached.is_some_and(|reached| revision > reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_age_of_a_write_is_known_from_when_its_revision_was_seen() {
        let (window, mut seen) = (at(4_000), SeenRevisions::default());
        seen.observe(Revision::new(10), at(0), window);
        assert!(!seen.is_recent(Revision::new(10), window, at(0)), "of unknown age");
        seen.observe(Revision::new(11), at(100), window);
        seen.observe(Revision::new(12), at(400), window);
        // Nothing is seen for long.
        seen.observe(Revision::new(13), at(60_000), window);
        assert!(!seen.is_recent(Revision::new(11), window, at(60_000)));
        assert!(!seen.is_recent(Revision::new(12), window, at(60_000)));
        assert!(seen.is_recent(Revision::new(13), window, at(63_900)));
        assert!(!seen.is_recent(Revision::new(13), window, at(64_000)));
    }

    #[test]
    fn ages_are_exact_to_half_a_second_and_few_samples_are_kept() {
        let (window, mut seen) = (at(30_000), SeenRevisions::default());
        for tick in 0..100_000 {
            seen.observe(Revision::new(tick), at(tick * 10), window);
        }
        let now = at(999_990);
        let oldest = (0..100_000).find(|tick| seen.is_recent(Revision::new(*tick), window, now)).unwrap();
        assert!((now - at(oldest * 10)).abs_diff(window) <= SeenRevisions::DISTANCE);
        assert!(seen.samples.len() < 130, "{}", seen.samples.len());
    }

    #[test]
    fn a_store_that_goes_back_makes_all_ages_unknown() {
        let mut seen = SeenRevisions::default();
        seen.observe(Revision::new(10), at(0), at(4_000));
        seen.observe(Revision::new(20), at(1_000), at(4_000));
        seen.observe(Revision::new(15), at(2_000), at(4_000));
        assert!(!seen.is_recent(Revision::new(15), at(4_000), at(2_000)));
    }
}
