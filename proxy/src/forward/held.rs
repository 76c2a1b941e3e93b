//! A held request: it waits for its turn, or for the router to know its partitions.
//!
//! # Invariants
//!
//! * A held request notices when its client disconnects, its deadline passes, or its body exceeds the limit.
//! * A held request owns its memory and never pins a slice of the connection's read buffer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep_until, timeout_at};

use super::error::RouteError;
use super::request::ForwardRequest;
use crate::message::detach::compact;
use crate::message::local_reply::LocalReply;
use crate::message::reserved::ReservedHeaders;
use crate::routing::permit::{EarlyRequest, Permit, QueuedPermit, TableHandle};
use crate::routing::table::AdmissionError;

/// Waits for a request's turn, and reads its body ahead meanwhile. Reading shows when the client disconnects, and how
/// much memory the request takes.
pub(crate) struct HeldRequest<'request> {
    queued: QueuedPermit,
    request: &'request ForwardRequest,
    reads: bool,
    late: Option<Pin<Box<Sleep>>>,
}

impl<'request> HeldRequest<'request> {
    #[cold]
    pub(crate) fn new(queued: QueuedPermit, request: &'request mut ForwardRequest) -> Self {
        compact(&mut request.head);
        HeldRequest {
            queued,
            // Reading makes the connection send `100 Continue`.
            reads: !request.scan.expect,
            late: request.deadline.map(|deadline| Box::pin(sleep_until(deadline))),
            request,
        }
    }
}

impl Future for HeldRequest<'_> {
    type Output = Result<Permit, RouteError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // Checked first, so that a call whose deadline has passed is not sent although its turn has come.
        if this.late.as_mut().is_some_and(|late| late.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Err(LocalReply::Deadline.into()));
        }
        if let Poll::Ready(turn) = Pin::new(&mut this.queued).poll(context) {
            return Poll::Ready(turn.map_err(RouteError::from));
        }
        if this.reads {
            match this.request.body.poll_read_ahead(context) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => this.reads = false,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
            }
            if let Err(refusal) = this.queued.weigh(this.request.weight()) {
                return Poll::Ready(Err(refusal.into()));
            }
        }
        Poll::Pending
    }
}

fn waited(worker: &TableHandle) -> RouteError {
    AdmissionError::Waited(worker.default_cause()).into()
}

/// Waits until the router has read the store for the first time, for no longer than any held request. The caller takes what is
/// returned to the gate, or drops it, before it waits for anything else: all gates wait for that.
#[cold]
pub(crate) async fn table_is_there(
    worker: &TableHandle,
    reserved: &ReservedHeaders,
    request: &ForwardRequest,
) -> Result<EarlyRequest, RouteError> {
    let Some(early) = worker.wait_early(request.arrived) else {
        return Err(LocalReply::StashFull.into());
    };
    // A request that waits here counts towards its client's limit as well.
    let Some(_claim) = request.claim(reserved) else {
        return Err(LocalReply::Overload.into());
    };
    let last = request.arrived + worker.max_wait();
    let deadline = request.deadline.filter(|deadline| *deadline <= last);
    if timeout_at(deadline.unwrap_or(last), early.known()).await.is_err() {
        return Err(if deadline.is_some() { LocalReply::Deadline.into() } else { waited(worker) });
    }
    if worker.shutting_down() { Err(LocalReply::Shutdown.into()) } else { Ok(early) }
}
