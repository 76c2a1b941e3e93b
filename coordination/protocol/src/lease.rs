//! Decides how long a participant may trust its lease, by its own clock alone.
//!
//! Pure arithmetic on microseconds of one monotonic clock. A keepalive counts from when it was *sent*: the store may
//! have renewed the lease then, and not earlier. Trust ends a third of the TTL before the lease can, so that work begun
//! in time has that third to end.
//!
//! # Invariants
//!
//! * A participant that checks before it acts never acts on a lease that the store may already have ended.

/// A lease's times, in microseconds of the participant's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseTimes {
    /// New work may begin before this moment.
    pub trusted_until: u64,
    /// The lease is valid at least until this moment: nothing may take effect after it.
    pub stands_until: u64,
}

impl LeaseTimes {
    /// Returns the times of a lease of `ttl` microseconds whose last confirmed keepalive (or grant) was sent at `sent`.
    pub fn confirmed(sent: u64, ttl: u64) -> Self {
        LeaseTimes { trusted_until: sent.saturating_add(ttl / 3 * 2), stands_until: sent.saturating_add(ttl) }
    }
}

/// Returns the time between two keepalives: a sixth of the TTL, counted from when the last one was sent. Two may be
/// lost in a row, and a third still arrives within the trusted two thirds.
pub fn keepalive_interval(ttl: u64) -> u64 {
    ttl / 6
}

/// Returns whether the participant's loop has made progress recently enough for its lease to be kept alive. A loop that
/// is stuck for half the TTL loses its lease. With the margin of [`LeaseTimes`] it fences before the lease ends.
pub fn has_made_progress(now: u64, last_progress: u64, ttl: u64) -> bool {
    now.saturating_sub(last_progress) <= ttl / 2
}

/// Whether a pod applies the events that a server sends it. Events are numbered from 1.
///
/// A pod whose reader is stuck may send heartbeats all the same. Its lease stands for the loop that applies events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventReader {
    sent: u64,
    applied: u64,
    /// The event that the pod has to apply next, and since when.
    awaited: Option<(u64, u64)>,
}

impl EventReader {
    /// Records that this event was sent.
    pub fn sent(&mut self, seq: u64, now: u64) {
        self.sent = seq;
        self.awaited.get_or_insert((seq, now));
    }

    /// Records that the pod has applied all events up to this one.
    pub fn applied(&mut self, seq: u64, now: u64) {
        self.applied = self.applied.max(seq.min(self.sent));
        if self.awaited.is_some_and(|(awaited, _)| awaited <= self.applied) {
            self.awaited = (self.applied < self.sent).then_some((self.sent, now));
        }
    }

    /// Returns how many events the pod has not applied.
    pub fn behind(&self) -> u64 {
        self.sent - self.applied
    }

    /// Returns whether the pod has had an event for so long that its lease must not be renewed.
    pub fn is_stuck(&self, now: u64, ttl: u64) -> bool {
        self.awaited.is_some_and(|(_, since)| !has_made_progress(now, since, ttl))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_counts_from_when_the_keepalive_was_sent_and_ends_a_third_before_the_lease() {
        let times = LeaseTimes::confirmed(1_000_000, 15_000_000);
        assert_eq!(times.trusted_until, 11_000_000);
        assert_eq!(times.stands_until, 16_000_000);
    }

    #[test]
    fn a_reader_is_stuck_once_it_has_not_applied_an_event_for_half_the_ttl() {
        let ttl = 10;
        let mut reader = EventReader::default();
        assert!(!reader.is_stuck(u64::MAX, ttl), "nothing to apply");
        reader.sent(1, 100);
        reader.sent(2, 104);
        assert!(!reader.is_stuck(105, ttl) && reader.is_stuck(106, ttl));
        reader.applied(1, 106);
        assert!(!reader.is_stuck(111, ttl) && reader.is_stuck(112, ttl), "the second event counts from the progress");
        reader.applied(9, 112);
        assert_eq!((reader.behind(), reader.is_stuck(u64::MAX, ttl)), (0, false), "never ahead of what was sent");
        reader.sent(3, 200);
        reader.applied(2, 205);
        assert!(reader.is_stuck(206, ttl), "an old number is no progress");
    }

    #[test]
    fn two_lost_keepalives_do_not_cost_the_trust() {
        let ttl = 15_000_000;
        assert!(3 * keepalive_interval(ttl) < LeaseTimes::confirmed(0, ttl).trusted_until);
    }
}
