//! Counts failures of partitions, of pods, and of pods with single partitions, and how long each rests after them.
//!
//! Elsewhere: which failures count, and what does not happen during a rest. [`backoff`](super::backoff) records cancelled
//! moves, [`short_lives`](super::short_lives) deaths.
//!
//! # Invariants
//!
//! * Failures within one wait count once.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::PartitionId;

/// Wait after the first failure; each further failure in a row doubles it. A partition without a live owner never waits
/// longer than this, unless its owners die one after the other.
pub const FIRST_BACK_OFF: Duration = Duration::from_secs(5);

/// Longest wait of a partition.
pub const MAX_BACK_OFF: Duration = Duration::from_secs(600);

/// Ratio of a pod's wait to its partition's.
pub(super) const SHUNNED_SCALE: u32 = 2;

/// The failures in a row of a partition, a pod or a pair of both, and the wait after the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FailureRow {
    failures: u32,
    since: Duration,
    until: Duration,
}

impl FailureRow {
    /// No failure.
    pub(super) const NONE: FailureRow = FailureRow { failures: 0, since: Duration::ZERO, until: Duration::ZERO };

    /// Counts a failure and starts its wait: `scale` times the usual one.
    pub(super) fn fail(&mut self, now: Duration, scale: u32) {
        self.since = now;
        if now < self.until {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let back_off = crate::back_off::BackOff { first: FIRST_BACK_OFF, longest: MAX_BACK_OFF };
        self.until = now + back_off.after(self.failures) * scale;
    }

    /// Returns the end of the wait if it is later than `now`. An urgent move waits no longer than the first time.
    pub(super) fn waits(&self, urgent: bool, now: Duration) -> Option<Duration> {
        let until = if urgent { self.until.min(self.since + FIRST_BACK_OFF) } else { self.until };
        Some(until).filter(|until| *until > now)
    }

    /// Returns the number of failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns when the wait ends, or has ended.
    pub(super) fn until(&self) -> Duration {
        self.until
    }

    /// Returns whether the last failure was long ago.
    pub(super) fn is_forgotten(&self, now: Duration) -> bool {
        self.until + MAX_BACK_OFF < now
    }
}

/// The failures of pods for one kind of reason, of each as a whole and with single partitions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct PodFailures {
    pods: BTreeMap<String, FailureRow>,
    pairs: BTreeMap<(PartitionId, String), FailureRow>,
}

impl PodFailures {
    /// Counts a failure of this pod.
    pub(super) fn fail(&mut self, pod: &str, now: Duration) {
        self.pods.entry(pod.to_owned()).or_insert(FailureRow::NONE).fail(now, SHUNNED_SCALE);
    }

    /// Counts a failure of this pod with this partition.
    pub(super) fn fail_with(&mut self, partition: PartitionId, pod: &str, now: Duration) {
        self.pairs.entry((partition, pod.to_owned())).or_insert(FailureRow::NONE).fail(now, SHUNNED_SCALE);
    }

    /// Returns the back-off of this pod.
    pub(super) fn pod(&self, pod: &str) -> Option<&FailureRow> {
        self.pods.get(pod)
    }

    /// Returns the back-offs of all pods.
    pub(super) fn pods(&self) -> impl Iterator<Item = (&String, &FailureRow)> {
        self.pods.iter()
    }

    /// Returns the back-off of this pod with this partition.
    pub(super) fn pair(&self, partition: PartitionId, pod: &str) -> Option<&FailureRow> {
        if self.pairs.is_empty() {
            return None;
        }
        self.pairs.get(&(partition, pod.to_owned()))
    }

    /// Returns whether some pod rests with this partition.
    pub(super) fn any_rests(&self, partition: PartitionId, now: Duration) -> bool {
        let pairs = self.pairs.range((partition, String::new())..).take_while(|((of, _), _)| *of == partition);
        pairs.into_iter().any(|(_, back_off)| back_off.waits(false, now).is_some())
    }

    /// Returns the partitions with which pods have failed.
    pub(super) fn partitions_with_pairs(&self) -> impl Iterator<Item = PartitionId> {
        self.pairs.keys().map(|(partition, _)| *partition)
    }

    /// Forgets the failures of this pod with this partition.
    pub(super) fn forget_pair(&mut self, partition: PartitionId, pod: &str) {
        self.pairs.remove(&(partition, pod.to_owned()));
    }

    /// Returns with how many partitions this pod rests.
    pub(super) fn resting_with(&self, pod: &str, now: Duration) -> usize {
        let rests = |((_, other), back_off): &(&(PartitionId, String), &FailureRow)| {
            other == pod && back_off.waits(false, now).is_some()
        };
        self.pairs.iter().filter(rests).count()
    }

    /// Puts what is remembered of this pod, and of it with this partition.
    pub(super) fn put(
        &mut self,
        partition: PartitionId,
        pod: &str,
        (alone, pair): (Option<FailureRow>, Option<FailureRow>),
    ) {
        put(&mut self.pods, pod.to_owned(), alone);
        put(&mut self.pairs, (partition, pod.to_owned()), pair);
    }

    /// Keeps the failures of pods, and of pods with partitions, for which these hold.
    pub(super) fn retain(
        &mut self,
        pods: impl Fn(&str, &FailureRow) -> bool,
        pairs: impl Fn(PartitionId, &str, &FailureRow) -> bool,
    ) {
        self.pods.retain(|pod, back_off| pods(pod, back_off));
        self.pairs.retain(|(partition, pod), back_off| pairs(*partition, pod, back_off));
    }

    /// Returns whether there are none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.pairs.is_empty()
    }
}

/// Puts a back-off, or removes it.
pub(super) fn put<K: Ord>(map: &mut BTreeMap<K, FailureRow>, key: K, back_off: Option<FailureRow>) {
    match back_off {
        Some(back_off) => drop(map.insert(key, back_off)),
        None => drop(map.remove(&key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_in_a_row_doubles_the_wait_up_to_the_longest() {
        let mut back_off = FailureRow::NONE;
        let mut waits = Vec::new();
        for _ in 0..40 {
            let now = back_off.until;
            back_off.fail(now, 1);
            waits.push((back_off.until - now).as_secs());
        }
        assert_eq!(waits[..9], [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(waits[39], 600);
    }

    #[test]
    fn a_failure_within_the_wait_counts_as_the_same() {
        let mut back_off = FailureRow::NONE;
        back_off.fail(Duration::from_secs(1), 1);
        back_off.fail(Duration::from_secs(5), 1);
        assert_eq!((back_off.failures, back_off.until), (1, Duration::from_secs(6)));
    }
}
