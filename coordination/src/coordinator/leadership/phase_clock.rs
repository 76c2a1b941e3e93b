//! How long the phases of a handoff have lasted, as a process sees them that follows the store.
//!
//! Several phases may pass between two looks at the view. The handoff's record says how long each of them lasted.
//!
//! # Invariants
//!
//! * Each phase that has ended is returned once, in order, and none overlaps the next one.
//! * No phase begins before this process has seen the handoff, unless the handoff was over by then.

use std::time::Duration;

use segue_protocol::records::{Handoff, Phase};
use tokio::time::Instant;

/// Longest time that a record is believed to say, if this process saw nothing of it: the record's clocks may differ.
const MAX_UNSEEN: Duration = Duration::from_secs(10);

/// A phase that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PhaseTimes {
    pub(super) phase: Phase,
    pub(super) lasted: Duration,
    /// How long ago it ended.
    pub(super) ago: Duration,
}

/// Which phases of a handoff have been returned, and since when the present one has been seen.
#[derive(Debug, Clone)]
pub(super) struct PhaseClock {
    returned: usize,
    since: Instant,
    is_new: bool,
}

impl PhaseClock {
    /// Returns the clock of a handoff that is seen for the first time.
    pub(super) fn new(now: Instant) -> Self {
        PhaseClock { returned: 0, since: now, is_new: true }
    }

    /// Returns the phases that have ended since the last call, given the record as it stands.
    pub(super) fn ended(&mut self, record: &Handoff, now: Instant) -> Vec<PhaseTimes> {
        let past = record.past.iter().map(|past| (past.phase, Duration::from_millis(past.ms)));
        let times = self.times(past.skip(self.returned).collect(), now);
        if self.returned < record.past.len() {
            (self.returned, self.since) = (record.past.len(), now);
        }
        self.is_new = false;
        times
    }

    /// Returns the phases that have ended since the last call, given the record as it stood before it was deleted.
    pub(super) fn all(&mut self, last: &Handoff, now: Instant) -> Vec<PhaseTimes> {
        let past = last.past.iter().skip(self.returned).map(|past| (past.phase, Duration::from_millis(past.ms)));
        self.times(past.chain([(last.phase, Duration::ZERO)]).collect(), now)
    }

    /// Lays out these phases one after the other up to now. What has passed beyond their times belongs to the first, which
    /// was seen to stand.
    fn times(&self, phases: Vec<(Phase, Duration)>, now: Instant) -> Vec<PhaseTimes> {
        let mut left = if self.is_new { MAX_UNSEEN } else { now - self.since };
        let mut ago = Duration::ZERO;
        let mut times: Vec<PhaseTimes> = Vec::new();
        for (phase, said) in phases.into_iter().rev() {
            let lasted = said.min(left);
            left -= lasted;
            times.push(PhaseTimes { phase, lasted, ago });
            ago += lasted;
        }
        if let Some(first) = times.last_mut().filter(|_| !self.is_new) {
            first.lasted += left;
        }
        times.reverse();
        times
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::{Epoch, Incarnation, PartitionId};

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn ended(times: Vec<PhaseTimes>) -> Vec<(Phase, Duration, Duration)> {
        times.into_iter().map(|times| (times.phase, times.lasted, times.ago)).collect()
    }

    fn begun() -> Handoff {
        Handoff::new(PartitionId::new(0), "w", Incarnation::NONE, Epoch::new(1))
    }

    #[test]
    fn each_phase_lasts_as_long_as_it_was_seen() {
        let begin = Instant::now();
        let mut clock = PhaseClock::new(begin);
        assert_eq!(clock.ended(&begun(), begin), []);
        let ready = begun().entering(Phase::Ready, 40);
        assert_eq!(ended(clock.ended(&ready, begin + ms(50))), [(Phase::Warming, ms(50), ms(0))]);
        assert_eq!(clock.ended(&ready, begin + ms(60)), []);
        assert_eq!(ended(clock.all(&ready, begin + ms(80))), [(Phase::Ready, ms(30), ms(0))]);
    }

    #[test]
    fn phases_that_pass_between_two_looks_lie_one_after_the_other() {
        let begin = Instant::now();
        let mut clock = PhaseClock::new(begin);
        assert_eq!(clock.ended(&begun(), begin), []);
        let switching = begun().entering(Phase::Ready, 10).entering(Phase::Syncing, 15).entering(Phase::Switching, 18);
        let expected = [(Phase::Warming, ms(42), ms(8)), (Phase::Ready, ms(5), ms(3)), (Phase::Syncing, ms(3), ms(0))];
        assert_eq!(ended(clock.ended(&switching, begin + ms(50))), expected);
        assert_eq!(ended(clock.all(&switching, begin + ms(51))), [(Phase::Switching, ms(1), ms(0))]);
    }

    #[test]
    fn a_handoff_that_is_over_when_it_is_first_seen_has_all_its_phases() {
        let now = Instant::now();
        assert_eq!(ended(PhaseClock::new(now).all(&begun(), now)), [(Phase::Warming, ms(0), ms(0))]);
        let ready = begun().entering(Phase::Ready, 7);
        let expected = [(Phase::Warming, ms(7), ms(0)), (Phase::Ready, ms(0), ms(0))];
        assert_eq!(ended(PhaseClock::new(now).all(&ready, now)), expected);
        let late = begun().entering(Phase::Ready, 3_600_000);
        assert_eq!(ended(PhaseClock::new(now).all(&late, now))[0], (Phase::Warming, MAX_UNSEEN, ms(0)));
    }
}
