//! A stretch of time in which a pod's lease is trusted, as every request sees it: two moments on the local clock, read
//! with each request and at each step of its work, so that a process that was stopped and resumed slips nothing through.
//!
//! New work is accepted until two thirds of the TTL; what was accepted has most of the last third to end, and is told to
//! stop a little before the lease can have ended. A term that is over never comes back; trust regained is a new one.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tracing::warn;

use super::sync::AtomicU64;
use crate::participant::LeaseState;

#[derive(Debug)]
pub(super) struct Term {
    base: Instant,
    /// Microseconds after `base`. 0: over.
    trusted_until: AtomicU64,
    /// When accepted work is stopped. 0: over.
    ends_at: AtomicU64,
    ended: CancellationToken,
}

impl Term {
    /// The term of a pod that is not registered.
    pub(super) fn over() -> Arc<Self> {
        let ended = CancellationToken::new();
        ended.cancel();
        Arc::new(Term { base: Instant::now(), trusted_until: AtomicU64::new(0), ends_at: AtomicU64::new(0), ended })
    }

    /// A term of this lease, and the task that ends it when its time is over. `None`: it is not to be trusted.
    pub(super) fn begin(state: LeaseState) -> Option<Arc<Self>> {
        let term = Arc::new(Term::new(state)?);
        tokio::spawn(term.clone().run());
        Some(term)
    }

    /// A term of this lease that nobody ends when its time is over.
    pub(super) fn new(state: LeaseState) -> Option<Self> {
        let now = Instant::now();
        if state.lost || now >= state.trusted_until {
            return None;
        }
        Some(Term {
            base: now,
            trusted_until: AtomicU64::new(micros(now, state.trusted_until)),
            ends_at: AtomicU64::new(micros(now, ends_at(state))),
            ended: CancellationToken::new(),
        })
    }

    /// The lease was confirmed, or not: `false` if this term is over.
    pub(super) fn extend(&self, state: LeaseState) -> bool {
        let extend = |at: &AtomicU64, until| {
            let later = micros(self.base, until);
            at.fetch_update(SeqCst, SeqCst, |known| (known != 0).then_some(known.max(later))).is_ok()
        };
        extend(&self.ends_at, ends_at(state)) && extend(&self.trusted_until, state.trusted_until)
    }

    /// Whether new work may begin.
    pub(super) fn is_trusted(&self, now: Instant) -> bool {
        micros(self.base, now) < self.trusted_until.load(SeqCst)
    }

    /// Whether all work must have stopped.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        micros(self.base, now) >= self.ends_at.load(SeqCst)
    }

    /// Returns when the term is over.
    pub(super) fn ended(&self) -> WaitForCancellationFutureOwned {
        self.ended.clone().cancelled_owned()
    }

    /// Ends it now, for good.
    pub(super) fn end(&self) {
        // Swaps, so that loom too sees them take their turn among the updates of `extend`.
        self.trusted_until.swap(0, SeqCst);
        self.ends_at.swap(0, SeqCst);
        self.ended.cancel();
    }

    async fn run(self: Arc<Self>) {
        loop {
            let until = self.base + Duration::from_micros(self.ends_at.load(SeqCst));
            tokio::select! {
                biased;
                () = self.ended.cancelled() => return,
                () = sleep_until(until) => {}
            }
            // It may have been extended meanwhile.
            if self.is_over(Instant::now()) {
                warn!("the lease may end any moment and the store has not confirmed it: stopping all work");
                return self.end();
            }
        }
    }
}

/// When accepted work is stopped: within the last third of the TTL, with a quarter of it to spare.
fn ends_at(state: LeaseState) -> Instant {
    let last_third = state.stands_until.saturating_duration_since(state.trusted_until);
    state.trusted_until + last_third / 4 * 3
}

fn micros(base: Instant, at: Instant) -> u64 {
    at.saturating_duration_since(base).as_micros() as u64
}
