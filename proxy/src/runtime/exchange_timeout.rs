//! Ends an exchange when its time is up or its partition is severed.
//!
//! Costs next to nothing for exchanges that are over within two ticks of the
//! [`coarse_timer`](crate::runtime::coarse_timer).
//!
//! # Invariants
//!
//! * Severing reaches every exchange that lasts, whatever it is waiting for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::runtime::coarse_timer::{CoarseTimer, TimerEntry, TimerKey};

/// Why an exchange is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// The exchange's partition was severed.
    Severed,
    /// The exchange's time is up.
    TimedOut,
}

pub(crate) struct ExchangeTimeout {
    timer: CoarseTimer,
    state: TimeoutState,
}

enum TimeoutState {
    Unarmed,
    Coarse(TimerKey),
    Precise(Pin<Box<Sleep>>, Pin<Box<WaitForCancellationFutureOwned>>),
}

impl ExchangeTimeout {
    pub(crate) fn new(timer: CoarseTimer) -> Self {
        ExchangeTimeout { timer, state: TimeoutState::Unarmed }
    }

    /// Resolves once the exchange has to end. To be polled whenever the exchange is not ready. `deadline` may move
    /// either way between calls.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        token: impl FnOnce() -> CancellationToken,
        deadline: impl Fn() -> Instant,
    ) -> Poll<EndCause> {
        match &mut self.state {
            TimeoutState::Unarmed => {
                let key = self.timer.register(TimerEntry::Task(context.waker().clone()));
                self.state = TimeoutState::Coarse(key);
                return Poll::Pending;
            }
            TimeoutState::Coarse(key) if !self.timer.has_fired(*key) => {
                self.timer.renew(*key, context.waker());
                return Poll::Pending;
            }
            TimeoutState::Coarse(_) => {
                let sleep = Box::pin(tokio::time::sleep_until(deadline()));
                self.state = TimeoutState::Precise(sleep, Box::pin(token().cancelled_owned()));
            }
            TimeoutState::Precise(..) => {}
        }
        let TimeoutState::Precise(sleep, severed) = &mut self.state else {
            return Poll::Pending;
        };
        if severed.as_mut().poll(context).is_ready() {
            return Poll::Ready(EndCause::Severed);
        }
        // A deadline that has moved on is noticed when the timer fires; one that has come closer is noticed only here.
        let due = deadline();
        if due < sleep.deadline() {
            sleep.as_mut().reset(due);
        }
        while sleep.as_mut().poll(context).is_ready() {
            let due = deadline();
            if due <= Instant::now() {
                return Poll::Ready(EndCause::TimedOut);
            }
            sleep.as_mut().reset(due);
        }
        Poll::Pending
    }
}

impl Drop for ExchangeTimeout {
    fn drop(&mut self) {
        if let TimeoutState::Coarse(key) = self.state {
            self.timer.cancel(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_comes_closer_is_kept_as_one_that_moves_on_is() {
        for (first, then) in [(3600, 2), (2, 5)] {
            let timer = CoarseTimer::new(Duration::from_millis(10));
            let begins = Instant::now();
            let due = Cell::new(begins + Duration::from_secs(first));
            let mut timeout = ExchangeTimeout::new(timer.clone());
            let ended = poll_fn(|context| timeout.poll(context, CancellationToken::new, || due.get()));
            let moves = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                due.set(begins + Duration::from_secs(then));
            };
            tokio::select! {
                biased;
                () = timer.run(|| true) => {}
                ((), ended) = async { tokio::join!(moves, ended) } => assert_eq!(ended, EndCause::TimedOut),
            }
            let took = begins.elapsed();
            assert!(took >= Duration::from_secs(then) && took < Duration::from_secs(then + 1), "{took:?}");
        }
    }
}
