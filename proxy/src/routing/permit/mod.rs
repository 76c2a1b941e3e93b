//! The state of a request that goes through the table: a [`QueuedPermit`] while held, a [`Permit`] while in flight.
//!
//! Both undo themselves when dropped: a held request whose client disconnects leaves the stash, and an exchange that
//! ends in any way leaves the gate. Each belongs to one worker thread.

mod admission;
mod early;
mod keyless;
mod keys;
mod lasting;

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use segue_protocol::ids::{Epoch, PartitionId};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

pub use self::admission::Admission;
pub(crate) use self::early::EarlyRequest;
pub(crate) use self::keyless::KeylessPermit;
use crate::routing::client_share::ShareGuard;
use crate::routing::key_limit::KeyShare;
use crate::routing::stash::{Arrival, QueuePosition};
use crate::routing::sync::oneshot;
use crate::routing::sync::time::{Sleep, sleep_until};
use crate::routing::table::{
    AdmissionError, Bounce, GateRoute, LastingId, OwnerRefusals, Pod, Requeue, Table, WaitOutcome, WorkerTraffic,
};

/// One worker thread's access to the table.
#[derive(Debug, Clone)]
pub struct TableHandle {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    table: Arc<Table>,
    index: usize,
    last_arrival: Cell<u64>,
}

impl Inner {
    /// Returns the arrival of a request that is taken at `now`, on the table's clock.
    #[inline]
    fn arrival(&self, now: u64) -> Arrival {
        let at = now.max(self.last_arrival.get() + 1);
        self.last_arrival.set(at);
        Arrival { at, worker: self.index as u32 }
    }
}

impl Table {
    /// Returns the access of worker number `index`. To be made on that worker's thread.
    pub fn worker(self: &Arc<Self>, index: usize) -> TableHandle {
        TableHandle { inner: Rc::new(Inner { table: self.clone(), index, last_arrival: Cell::new(0) }) }
    }
}

impl TableHandle {
    /// Returns the number of partitions, 0 until it has been read from the store.
    #[inline]
    pub fn partitions(&self) -> u32 {
        self.inner.table.partitions()
    }

    /// Returns the number of workers that share the table.
    pub(crate) fn workers(&self) -> usize {
        self.inner.table.workers()
    }

    /// Returns whether the router is shutting down.
    pub fn shutting_down(&self) -> bool {
        self.inner.table.is_shutting_down()
    }

    /// Returns the channel of pods that requests are about to go to. Only the first call returns it.
    pub(crate) fn expected(&self) -> Option<UnboundedReceiver<u32>> {
        self.inner.table.expected(self.inner.index)
    }

    pub(crate) fn pod(&self, slot: u32) -> &Arc<Pod> {
        self.inner.table.pod(slot)
    }

    /// Returns the longest time that a request waits.
    pub(crate) fn max_wait(&self) -> Duration {
        self.inner.table.max_wait()
    }

    /// Takes a request to the gate of `partition`, which must be below [`partitions`](Self::partitions). Requests with
    /// the same `order` never overtake each other while they wait. `bytes` is the memory that the request takes while
    /// it waits.
    ///
    /// # Errors
    ///
    /// Fails if the request would have to wait and may not: see [`AdmissionError`].
    #[inline]
    pub fn enter(
        &self,
        partition: PartitionId,
        order: Option<u64>,
        bytes: usize,
        now: Instant,
    ) -> Result<Admission, AdmissionError> {
        let arrival = self.inner.arrival(self.inner.table.nanos(now));
        self.enter_as_of(arrival, partition, order, bytes, now)
    }

    #[inline]
    fn enter_as_of(
        &self,
        arrival: Arrival,
        partition: PartitionId,
        order: Option<u64>,
        bytes: usize,
        now: Instant,
    ) -> Result<Admission, AdmissionError> {
        let at = self.inner.table.nanos(now);
        let request = ArrivingRequest {
            worker: self.clone(),
            partition,
            order,
            arrival,
            bytes,
            held_until: None,
            seldom: None,
            share: None,
        };
        match self.inner.table.try_pass(self.inner.index, partition, at) {
            Some(route) => Ok(Admission::Admitted(Permit::new(request, route, false))),
            None => self.wait(request, now, at),
        }
    }

