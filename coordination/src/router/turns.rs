//! Whose turn it is to be stopped, when many partitions are handed over at once.
//!
//! A pause lasts as long as the store takes for what is written in it, and that grows with how much is written at once. So
//! a router stops a few partitions at a time, in the order in which their new owners got ready, which is the same for all
//! routers; the others are served by their old owners meanwhile. What must stay true: one whose handoff does not come to
//! its end keeps its place from the others only for a moment.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use segue_protocol::ids::{PartitionId, Revision};
use tokio::time::Instant;

/// How many are stopped at a time. More make the pauses longer and the whole hardly shorter.
const PLACES: usize = 2;
/// How long a partition that is stopped has a place. With [`PLACES`] it bounds from below how many are stopped in a second,
/// however long the drains: 250, which is 1,024 in 4 s.
const AT_MOST: Duration = Duration::from_millis(8);

/// Who is stopped, and who waits.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: HashMap<PartitionId, Instant>,
    waiting: BTreeSet<(Revision, PartitionId)>,
}

impl Turns {
    /// Whether this partition, which could be stopped since then, may be stopped now. If not, it waits.
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

    /// The partition's requests flow again.
    pub(super) fn over(&mut self, partition: PartitionId) {
        self.taken.remove(&partition);
    }

    /// Who has waited and has a place now. It waits no longer.
    pub(super) fn next(&mut self, now: Instant) -> Option<PartitionId> {
        if self.waiting.is_empty() || !self.has_place(now) {
            return None;
        }
        self.waiting.pop_first().map(|(_, partition)| partition)
    }

    /// When there is a place at the latest, if somebody waits for one.
    pub(super) fn due(&self) -> Option<Instant> {
        let last = || self.taken.values().min().map(|since| *since + AT_MOST);
        if self.waiting.is_empty() { None } else { last() }
    }

    fn has_place(&mut self, now: Instant) -> bool {
        if self.taken.len() >= PLACES {
            self.taken.retain(|_, since| now < *since + AT_MOST);
        }
        self.taken.len() < PLACES
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
        let (mut turns, now) = (Turns::default(), Instant::now());
        let (few, many) = (PLACES as u32, PLACES as u32 + 3);
        assert!(PartitionId::all(few).all(|partition| turns.take(partition, since(100), now)));
        assert!((few..many).rev().all(|partition| !turns.take(
            PartitionId::new(partition),
            since(200 - partition),
            now
        )));
        assert!(turns.take(PartitionId::new(few - 1), since(100), now), "it has its turn");
        assert_eq!(turns.next(now), None);
        turns.over(P0);
        assert!(!turns.take(PartitionId::new(many), since(300), now), "others have waited for longer");
        let next = turns.next(now).unwrap();
        assert_eq!(next, PartitionId::new(many - 1));
        assert!(turns.take(next, since(200 - next.get()), now));
        assert_eq!(turns.next(now), None);
    }

    #[test]
    fn a_partition_that_stays_stopped_keeps_nobody_waiting_for_long() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        assert!(PartitionId::all(PLACES as u32).all(|partition| turns.take(partition, since(100), now)));
        assert!(!turns.take(P77, since(200), now));
        assert_eq!(turns.due(), Some(now + AT_MOST));
        assert_eq!(turns.next(now + AT_MOST), Some(P77));
        assert!(turns.take(P77, since(200), now + AT_MOST));
        assert_eq!(turns.due(), None, "nobody waits");
    }
}
