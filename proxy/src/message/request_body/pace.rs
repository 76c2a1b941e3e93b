//! How fast clients have to send, and how long an upload may still be waited for.
//!
//! Pure.
//!
//! # Invariants
//!
//! * An allowance that is used up is not renewed by the next byte.

use std::time::Duration;

use tokio::time::Instant;

/// How fast clients have to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Bytes per second of the time that a pod waits for them; 0 means no bound.
    pub(crate) rate: u64,
    /// How long a pod waits in all before the rate applies.
    pub(crate) grace: Duration,
}

/// The state of an upload that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UploadWait {
    /// When some of it was handed out last.
    pub(crate) progress: Instant,
    /// Whether more of it has to arrive from the client first.
    pub(crate) awaits_client: bool,
    /// When the current wait for the client began, and how long earlier ones lasted.
    pub(super) waits_since: Instant,
    pub(super) waited: Duration,
    pub(super) received: u64,
}

impl UploadWait {
    /// Returns when the client has to have sent more to keep the average pace, while it is waited for.
    pub(super) fn due(&self, pace: Pace) -> Option<Instant> {
        let earned = Duration::from_millis(self.received.saturating_mul(1000).checked_div(pace.rate)?);
        // Counted as if all waits were a single one that ends now. Counted from `waits_since` alone, the allowance would be
        // renewed by each byte.
        let begun = self.waits_since.checked_sub(self.waited)?;
        self.awaits_client.then(|| begun + pace.grace + earned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_that_is_used_up_is_not_renewed_by_the_next_byte() {
        let begun = Instant::now();
        let seconds = Duration::from_secs;
        let after = |waited: Duration, received| UploadWait {
            progress: begun + waited,
            awaits_client: true,
            waits_since: begun + waited,
            waited,
            received,
        };
        let due = |upload: UploadWait| upload.due(Pace { rate: 10, grace: seconds(5) }).unwrap();
        assert_eq!(due(after(seconds(0), 0)), begun + seconds(5));
        assert_eq!(due(after(seconds(3), 20)), begun + seconds(7));
        assert_eq!(due(after(seconds(60), 30)), begun + seconds(8));
    }
}
