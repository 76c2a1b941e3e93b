//! Tells a connection whose member is slow from one whose member is gone.
//!
//! A pure record. To give a connection up costs each participant of the process its watch: it reads the keyspace again, and does
//! not know any more which acknowledgements it has written. Under a load that etcd hardly carries, this would make the load grow.
//!
//! # Invariants
//!
//! * A call without a response means that the member is gone, unless the member has shown in the second half of the wait that it
//!   is in step with its cluster. Only a response that needs a quorum shows this, or a change that a watch brings.
//! * Of two renewals of a lease without a response, the second sent after the first was given up, the second always means it.

use tokio::time::Instant;

/// Record of the signs of life of a connection's member.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// When it last showed that it is in step with its cluster.
    in_step_at: Option<Instant>,
    /// When a renewal was first given up after the last one with a response.
    renewal_given_up_at: Option<Instant>,
}

impl Liveness {
    /// Records that the member has shown that it is in step with its cluster.
    pub(super) fn is_in_step(&mut self, now: Instant) {
        self.in_step_at = Some(now);
    }

    /// Records that the member has responded to a renewal.
    pub(super) fn has_renewed(&mut self) {
        self.renewal_given_up_at = None;
    }

    /// Returns whether a call that was sent at `sent` and is given up now shows that the member is gone.
    pub(super) fn is_gone(&self, sent: Instant, now: Instant) -> bool {
        let half = sent + now.saturating_duration_since(sent) / 2;
        self.in_step_at.is_none_or(|at| at < half)
    }

    /// Returns whether a renewal that was sent at `sent` and is given up now shows that the member is gone.
    pub(super) fn is_gone_for_leases(&mut self, sent: Instant, now: Instant) -> bool {
        let first = *self.renewal_given_up_at.get_or_insert(now);
        first <= sent || self.is_gone(sent, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(origin: Instant, seconds: u64) -> Instant {
        origin + Duration::from_secs(seconds)
    }

    #[test]
    fn a_call_without_a_response_means_nothing_while_other_calls_get_theirs() {
        let (mut liveness, origin) = (Liveness::default(), Instant::now());
        assert!(liveness.is_gone(origin, at(origin, 4)), "it has shown nothing");
        for (shown, gone) in [(1, true), (2, false), (3, false)] {
            liveness.is_in_step(at(origin, shown));
            assert_eq!(liveness.is_gone(origin, at(origin, 4)), gone, "after {shown} s of 4");
        }
        assert!(liveness.is_gone(at(origin, 3), at(origin, 7)), "it has shown nothing since");
    }

    #[test]
    fn a_second_renewal_without_a_response_ends_the_patience() {
        let (mut liveness, origin) = (Liveness::default(), Instant::now());
        liveness.is_in_step(at(origin, 100));
        assert!(!liveness.is_gone_for_leases(at(origin, 0), at(origin, 2)));
        assert!(!liveness.is_gone_for_leases(at(origin, 1), at(origin, 3)), "another lease, at the same time");
        assert!(liveness.is_gone_for_leases(at(origin, 3), at(origin, 5)));
        liveness.has_renewed();
        assert!(!liveness.is_gone_for_leases(at(origin, 6), at(origin, 8)));
    }
}
