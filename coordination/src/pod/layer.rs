//! The tower layer in front of a writer's service: a request passes only if this pod owns its partition at its epoch.
//!
//! The layer reads the router's headers, calls [`Ownership`] for the decision, counts the request until its response
//! has ended, and stops it when the lease is over. Work that outlives the inner future and body has to be reported by
//! the service ([`Owned::hold`](super::Owned::hold)) or ended in `drain`.
//!
//! A request that a router marks as one without a key passes as long as the lease is trusted, with a
//! [`KeylessRequest`](super::KeylessRequest) in place of the ownership.
//!
//! # Invariants
//!
//! * A `421` is sent before the inner service is called, and without reading the body.
//! * Nothing that the inner service sends gets out after the end of the lease.
//! * A request whose connection closes is still processed to its response, in the background and counted
//!   ([`TrackedCall`]). Its write may already be on its way to the log, and `drained` must not be acknowledged before
//!   it is there.
//! * A response body that is dropped ends the work behind it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};
use http_body::Body;
use pin_project::pin_project;
use segue_protocol::headers;
use segue_protocol::ids::{Epoch, PartitionId};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower_layer::Layer;
use tower_service::Service;

use super::body::OwnedBody;
use super::ownership::{EntryVerdict, InFlight, Ownership, Rejection};
use super::rejection;
use super::tracked_call::TrackedCall;
use crate::session::lease_now;

const PARTITION: HeaderName = HeaderName::from_static(headers::SEGUE_PARTITION);
const EPOCH: HeaderName = HeaderName::from_static(headers::SEGUE_EPOCH);
pub(super) const KEYSPACE: HeaderName = HeaderName::from_static(headers::SEGUE_KEYSPACE);

/// Puts [`OwnershipService`] in front of a service. Created by [`PodHandle::layer`](super::PodHandle::layer).
#[derive(Debug, Clone)]
pub struct OwnershipLayer {
    ownership: Arc<Ownership>,
    needs_keyspace: bool,
}

impl OwnershipLayer {
    /// Returns the layer that calls `ownership`.
    pub fn new(ownership: Arc<Ownership>) -> Self {
        OwnershipLayer { ownership, needs_keyspace: false }
    }

    /// Refuses a request that does not name its keyspace, because the listener is that of other keyspaces as well
    /// ([`ByKeyspace`](super::ByKeyspace)).
    pub(super) fn needing_keyspace(self) -> Self {
        OwnershipLayer { needs_keyspace: true, ..self }
    }

    /// Returns the keyspace of the requests that pass.
    pub fn keyspace(&self) -> &str {
        self.ownership.keyspace()
    }
}

impl<S> Layer<S> for OwnershipLayer {
    type Service = OwnershipService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        OwnershipService { inner, ownership: self.ownership.clone(), needs_keyspace: self.needs_keyspace }
    }
}

/// Returns the `421` of a request that is for none of the pods behind its listener, as a layer refuses it.
pub fn refuse_unstamped<R: Body>(request: &HeaderMap) -> Response<OwnedBody<R>> {
    rejection::refused(Rejection::Unstamped, None, rejection::is_grpc(request)).map(OwnedBody::own)
}

/// Forwards the requests of partitions that this pod owns, with an [`Owned`](super::Owned) among their extensions.
#[derive(Debug, Clone)]
pub struct OwnershipService<S> {
    inner: S,
    ownership: Arc<Ownership>,
    needs_keyspace: bool,
}

impl<S, B, R> Service<Request<B>> for OwnershipService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Future: Send + 'static,
    R: Body<Data = Bytes>,
{
    type Response = Response<OwnedBody<R>>;
    type Error = S::Error;
    type Future = OwnershipFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let now = Instant::now();
        let grpc = rejection::is_grpc(request.headers());
        let (partition, epoch) = match stamps(request.headers(), self.ownership.keyspace(), self.needs_keyspace) {
            Some(Stamps::Owned(partition, epoch)) => (partition, epoch),
            stamps => {
                let verdict = match stamps {
                    None => Err(Rejection::Unstamped),
                    Some(_) => self.ownership.enter_without_key(lease_now()),
                };
                let state = match verdict {
                    Ok(in_flight) => State::running(&mut self.inner, request, None, in_flight),
                    Err(why) => {
                        self.ownership.count_refused(why);
                        State::Refused(why)
                    }
                };
                return OwnershipFuture { state, partition: None, grpc };
            }
        };
        let state = match self.ownership.try_enter(partition, epoch, lease_now()) {
            EntryVerdict::In(in_flight) => State::running(&mut self.inner, request, Some(partition), in_flight),
            EntryVerdict::Refused(why) => {
                self.ownership.count_refused(why);
                State::Refused(why)
            }
            EntryVerdict::Wait(change) => {
                let spare = self.inner.clone();
                let ownership = self.ownership.clone();
                State::Waiting {
                    wait: Box::pin(self.ownership.clone().enter(partition, epoch, change, now)),
                    call: Some((std::mem::replace(&mut self.inner, spare), request)),
                    ownership,
                }
            }
        };
        OwnershipFuture { state, partition: Some(partition), grpc }
    }
}

