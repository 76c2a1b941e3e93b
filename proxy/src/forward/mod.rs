//! The path of one request: it is located in a partition, passes that partition's gate, is sent to the owning pod, and
//! its response is passed back.
//!
//! Not here: what an error looks like to the client ([`local_reply`](crate::message::local_reply)), connections
//! (`upstream`), which pod owns a partition ([`table`](crate::routing::table)).
//!
//! # Invariants
//!
//! * A request is sent a second time only if it is certain that no pod acted on it.
//! * A held request whose client disconnects is dropped and never sent.
//! * A request that may have been sent is completed even if its client has left.
//! * A pod's "not mine" never reaches a client.

mod admission;
mod any_pod;
mod attempt;
mod body_key;
pub(crate) mod client_presence;
mod concurrency_limit;
mod context;
mod error;
mod fixed_upstream;
mod held;
mod in_flight;
mod keyless;
mod keyspace_life;
mod keyspaces;
mod passage;
mod read_on;
mod request;
mod request_log;
pub mod response_body;
mod response_head;
mod retry_budget;
pub mod service;
mod trace;
pub(crate) mod tunnel;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
#[cfg(feature = "fuzzing")]
use std::time::Duration;

use futures_util::future::Either;
use http::{Request, Response, Version};
use tokio::time::Instant;

use self::admission::admit;
use self::any_pod::send_to_any;
use self::attempt::{AttemptError, send};
use self::body_key::read_key;
pub use self::context::ClientInfo;
use self::context::WorkerContext;
pub(crate) use self::context::check;
use self::error::RouteError;
pub use self::error::{ClientGone, InvalidName};
use self::fixed_upstream::send_to_upstream;
use self::held::{HeldRequest, table_is_there};
use self::in_flight::{ExchangeTerms, InFlight};
pub(crate) use self::keyspace_life::KeyspaceLife;
use self::keyspaces::{KeyspaceList, Keyspaces};
use self::passage::Passage;
use self::request::ForwardRequest;
use self::request_log::RequestLine;
use self::response_body::ResponseBody;
use crate::message::client_body::ClientBody;
use crate::message::local_reply::{LocalReply, is_grpc};
use crate::metrics::WorkerMetrics;
use crate::routing::keyspace_choice::KeyspaceMatch;
use crate::routing::partition_key::WithoutKey;
use crate::routing::permit::{Admission, Permit, QueuedPermit, TableHandle};
use crate::routing::route_rules::Destination;
use crate::routing::table::{Bounce, Pod};
use crate::settings::ForwardSettings;

/// One worker's data path.
#[derive(Clone)]
pub struct Forward {
    keyspaces: Rc<Keyspaces>,
}

/// One keyspace as a worker serves it: its settings, its access to the table, and its counters.
pub type WorkerKeyspace = (ForwardSettings, TableHandle, Arc<WorkerMetrics>);

impl std::fmt::Debug for Forward {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Forward").field("router", &self.keyspaces.none().identity.router).finish_non_exhaustive()
    }
}

impl Forward {
    /// Returns the data path of a worker with an only keyspace. To be called on that worker's thread, inside its set of local
    /// tasks.
    ///
    /// # Errors
    ///
    /// Fails if the name of the router or of the keyspace cannot be the value of a header.
    pub fn only(keyspace: WorkerKeyspace) -> Result<Self, InvalidName> {
        let only = Self::keyspace(keyspace, &KeyspaceLife::default())?;
        Ok(Forward { keyspaces: Rc::new(Keyspaces::Only(only)) })
    }

    /// Does the same for a worker that has no keyspace yet and may get several. `none` is the state for requests that are for
    /// none of them.
    pub(crate) fn among((settings, worker, metrics): WorkerKeyspace) -> Result<Self, InvalidName> {
        let none = Rc::new(WorkerContext::new(&settings, worker, metrics, &KeyspaceLife::default())?);
        Ok(Forward { keyspaces: Rc::new(Keyspaces::Among(KeyspaceList::new(none))) })
    }

