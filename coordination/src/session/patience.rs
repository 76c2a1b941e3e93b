//! How a participant repeats what the store did not do: with growing pauses, and without filling the log.

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use segue_protocol::back_off::BackOff;
use tokio::time::Instant;

use crate::jitter;
use crate::repeats::RepeatedCauses;
use crate::store::StoreError;

/// The waits before the store is retried, each shortened at random by up to a half: participants that lost the store
/// together do not return together.
#[derive(Debug, Default)]
pub(crate) struct StoreRetry {
    failures: u32,
}

impl StoreRetry {
    const BACK_OFF: BackOff = BackOff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };
    /// For a write that the store refused: it would refuse it again until somebody has mended the cause.
    const REFUSED: BackOff = BackOff { longest: Duration::from_secs(30), ..Self::BACK_OFF };

    /// Returns the wait after one more failure.
    pub(crate) fn next(&mut self) -> Duration {
        self.after(Self::BACK_OFF)
    }

    /// Returns the wait after one more failure, with this error.
    pub(crate) fn next_after(&mut self, error: &StoreError) -> Duration {
        self.after(if matches!(error, StoreError::Refused(_)) { Self::REFUSED } else { Self::BACK_OFF })
    }

    fn after(&mut self, back_off: BackOff) -> Duration {
        self.failures = self.failures.saturating_add(1);
        jitter::shortened(back_off.after(self.failures))
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Whether a participant's loop sees the store.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    /// The kind of error of the last attempt.
    lost_by: Option<Discriminant<StoreError>>,
}

impl Sight {
    pub(crate) fn is_clear(&self) -> bool {
        self.lost_by.is_none()
    }

    pub(crate) fn is_back(&mut self) {
        self.lost_by = None;
    }

    /// Notes that the watch was lost, or could not be begun anew. Returns whether that is news.
    pub(crate) fn lost(&mut self, error: &StoreError) -> bool {
        let by = discriminant(error);
        self.lost_by.replace(by) != Some(by)
    }
}

/// Limits the lines about failures of the store, each cause for itself.
#[derive(Debug, Default)]
pub(crate) struct RepeatedLog(RepeatedCauses);

impl RepeatedLog {
    /// Notes a failure. Returns how often it has happened since the last line, if a line is due.
    pub(crate) fn note(&mut self, cause: &StoreError) -> Option<u64> {
        // The words of an outage change from one attempt to the next.
        match cause {
            StoreError::Unavailable(_) => self.note_words(""),
            cause => self.note_words(&cause.to_string()),
        }
    }

    /// As [`note`](Self::note), for a cause that is no error of the store.
    pub(crate) fn note_words(&mut self, cause: &str) -> Option<u64> {
        self.0.note(cause, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn refused(why: &str) -> StoreError {
        StoreError::Refused(why.into())
    }

    #[test]
    fn refusals_are_waited_out_for_longer_than_outages() {
        let (mut refusing, mut away) = (StoreRetry::default(), StoreRetry::default());
        let longest = |next: &mut dyn FnMut() -> Duration| (0..20).map(|_| next()).max().unwrap_or_default();
        let refusing = longest(&mut || refusing.next_after(&refused("no space")));
        let away = longest(&mut || away.next_after(&StoreError::Unavailable("".into())));
        assert!((15..=30).contains(&refusing.as_secs()) && away <= Duration::from_secs(1), "{refusing:?}, {away:?}");
    }

    #[test]
    fn sight_is_lost_once_for_each_kind_of_failure() {
        let (mut sight, away) = (Sight::default(), StoreError::Unavailable("first".into()));
        assert!(sight.is_clear() && sight.lost(&away) && !sight.is_clear());
        assert!(!sight.lost(&StoreError::Unavailable("second".into())));
        assert!(sight.lost(&refused("permission denied")) && sight.lost(&away));
        sight.is_back();
        assert!(sight.is_clear() && sight.lost(&away));
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_one_cause_in_whatever_words() {
        let mut log = RepeatedLog::default();
        assert!(log.note(&refused("no space")).is_some() && log.note(&refused("permission denied")).is_some());
        let away = |why: &str| StoreError::Unavailable(why.into());
        assert_eq!((log.note(&away("no response within 5s")), log.note(&away("connection refused"))), (Some(1), None));
        advance(Duration::from_secs(10)).await;
        assert_eq!(log.note(&away("connection reset")), Some(2));
    }
}
