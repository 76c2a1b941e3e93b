//! A notification of all waiters, as loom sees it.
//!
//! tokio's `Notify` is none of loom's primitives: creating a wait and notifying would be no steps, and nothing could
//! happen between a check and the wait that follows it. Here each is one step under a lock, and guarantees what tokio
//! documents: a wait ends with the first notification after its *creation*, polled or not.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use loom::sync::{Mutex, MutexGuard};

#[derive(Debug, Default)]
struct State {
    notices: u64,
    waiting: Vec<Waker>,
}

#[derive(Debug, Default)]
pub(in crate::pod) struct Notify(Mutex<State>);

/// A wait for the notification after this many.
#[derive(Debug)]
pub(in crate::pod) struct OwnedNotified {
    notify: Arc<Notify>,
    after: u64,
}

impl Notify {
    pub(in crate::pod) fn notified_owned(self: Arc<Self>) -> OwnedNotified {
        let after = self.lock().notices;
        OwnedNotified { notify: self, after }
    }

    pub(in crate::pod) fn notify_waiters(&self) {
        let mut state = self.lock();
        state.notices += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Future for OwnedNotified {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.notify.lock();
        if state.notices > self.after {
            return Poll::Ready(());
        }
        state.waiting.push(context.waker().clone());
        Poll::Pending
    }
}
