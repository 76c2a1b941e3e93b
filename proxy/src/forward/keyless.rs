//! One attempt of a request without a key, at a pod or at a service that is none.
//!
//! It takes the attempt, its connections and what is recorded of a pod from the other requests. Not here: where the request
//! goes, and whether it is sent again.

use std::rc::Rc;
use std::sync::Arc;

use http::Response;
use tokio::time::Instant;

use super::attempt::{AttemptError, send};
use super::context::WorkerContext;
use super::error::RouteError;
use super::in_flight::{ExchangeTerms, InFlight};
use super::passage::Passage;
use super::request::ForwardRequest;
use super::response_body::ResponseBody;
use crate::message::local_reply::LocalReply;
use crate::routing::client_share::ShareGuard;
use crate::routing::table::{Bounce, Pod};

/// Why an attempt has no response to pass on.
pub(super) enum KeylessError {
    /// The request was not acted on. The share is its count against its client's limit.
    Bounced(ShareGuard, Bounce),
    /// The request is over.
    Ended(RouteError),
}

impl From<LocalReply> for KeylessError {
    fn from(own: LocalReply) -> Self {
        KeylessError::Ended(own.into())
    }
}

/// Sends a request to this pod.
pub(super) async fn attempt(
    shared: &Rc<WorkerContext>,
    request: &mut ForwardRequest,
    pod: &Arc<Pod>,
    share: ShareGuard,
) -> Result<Response<ResponseBody>, KeylessError> {
    let passage = Passage::Keyless(shared.worker.permit_keyless(pod, share));
    let in_flight = Box::new(InFlight::begin(passage, shared, ExchangeTerms::of(request)));
    let (passage, bounce) = match send(shared, request, in_flight).await {
        Ok(response) => return Ok(response),
        Err(AttemptError::LocalReply(own)) => return Err(own.into()),
        Err(AttemptError::ClientGone) => return Err(KeylessError::Ended(RouteError::ClientGone)),
        // Without a partition no lease of the router's counts.
        Err(AttemptError::Fenced(_)) => return Err(LocalReply::NoOwner.into()),
        Err(AttemptError::Bounced(passage, bounce)) => (passage, bounce),
    };
    shared.metrics.bounced(bounce);
    // A pod that is well may take no requests without a key.
    let refusal = bounce.consequences().refusal.filter(|_| !matches!(bounce, Bounce::Misdirected));
    if let Some(refusal) = refusal {
        shared.budgets.refused(pod.slot, Instant::now());
        pod.health.refused(refusal);
    }
    Err(match passage {
        Passage::Keyless(permit) => KeylessError::Bounced(permit.into_share(), bounce),
        Passage::Owned(_) => LocalReply::NoOwner.into(),
    })
}