    #[cold]
    fn wait(&self, mut request: ArrivingRequest, now: Instant, at: u64) -> Result<Admission, AdmissionError> {
        let table = &self.inner.table;
        Ok(match table.wait(self.inner.index, request.partition, request.position(), request.bytes, at)? {
            WaitOutcome::Now(route) => Admission::Admitted(Permit::new(request, route, false)),
            WaitOutcome::First(route) => Admission::Admitted(Permit::new(request, route, true)),
            WaitOutcome::Later(grant) => {
                request.held_until = Some(now + table.max_wait());
                Admission::Queued(QueuedPermit::new(request, grant))
            }
        })
    }
}

#[derive(Debug)]
struct ArrivingRequest {
    worker: TableHandle,
    partition: PartitionId,
    order: Option<u64>,
    arrival: Arrival,
    bytes: usize,
    /// When it stops waiting, if it was ever held. A reload of the limits does not change it.
    held_until: Option<Instant>,
    /// Boxed: each request would carry the room for it.
    seldom: Option<Box<SeldomState>>,
    /// The request's count against its client's limit.
    share: Option<ShareGuard>,
}

/// What few requests have.
#[derive(Debug, Default)]
struct SeldomState {
    refusals: Option<OwnerRefusals>,
    /// The request's count against its key's limit.
    of_key: Option<KeyShare>,
}

impl ArrivingRequest {
    fn table(&self) -> &Arc<Table> {
        &self.worker.inner.table
    }

    fn position(&self) -> QueuePosition {
        QueuePosition::new(self.order, self.arrival)
    }
}

/// A request that waits for its turn. Resolves to a [`Permit`], or to the reason why it no longer waits. Dropping it
/// takes the request out of the stash.
#[derive(Debug)]
pub struct QueuedPermit {
    request: Option<ArrivingRequest>,
    grant: oneshot::Receiver<GateRoute>,
    deadline: Pin<Box<Sleep>>,
}

impl QueuedPermit {
    fn new(request: ArrivingRequest, grant: oneshot::Receiver<GateRoute>) -> Self {
        let deadline = Box::pin(sleep_until(request.held_until.unwrap_or_else(Instant::now)));
        QueuedPermit { request: Some(request), grant, deadline }
    }
}

impl QueuedPermit {
    /// Raises the memory that the request counts for. Fails if that is too much; then this must be dropped.
    pub(crate) fn weigh(&mut self, bytes: usize) -> Result<(), AdmissionError> {
        let Some(request) = self.request.as_mut().filter(|request| request.bytes < bytes) else { return Ok(()) };
        let more = bytes - request.bytes;
        request.table().grow(request.partition, request.position(), more)?;
        request.bytes = bytes;
        Ok(())
    }
}

