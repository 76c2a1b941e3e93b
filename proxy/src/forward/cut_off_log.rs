//! Decides which responses that pods did not send in full are logged.
//!
//! A pod that crashes breaks off many responses at once. Each is counted; the log has one line for all of them.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// Shortest interval between two lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The responses of one worker since the last line.
#[derive(Debug, Default)]
pub(super) struct CutOffLog {
    logged: Cell<Option<Instant>>,
    since: Cell<u64>,
}

impl CutOffLog {
    /// Notes a response. Returns how many the next line is about, if it is due.
    pub(super) fn note(&self, now: Instant) -> Option<u64> {
        self.since.set(self.since.get() + 1);
        if self.logged.get().is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL) {
            return None;
        }
        self.logged.set(Some(now));
        Some(self.since.replace(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_tells_of_all_since_the_last_one() {
        let (log, now) = (CutOffLog::default(), Instant::now());
        assert_eq!(log.note(now), Some(1));
        assert_eq!(log.note(now + LOG_INTERVAL / 2), None);
        assert_eq!(log.note(now + LOG_INTERVAL), Some(2));
    }
}
