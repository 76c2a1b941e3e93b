//! A histogram of durations that any thread writes: a sidecar's exchanges move between threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::runtime::single_writer::BUCKET_BOUNDS_MICROS;

/// How often something lasted how long, with the buckets of all histograms of durations.
#[derive(Debug)]
pub struct SharedHistogram {
    buckets: [AtomicU64; BUCKET_BOUNDS_MICROS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Default for SharedHistogram {
    fn default() -> Self {
        SharedHistogram { buckets: std::array::from_fn(|_| AtomicU64::new(0)), nanoseconds: AtomicU64::new(0) }
    }
}

impl SharedHistogram {
    pub(super) fn observe(&self, duration: Duration) {
        let micros = duration.as_micros() as u64;
        self.buckets[BUCKET_BOUNDS_MICROS.partition_point(|bound| *bound < micros)].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(duration.as_nanos() as u64, Relaxed);
    }

    /// Returns the upper bound of each bucket, in seconds, and how many durations are in it.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = BUCKET_BOUNDS_MICROS.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
        bounds.zip(self.buckets.iter().map(|count| count.load(Relaxed)))
    }

    /// Returns the sum of all durations, in seconds.
    pub fn seconds(&self) -> f64 {
        self.nanoseconds.load(Relaxed) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_bucket_whose_bound_it_does_not_exceed() {
        let histogram = SharedHistogram::default();
        for micros in [100, 101, 90_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let counts: Vec<_> = histogram.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(0.0001, 1), (0.0002, 1), (f64::INFINITY, 1)]);
        assert!((histogram.seconds() - 90.000_201).abs() < 1e-6);
    }
}
