//! The operations of a request at a partition's gate. [`TableHandle`](crate::routing::permit::TableHandle) is
//! the interface to it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use segue_coordination::session::boottime;
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;
use tokio::time::Instant;

use super::bounce::Bounce;
use super::hold::{ClosedGate, Waiter};
use super::limits::AdmissionError;
use super::refusals::OwnerRefusals;
use super::route::GateRoute;
use super::state::{Table, whole_nanos};
use crate::routing::gate::GateState;
use crate::routing::stash::QueuePosition;
use crate::routing::sync::oneshot;

/// The outcome for a request that did not pass the gate at once.
#[derive(Debug)]
pub(crate) enum WaitOutcome {
    /// It is inside now: the gate has opened meanwhile.
    Now(GateRoute),
    /// It is inside now, and its queue waits for its outcome: the gate is not open yet, but nobody is before it.
    First(GateRoute),
    /// It waits for this.
    Later(oneshot::Receiver<GateRoute>),
}

/// A request that is inside and that no pod has acted on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requeue {
    pub(crate) worker: usize,
    pub(crate) position: QueuePosition,
    /// Its queue waits for its outcome.
    pub(crate) is_tried: bool,
    pub(crate) bytes: usize,
    pub(crate) refusals: Option<OwnerRefusals>,
}

impl Table {
    /// Tries to pass the open gate. On success the caller is inside, and where the gate leads is returned.
    #[inline]
    pub(crate) fn try_pass(&self, worker: usize, partition: PartitionId, now: u64) -> Option<GateRoute> {
        let cell = self.cell(partition);
        let inside = self.inside(worker, partition);
        if let Some(severs) = cell.gate.enter(inside) {
            let route = cell.route(severs);
            if self.may_pass(route.slot, now) {
                return Some(route);
            }
            self.leave(worker, partition);
            // The control side sees the same clock; this closes the gap until it has acted.
            self.stop(partition, HoldCause::Fenced);
            self.notify(partition);
            return None;
        }
        self.leave(worker, partition);
        None
    }

    /// Returns whether the router's lease may be trusted at `now`, or need not be towards that pod.
    #[inline]
    pub(crate) fn may_pass(&self, slot: u32, now: u64) -> bool {
        self.pod(slot).serves_without_lease || self.is_trusted(now)
    }

    /// Asks the clock that counts suspended time as well: the first request after a suspension must see it.
    #[inline]
    fn is_trusted(&self, now: u64) -> bool {
        now < self.trusted_until.load(Relaxed) && whole_nanos(boottime()) < self.trusted_until_boottime.load(Relaxed)
    }

    /// Counts the caller out.
    #[inline]
    pub(crate) fn leave(&self, worker: usize, partition: PartitionId) {
        let cell = self.cell(partition);
        if cell.gate.leave(self.inside(worker, partition)) && self.in_flight(partition) == 0 {
            let mut closed = Self::lock(cell);
            if let Some(closed) = closed.as_mut() {
                self.settle(partition, cell, closed);
            }
        }
    }

    /// Waits before the gate, unless it has opened meanwhile.
    pub(crate) fn wait(
        &self,
        worker: usize,
        partition: PartitionId,
        position: QueuePosition,
        bytes: usize,
        now: u64,
    ) -> Result<WaitOutcome, AdmissionError> {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        if cell.gate.position() == GateState::Open && self.may_pass(cell.slot.load(Relaxed), now) {
            cell.gate.admit(self.inside(worker, partition));
            return Ok(WaitOutcome::Now(cell.route(cell.gate.severs())));
        }
        if self.shutting_down.load(Relaxed) {
            return Err(AdmissionError::Shutdown);
        }
        if cell.gate.position() == GateState::Open {
            self.close(partition, cell, &mut guard, HoldCause::Fenced);
        }
        let closed = guard.get_or_insert_with(|| Box::new(ClosedGate::new(HoldCause::NoOwner)));
        let gate = cell.gate.position();
        if gate == GateState::Flushing
            && !self.has_early()
            && self.may_pass(cell.slot.load(Relaxed), now)
            && closed.state.start_at_once(gate, position)
        {
            cell.gate.admit(self.inside(worker, partition));
            let route = cell.route(cell.gate.severs());
            // Its start may have relaxed the order of queues, whose requests were there before the next newcomer.
            self.flush(partition, cell, closed);
            return Ok(WaitOutcome::First(route));
        }
        let limits = &self.limits;
        if closed.state.stash().waiting() >= limits.max_requests()
            || closed.state.stash().bytes() + bytes > limits.max_bytes()
        {
            return Err(AdmissionError::Full);
        }
        if self.stashed_bytes.fetch_add(bytes, Relaxed) + bytes > limits.max_total_bytes() {
            self.stashed_bytes.fetch_sub(bytes, Relaxed);
            return Err(AdmissionError::Full);
        }
        let (granted, grant) = oneshot::channel();
        closed.state.wait(position, bytes, Waiter { worker, refusals: None, granted });
        closed.stashed += 1;
        self.flush(partition, cell, closed);
        Ok(WaitOutcome::Later(grant))
    }