/// The response future of [`OwnershipService`].
#[pin_project]
#[expect(missing_debug_implementations, reason = "it holds the inner service's future")]
pub struct OwnershipFuture<S, B>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
{
    #[pin]
    state: State<S, B>,
    partition: Option<PartitionId>,
    grpc: bool,
}

type EntryFuture = Pin<Box<dyn Future<Output = Result<InFlight, Rejection>> + Send>>;

#[pin_project(project = StateProjection)]
enum State<S, B>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
{
    /// Waiting for this pod's view to catch up.
    Waiting {
        wait: EntryFuture,
        call: Option<(S, Request<B>)>,
        ownership: Arc<Ownership>,
    },
    /// Waiting for the inner service.
    Running {
        call: TrackedCall<S::Future>,
        #[pin]
        lost: WaitForCancellationFutureOwned,
    },
    Refused(Rejection),
    Answered,
}

impl<S, B> State<S, B>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
{
    fn running(inner: &mut S, mut request: Request<B>, partition: Option<PartitionId>, in_flight: InFlight) -> Self {
        let abandoned = CancellationToken::new();
        match partition {
            Some(partition) => drop(request.extensions_mut().insert(in_flight.owned(partition, abandoned.clone()))),
            None => drop(request.extensions_mut().insert(in_flight.keyless(abandoned.clone()))),
        }
        State::Running { lost: in_flight.lost(), call: TrackedCall::new(inner.call(request), in_flight, abandoned) }
    }
}

impl<S, B, R> Future for OwnershipFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<OwnedBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Waiting { wait, call, ownership } => match ready!(wait.as_mut().poll(context)) {
                    Ok(in_flight) => match (call.take(), *this.partition) {
                        (Some((mut inner, request)), partition @ Some(_)) => {
                            State::running(&mut inner, request, partition, in_flight)
                        }
                        // Only a future that is polled after its end gets here.
                        _ => State::Answered,
                    },
                    Err(why) => {
                        ownership.count_refused(why);
                        State::Refused(why)
                    }
                },
                StateProjection::Running { call, lost } => {
                    // The clock is checked before and after: this thread, too, may have been stopped for long.
                    let response = match call.is_lost() {
                        true => None,
                        false => match call.poll(context) {
                            Poll::Ready(response) if !call.is_lost() => Some(response),
                            Poll::Ready(_) => None,
                            Poll::Pending => {
                                ready!(lost.poll(context));
                                None
                            }
                        },
                    };
                    let in_flight = call.end();
                    this.state.set(State::Answered);
                    return Poll::Ready(Ok(match (response, in_flight) {
                        (Some(Err(error)), _) => return Poll::Ready(Err(error)),
                        (Some(Ok(response)), Some(in_flight)) => {
                            let mut response = response.map(|body| OwnedBody::passing(body, in_flight));
                            rejection::mark_own(&mut response);
                            response
                        }
                        _ => rejection::lost(*this.partition, *this.grpc).map(OwnedBody::own),
                    }));
                }
                StateProjection::Refused(why) => {
                    let refused = rejection::refused(*why, *this.partition, *this.grpc).map(OwnedBody::own);
                    this.state.set(State::Answered);
                    return Poll::Ready(Ok(refused));
                }
                StateProjection::Answered => return Poll::Pending,
            };
            this.state.set(next);
        }
    }
}

/// The stamps that a router has put on a request.
enum Stamps {
    Owned(PartitionId, Epoch),
    /// It has no key.
    Keyless,
}

/// Returns the router's partition and epoch. `None` if a header is absent, doubled or unreadable, or names another
/// keyspace; if `is_needed` also if it names none.
fn stamps(stamped: &HeaderMap, keyspace: &str, is_needed: bool) -> Option<Stamps> {
    let is_own = |stamp: &HeaderValue| stamp.as_bytes() == keyspace.as_bytes();
    if !stamped.get(KEYSPACE).map_or(!is_needed, is_own) {
        return None;
    }
    let mut partitions = stamped.get_all(PARTITION).iter();
    if partitions.next().is_some_and(|value| value == headers::NO_PARTITION) {
        let is_alone = partitions.next().is_none() && !stamped.contains_key(EPOCH);
        return is_alone.then_some(Stamps::Keyless);
    }
    Some(Stamps::Owned(number(stamped, PARTITION)?, number(stamped, EPOCH)?))
}

fn number<N: std::str::FromStr>(headers: &HeaderMap, name: HeaderName) -> Option<N> {
    let mut values = headers.get_all(name).iter();
    let text = values.next()?.to_str().ok()?;
    let plain = values.next().is_none() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}