    /// Has the next request that matches find this keyspace. For a worker that may have several.
    ///
    /// # Errors
    ///
    /// Fails if the name of the router or of the keyspace cannot be the value of a header.
    pub(crate) fn add(
        &self,
        keyspace: WorkerKeyspace,
        matching: Option<KeyspaceMatch>,
        life: &KeyspaceLife,
    ) -> Result<(), InvalidName> {
        if let Keyspaces::Among(list) = &*self.keyspaces {
            let name = keyspace.0.keyspace.clone();
            list.add(name, matching, Self::keyspace(keyspace, life)?);
        }
        Ok(())
    }

    /// Has no further request find the keyspace of this name. For a worker that may have several.
    pub(crate) fn remove(&self, keyspace: &str) {
        if let Keyspaces::Among(list) = &*self.keyspaces {
            list.remove(keyspace);
        }
    }

    /// Returns the state of one keyspace, and starts what keeps it up.
    fn keyspace(
        (settings, worker, metrics): WorkerKeyspace,
        life: &KeyspaceLife,
    ) -> Result<Rc<WorkerContext>, InvalidName> {
        let shared = Rc::new(WorkerContext::new(&settings, worker, metrics, life)?);
        if let Some(mut expected) = shared.worker.expected() {
            let weak = Rc::downgrade(&shared);
            tokio::task::spawn_local(async move {
                // One at a time: many partitions of one pod want the same connection.
                while let Some(slot) = expected.recv().await {
                    let Some(shared) = weak.upgrade() else { break };
                    shared.upstream.prepare(shared.worker.pod(slot)).await;
                }
            });
        }
        let weak = Rc::downgrade(&shared);
        let timer = shared.timer.clone();
        tokio::task::spawn_local(async move {
            timer
                .run(move || match weak.upgrade() {
                    Some(shared) => {
                        shared.upstream.sweep();
                        true
                    }
                    None => false,
                })
                .await;
        });
        Ok(shared)
    }

    #[cfg(feature = "fuzzing")]
    pub(crate) fn idle_timeout(&self) -> Duration {
        self.keyspaces.none().idle_timeout
    }

    /// Closes all WebSockets with a close frame.
    pub(crate) fn end_websockets(&self) {
        self.keyspaces.all().iter().for_each(|shared| shared.life.ending.cancel());
    }

    /// Closes idle connections to pods, for lack of files. Returns their number.
    pub(crate) fn close_idle(&self) -> usize {
        self.keyspaces.all().iter().map(|shared| shared.upstream.close_idle()).sum()
    }

    /// Returns the number of requests in flight to pods.
    pub(crate) fn requests_in_flight(&self) -> u64 {
        self.keyspaces.all().iter().map(|shared| shared.metrics.requests_in_flight()).sum()
    }

    /// Returns the response to one request of a client. `takes_lines`: the headers of the response may be lines that come with
    /// its body.
    pub(crate) fn serve(
        &self,
        request: Request<ClientBody>,
        peer: Rc<ClientInfo>,
        takes_lines: bool,
    ) -> impl Future<Output = Result<Response<ResponseBody>, ClientGone>> + use<> {
        let (shared, unmatched) = self.keyspaces.of(&request);
        let mut request = ForwardRequest::new(&shared, request, peer, takes_lines);
        request.unmatched = unmatched;
        async move {
            // In a block of its own, so that its state takes no room while the router's own response is made.
            let own = {
                let mut open = UnansweredRequest(Some(&shared.metrics));
                let response = route(&shared, &mut request).await;
                open.0 = None;
                match response {
                    Ok(mut response) => {
                        request.announce_close(&mut response);
                        return Ok(response);
                    }
                    Err(RouteError::ClientGone) => {
                        shared.metrics.aborted();
                        note_for_log(&shared, &request, None, CLIENT_GONE);
                        return Err(ClientGone);
                    }
                    Err(RouteError::LocalReply(own)) => own,
                }
            };
            Ok(refuse(&shared, &request, own).await)
        }
    }
}

