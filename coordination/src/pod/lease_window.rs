//! A period in which a pod's lease is trusted, as every request sees it: two moments on the local clock. They are read
//! with each request and at each step of its work, so that neither a stopped and resumed process nor a suspended
//! machine lets anything slip through.
//!
//! New work is accepted until two thirds of the TTL, and accepted work is stopped at five sixths. That leaves a sixth
//! for clocks that run at different speeds: by a clock that is a tenth too slow, five sixths of the TTL have passed
//! after 93 % of it, and 7 % remain for stopping. A window that is over never returns; regained trust opens a new one.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tracing::{Instrument as _, warn};

use super::sync::AtomicU64;
use crate::session::{LeaseState, lease_now, wakes_at};

/// Longest time between two checks whether a window is over.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct LeaseWindow {
    base: Instant,
    /// Microseconds after `base`, on the clock of [`lease_now`]. 0 once the window is over.
    trusted_until: AtomicU64,
    /// When accepted work is stopped. 0 once the window is over.
    ends_at: AtomicU64,
    ended: CancellationToken,
}

impl LeaseWindow {
    /// Returns the window of a pod that is not registered.
    pub(super) fn over() -> Arc<Self> {
        let ended = CancellationToken::new();
        ended.cancel();
        Arc::new(LeaseWindow { base: lease_now(), trusted_until: AtomicU64::new(0), ends_at: AtomicU64::new(0), ended })
    }

    /// Returns a window of this lease, with a task that ends it when its time is over. `None` if the lease is not to be
    /// trusted.
    pub(super) fn begin(state: LeaseState) -> Option<Arc<Self>> {
        let window = Arc::new(LeaseWindow::new(state)?);
        tokio::spawn(window.clone().run().in_current_span());
        Some(window)
    }

    /// Returns a window of this lease without a task that ends it.
    pub(super) fn new(state: LeaseState) -> Option<Self> {
        let now = lease_now();
        if state.lost || now >= state.trusted_until {
            return None;
        }
        Some(LeaseWindow {
            base: now,
            trusted_until: AtomicU64::new(micros(now, state.trusted_until)),
            ends_at: AtomicU64::new(micros(now, ends_at(state))),
            ended: CancellationToken::new(),
        })
    }

    /// Extends the window to the confirmed lease. Returns `false` if the window is over.
    pub(super) fn extend(&self, state: LeaseState) -> bool {
        let extend = |at: &AtomicU64, until| {
            let later = micros(self.base, until);
            at.fetch_update(SeqCst, SeqCst, |known| (known != 0).then_some(known.max(later))).is_ok()
        };
        extend(&self.ends_at, ends_at(state)) && extend(&self.trusted_until, state.trusted_until)
    }

    /// Returns whether new work may begin.
    pub(super) fn is_trusted(&self, now: Instant) -> bool {
        micros(self.base, now) < self.trusted_until.load(SeqCst)
    }

    /// Returns whether all work must have stopped.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        micros(self.base, now) >= self.ends_at.load(SeqCst)
    }

    /// Returns when the window is over.
    pub(super) fn ended(&self) -> WaitForCancellationFutureOwned {
        self.ended.clone().cancelled_owned()
    }

    /// Ends the window now, for good.
    pub(super) fn end(&self) {
        // Swaps, so that loom too orders them with the updates of `extend`.
        self.trusted_until.swap(0, SeqCst);
        self.ends_at.swap(0, SeqCst);
        self.ended.cancel();
    }

    async fn run(self: Arc<Self>) {
        loop {
            let until = self.base + Duration::from_micros(self.ends_at.load(SeqCst));
            // A timer does not count the time of a suspension.
            let look_again = Instant::now() + CHECK_INTERVAL;
            tokio::select! {
                biased;
                () = self.ended.cancelled() => return,
                () = sleep_until(wakes_at(until).min(look_again)) => {}
            }
            // The window may have been extended meanwhile.
            if self.is_over(lease_now()) {
                warn!("pod lease not confirmed in time; stopping all work");
                return self.end();
            }
        }
    }
}

/// Returns when accepted work is stopped: half-way through the last third of the TTL.
pub(super) fn ends_at(state: LeaseState) -> Instant {
    let last_third = state.stands_until.saturating_duration_since(state.trusted_until);
    state.trusted_until + last_third / 2
}

fn micros(base: Instant, at: Instant) -> u64 {
    at.saturating_duration_since(base).as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{count_by_tokio, suspend};

    const TTL: Duration = Duration::from_secs(12);

    fn confirmed() -> LeaseState {
        let sent = lease_now();
        LeaseState { trusted_until: sent + TTL * 2 / 3, stands_until: sent + TTL, lost: false }
    }

    #[tokio::test(start_paused = true)]
    async fn work_has_stopped_before_a_lease_can_end_even_if_the_local_clock_is_slow_by_a_tenth() {
        count_by_tokio();
        let (state, sent) = (confirmed(), Instant::now());
        let window = LeaseWindow::begin(state).unwrap();
        window.ended().await;
        let by_the_stores_clock = sent.elapsed() * 10 / 9;
        assert!(by_the_stores_clock + TTL / 24 < TTL, "{by_the_stores_clock:?} of {TTL:?}");
        assert!(sent.elapsed() > TTL * 4 / 5, "and not much earlier: {:?}", sent.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspension_that_outlasts_the_lease_ends_work_at_the_first_look() {
        count_by_tokio();
        let window = LeaseWindow::begin(confirmed()).unwrap();
        tokio::task::yield_now().await;
        let resumed = Instant::now();
        suspend(TTL);
        assert!(!window.is_trusted(lease_now()) && window.is_over(lease_now()), "before any timer has fired");
        window.ended().await;
        assert!(resumed.elapsed() <= CHECK_INTERVAL, "{:?}", resumed.elapsed());
    }
}
