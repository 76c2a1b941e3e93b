//! When a pod that cannot be reached is tried again.
//!
//! Each of its partitions would try on its own, and each request of a partition that is being flushed. So a worker lets one
//! try at a time, and between two of them time passes: longer each time, and not the same everywhere, or all routers
//! would come back together.
//!
//! # Invariants
//!
//! * The first failure after a success is noticed as such.

use std::time::Duration;

use tokio::time::Instant;

use crate::routing::table::POD_RETRY;

/// What is known of the ways to a pod that failed since one succeeded.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ConnectRetry {
    failures: u32,
    not_before: Option<Instant>,
    /// Somebody is trying; others do only if nothing is heard of him until then.
    trying_until: Option<Instant>,
}

impl ConnectRetry {
    /// Whether it is time to try; who is told so is the only one for a while. `jitter`: from 0 to 1.
    pub(super) fn may_try(&mut self, now: Instant, jitter: f64) -> bool {
        let Some(not_before) = self.not_before else { return true };
        let may = now >= not_before && self.trying_until.is_none_or(|until| now >= until);
        if may {
            self.trying_until = Some(now + self.pause(jitter));
        }
        may
    }

    /// It has failed. True: for the first time.
    pub(super) fn failed(&mut self, now: Instant, jitter: f64) -> bool {
        let was_trying = self.trying_until.take().is_some();
        if !was_trying && self.not_before.is_some_and(|at| now < at) {
            // One of many that began before it was known.
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + self.pause(jitter));
        self.failures == 1
    }

    fn pause(&self, jitter: f64) -> Duration {
        POD_RETRY.after(self.failures).mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_one_tries_at_a_time() {
        let (mut back_off, mut now) = (ConnectRetry::default(), Instant::now());
        assert!(back_off.may_try(now, 0.0) && back_off.may_try(now, 0.0), "nothing has failed");
        for (round, millis) in [5, 10, 20, 40, 80, 160, 250, 250].into_iter().enumerate() {
            let pause = Duration::from_millis(millis);
            assert_eq!(back_off.failed(now, 0.0), round == 0);
            assert!(!back_off.failed(now, 0.0), "one that began at the same time makes no pause longer");
            assert!(!back_off.may_try(now + pause - Duration::from_micros(1), 0.0), "{pause:?}");
            now += pause;
            assert!(back_off.may_try(now, 0.0), "{pause:?}");
            assert!(!back_off.may_try(now, 0.0), "one is trying");
        }
    }

    #[test]
    fn chance_shortens_a_pause_by_up_to_a_half() {
        let (mut back_off, began) = (ConnectRetry::default(), Instant::now());
        let mut now = began;
        for round in 0..20 {
            now = began + round * POD_RETRY.longest;
            back_off.failed(now, 1.0);
        }
        assert!(!back_off.may_try(now + POD_RETRY.longest / 2 - Duration::from_micros(1), 1.0));
        assert!(back_off.may_try(now + POD_RETRY.longest / 2, 1.0));
    }
}
