//! The only source of randomness in a simulation: everything follows from the seed.
//!
//! # Invariants
//!
//! * No other generator is used.
//! * The order of the calls depends on nothing but the simulation itself.

use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// A generator that tasks share.
#[derive(Debug)]
pub(crate) struct Rng(Mutex<SmallRng>);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(Mutex::new(SmallRng::seed_from_u64(seed)))
    }

    /// Another generator, so that what it is asked does not shift what this one answers.
    pub(crate) fn fork(&self) -> Rng {
        Rng::new(self.with(|rng| rng.random()))
    }

    /// Comes true so often out of a hundred times.
    pub(crate) fn percent(&self, chance: u32) -> bool {
        self.with(|rng| rng.random_range(0..100) < chance)
    }

    pub(crate) fn among(&self, range: RangeInclusive<u64>) -> u64 {
        self.with(|rng| rng.random_range(range))
    }

    pub(crate) fn millis(&self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.among(range))
    }

    /// One of `choices`; `None` if there are none.
    pub(crate) fn pick<'a, T>(&self, choices: &'a [T]) -> Option<&'a T> {
        let last = choices.len().checked_sub(1)?;
        choices.get(self.among(0..=last as u64) as usize)
    }

    fn with<T>(&self, ask: impl FnOnce(&mut SmallRng) -> T) -> T {
        ask(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
