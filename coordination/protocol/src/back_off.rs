//! Waits that double with each failure in a row, up to a maximum. All retries follow this rule.

use std::time::Duration;

/// The bounds of the waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackOff {
    /// The wait after the first failure.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl BackOff {
    /// Returns the wait after this many failures in a row. `0` failures give the first wait, too.
    pub fn after(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_however_often_something_fails() {
        let back_off = BackOff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };
        let waits = [0, 1, 2, 3, 5, 6, 33, u32::MAX].map(|failures| back_off.after(failures).as_millis());
        assert_eq!(waits, [50, 50, 100, 200, 800, 1000, 1000, 1000]);
    }
}
