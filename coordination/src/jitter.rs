//! The jitter of waits: random, or derived from a seed.
//!
//! Participants that lost the store together would otherwise return together. In a simulation the waits differ as well,
//! but are the same in each run: its thread is seeded, and all participants of a cluster run on that thread.

use std::cell::RefCell;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

thread_local! {
    static SEEDED: RefCell<Option<SmallRng>> = const { RefCell::new(None) };
}

/// Derives the numbers of this thread from `seed` from now on.
pub fn seed(seed: u64) {
    SEEDED.set(Some(SmallRng::seed_from_u64(seed)));
}

/// Returns the next number of this thread, from 0 to 1.
pub fn unit() -> f64 {
    SEEDED.with_borrow_mut(|seeded| match seeded {
        Some(seeded) => seeded.random_range(0.0..=1.0),
        None => rand::rng().random_range(0.0..=1.0),
    })
}

/// Returns `full`, shortened by up to a half.
pub(crate) fn shortened(full: Duration) -> Duration {
    full.mul_f64(1.0 - unit() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits() -> Vec<Duration> {
        (0..20).map(|_| shortened(Duration::from_secs(1))).collect()
    }

    #[test]
    fn a_seed_repeats_the_waits_and_each_is_at_least_half() {
        seed(7);
        let first = waits();
        seed(7);
        assert_eq!(waits(), first);
        seed(8);
        assert_ne!(waits(), first);
        assert!(first.iter().all(|wait| (500..=1000).contains(&wait.as_millis())));
    }
}
