//! Whether the client of a held request is still there, as far as its kernel knows.
//!
//! hyper notices that a client has gone only where it reads, and it does not while bytes of a next request lie in its
//! buffer or a body waits to be read. The kernel knows all the same, but only the connection's side has the socket: so
//! the request's side asks, and the connection answers the next time that hyper comes by.
//! By HTTP/2 hyper always reads, and nobody has to ask.
//! What must stay true: nothing is read to find out.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::Poll;

const NOT_ASKED: u8 = 0;
const ASKED: u8 = 1;
const THERE: u8 = 2;
const LOST: u8 = 3;

/// How often a request comes back for its answer. hyper flushes whenever it has called its service.
const PATIENCE: u32 = 8;

/// The question of a request to its connection by HTTP/1.1, and the answer; empty by HTTP/2. Goes along with a connection
/// that is upgraded, hence no `Rc`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Presence(Option<Arc<AtomicU8>>);

impl Presence {
    /// For a connection that answers.
    pub(crate) fn of_http1() -> Self {
        Presence(Some(Arc::new(AtomicU8::new(NOT_ASKED))))
    }

    /// Whether the client has closed its side of the connection.
    pub(crate) async fn is_lost(&self) -> bool {
        let Some(state) = &self.0 else { return false };
        state.store(ASKED, Relaxed);
        let mut asked = 0;
        let answer = poll_fn(|context| match state.load(Relaxed) {
            ASKED if asked < PATIENCE => {
                asked += 1;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            answer => Poll::Ready(answer),
        });
        let answer = answer.await;
        debug_assert_ne!(answer, ASKED, "hyper has not come by");
        answer == LOST
    }

    /// Answers, if asked; to be called whenever hyper writes or flushes.
    #[inline]
    pub(crate) fn answer(&self, is_lost: impl FnOnce() -> bool) {
        if let Some(state) = &self.0
            && state.load(Relaxed) == ASKED
        {
            state.store(if is_lost() { LOST } else { THERE }, Relaxed);
        }
    }
}
