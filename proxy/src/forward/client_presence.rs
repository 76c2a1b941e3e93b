//! Tells whether the client of a held request is still connected, as far as the kernel knows.
//!
//! hyper notices a disconnect only where it reads, and it does not read while its buffer has bytes of a next request or
//! a body waits to be read. The kernel knows all the same, but only the connection's side has the socket. So the
//! request's side asks, and the connection replies the next time that hyper writes or flushes. By HTTP/2 hyper always
//! reads, so there is nothing to ask.
//!
//! # Invariants
//!
//! * Nothing is read from the socket to find out.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::Poll;

const NOT_ASKED: u8 = 0;
const ASKED: u8 = 1;
const THERE: u8 = 2;
const LOST: u8 = 3;

/// Most times that a request polls for the reply. hyper flushes whenever it has called its service.
const MAX_POLLS: u32 = 8;

/// A request's question to its HTTP/1.1 connection, and the reply; empty by HTTP/2. An upgrade may move the connection
/// to another thread, hence no `Rc`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Presence(Option<Arc<AtomicU8>>);

impl Presence {
    /// Returns the presence of a connection that replies.
    pub(crate) fn of_http1() -> Self {
        Presence(Some(Arc::new(AtomicU8::new(NOT_ASKED))))
    }

    /// Returns whether the client has closed its side of the connection.
    pub(crate) async fn is_lost(&self) -> bool {
        let Some(state) = &self.0 else { return false };
        self.ask();
        let mut asked = 0;
        let reply = poll_fn(|context| match state.load(Relaxed) {
            ASKED if asked < MAX_POLLS => {
                asked += 1;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            reply => Poll::Ready(reply),
        });
        let reply = reply.await;
        debug_assert_ne!(reply, ASKED, "hyper has not come by");
        reply == LOST
    }

    /// Asks for the client. The connection replies the next time that hyper writes or flushes.
    pub(crate) fn ask(&self) {
        if let Some(state) = &self.0 {
            state.store(ASKED, Relaxed);
        }
    }

    /// Returns whether the latest reply was that the client has gone.
    pub(crate) fn has_been_lost(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.load(Relaxed) == LOST)
    }

    /// Replies if a request has asked. To be called whenever hyper writes or flushes.
    #[inline]
    pub(crate) fn reply(&self, is_lost: impl FnOnce() -> bool) {
        if let Some(state) = &self.0
            && state.load(Relaxed) == ASKED
        {
            state.store(if is_lost() { LOST } else { THERE }, Relaxed);
        }
    }
}
