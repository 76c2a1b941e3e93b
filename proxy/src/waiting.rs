//! A request that waits: for its turn, or for the router to know its partitions.
//!
//! What must stay true: who waits is told of a client that hangs up, of a deadline, and of a body that is too large; what
//! it keeps in memory is its own, not a piece of a connection's buffer that could not be used again meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::EXPECT;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::compact::compact;
use crate::forward::Asked;
use crate::request_body::BodyError;
use crate::respond::Own;
use crate::ticket::{Pass, Ticket, Worker};

/// Waits for a request's turn, and meanwhile reads its body ahead: that tells of a client that hangs up, and how much
/// there is to keep. `Err(None)`: the client is gone.
pub(crate) struct Waiting<'asked> {
    ticket: Ticket,
    asked: &'asked Asked,
    reads: bool,
    late: Option<Pin<Box<Sleep>>>,
}

impl<'asked> Waiting<'asked> {
    #[cold]
    pub(crate) fn new(ticket: Ticket, asked: &'asked mut Asked) -> Self {
        compact(&mut asked.head);
        Waiting {
            ticket,
            // A client that asks before it sends would take reading for a yes.
            reads: !asked.head.headers.contains_key(EXPECT),
            late: asked.deadline.map(|deadline| Box::pin(sleep_until(deadline))),
            asked,
        }
    }
}

impl Future for Waiting<'_> {
    type Output = Result<Pass, Option<Own>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // First, so that a call whose time is up is not sent although its turn has come.
        if this.late.as_mut().is_some_and(|late| late.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Err(Some(Own::Deadline)));
        }
        if let Poll::Ready(turn) = Pin::new(&mut this.ticket).poll(context) {
            return Poll::Ready(turn.map_err(|refusal| Some(refusal.into())));
        }
        if this.reads {
            match this.asked.body.poll_read_ahead(context) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => this.reads = false,
                Poll::Ready(Err(BodyError::TooLarge)) => return Poll::Ready(Err(Some(Own::BodyTooLarge))),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(None)),
            }
            if let Err(refusal) = this.ticket.weigh(this.asked.weight()) {
                return Poll::Ready(Err(Some(refusal.into())));
            }
        }
        Poll::Pending
    }
}

/// Waits until the router has seen the store for the first time, no longer than any held request.
#[cold]
pub(crate) async fn table_is_there(worker: &Worker, asked: &Asked) -> Result<u32, Option<Own>> {
    let Some(_early) = worker.wait_early() else {
        return Err(Some(Own::StashFull));
    };
    loop {
        if worker.shutting_down() {
            return Err(Some(Own::Shutdown));
        }
        if asked.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Some(Own::Deadline));
        }
        match worker.partitions() {
            0 if asked.arrived.elapsed() >= worker.max_wait() => return Err(Some(Own::NoOwner)),
            // Once in the life of a router, so a look now and then will do.
            0 => tokio::time::sleep(Duration::from_millis(10)).await,
            partitions => return Ok(partitions),
        }
    }
}
