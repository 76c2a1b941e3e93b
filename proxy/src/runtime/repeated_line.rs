//! Keeps a line that every request could log from filling the log.

use std::cell::Cell;

use segue_coordination::repeats::Repeats;
use tokio::time::Instant;

/// The lines of one kind, of one worker.
#[derive(Debug, Default)]
pub(crate) struct RepeatedLine(Cell<Repeats>);

impl RepeatedLine {
    /// Notes an occasion for the line. Returns how many there were since the last line, if a line is due.
    pub(crate) fn note(&self) -> Option<u64> {
        let mut repeats = self.0.get();
        let due = repeats.note(1, Instant::now());
        self.0.set(repeats);
        due
    }
}
