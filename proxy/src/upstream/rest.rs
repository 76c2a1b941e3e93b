//! What is left of a request whose answer has begun: it goes on by itself, so that neither direction waits for the other.
//!
//! Not here: how bytes are written (`http1`, `http2`).
//!
//! # Invariants
//!
//! * While any of it is still to be sent, the exchange is in flight, whether its answer has been read or not.
//! * Once the answer has been read, a client that is slower than it may be ends it, as before the answer.
//! * Once broken off, nothing more of it is written.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::runtime::background::Background;
use crate::tls::ReadHalf;

/// A request that is still being sent.
pub(crate) trait Remaining {
    /// Sends on. Ready when nothing more will be sent.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// How many bytes have been sent.
    fn sent(&self) -> u64;

    /// Until when more of it has to arrive for its client to be fast enough.
    fn upload_due(&self) -> Option<Instant>;

    /// The answer has been read; this is the side of the connection on which it came.
    fn answered(&mut self, _: ReadHalf) {}

    /// Breaks it off.
    fn abort(self: Box<Self>);
}

/// What counts an exchange until it is over.
pub(crate) trait Counted: 'static {
    /// Returns when the client wants to have all of the response, if it has said so.
    fn deadline(&self) -> Option<Instant>;

    /// Returns how long nothing may be sent before the exchange ends.
    fn idle_timeout(&self) -> Duration;

    /// Returns the token that is cancelled when the partition is severed from its pod.
    fn sever_token(&self) -> CancellationToken;

    /// Returns where work goes on that nobody waits for.
    fn background(&self) -> &Background;
}

/// The rest of a request. Dropped before [`finish`](Self::finish), it is broken off.
pub(crate) struct Rest(Option<Rc<Inner>>);

struct Inner {
    state: RefCell<State>,
    over: Notify,
}

struct State {
    /// `None` once over.
    remaining: Option<Box<dyn Remaining>>,
    /// The answer has been read, and this is what still counts.
    counted: Option<Box<dyn Counted>>,
    waker: Option<Waker>,
}

impl Rest {
    pub(crate) fn new(remaining: Box<dyn Remaining>) -> Self {
        let state = State { remaining: Some(remaining), counted: None, waker: None };
        let inner = Rc::new(Inner { state: RefCell::new(state), over: Notify::new() });
        let sending = inner.clone();
        tokio::task::spawn_local(async move { std::future::poll_fn(|context| sending.poll(context)).await });
        Rest(Some(inner))
    }

    /// The answer has been read. The exchange is over when the request has been sent, too.
    pub(crate) fn finish(mut self, read: Option<ReadHalf>, counted: Box<impl Counted>) {
        let Some(inner) = self.0.take() else { return };
        let (background, severed) = (counted.background().clone(), counted.sever_token());
        let (deadline, idle) = (counted.deadline(), counted.idle_timeout().max(Duration::from_millis(1)));
        {
            let state = &mut *inner.state.borrow_mut();
            let Some(remaining) = &mut state.remaining else { return };
            if let Some(read) = read {
                remaining.answered(read);
            }
            state.counted = Some(counted);
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
        background.run(async move {
            let (mut sent, mut looked) = (inner.sent(), Instant::now());
            loop {
                let ends = || [deadline, inner.upload_due()].into_iter().flatten().min();
                let due = ends().map_or(looked + idle, |end| end.min(looked + idle));
                tokio::select! {
                    () = inner.over.notified() => return,
                    () = severed.cancelled() => return inner.abort(),
                    () = tokio::time::sleep_until(due) => {}
                }
                let (now, before) = (Instant::now(), sent);
                sent = inner.sent();
                let is_silent = sent == before && looked + idle <= now;
                if is_silent || ends().is_some_and(|end| end <= now) {
                    return inner.abort();
                }
                if sent != before {
                    looked = now;
                }
            }
        });
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        if let Some(inner) = &self.0 {
            inner.abort();
        }
    }
}

impl Inner {
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let counted = {
            let state = &mut *self.state.borrow_mut();
            if let Some(remaining) = &mut state.remaining
                && remaining.poll(context).is_pending()
            {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            state.remaining = None;
            state.counted.take()
        };
        drop(counted);
        self.over.notify_one();
        Poll::Ready(())
    }

    fn sent(&self) -> u64 {
        self.state.borrow().remaining.as_ref().map_or(0, |remaining| remaining.sent())
    }

    fn upload_due(&self) -> Option<Instant> {
        self.state.borrow().remaining.as_ref()?.upload_due()
    }

    fn abort(&self) {
        let (remaining, counted, waker) = {
            let state = &mut *self.state.borrow_mut();
            (state.remaining.take(), state.counted.take(), state.waker.take())
        };
        if let Some(remaining) = remaining {
            remaining.abort();
        }
        // Only now does it leave the gate.
        drop(counted);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
