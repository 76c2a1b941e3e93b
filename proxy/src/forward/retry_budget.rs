//! How often a request may be sent again to the pod that refused it.
//!
//! That it is safe does not make it harmless: a pod that refuses everything would get each held request again and again, on
//! top of what is new. So a worker earns what it may send again to one life of a pod by what it sends for the first time,
//! and a little by time alone, and a pod that accepts something has earned all that can be saved. Another pod, or
//! another epoch, is no second try.
//! Plain data: not here are when a request waits ([`table`](crate::routing::table)) and what counts as refused
//! ([`forward`](crate::forward)). What must stay true: to a pod that accepts nothing, tries after the first are at most a
//! fifth of the requests, ten a second, and what was saved.

use std::cell::RefCell;
use std::time::Duration;

use tokio::time::Instant;

/// In tenths of a try, so that nothing is lost by rounding.
const TRY: u32 = 10;
const EARNED_BY_A_REQUEST: u32 = 2;
/// Ten tries a second: a tenth of one in ten milliseconds.
const EARNED_IN: Duration = Duration::from_millis(10);
/// Ten seconds' worth: what a handoff in which a pod learns late that it is the owner may take.
const MOST: u32 = 100 * TRY;

/// What may be sent again to one pod.
#[derive(Debug, Clone, Copy)]
struct Budget {
    saved: u32,
    counted: Instant,
}

impl Budget {
    fn full(now: Instant) -> Self {
        Budget { saved: MOST, counted: now }
    }

    fn earn(&mut self, tenths: u32) {
        self.saved = self.saved.saturating_add(tenths).min(MOST);
    }

    fn spend(&mut self, now: Instant) -> bool {
        let tenths = now.saturating_duration_since(self.counted).as_millis() / EARNED_IN.as_millis();
        let tenths = u32::try_from(tenths).unwrap_or(MOST).min(MOST);
        if tenths > 0 {
            self.earn(tenths);
            self.counted = now;
        }
        let affordable = self.saved >= TRY;
        if affordable {
            self.saved -= TRY;
        }
        affordable
    }
}

/// One worker's budgets, by the dense numbers of pods; there only for pods that have refused something.
#[derive(Default)]
pub(crate) struct RetryBudgets(RefCell<Vec<Option<Budget>>>);

impl RetryBudgets {
    /// The pod has refused something: from here on it is counted what it is sent.
    pub(crate) fn refused(&self, slot: u32, now: Instant) {
        let mut budgets = self.0.borrow_mut();
        let slot = slot as usize;
        if budgets.len() <= slot {
            budgets.resize(slot + 1, None);
        }
        budgets[slot].get_or_insert_with(|| Budget::full(now));
    }

    /// The pod gets a request for the first time.
    #[inline]
    pub(crate) fn first_try(&self, slot: u32) {
        if let Some(Some(budget)) = self.0.borrow_mut().get_mut(slot as usize) {
            budget.earn(EARNED_BY_A_REQUEST);
        }
    }

    /// Whether the pod may get one again that it has refused.
    pub(crate) fn may_try_again(&self, slot: u32, now: Instant) -> bool {
        self.0.borrow_mut().get_mut(slot as usize).and_then(Option::as_mut).is_none_or(|budget| budget.spend(now))
    }

    /// What it was allowed was not tried.
    pub(crate) fn was_not_tried(&self, slot: u32) {
        if let Some(Some(budget)) = self.0.borrow_mut().get_mut(slot as usize) {
            budget.earn(TRY);
        }
    }

    /// The pod has accepted something.
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

    /// How many of `tries` are allowed at that moment.
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
