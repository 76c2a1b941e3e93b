//! Whether a pod takes what it is sent.
//!
//! A partition has one writer, so a pod that refuses is not left out: there is nobody else to send to. It is noticed, so
//! that people see which one it is. What must stay true: a pod that accepts costs the request path one read.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Refusals in a row from which on a pod is an outlier. A pod that learns a little late what it owns refuses fewer.
const OUTLIER: u32 = 5;

/// How a pod could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// No connection could be made, or none took the request.
    Unreachable,
    /// It said that the partition is not its own, although the table says so.
    Misdirected,
}

/// What one pod has refused.
#[derive(Debug, Default)]
pub struct Health {
    in_a_row: AtomicU32,
    unreachable: AtomicU64,
    misdirected: AtomicU64,
}

impl Health {
    /// It has refused a request. Some: so many in a row are worth a line in the log; more and more for each further one.
    pub(crate) fn refused(&self, how: Refused) -> Option<u32> {
        match how {
            Refused::Unreachable => self.unreachable.fetch_add(1, Relaxed),
            Refused::Misdirected => self.misdirected.fetch_add(1, Relaxed),
        };
        let in_a_row = self.in_a_row.fetch_add(1, Relaxed).saturating_add(1);
        let noted = in_a_row.is_multiple_of(OUTLIER) && (in_a_row / OUTLIER).is_power_of_two();
        noted.then_some(in_a_row)
    }

    /// It has taken a request. Some: it was an outlier, after so many refusals in a row.
    #[inline]
    pub(crate) fn accepted(&self) -> Option<u32> {
        if self.in_a_row.load(Relaxed) == 0 {
            return None;
        }
        let in_a_row = self.in_a_row.swap(0, Relaxed);
        (in_a_row >= OUTLIER).then_some(in_a_row)
    }

    /// It has refused too many in a row.
    pub fn is_outlier(&self) -> bool {
        self.in_a_row() >= OUTLIER
    }

    /// Refusals since it last accepted something.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row.load(Relaxed)
    }

    /// How often it could not be reached, and how often it said "not mine".
    pub fn refusals(&self) -> (u64, u64) {
        (self.unreachable.load(Relaxed), self.misdirected.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_in_a_row_make_an_outlier_and_one_acceptance_ends_it() {
        let health = Health::default();
        let refuse = |times: u32| (0..times).filter_map(|_| health.refused(Refused::Misdirected)).collect::<Vec<_>>();
        assert_eq!((refuse(4), health.is_outlier()), (vec![], false));
        assert_eq!(health.accepted(), None);
        assert_eq!((refuse(5), health.is_outlier()), (vec![5], true));
        assert_eq!(refuse(95), [10, 20, 40, 80], "ever fewer lines");
        assert_eq!((health.accepted(), health.is_outlier()), (Some(100), false));
        assert_eq!(health.refused(Refused::Unreachable), None);
        assert_eq!(health.refusals(), (1, 104));
    }
}
