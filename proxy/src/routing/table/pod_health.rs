//! Records whether a pod accepts its requests and sends its responses in full.
//!
//! A partition has one writer, so a pod that refuses cannot be left out: no other pod may get its requests. Its health
//! is recorded so that operators see which pod it is.
//!
//! # Invariants
//!
//! * A pod that accepts costs the request path one read.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Consecutive refusals that make a pod an outlier. A pod that learns a little late what it owns refuses fewer.
const OUTLIER_REFUSALS: u32 = 5;

/// How a pod failed a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No connection could be made, or none took the request.
    Unreachable,
    /// The pod does not speak HTTP/2, in which the request has to be sent.
    NotHttp2,
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
    /// Records a refusal. Returns the current run of refusals when it should be logged; the gap between log lines
    /// doubles.
    pub(crate) fn refused(&self, how: Refusal) -> Option<u32> {
        match how {
            Refusal::Unreachable | Refusal::NotHttp2 => self.unreachable.fetch_add(1, Relaxed),
            Refusal::Misdirected => self.misdirected.fetch_add(1, Relaxed),
        };
        let in_a_row = self.in_a_row.fetch_add(1, Relaxed).saturating_add(1);
        let noted = in_a_row.is_multiple_of(OUTLIER_REFUSALS) && (in_a_row / OUTLIER_REFUSALS).is_power_of_two();
        noted.then_some(in_a_row)
    }

    /// Records an acceptance. Returns the length of the run of refusals that it ends if the pod was an outlier.
    #[inline]
    pub(crate) fn accepted(&self) -> Option<u32> {
        if self.in_a_row.load(Relaxed) == 0 {
            return None;
        }
        let in_a_row = self.in_a_row.swap(0, Relaxed);
        (in_a_row >= OUTLIER_REFUSALS).then_some(in_a_row)
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
        self.in_a_row() >= OUTLIER_REFUSALS || self.broken_in_a_row() >= OUTLIER_REFUSALS
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
        let refuse = |times: u32| (0..times).filter_map(|_| health.refused(Refusal::Misdirected)).collect::<Vec<_>>();
        assert_eq!((refuse(4), health.is_outlier()), (vec![], false));
        assert_eq!(health.accepted(), None);
        assert_eq!((refuse(5), health.is_outlier()), (vec![5], true));
        assert_eq!(refuse(95), [10, 20, 40, 80], "ever fewer lines");
        assert_eq!((health.accepted(), health.is_outlier()), (Some(100), false));
        assert_eq!(health.refused(Refusal::Unreachable), None);
        assert_eq!(health.refusals(), (1, 104));
    }

    #[test]
    fn responses_broken_off_in_a_row_make_an_outlier_and_a_whole_one_ends_it() {
        let health = PodHealth::default();
        (0..4).for_each(|_| health.broke_response());
        assert!(!health.is_outlier());
        health.broke_response();
        // The pod accepts its requests all the while.
        assert_eq!((health.accepted(), health.is_outlier()), (None, true));
        health.completed_response();
        assert_eq!((health.is_outlier(), health.broken_responses()), (false, 5));
    }
}
