//! A request that waits: for its turn, or for the router to know its partitions.
//!
//! What must stay true: who waits is told of a client that hangs up, of a deadline, and of a body that is too large; what
//! it keeps in memory is its own, not a piece of a connection's buffer that could not be used again meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::error::RouteError;
use super::request::ForwardRequest;
use crate::message::detach::compact;
use crate::message::local_reply::LocalReply;
use crate::message::request_body::BodyError;
use crate::routing::permit::{Permit, QueuedPermit, TableHandle};

/// Waits for a request's turn, and meanwhile reads its body ahead: that tells of a client that hangs up, and how much
/// there is to keep.
pub(crate) struct HeldRequest<'asked> {
    queued: QueuedPermit,
    asked: &'asked ForwardRequest,
    reads: bool,
    late: Option<Pin<Box<Sleep>>>,
}

impl<'asked> HeldRequest<'asked> {
    #[cold]
    pub(crate) fn new(queued: QueuedPermit, asked: &'asked mut ForwardRequest) -> Self {
        compact(&mut asked.head);
        HeldRequest {
            queued,
            // A client that asks before it sends would take reading for a yes.
            reads: !asked.scan.expect,
            late: asked.deadline.map(|deadline| Box::pin(sleep_until(deadline))),
            asked,
        }
    }
}

impl Future for HeldRequest<'_> {
    type Output = Result<Permit, RouteError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // First, so that a call whose time is up is not sent although its turn has come.
        if this.late.as_mut().is_some_and(|late| late.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Err(LocalReply::Deadline.into()));
        }
        if let Poll::Ready(turn) = Pin::new(&mut this.queued).poll(context) {
            return Poll::Ready(turn.map_err(RouteError::from));
        }
        if this.reads {
            match this.asked.body.poll_read_ahead(context) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => this.reads = false,
                Poll::Ready(Err(BodyError::TooLarge)) => return Poll::Ready(Err(LocalReply::BodyTooLarge.into())),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(RouteError::ClientGone)),
            }
            if let Err(refusal) = this.queued.weigh(this.asked.weight()) {
                return Poll::Ready(Err(refusal.into()));
            }
        }
        Poll::Pending
    }
}

/// Waits until the router has seen the store for the first time, no longer than any held request.
#[cold]
pub(crate) async fn table_is_there(worker: &TableHandle, asked: &ForwardRequest) -> Result<u32, RouteError> {
    let Some(_early) = worker.wait_early() else {
        return Err(LocalReply::StashFull.into());
    };
    // It counts for its client while it waits here as well.
    let Some(_claim) = asked.peer.usage.claim() else {
        return Err(LocalReply::Overload.into());
    };
    loop {
        if worker.shutting_down() {
            return Err(LocalReply::Shutdown.into());
        }
        if asked.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(LocalReply::Deadline.into());
        }
        match worker.partitions() {
            0 if asked.arrived.elapsed() >= worker.max_wait() => return Err(LocalReply::NoOwner.into()),
            // Once in the life of a router, so a look now and then will do.
            0 => tokio::time::sleep(Duration::from_millis(10)).await,
            partitions => return Ok(partitions),
        }
    }
}
