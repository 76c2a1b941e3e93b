//! The rest of a request whose response has begun. It is sent on in a task of its own, so that neither direction waits
//! for the other.
//!
//! Not here: how bytes are written (`http1`, `http2`).
//!
//! # Invariants
//!
//! * While any of it is still to be sent, the exchange is in flight, whether its response has been read or not.
//! * Once the response has been read, a client that is slower than allowed ends it, as before the response.
//! * Once it is broken off, nothing more of it is written.

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
pub(crate) trait RequestSender {
    /// Sends more of it. Ready when nothing more will be sent.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// Returns the number of bytes sent.
    fn sent(&self) -> u64;

    /// Returns when more of it has to have arrived for its client to be fast enough.
    fn upload_due(&self) -> Option<Instant>;

    /// Takes the reading side of the connection, once the response has been read from it.
    fn response_read(&mut self, _: ReadHalf) {}

    /// Breaks the request off.
    fn abort(self: Box<Self>);
}

/// Counts an exchange until it is dropped.
pub(crate) trait ExchangeGuard: 'static {
    /// Returns when the client wants to have all of the response, if it has said so.
    fn deadline(&self) -> Option<Instant>;

    /// Returns how long the exchange may be silent before it ends.
    fn idle_timeout(&self) -> Duration;

    /// Returns the token that is cancelled when the partition is severed from its pod.
    fn sever_token(&self) -> CancellationToken;

    /// Returns what runs work that no request waits for.
    fn background(&self) -> &Background;
}

/// The rest of a request. Dropping it before [`finish`](Self::finish) breaks it off.
pub(crate) struct UnsentRequest(Option<Rc<Inner>>);

struct Inner {
    state: RefCell<SendState>,
    over: Notify,
}

struct SendState {
    /// `None` once over.
    remaining: Option<Box<dyn RequestSender>>,
    /// Set once the response has been read: keeps the exchange counted.
    counted: Option<Box<dyn ExchangeGuard>>,
    waker: Option<Waker>,
}

impl UnsentRequest {
    pub(crate) fn new(remaining: Box<dyn RequestSender>) -> Self {
        let state = SendState { remaining: Some(remaining), counted: None, waker: None };
        let inner = Rc::new(Inner { state: RefCell::new(state), over: Notify::new() });
        let sending = inner.clone();
        tokio::task::spawn_local(async move { std::future::poll_fn(|context| sending.poll(context)).await });
        UnsentRequest(Some(inner))
    }

    /// Notes that the response has been read. The exchange is over when the request has been sent, too.
    pub(crate) fn finish(mut self, read: Option<ReadHalf>, counted: Box<impl ExchangeGuard>) {
        let Some(inner) = self.0.take() else { return };
        let (background, severed) = (counted.background().clone(), counted.sever_token());
        let (deadline, idle) = (counted.deadline(), counted.idle_timeout().max(Duration::from_millis(1)));
        {
            let state = &mut *inner.state.borrow_mut();
            let Some(remaining) = &mut state.remaining else { return };
            if let Some(read) = read {
                remaining.response_read(read);
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

impl Drop for UnsentRequest {
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
        // The exchange leaves the gate only now.
        drop(counted);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
