//! Watches over one exchange: ends it when its time is up or its partition is severed.
//!
//! Costs next to nothing for exchanges that are over within two ticks of the [`watch`](crate::watch). What must
//! stay true: severing reaches every exchange that lasts, whatever it is waiting for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::watch::{Enrolled, Place, Watch};

/// Why an exchange is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its partition was severed.
    Severed,
    /// Its time is up.
    TimedOut,
}

pub(crate) struct Vigil {
    watch: Watch,
    state: State,
}

enum State {
    New,
    Young(Place),
    Grown(Pin<Box<Sleep>>, Pin<Box<WaitForCancellationFutureOwned>>),
}

impl Vigil {
    pub(crate) fn new(watch: Watch) -> Self {
        Vigil { watch, state: State::New }
    }

    /// To be polled whenever the exchange is not ready. `deadline` may move on from one call to the next.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        token: impl FnOnce() -> CancellationToken,
        deadline: impl Fn() -> Instant,
    ) -> Poll<Ended> {
        match &mut self.state {
            State::New => {
                let place = self.watch.enrol(Enrolled::Task(context.waker().clone()));
                self.state = State::Young(place);
                return Poll::Pending;
            }
            State::Young(place) if !self.watch.is_told(*place) => {
                self.watch.renew(*place, context.waker());
                return Poll::Pending;
            }
            State::Young(_) => {
                let sleep = Box::pin(tokio::time::sleep_until(deadline()));
                self.state = State::Grown(sleep, Box::pin(token().cancelled_owned()));
            }
            State::Grown(..) => {}
        }
        let State::Grown(sleep, severed) = &mut self.state else {
            return Poll::Pending;
        };
        if severed.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ended::Severed);
        }
        while sleep.as_mut().poll(context).is_ready() {
            let due = deadline();
            if due <= Instant::now() {
                return Poll::Ready(Ended::TimedOut);
            }
            sleep.as_mut().reset(due);
        }
        Poll::Pending
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        if let State::Young(place) = self.state {
            self.watch.withdraw(place);
        }
    }
}
