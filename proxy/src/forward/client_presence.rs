//! Tells whether the client of a held request is still connected, as far as the kernel knows.
//!
//! A connection by HTTP/1.1 notices a disconnect only where it reads, and it does not read on while bytes of a next request
//! have arrived or a body waits to be read. The kernel knows all the same, but only the connection's side has the socket. So
//! the request's side asks, and the connection replies when it has polled the request. By HTTP/2 hyper always reads, so there
//! is nothing to ask.
//!
//! # Invariants
//!
//! * Nothing is read from the socket to find out.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

const NOT_ASKED: u8 = 0;
const ASKED: u8 = 1;
const THERE: u8 = 2;
const LOST: u8 = 3;

/// Most times that a request polls for the reply. Layers of tower may stand between the connection and the request.
const MAX_POLLS: u32 = 8;

/// A request's question to its HTTP/1.1 connection, and the reply; empty by HTTP/2.
#[derive(Debug, Clone, Default)]
pub(crate) struct Presence(Option<Rc<Cell<u8>>>);

impl Presence {
    /// Returns the presence of a connection that replies.
    pub(crate) fn of_http1() -> Self {
        Presence(Some(Rc::new(Cell::new(NOT_ASKED))))
    }

    /// Returns whether the client has closed its side of the connection.
    pub(crate) async fn is_lost(&self) -> bool {
        let Some(state) = &self.0 else { return false };
        state.set(ASKED);
        let mut asked = 0;
        let reply = poll_fn(|context| match state.get() {
            ASKED if asked < MAX_POLLS => {
                asked += 1;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            reply => Poll::Ready(reply),
        });
        let reply = reply.await;
        debug_assert_ne!(reply, ASKED, "the connection has not replied");
        reply == LOST
    }

    /// Replies if a request has asked. To be called whenever the request has been polled.
    #[inline]
    pub(crate) fn reply(&self, is_lost: impl FnOnce() -> bool) {
        if let Some(state) = &self.0
            && state.get() == ASKED
        {
            state.set(if is_lost() { LOST } else { THERE });
        }
    }
}