impl Future for QueuedPermit {
    type Output = Result<Permit, AdmissionError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.grant).poll(context) {
            Poll::Ready(Ok(route)) => {
                let Some(request) = self.request.take() else {
                    return Poll::Pending;
                };
                let permit = Permit::new(request, route, true);
                if permit.may_still_go() {
                    return Poll::Ready(Ok(permit));
                }
                *self = permit.put_back_fenced();
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(Err(_)) => {
                self.request = None;
                return Poll::Ready(Err(AdmissionError::Shutdown));
            }
            Poll::Pending => {}
        }
        ready!(self.deadline.as_mut().poll(context));
        let Some(request) = self.request.as_ref() else {
            return Poll::Pending;
        };
        match request.table().give_up(request.partition, request.position()) {
            Some(cause) => {
                self.request = None;
                Poll::Ready(Err(AdmissionError::Waited(cause)))
            }
            // The request was admitted at this very moment, so its grant is there.
            None => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl Drop for QueuedPermit {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        self.grant.close();
        if let Ok(route) = self.grant.try_recv() {
            drop(Permit::new(request, route, true));
        } else {
            request.table().give_up(request.partition, request.position());
        }
    }
}

/// A request in flight. The partition's drain waits until this is dropped.
#[derive(Debug)]
pub struct Permit {
    request: Option<ArrivingRequest>,
    /// The pod, epoch and abort generation under which it was admitted.
    route: GateRoute,
    /// Whether its queue waits for its outcome, which is not definite yet.
    is_tried: bool,
    /// Whether it has given its place in the flush away.
    gave_way: Cell<bool>,
    /// Its place among the exchanges that last, once it has asked for its token.
    lasting: Cell<Option<LastingId>>,
    is_stream: Cell<bool>,
}

/// A pod refuses a request for good, while it accepts others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the pod refuses this request and takes others")]
pub struct RefusedForGood;

impl Permit {
    #[inline]
    fn new(request: ArrivingRequest, route: GateRoute, is_tried: bool) -> Self {
        Permit {
            request: Some(request),
            route,
            is_tried,
            gave_way: Cell::new(false),
            lasting: Cell::new(None),
            is_stream: Cell::new(false),
        }
    }

    fn request(&self) -> &ArrivingRequest {
        // Taken only by `back`, which consumes the permit.
        self.request.as_ref().expect("a permit that was not put back")
    }

    /// Returns the request's partition.
    pub fn partition(&self) -> PartitionId {
        self.request().partition
    }

    /// Returns the epoch to stamp the request with.
    pub fn epoch(&self) -> Epoch {
        self.route.epoch
    }

    /// Returns the pod to send the request to.
    pub fn pod(&self) -> &Arc<Pod> {
        self.request().table().pod(self.route.slot)
    }

    /// Returns what this worker has seen of that pod.
    #[inline]
    pub(crate) fn traffic(&self) -> &WorkerTraffic {
        self.pod().traffic.of(self.request().worker.inner.index)
    }

    /// Records that the outcome is definite: the head of the pod's response has arrived, or the request has failed for
    /// good. The next request of its key may start.
    pub fn delivered(&mut self) {
        if std::mem::take(&mut self.is_tried) {
            let request = self.request();
            request.table().done(request.partition, request.position(), true);
        }
    }

    /// Returns whether the request was held before it was admitted.
    pub fn was_held(&self) -> bool {
        self.request().held_until.is_some()
    }

    /// Returns whether the request takes up one of the places of a flush.
    pub fn holds_place(&self) -> bool {
        self.is_tried && !self.gave_way.get()
    }

    /// Gives the place in the flush to another key's request, because this one waits for its client, or for its pod for
    /// long. The request's own key goes on waiting for its outcome.
    pub fn give_way(&self) {
        if self.holds_place() {
            self.gave_way.set(true);
            let request = self.request();
            request.table().give_way(request.partition, request.position());
        }
    }

    /// Records that the request is being sent, so that later ones of its key can no longer overtake it.
    pub fn sent(&self) {
        let request = self.request();
        if self.is_tried && request.order.is_some() && self.was_held() {
            request.table().sent(request.partition, request.position());
        }
    }

    /// Returns whether the pod that the request goes to has refused it before.
    pub(crate) fn was_refused_here(&self) -> bool {
        let refusals = self.request().seldom.as_ref().and_then(|seldom| seldom.refusals.as_ref());
        refusals.is_some_and(|refusals| refusals.are_of(self.route.slot, self.route.epoch))
    }

    /// Puts a request back into the stash that no pod has acted on. It keeps its deadline. Fails if its pod refuses this
    /// very request for good.
    ///
    /// # Errors
    ///
    /// Fails if this was the last try of a request that the pod refuses for its own sake.
    pub fn put_back(self, bounce: Bounce) -> Result<QueuedPermit, RefusedForGood> {
        let is_given_up = self.route.last_try && bounce.consequences().is_of_request;
        if is_given_up { Err(RefusedForGood) } else { Ok(self.back(Some(bounce))) }
    }

    /// Returns whether the router's lease may still be trusted, or is not needed for this pod. To be asked again before
    /// sending if time has passed since the request was admitted.
    pub fn may_still_go(&self) -> bool {
        let table = self.request().table();
        table.may_pass(self.route.slot, table.nanos(Instant::now()))
    }

    /// As [`put_back`](Self::put_back), because the router's lease may not be trusted.
    pub fn put_back_fenced(self) -> QueuedPermit {
        self.back(None)
    }

    fn back(mut self, bounce: Option<Bounce>) -> QueuedPermit {
        let mut request = self.request.take().expect("a permit that was not put back");
        self.unlist(&request);
        let max_wait = request.table().max_wait();
        request.held_until.get_or_insert_with(|| Instant::now() + max_wait);
        let requeue = Requeue {
            worker: request.worker.inner.index,
            position: request.position(),
            is_tried: self.is_tried,
            bytes: request.bytes,
            refusals: request.seldom.as_mut().and_then(|seldom| seldom.refusals.take()),
        };
        let (grant, refusals) = request.table().put_back(request.partition, requeue, self.route, bounce);
        if refusals.is_some() {
            request.seldom.get_or_insert_default().refusals = refusals;
        }
        QueuedPermit::new(request, grant)
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        let Some(request) = &self.request else { return };
        self.unlist(request);
        if self.is_tried {
            request.table().done(request.partition, request.position(), false);
        }
        request.table().leave(request.worker.inner.index, request.partition);
    }
}
