//! Limits how many partitions a router stops at the same time.
//!
//! A pause lasts as long as the store takes for the writes within it, and that grows with the number of concurrent
//! writes. A router therefore stops a few partitions at a time, in the order in which their new owners became ready,
//! which is the same for all routers. Meanwhile the old owners serve the other partitions. Where each write is slow, more are
//! stopped together: what they write shares requests.
//!
//! A partition gives its place up when its requests flow again, which all routers learn from the same write. Places that are
//! given up before that, because a handoff lasts too long, let one router run ahead of another, and its partitions then wait for
//! both. So the longest time grows with the time that the store takes for a write.
//!
//! # Invariants
//!
//! * A partition whose handoff does not complete blocks the others only for a moment.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::time::Duration;

use segue_protocol::ids::{PartitionId, Revision};
use tokio::time::Instant;

/// Most partitions stopped at a time while the store is fast. More make the pauses longer and the total hardly shorter.
const MAX_STOPPED: usize = 2;
/// One more partition is stopped at a time for each so many milliseconds that a stopped one may occupy its place beyond the
/// least: the acknowledgements of several share a slow write. Otherwise some 800 moves would outlast `phase_timeout`.
const SLOWER_BY_MS: u128 = 4;
/// Least and most time for which a stopped partition occupies its place. With the number of places this guarantees 125 stops
/// in a second, however long the drains, and 200 where the store is slow.
const STOP_TIME: RangeInclusive<Duration> = Duration::from_millis(8)..=Duration::from_millis(64);
/// How many writes last as long as a stopped partition may occupy its place. A cutover takes up to three, one after the
/// other, and each may have to wait for others.
const WRITES_PER_STOP: u32 = 8;

/// The stopped partitions, and those that wait.
#[derive(Debug)]
pub(super) struct StopLimiter {
    taken: HashMap<PartitionId, Instant>,
    waiting: BTreeSet<(Revision, PartitionId)>,
    /// How long a stopped partition occupies its place.
    stop_time: Duration,
}

impl Default for StopLimiter {
    fn default() -> Self {
        StopLimiter { taken: HashMap::new(), waiting: BTreeSet::new(), stop_time: *STOP_TIME.start() }
    }
}

impl StopLimiter {
    /// Records how long the store takes for a write.
    pub(super) fn write_takes(&mut self, write: Duration) {
        self.stop_time = (write * WRITES_PER_STOP).clamp(*STOP_TIME.start(), *STOP_TIME.end());
    }

    /// Returns whether this partition, whose stop has been due since `since`, may be stopped now. Otherwise it is
    /// queued.
    pub(super) fn take(&mut self, partition: PartitionId, since: Revision, now: Instant) -> bool {
        let is_next = self.waiting.first().is_none_or(|first| (since, partition) <= *first);
        let may = self.taken.contains_key(&partition) || (is_next && self.has_place(now));
        if may {
            self.waiting.remove(&(since, partition));
            self.taken.entry(partition).or_insert(now);
        } else {
            self.waiting.insert((since, partition));
        }
        may
    }

    /// Records that the partition's requests pass again.
    pub(super) fn over(&mut self, partition: PartitionId) {
        self.taken.remove(&partition);
    }

    /// Takes the next queued partition that may be stopped now.
    pub(super) fn next(&mut self, now: Instant) -> Option<PartitionId> {
        if self.waiting.is_empty() || !self.has_place(now) {
            return None;
        }
        self.waiting.pop_first().map(|(_, partition)| partition)
    }

    /// Returns when a place becomes free at the latest, if a partition waits for one.
    pub(super) fn due(&self) -> Option<Instant> {
        let last = || self.taken.values().min().map(|since| *since + self.stop_time);
        if self.waiting.is_empty() { None } else { last() }
    }

    fn has_place(&mut self, now: Instant) -> bool {
        let places = self.places();
        if self.taken.len() >= places {
            self.taken.retain(|_, since| now < *since + self.stop_time);
        }
        self.taken.len() < places
    }

    fn places(&self) -> usize {
        let slower = self.stop_time.saturating_sub(*STOP_TIME.start()).as_millis() / SLOWER_BY_MS;
        MAX_STOPPED.max(slower as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P0: PartitionId = PartitionId::new(0);
    const P77: PartitionId = PartitionId::new(77);

    fn since(revision: u32) -> Revision {
        Revision::new(revision.into())
    }

    #[test]
    fn partitions_take_their_turns_in_the_order_in_which_they_got_ready() {
        let (mut stop_limiter, now) = (StopLimiter::default(), Instant::now());
        let (few, many) = (MAX_STOPPED as u32, MAX_STOPPED as u32 + 3);
        assert!(PartitionId::all(few).all(|partition| stop_limiter.take(partition, since(100), now)));
        assert!((few..many).rev().all(|partition| !stop_limiter.take(
            PartitionId::new(partition),
            since(200 - partition),
            now
        )));
        assert!(stop_limiter.take(PartitionId::new(few - 1), since(100), now), "it has its turn");
        assert_eq!(stop_limiter.next(now), None);
        stop_limiter.over(P0);
        assert!(!stop_limiter.take(PartitionId::new(many), since(300), now), "others have waited for longer");
        let next = stop_limiter.next(now).unwrap();
        assert_eq!(next, PartitionId::new(many - 1));
        assert!(stop_limiter.take(next, since(200 - next.get()), now));
        assert_eq!(stop_limiter.next(now), None);
    }

    #[test]
    fn a_partition_that_stays_stopped_keeps_nobody_waiting_for_long() {
        let (mut stop_limiter, now) = (StopLimiter::default(), Instant::now());
        assert!(PartitionId::all(MAX_STOPPED as u32).all(|partition| stop_limiter.take(partition, since(100), now)));
        assert!(!stop_limiter.take(P77, since(200), now));
        let later = now + *STOP_TIME.start();
        assert_eq!(stop_limiter.due(), Some(later));
        assert_eq!(stop_limiter.next(later), Some(P77));
        assert!(stop_limiter.take(P77, since(200), later));
        assert_eq!(stop_limiter.due(), None, "nobody waits");
    }

    #[test]
    fn a_slow_store_gives_stopped_partitions_more_time_within_bounds() {
        let (mut stop_limiter, now) = (StopLimiter::default(), Instant::now());
        assert!(PartitionId::all(MAX_STOPPED as u32).all(|partition| stop_limiter.take(partition, since(100), now)));
        assert!(!stop_limiter.take(P77, since(200), now));
        for (write, stop_time) in [(0, 8), (1, 8), (3, 24), (5_000, 64)] {
            stop_limiter.write_takes(Duration::from_millis(write));
            assert_eq!(stop_limiter.due(), Some(now + Duration::from_millis(stop_time)), "{write} ms");
        }
        for partition in PartitionId::all(14) {
            stop_limiter.take(partition, since(100), now);
        }
        assert_eq!(stop_limiter.next(now + Duration::from_millis(63)), None);
        assert_eq!(stop_limiter.next(now + Duration::from_millis(64)), Some(P77));
    }

    #[test]
    fn the_slower_the_store_the_more_partitions_are_stopped_together() {
        for (write, places) in [(0, 2), (1, 2), (2, 2), (3, 4), (4, 6), (8, 14), (5_000, 14)] {
            let mut stop_limiter = StopLimiter::default();
            stop_limiter.write_takes(Duration::from_millis(write));
            let now = Instant::now();
            let stopped =
                PartitionId::all(100).filter(|partition| stop_limiter.take(*partition, since(1), now)).count();
            assert_eq!(stopped, places, "{write} ms");
        }
    }
}
