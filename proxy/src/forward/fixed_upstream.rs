//! Requests that a route sends to a service that is no pod of the keyspace.
//!
//! They need neither the store nor a pod: they pass no gate, wait for no cutover, and are told nothing of the keyspace. Their
//! limits, time-outs and connections are those of a pod.
//!
//! # Invariants
//!
//! * A request is sent a second time only if it is certain that the service did not act on it, and only once.
//! * What only a pod can say is not believed ([`InFlight::take_refusal`](super::in_flight::InFlight)).

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use tokio::time::Instant;

use super::context::WorkerContext;
use super::error::RouteError;
use super::keyless::{KeylessError, attempt};
use super::request::{FailedAttempt, ForwardRequest};
use super::response_body::ResponseBody;
use crate::message::local_reply::LocalReply;
use crate::routing::table::{Bounce, Pod};

/// Returns the service's response. Boxed: other requests need no room for it.
#[cold]
pub(super) fn send_to_upstream<'a>(
    shared: &'a Rc<WorkerContext>,
    request: &'a mut ForwardRequest,
    upstream: &'a Arc<Pod>,
) -> Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, RouteError>> + 'a>> {
    Box::pin(async move {
        let share = request.claim(&shared.reserved).ok_or(LocalReply::Overload)?;
        if !shared.load.has_room(upstream.slot) {
            return Err(LocalReply::Overload.into());
        }
        shared.budgets.first_try(upstream.slot);
        let mut outcome = attempt(shared, request, upstream, share).await;
        // The service has just closed this connection, or takes no more on it, and may take more on another.
        if let Err(KeylessError::Bounced(share, Bounce::Unprocessed)) = outcome {
            outcome = match shared.budgets.may_try_again(upstream.slot, Instant::now()) {
                true => attempt(shared, request, upstream, share).await,
                false => Err(KeylessError::Bounced(share, Bounce::OverBudget)),
            };
        }
        outcome.map_err(|error| match error {
            // A refused request cannot be sent again if a part of its body is gone.
            KeylessError::Bounced(..) | KeylessError::Ended(RouteError::LocalReply(LocalReply::NoOwner)) => {
                let tried = FailedAttempt { pod: upstream.clone(), epoch: None, held: Duration::ZERO };
                request.tried = Some(Box::new(tried));
                LocalReply::NoUpstream.into()
            }
            KeylessError::Ended(error) => error,
        })
    })
}
