//! Requests that go to any pod: those without a key, and those that a route sends there.
//!
//! They pass no gate, wait for no cutover, and take the attempt, its connections and what is recorded of a pod from the
//! others. Not here: which pods there are ([`table`](crate::routing::table)).
//!
//! # Invariants
//!
//! * A request is sent a second time only if it is certain that no pod acted on it, and to no pod twice.
//! * What the pod is told names no partition and no epoch.

use std::future::Future;
use std::pin::Pin;
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
use crate::routing::table::{Bounce, Pod, ReadyPod};

/// One of so many requests may go to a pod that fails: without any it would never be seen to have recovered.
const PROBES: u32 = 16;

/// Returns the response of any pod, if possible of one in this zone. Boxed: other requests need no room for it.
#[cold]
pub(super) fn send_to_any<'a>(
    shared: &'a Rc<WorkerContext>,
    request: &'a mut ForwardRequest,
    zone: Option<&'a str>,
) -> Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, RouteError>> + 'a>> {
    Box::pin(async move {
        let mut share = request.claim(&shared.reserved).ok_or(LocalReply::Overload)?;
        let mut tried = Vec::new();
        loop {
            let pod = chosen(shared, &shared.worker.ready_pods(), &tried, zone)?;
            tried.push(pod.slot);
            shared.budgets.first_try(pod.slot);
            let passage = Passage::Keyless(shared.worker.permit_keyless(&pod, share));
            let in_flight = Box::new(InFlight::begin(passage, shared, ExchangeTerms::of(request)));
            let (passage, bounce) = match send(shared, request, in_flight).await {
                Ok(response) => return Ok(response),
                Err(AttemptError::LocalReply(own)) => return Err(own.into()),
                Err(AttemptError::ClientGone) => return Err(RouteError::ClientGone),
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
            share = match passage {
                Passage::Keyless(permit) => permit.into_share(),
                Passage::Owned(_) => return Err(LocalReply::NoOwner.into()),
            };
        }
    })
}

/// Returns the pod with the fewest requests in flight of two random ones, among those that have not been tried: those of the
/// zone, if there are any. One that fails is chosen only where there is no other, or to see whether it has recovered.
fn chosen(
    shared: &WorkerContext,
    ready: &[ReadyPod],
    tried: &[u32],
    zone: Option<&str>,
) -> Result<Arc<Pod>, LocalReply> {
    let mut untried: Vec<&ReadyPod> = ready.iter().filter(|ready| !tried.contains(&ready.pod.slot)).collect();
    if untried.is_empty() {
        return Err(LocalReply::NoOwner);
    }
    untried.retain(|ready| shared.load.has_room(ready.pod.slot));
    let is_probe = rand::random::<u32>().is_multiple_of(PROBES);
    if !is_probe {
        prefer(&mut untried, |ready| !ready.pod.health.is_outlier());
    }
    if zone.is_some() {
        prefer(&mut untried, |ready| ready.zone.as_deref() == zone);
    }
    let any = || untried.get(rand::random::<u32>() as usize % untried.len().max(1)).map(|ready| &ready.pod);
    let (one, other) = any().zip(any()).ok_or(LocalReply::Overload)?;
    let is_first = shared.load.in_flight(one.slot) <= shared.load.in_flight(other.slot);
    Ok(if is_first { one.clone() } else { other.clone() })
}

/// Keeps those that are better, if there are any.
fn prefer(pods: &mut Vec<&ReadyPod>, is_better: impl Fn(&ReadyPod) -> bool) {
    if pods.iter().any(|ready| is_better(ready)) {
        pods.retain(|ready| is_better(ready));
    }
}
