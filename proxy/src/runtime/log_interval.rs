//! Keeps a line that every request could log from filling the log.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// Shortest interval between two lines of one kind.
const INTERVAL: Duration = Duration::from_secs(10);

/// When a line of one kind was last logged.
#[derive(Debug, Default)]
pub(crate) struct LogInterval(Cell<Option<Instant>>);

impl LogInterval {
    /// Returns whether the last line is long enough ago. Notes that there is another one if so.
    pub(crate) fn is_due(&self) -> bool {
        let now = Instant::now();
        let is_due = self.0.get().is_none_or(|logged| now.saturating_duration_since(logged) > INTERVAL);
        if is_due {
            self.0.set(Some(now));
        }
        is_due
    }
}
