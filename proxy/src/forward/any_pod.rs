//! Requests that go to any pod: those without a key, and those that a route sends there.
//!
//! They pass no gate and wait for no cutover. Not here: an attempt ([`keyless`](super::keyless)), and which pods there are
//! ([`table`](crate::routing::table)).
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

use super::context::WorkerContext;
use super::error::RouteError;
use super::keyless::{KeylessError, attempt};
use super::request::ForwardRequest;
use super::response_body::ResponseBody;
use crate::message::local_reply::LocalReply;
use crate::routing::table::{Pod, ReadyPod};

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
            share = match attempt(shared, request, &pod, share).await {
                Ok(response) => return Ok(response),
                Err(KeylessError::Ended(error)) => return Err(error),
                Err(KeylessError::Bounced(share, _)) => share,
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
