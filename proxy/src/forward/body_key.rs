//! The key of a request whose body has it: reads the body ahead as far as the key needs, before the request enters a gate.
//!
//! The bytes read ahead are kept as for a request that is held, and the pod gets them unchanged. Not here: where in a body the key is
//! ([`partition_key`](crate::routing::partition_key)).
//!
//! # Invariants
//!
//! * A request whose key is not known yet counts in no partition, so no drain waits for it, and delays no other request.
//! * It waits no longer than `idle_timeout` in all, a body that is not gRPC's has to keep the pace of uploads, and its deadline
//!   and its client's leaving end the wait.
//! * More than is read ahead anyway is not waited for.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use http::header::EXPECT;
use tokio::time::{Instant, sleep_until};

use super::context::WorkerContext;
use super::error::RouteError;
use super::request::ForwardRequest;
use crate::message::local_reply::LocalReply;
use crate::routing::partition_key::{BodyKey, FoundKey, LocationError};

/// Finds the key, if there is one, and keeps it with the head. Not for requests that a route sends elsewhere. Boxed: other
/// requests need no room for it.
#[cold]
pub(super) fn read_key<'a>(
    shared: &'a WorkerContext,
    request: &'a mut ForwardRequest,
    key: &'a BodyKey,
) -> Pin<Box<dyn Future<Output = Result<(), RouteError>> + 'a>> {
    Box::pin(async move {
        if request.body.is_empty() || !key.may_be_in(&request.head.headers)? {
            return Ok(());
        }
        let needed = |begun: &[u8]| key.needed(begun);
        let is_within = match poll_fn(|context| Poll::Ready(request.body.poll_needed(context, needed))).await {
            Poll::Ready(is_within) => is_within?,
            Poll::Pending => {
                let is_within = wait(shared, request, key).await?;
                // The time that the client took is neither the pod's nor part of `stash.max_wait`.
                request.arrived = Instant::now();
                is_within
            }
        };
        if !is_within {
            return Err(LocationError::TooFar.into());
        }
        match request.body.ahead(|begun| key.key(begun)) {
            Ok(found) => drop(request.head.extensions.insert(FoundKey(found.into()))),
            Err(LocationError::Missing) => {}
            Err(why) => return Err(why.into()),
        }
        // Reading has made the connection send `100 Continue`.
        if std::mem::take(&mut request.scan.expect) {
            request.head.headers.remove(EXPECT);
        }
        Ok(())
    })
}

/// Waits until as much of the body is there as the key needs. Returns whether that is within the bound.
async fn wait(shared: &WorkerContext, request: &ForwardRequest, key: &BodyKey) -> Result<bool, RouteError> {
    // A request that waits here counts towards its client's limit as well.
    let _claim = request.claim(&shared.reserved).ok_or(LocalReply::Overload)?;
    let last = request.arrived + shared.idle_timeout;
    let (last, own) = match request.deadline {
        Some(deadline) if deadline < last => (deadline, LocalReply::Deadline),
        _ => (last, LocalReply::TooSlow),
    };
    let mut timer = pin!(sleep_until(last));
    poll_fn(|context| {
        if let Poll::Ready(is_within) = request.body.poll_needed(context, |begun| key.needed(begun)) {
            return Poll::Ready(is_within.map_err(RouteError::from));
        }
        // Each byte that arrives earns time.
        let due = request.body.upload_due().map_or(last, |due| due.min(last));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        let own = if due < last { LocalReply::TooSlow } else { own };
        timer.as_mut().poll(context).map(|()| Err(own.into()))
    })
    .await
}
