//! Records whether a pod accepts its requests and sends its responses in full.
//!
//! A partition has one writer, so a pod that refuses cannot be left out: no other pod may get its requests. Its health
//! is recorded so that operators see which pod it is. Not here: what makes a pod an outlier, and the log
//! ([`troubles`](segue_protocol::troubles)).
//!
//! # Invariants
//!
//! * A pod that accepts costs the request path one read.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use segue_protocol::troubles::is_run_of_failures;

/// How a pod failed a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No connection could be made, or none took the request.
    Unreachable,
    /// The pod responded that the partition is not its own, although the table says so.
    Misdirected,
}

/// The failures of one pod.
#[derive(Debug, Default)]
pub struct PodHealth {
    in_a_row: AtomicU32,
    unreachable: AtomicU64,
    misdirected: AtomicU64,
    broken_in_a_row: AtomicU32,
    broken: AtomicU64,
}

impl PodHealth {
    /// Records a refusal.
    pub(crate) fn refused(&self, how: Refusal) {
        match how {
            Refusal::Unreachable => self.unreachable.fetch_add(1, Relaxed),
            Refusal::Misdirected => self.misdirected.fetch_add(1, Relaxed),
        };
        self.in_a_row.fetch_add(1, Relaxed);
    }

    /// Records an acceptance.
    #[inline]
    pub(crate) fn accepted(&self) {
        if self.in_a_row.load(Relaxed) != 0 {
            self.in_a_row.store(0, Relaxed);
        }
    }

    /// Records a response that began and that the pod did not send in full.
    pub(crate) fn broke_response(&self) {
        self.broken.fetch_add(1, Relaxed);
        self.broken_in_a_row.fetch_add(1, Relaxed);
    }

    /// Records a response that the pod has sent in full.
    #[inline]
    pub(crate) fn completed_response(&self) {
        if self.broken_in_a_row.load(Relaxed) != 0 {
            self.broken_in_a_row.store(0, Relaxed);
        }
    }

    /// Returns whether the pod has refused too many requests in a row, or broken off as many responses.
    pub fn is_outlier(&self) -> bool {
        is_run_of_failures(self.in_a_row()) || is_run_of_failures(self.broken_in_a_row())
    }

    /// Returns how many responses the pod did not send in full.
    pub fn broken_responses(&self) -> u64 {
        self.broken.load(Relaxed)
    }

    /// Returns the number of responses that the pod did not send in full, since the last whole one.
    pub(super) fn broken_in_a_row(&self) -> u32 {
        self.broken_in_a_row.load(Relaxed)
    }

    /// Returns the number of refusals since the last acceptance.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row.load(Relaxed)
    }

    /// Returns how often the pod could not be reached, and how often it responded "not mine".
    pub fn refusals(&self) -> (u64, u64) {
        (self.unreachable.load(Relaxed), self.misdirected.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_in_a_row_make_an_outlier_and_one_acceptance_ends_it() {
        let health = PodHealth::default();
        let refuse = |times: u32| (0..times).for_each(|_| health.refused(Refusal::Misdirected));
        refuse(4);
        assert_eq!((health.is_outlier(), health.in_a_row()), (false, 4));
        health.accepted();
        refuse(5);
        assert_eq!((health.is_outlier(), health.in_a_row()), (true, 5));
        health.accepted();
        health.refused(Refusal::Unreachable);
        assert_eq!((health.is_outlier(), health.refusals()), (false, (1, 9)));
    }

    #[test]
    fn responses_broken_off_in_a_row_make_an_outlier_and_a_whole_one_ends_it() {
        let health = PodHealth::default();
        (0..4).for_each(|_| health.broke_response());
        assert!(!health.is_outlier());
        health.broke_response();
        // The pod accepts its requests all the while.
        health.accepted();
        assert!(health.is_outlier());
        health.completed_response();
        assert_eq!((health.is_outlier(), health.broken_responses()), (false, 5));
    }
}
