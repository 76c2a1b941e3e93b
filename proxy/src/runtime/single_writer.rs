//! Counters and histograms that one worker writes and any thread reads.
//!
//! Each worker has its own, so that counting costs a load and a store, and workers share no cache line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets of all histograms of durations, in microseconds. Dense below 50 ms, so that a cutover's
/// pause shows.
pub const BUCKET_BOUNDS_MICROS: [u64; 22] = [
    100, 200, 300, 500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 7_500, 10_000, 20_000, 30_000, 50_000, 100_000,
    250_000, 500_000, 1_000_000, 5_000_000, 15_000_000, 60_000_000,
];

/// Adds without an atomic read-modify-write: each counter has one writer.
#[inline]
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// A histogram of durations.
#[derive(Debug)]
pub(crate) struct DurationHistogram {
    pub(crate) buckets: [AtomicU64; BUCKET_BOUNDS_MICROS.len() + 1],
    pub(crate) nanoseconds: AtomicU64,
}

impl Default for DurationHistogram {
    fn default() -> Self {
        DurationHistogram { buckets: std::array::from_fn(|_| AtomicU64::new(0)), nanoseconds: AtomicU64::new(0) }
    }
}

impl DurationHistogram {
    #[inline]
    pub(crate) fn observe(&self, duration: Duration) {
        let micros = duration.as_micros() as u64;
        let bucket =
            BUCKET_BOUNDS_MICROS.iter().position(|bound| micros <= *bound).unwrap_or(BUCKET_BOUNDS_MICROS.len());
        add(&self.buckets[bucket], 1);
        add(&self.nanoseconds, duration.as_nanos() as u64);
    }
}