    /// Adds to the memory of a waiting request. A request that was admitted meanwhile no longer counts.
    pub(crate) fn grow(
        &self,
        partition: PartitionId,
        position: QueuePosition,
        bytes: usize,
    ) -> Result<(), AdmissionError> {
        let mut guard = Self::lock(self.cell(partition));
        let Some(closed) = guard.as_mut() else { return Ok(()) };
        let before = closed.state.stash().bytes();
        if !closed.state.grow(position, bytes) {
            return Ok(());
        }
        // Counted also where it is refused: it is taken out with all that it weighs.
        let total = self.stashed_bytes.fetch_add(bytes, Relaxed) + bytes;
        let fits = before + bytes <= self.limits.max_bytes() && total <= self.limits.max_total_bytes();
        if fits { Ok(()) } else { Err(AdmissionError::Full) }
    }

    /// Puts back a request in flight that no pod has acted on, and holds the partition: other requests would be refused
    /// as well, or overtake this one. `bounce` is the cause, or `None` if the router's lease is not to be trusted.
    /// Returns the request's grant and its refusals so far.
    pub(crate) fn put_back(
        &self,
        partition: PartitionId,
        request: Requeue,
        route: GateRoute,
        bounce: Option<Bounce>,
    ) -> (oneshot::Receiver<GateRoute>, Option<OwnerRefusals>) {
        let Requeue { worker, position, is_tried, bytes, mut refusals } = request;
        let cause = bounce.map_or(Some(HoldCause::Fenced), |_| None);
        let cell = self.cell(partition);
        let (granted, grant) = oneshot::channel();
        let mut guard = Self::lock(cell);
        let was_passing = matches!(cell.gate.position(), GateState::Open | GateState::Flushing);
        self.close(partition, cell, &mut guard, cause.unwrap_or(HoldCause::NoOwner));
        let closed = guard.get_or_insert_with(|| Box::new(ClosedGate::new(HoldCause::NoOwner)));
        if let Some(bounce) = bounce {
            refusals = OwnerRefusals::after(refusals, route, bounce, closed.taken, Instant::now());
            if was_passing {
                closed.back_off();
            }
        }
        let rank = refusals.map_or(0, |refusals| refusals.rank());
        // Once no request may wait any more, the sender is dropped, which refuses it.
        let waiter = (!self.shutting_down.load(Relaxed)).then_some(Waiter { worker, refusals, granted });
        if waiter.is_some() {
            // Limits do not apply: the request was admitted before.
            self.stashed_bytes.fetch_add(bytes, Relaxed);
        }
        closed.state.put_back(position, rank, bytes, waiter, is_tried);
        drop(guard);
        self.leave(worker, partition);
        self.notify(partition);
        (grant, refusals)
    }

    /// Records that the outcome of a held request is definite. `taken` states that its pod has acted on it.
    pub(crate) fn done(&self, partition: PartitionId, position: QueuePosition, taken: bool) {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        if let Some(closed) = guard.as_mut() {
            closed.state.finish(position);
            if taken {
                closed.took(self.limits.flush_concurrency());
            }
            self.flush(partition, cell, closed);
        }
        Self::forget(cell, &mut guard);
    }

    /// Records that a held request with a key has been sent. Requests of the same key that need not wait for its
    /// outcome may follow.
    pub(crate) fn sent(&self, partition: PartitionId, position: QueuePosition) {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        if let Some(closed) = guard.as_mut()
            && closed.state.sent(position)
        {
            self.flush(partition, cell, closed);
        }
        Self::forget(cell, &mut guard);
    }

    /// Gives the place of a request in the flush to another one, because it waits again: for its client or its pod.
    #[cold]
    pub(crate) fn give_way(&self, partition: PartitionId, position: QueuePosition) {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        if let Some(closed) = guard.as_mut()
            && closed.state.give_way(position)
        {
            closed.was_not_refused_at_once(self.limits.flush_concurrency());
            self.flush(partition, cell, closed);
        }
    }

    /// Returns why nobody is served if no view names another cause. A view that may be out of date shows nothing.
    pub(crate) fn default_cause(&self) -> HoldCause {
        if self.is_trusted(self.nanos(Instant::now())) { HoldCause::NoOwner } else { HoldCause::Fenced }
    }

    /// Takes out a request that no longer waits. Returns why it was held, or `None` if it has been admitted. While the
    /// router's lease is not to be trusted that is the cause, whatever the last view showed.
    pub(crate) fn give_up(&self, partition: PartitionId, position: QueuePosition) -> Option<HoldCause> {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        let closed = guard.as_mut()?;
        let before = closed.state.stash().bytes();
        closed.state.give_up(position)?;
        self.stashed_bytes.fetch_sub(before - closed.state.stash().bytes(), Relaxed);
        let cause = closed.cause;
        self.flush(partition, cell, closed);
        Some(if self.default_cause() == HoldCause::Fenced { HoldCause::Fenced } else { cause })
    }

    pub(crate) fn max_requests(&self) -> usize {
        self.limits.max_requests()
    }

    pub(crate) fn max_wait(&self) -> Duration {
        self.limits.max_wait()
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Relaxed)
    }
}
