//! Decides when a pod that cannot be reached is tried again.
//!
//! Otherwise each of its partitions would try on its own, and so would each request of a flush. A worker makes one
//! attempt at a time, and pauses between two of them: longer each time, and with jitter, so that routers do not come
//! back all together.
//!
//! # Invariants
//!
//! * The first failure after a success is reported as such.

use std::time::Duration;

use tokio::time::Instant;

use crate::routing::table::POD_RETRY;

/// The failures to connect to a pod since the last success.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ConnectRetry {
    failures: u32,
    not_before: Option<Instant>,
    /// When an attempt that is being made is given up on; until then no other is made.
    trying_until: Option<Instant>,
}

impl ConnectRetry {
    /// Returns whether to try now. If so, other attempts have to wait for a while. `jitter`: from 0 to 1.
    pub(super) fn may_try(&mut self, now: Instant, jitter: f64) -> bool {
        let Some(not_before) = self.not_before else { return true };
        let may = now >= not_before && self.trying_until.is_none_or(|until| now >= until);
        if may {
            self.trying_until = Some(now + self.pause(jitter));
        }
        may
    }

    /// Records a failure. Returns whether it is the first since the last success.
    pub(super) fn failed(&mut self, now: Instant, jitter: f64) -> bool {
        let was_trying = self.trying_until.take().is_some();
        if !was_trying && self.not_before.is_some_and(|at| now < at) {
            // This attempt is one of many that began before the first failure.
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
