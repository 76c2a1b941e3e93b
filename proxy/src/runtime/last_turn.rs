//! When a worker last had a turn, so that others see one that hangs.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The last turn of one thread, which others may read.
#[derive(Debug)]
pub(crate) struct LastTurn {
    epoch: Instant,
    /// Milliseconds from the epoch to the last turn. Zero while the thread does not run.
    at: AtomicU64,
}

impl Default for LastTurn {
    fn default() -> Self {
        LastTurn { epoch: Instant::now(), at: AtomicU64::new(0) }
    }
}

impl LastTurn {
    /// Notes a turn.
    pub(crate) fn note(&self) {
        self.at.store(self.age().max(1), Relaxed);
    }

    /// Notes that the thread ends.
    pub(crate) fn end(&self) {
        self.at.store(0, Relaxed);
    }

    /// Returns how long ago the last turn was, or `None` if the thread does not run.
    pub(crate) fn since(&self) -> Option<Duration> {
        match self.at.load(Relaxed) {
            0 => None,
            at => Some(Duration::from_millis(self.age().saturating_sub(at))),
        }
    }

    fn age(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_running_thread_can_be_late() {
        let turn = LastTurn { epoch: Instant::now() - Duration::from_secs(60), at: AtomicU64::new(0) };
        assert_eq!(turn.since(), None);
        turn.at.store(1000, Relaxed);
        assert!(turn.since() >= Some(Duration::from_secs(59)));
        let before = turn.since();
        turn.note();
        assert!(turn.since() < before);
        turn.end();
        assert_eq!(turn.since(), None);
    }
}
