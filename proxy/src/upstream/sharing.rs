//! Decides whether the exchanges with a pod share HTTP/2 connections.
//!
//! `h2` takes some odd bytes in the head of one response for an error of the connection, and ends it with all exchanges
//! on it. A pod that has sent such a response gets a connection for each exchange, so that the next one harms its own client
//! alone. Sharing is tried again after a pause.
//!
//! A sidecar decides the same for its service.
//!
//! # Invariants
//!
//! * Each time that sharing is tried in vain makes the pause longer, up to a bound.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first odd response.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// A worker's record of a pod's odd responses.
#[derive(Debug)]
pub(super) struct OddResponses {
    pod: String,
    sharing: Cell<SharingPolicy>,
}

impl OddResponses {
    pub(super) fn of(pod: &str) -> Self {
        OddResponses { pod: pod.to_owned(), sharing: Cell::default() }
    }

    /// Returns whether exchanges share connections.
    pub(super) fn may_share(&self, now: Instant) -> bool {
        self.sharing.get().is_allowed(now)
    }

    /// Records why a connection has ended.
    pub(super) fn note(&self, error: &h2::Error) {
        if !is_odd_response(error) {
            return;
        }
        let mut sharing = self.sharing.get();
        let was_shared = sharing.note_harm(Instant::now());
        self.sharing.set(sharing);
        if was_shared {
            tracing::warn!(
                pod = self.pod,
                pause_s = sharing.pause().as_secs(),
                "a response of the pod broke the rules of HTTP/2 and ended its connection, with all exchanges on it; \
                 for a while each exchange gets a connection of its own"
            );
        }
    }
}

/// Returns whether `h2` has ended a connection because of what it read.
pub(crate) fn is_odd_response(error: &h2::Error) -> bool {
    let is_ours = error.is_go_away() && error.is_library();
    is_ours && error.reason() == Some(h2::Reason::PROTOCOL_ERROR)
}

/// When exchanges share connections.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct SharingPolicy {
    /// How often sharing was tried in vain.
    in_vain: u32,
    again_at: Option<Instant>,
}

impl SharingPolicy {
    /// Returns whether exchanges share connections.
    pub(crate) fn is_allowed(&self, now: Instant) -> bool {
        self.again_at.is_none_or(|at| at <= now)
    }

    /// Records that one exchange has ended a connection. Returns whether connections were shared until then.
    pub(crate) fn note_harm(&mut self, now: Instant) -> bool {
        let was_shared = self.is_allowed(now);
        if was_shared {
            let is_over = self.again_at.is_some_and(|at| now.saturating_duration_since(at) > LONGEST_PAUSE);
            self.in_vain = if is_over { 1 } else { self.in_vain.saturating_add(1) };
        }
        self.again_at = Some(now + self.pause());
        was_shared
    }

    pub(crate) fn pause(&self) -> Duration {
        (FIRST_PAUSE * (1 << self.in_vain.saturating_sub(1).min(16))).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_each_time_that_sharing_is_tried_in_vain() {
        let (mut sharing, mut now) = (SharingPolicy::default(), Instant::now());
        for seconds in [10, 20, 40, 80, 160, 320, 600, 600] {
            assert!(sharing.is_allowed(now));
            assert!(sharing.note_harm(now));
            assert!(!sharing.note_harm(now), "one on a connection of its own makes no pause longer");
            let pause = Duration::from_secs(seconds);
            assert!(!sharing.is_allowed(now + pause - Duration::from_millis(1)), "{pause:?}");
            now += pause;
        }
        now += LONGEST_PAUSE + Duration::from_secs(1);
        assert!(sharing.note_harm(now));
        assert!(sharing.is_allowed(now + FIRST_PAUSE), "after a long time without, it begins anew");
    }

    #[test]
    fn odd_responses_without_sharing_put_the_next_try_off() {
        let (mut sharing, now) = (SharingPolicy::default(), Instant::now());
        sharing.note_harm(now);
        sharing.note_harm(now + Duration::from_secs(9));
        assert!(!sharing.is_allowed(now + Duration::from_secs(18)));
        assert!(sharing.is_allowed(now + Duration::from_secs(19)));
    }
}
