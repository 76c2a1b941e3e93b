//! Limits the log lines about what happens again and again: the first comes at once, later ones ever more rarely, each with how
//! often it happened since the line before.
//!
//! The only such limit. What has to be told apart has [`Repeats`] of its own, or a cause in [`RepeatedCauses`].

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Least time from the first line to the second, and so on. The last one is that of all later lines.
const PAUSES: [Duration; 3] = [Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(600)];
/// An event that has not happened for so long counts as new.
const QUIET: Duration = Duration::from_secs(120);
/// Most causes that are told apart at a time.
const MAX_CAUSES: usize = 16;

/// The lines about one thing that repeats.
#[derive(Debug, Clone, Copy, Default)]
pub struct Repeats {
    /// When it happened last.
    happened: Option<Instant>,
    /// When it was told last.
    told: Option<Instant>,
    /// Number of lines since it was new.
    lines: usize,
    /// How often it has happened since the last line.
    untold: u64,
}

impl Repeats {
    /// Lines about what has not happened yet.
    pub const NEW: Repeats = Repeats { happened: None, told: None, lines: 0, untold: 0 };

    /// Notes that it has happened `times` times until `now`. Returns how often since the last line, if a line is due.
    pub fn note(&mut self, times: u64, now: Instant) -> Option<u64> {
        if self.is_over(now) {
            self.lines = 0;
        }
        self.happened = Some(now);
        self.untold += times;
        let pause = self.lines.checked_sub(1).map(|line| PAUSES[line.min(PAUSES.len() - 1)]);
        let waits = self.told.zip(pause).is_some_and(|(told, pause)| now.saturating_duration_since(told) < pause);
        if waits {
            return None;
        }
        (self.told, self.lines) = (Some(now), self.lines + 1);
        Some(std::mem::take(&mut self.untold))
    }

    /// Returns whether the next time counts as new.
    fn is_over(&self, now: Instant) -> bool {
        self.happened.is_none_or(|happened| now.saturating_duration_since(happened) >= QUIET)
    }
}

/// The lines about one event with several causes.
#[derive(Debug, Default)]
pub struct RepeatedCauses(HashMap<String, Repeats>);

impl RepeatedCauses {
    /// As [`Repeats::note`], for this cause alone. Of too many causes at a time some are told in no line.
    pub fn note(&mut self, cause: &str, now: Instant) -> Option<u64> {
        self.0.retain(|_, repeats| !repeats.is_over(now));
        if let Some(repeats) = self.0.get_mut(cause) {
            return repeats.note(1, now);
        }
        if self.0.len() >= MAX_CAUSES {
            return None;
        }
        self.0.entry(cause.to_owned()).or_default().note(1, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_repeats_is_told_at_once_and_then_rarely_with_a_count() {
        let (mut repeats, began) = (Repeats::default(), Instant::now());
        let mut told = Vec::new();
        for second in 0..1_300 {
            told.extend(repeats.note(2, began + seconds(second)).map(|times| (second, times)));
        }
        assert_eq!(told, [(0, 2), (10, 20), (70, 120), (670, 1_200), (1_270, 1_200)]);
    }

    #[test]
    fn what_has_been_quiet_is_new() {
        let (mut repeats, began) = (Repeats::default(), Instant::now());
        assert_eq!(repeats.note(1, began), Some(1));
        assert_eq!(repeats.note(1, began + seconds(5)), None);
        assert_eq!(repeats.note(1, began + seconds(5) + QUIET), Some(2));
        assert_eq!(repeats.note(1, began + seconds(15) + QUIET), Some(1));
    }

    #[test]
    fn causes_are_told_apart_up_to_a_bound() {
        let (mut causes, now) = (RepeatedCauses::default(), Instant::now());
        assert_eq!((causes.note("no space", now), causes.note("no permission", now)), (Some(1), Some(1)));
        assert_eq!(causes.note("no space", now + seconds(9)), None);
        let lines = (0..100).filter(|number| causes.note(&number.to_string(), now).is_some()).count();
        assert_eq!(lines, MAX_CAUSES - 2);
        assert_eq!(causes.note("another", now + QUIET + seconds(9)), Some(1));
    }
}