/// Returns the router's own response. First reads what has arrived of the body: if that is all of it, the
/// connection can be used again. HTTP/2 needs no such reading, because only the stream ends. Boxed: otherwise every
/// request would reserve room for it.
#[cold]
fn refuse<'a>(
    shared: &'a WorkerContext,
    request: &'a ForwardRequest,
    own: LocalReply,
) -> Pin<Box<dyn Future<Output = Response<ResponseBody>> + 'a>> {
    Box::pin(async move {
        // Reading makes the connection send `100 Continue`.
        if request.head.version != Version::HTTP_2 && !request.scan.expect {
            request.body.discard_what_has_arrived().await;
        }
        shared.metrics.answered(own);
        shared.metrics.took(request.arrived.elapsed());
        note_for_log(shared, request, Some(own.status().as_u16()), own.reason());
        if let Some(trace) = &request.trace {
            trace.answered(own);
        }
        let mut response = own.response(request.partition, is_grpc(&request.head.headers)).map(ResponseBody::whole);
        request.announce_close(&mut response);
        response
    })
}

/// Why a request without a response is over, in the log.
const CLIENT_GONE: &str = "client-gone";

/// Writes the line of a request that the router has answered itself, or whose client has left, unless it gets none.
#[cold]
fn note_for_log(shared: &WorkerContext, request: &ForwardRequest, status: Option<u16>, reason: &'static str) {
    if !shared.request_log.wants(status.is_some()) {
        return;
    }
    let took = request.arrived.elapsed();
    let tried = request.tried.as_deref();
    shared.request_log.write(&RequestLine {
        request: &request.summary(&shared.reserved),
        partition: request.partition,
        pod: tried.map(|tried| (tried.pod.name.as_str(), tried.epoch)),
        status,
        reason,
        // Without an attempt the request has waited for nothing else.
        held: tried.map_or(took, |tried| tried.held),
        took,
    });
}

/// A request that has no response yet. Dropping it counts the request as aborted.
struct UnansweredRequest<'worker>(Option<&'worker WorkerMetrics>);

impl Drop for UnansweredRequest<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.0 {
            metrics.aborted();
        }
    }
}

/// Returns the pod's response.
///
/// This future is most of what a held request costs, so it keeps nothing across an `await` that it does not need.
async fn route(shared: &Rc<WorkerContext>, request: &mut ForwardRequest) -> Result<Response<ResponseBody>, RouteError> {
    request.check(&shared.reserved)?;
    request.limit_forwarding()?;
    let elsewhere = if shared.exceptions.routes.is_empty() { None } else { elsewhere(shared, request)? };
    if let Some(Elsewhere::Upstream(upstream)) = elsewhere {
        return send_to_upstream(shared, request, upstream).await;
    }
    if elsewhere.is_none()
        && let Some(key) = shared.partition.body_key()
    {
        read_key(shared, request, key).await?;
    }
    let early = match shared.worker.partitions() {
        0 => Some(Box::pin(table_is_there(&shared.worker, &shared.reserved, request)).await?),
        _ => None,
    };
    if let Some(Elsewhere::Pod(zone)) = elsewhere {
        drop(early);
        return send_to_any(shared, request, zone).await;
    }
    let mut admission = match admit(shared, request, early) {
        Err(LocalReply::NoPartition) if shared.exceptions.without_key == WithoutKey::Any => {
            return send_to_any(shared, request, None).await;
        }
        admission => admission?,
    };
    loop {
        let waits = matches!(admission, Admission::Queued(_));
        if waits && let Some(trace) = &request.trace {
            trace.held();
        }
        let turn = turn(admission, request);
        let permit = turn.await?;
        if waits {
            shared.metrics.waited(request.arrived.elapsed());
            if let Some(trace) = &request.trace {
                trace.admitted();
            }
        }
        let in_flight = match depart(shared, request, permit) {
            Ok(in_flight) => in_flight,
            Err(permit) => {
                admission = Admission::Queued(put_back(shared, permit, Bounce::OverBudget)?);
                continue;
            }
        };
        admission = Admission::Queued(match send(shared, request, in_flight).await {
            Ok(response) => return Ok(response),
            Err(AttemptError::LocalReply(own)) => return Err(own.into()),
            Err(AttemptError::ClientGone) => return Err(RouteError::ClientGone),
            Err(AttemptError::Bounced(Passage::Owned(permit), bounce)) => put_back(shared, permit, bounce)?,
            Err(AttemptError::Fenced(Passage::Owned(permit))) => permit.put_back_fenced(),
            // Only a request without a key has another passage.
            Err(AttemptError::Bounced(..) | AttemptError::Fenced(_)) => return Err(LocalReply::NoOwner.into()),
        });
    }
}

