//! Limits how often requests are sent again to the pod that refused them.
//!
//! A retry can be safe and still do harm: a pod that refuses everything would get each held request again and again, on
//! top of the new ones. So a worker earns retries to one incarnation of a pod by sending it first attempts, and a few
//! by time alone. A pod that accepts a request resets its budget. An attempt at another pod, or under another epoch, is
//! not a retry.
//!
//! Plain data. Not here: when a request waits ([`table`](crate::routing::table)), and what counts as refused
//! ([`forward`](crate::forward)).
//!
//! # Invariants
//!
//! * A pod that accepts nothing gets at most these retries: a fifth of the first attempts, ten a second, and those saved.

use std::cell::RefCell;
use std::time::Duration;

use tokio::time::Instant;

/// Budgets count tenths of a retry, so that nothing is lost by rounding.
const RETRY_COST: u32 = 10;
const EARNED_PER_REQUEST: u32 = 2;
/// Ten retries a second: a tenth of one in ten milliseconds.
const TIME_PER_TENTH: Duration = Duration::from_millis(10);
/// Ten seconds' worth: the time that a handoff may take whose pod learns late that it is the owner.
const MAX_SAVED: u32 = 100 * RETRY_COST;

/// The retries that one pod may be sent.
#[derive(Debug, Clone, Copy)]
struct Budget {
    saved: u32,
    counted: Instant,
}

impl Budget {
    fn full(now: Instant) -> Self {
        Budget { saved: MAX_SAVED, counted: now }
    }

    fn earn(&mut self, tenths: u32) {
        self.saved = self.saved.saturating_add(tenths).min(MAX_SAVED);
    }

    fn spend(&mut self, now: Instant) -> bool {
        let tenths = now.saturating_duration_since(self.counted).as_millis() / TIME_PER_TENTH.as_millis();
        let tenths = u32::try_from(tenths).unwrap_or(MAX_SAVED).min(MAX_SAVED);
        if tenths > 0 {
            self.earn(tenths);
            self.counted = now;
        }
        let affordable = self.saved >= RETRY_COST;
        if affordable {
            self.saved -= RETRY_COST;
        }
        affordable
    }
}

/// One worker's budgets, by the dense numbers of pods. Only pods that have refused a request have one.
#[derive(Default)]
pub(crate) struct RetryBudgets(RefCell<Vec<Option<Budget>>>);

impl RetryBudgets {
    /// Records a refusal: from here on the pod's requests are counted.
    pub(crate) fn refused(&self, slot: u32, now: Instant) {
        let mut budgets = self.0.borrow_mut();
        let slot = slot as usize;
        if budgets.len() <= slot {
            budgets.resize(slot + 1, None);
        }
        budgets[slot].get_or_insert_with(|| Budget::full(now));
    }

    /// Records a first attempt.
    #[inline]
    pub(crate) fn first_try(&self, slot: u32) {
        if let Some(Some(budget)) = self.0.borrow_mut().get_mut(slot as usize) {
            budget.earn(EARNED_PER_REQUEST);
        }
    }

    /// Returns whether a request may be sent again to the pod that refused it, and spends the budget for it.
    pub(crate) fn may_try_again(&self, slot: u32, now: Instant) -> bool {
        self.0.borrow_mut().get_mut(slot as usize).and_then(Option::as_mut).is_none_or(|budget| budget.spend(now))
    }

    /// Returns the budget of a retry that was allowed and not made.
    pub(crate) fn was_not_tried(&self, slot: u32) {
        if let Some(Some(budget)) = self.0.borrow_mut().get_mut(slot as usize) {
            budget.earn(RETRY_COST);
        }
    }

    /// Records that the pod accepted a request.
    #[inline]
    pub(crate) fn accepted(&self, slot: u32) {
        if let Some(budget) = self.0.borrow_mut().get_mut(slot as usize) {
            *budget = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `tries` are allowed at that moment.
    fn allowed(budgets: &RetryBudgets, tries: usize, now: Instant) -> usize {
        (0..tries).filter(|_| budgets.may_try_again(1, now)).count()
    }

    #[test]
    fn a_pod_that_refuses_all_gets_what_was_saved_then_ten_a_second_and_a_fifth() {
        let (budgets, start) = (RetryBudgets::default(), Instant::now());
        budgets.refused(1, start);
        assert_eq!(allowed(&budgets, 1_000, start), 100);
        assert_eq!(allowed(&budgets, 1_000, start + Duration::from_millis(99)), 0);
        assert_eq!(allowed(&budgets, 1_000, start + Duration::from_secs(2)), 19);
        (0..500).for_each(|_| budgets.first_try(1));
        assert_eq!(allowed(&budgets, 1_000, start + Duration::from_secs(2)), 100);
        assert_eq!(allowed(&budgets, 1_000, start + Duration::from_secs(3600)), 100, "more cannot be saved");
    }

    #[test]
    fn a_pod_that_accepts_again_is_not_made_to_wait() {
        let (budgets, start) = (RetryBudgets::default(), Instant::now());
        budgets.refused(1, start);
        assert_eq!(allowed(&budgets, 1_000, start), 100);
        budgets.accepted(1);
        assert_eq!(allowed(&budgets, 1_000, start), 1_000);
        assert!(budgets.may_try_again(7, start), "a pod that has refused nothing");
    }
}