/// Resolves once the request may be sent.
fn turn(admission: Admission, request: &mut ForwardRequest) -> impl Future<Output = Result<Permit, RouteError>> {
    match admission {
        Admission::Admitted(permit) => Either::Left(std::future::ready(Ok(permit))),
        Admission::Queued(queued) => Either::Right(HeldRequest::new(queued, request)),
    }
}

/// Where a route sends a request, if not to its owner.
#[derive(Clone, Copy)]
enum Elsewhere<'a> {
    /// To any pod, if possible of this zone.
    Pod(Option<&'a str>),
    /// To a service that is no pod.
    Upstream(&'a Arc<Pod>),
}

/// Returns where a route sends the request. `None`: it goes to its owner.
#[cold]
fn elsewhere<'a>(shared: &'a WorkerContext, request: &ForwardRequest) -> Result<Option<Elsewhere<'a>>, LocalReply> {
    Ok(match shared.exceptions.routes.destination(&request.head)? {
        Destination::Owner => None,
        Destination::Any => Some(Elsewhere::Pod(None)),
        Destination::Zone => Some(Elsewhere::Pod(shared.exceptions.zone.as_deref())),
        Destination::Upstream(address) => {
            let mut upstreams = shared.upstreams.iter();
            upstreams.find(|upstream| *upstream.address == **address).map(Elsewhere::Upstream)
        }
    })
}

/// Begins the exchange, unless the request is a retry and the retry budget of its pod is spent.
fn depart(shared: &Rc<WorkerContext>, request: &ForwardRequest, permit: Permit) -> Result<Box<InFlight>, Permit> {
    let pod = permit.pod().slot;
    if !permit.was_refused_here() {
        shared.budgets.first_try(pod);
    } else if !shared.budgets.may_try_again(pod, Instant::now()) {
        return Err(permit);
    }
    Ok(Box::new(InFlight::begin(Passage::Owned(permit), shared, ExchangeTerms::of(request))))
}

/// Puts a request back that no pod acted on. Fails if its pod refuses this very request for good.
fn put_back(shared: &WorkerContext, permit: Permit, bounce: Bounce) -> Result<QueuedPermit, LocalReply> {
    let pod = permit.pod().clone();
    shared.metrics.bounced(bounce);
    match bounce.consequences().refusal {
        Some(refusal) => {
            shared.budgets.refused(pod.slot, Instant::now());
            pod.health.refused(refusal);
        }
        // The budget paid for an attempt that was not made.
        None if bounce != Bounce::OverBudget && permit.was_refused_here() => shared.budgets.was_not_tried(pod.slot),
        None => {}
    }
    permit.put_back(bounce).map_err(|refused_for_good| {
        tracing::debug!(pod = pod.name, "{refused_for_good}");
        LocalReply::NoOwner
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_serve<R>(_: impl FnOnce(&Forward, Request<ClientBody>, Rc<ClientInfo>, bool) -> R) -> usize {
        size_of::<R>()
    }

    /// This future is most of what a held request costs. Beyond 1 KiB it would also leave malloc's fast size classes.
    #[test]
    fn an_exchange_is_no_larger_than_it_was() {
        let size = size_of_serve(Forward::serve);
        assert!(size <= 768, "{size} bytes");
    }
}
