//! What the request path needs of a partition, one operation each; [`Worker`](crate::ticket::Worker) gives it a face.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use segue_coordination::protocol::router::HoldCause;
use tokio_util::sync::CancellationToken;

use super::closed::{Closed, Waiter};
use super::{Refusal, Table, Way};
use crate::gate::{Position, Severs};
use crate::stash::Place;
use crate::sync::oneshot;

/// What becomes of a request that did not pass at once.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It is inside now: the gate has opened meanwhile.
    Now(Way),
    /// It waits for this.
    Later(oneshot::Receiver<Way>),
}

impl Table {
    /// Tries to pass the open gate. On success the caller is inside, and where the gate leads is returned.
    #[inline]
    pub(crate) fn try_pass(&self, worker: usize, partition: u32, now: u64) -> Option<Way> {
        let cell = self.cell(partition);
        let inside = self.inside(worker, partition);
        if let Some(severs) = cell.gate.enter(inside) {
            let way = cell.way(severs);
            if self.may_pass(way.slot, now) {
                return Some(way);
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

    /// Whether the router's lease may be trusted at `now`, or need not be towards that pod.
    #[inline]
    pub(crate) fn may_pass(&self, slot: u32, now: u64) -> bool {
        now < self.trusted_until.load(Relaxed) || self.pod(slot).serves_without_lease
    }

    /// Counts the caller out.
    #[inline]
    pub(crate) fn leave(&self, worker: usize, partition: u32) {
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
        partition: u32,
        place: Place,
        bytes: usize,
        now: u64,
    ) -> Result<Turn, Refusal> {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        if cell.gate.position() == Position::Open && self.may_pass(cell.slot.load(Relaxed), now) {
            cell.gate.admit(self.inside(worker, partition));
            return Ok(Turn::Now(cell.way(cell.gate.severs())));
        }
        if self.shutting_down.load(Relaxed) {
            return Err(Refusal::Shutdown);
        }
        if cell.gate.position() == Position::Open {
            self.close(partition, cell, &mut guard, HoldCause::Fenced);
        }
        let closed = guard.get_or_insert_with(|| Box::new(Closed::new(HoldCause::NoOwner)));
        let limits = &self.limits;
        if closed.stash.waiting() >= limits.max_requests || closed.stash.bytes() + bytes > limits.max_bytes {
            return Err(Refusal::Full);
        }
        if self.stashed_bytes.fetch_add(bytes, Relaxed) + bytes > limits.max_total_bytes {
            self.stashed_bytes.fetch_sub(bytes, Relaxed);
            return Err(Refusal::Full);
        }
        let (granted, grant) = oneshot::channel();
        closed.stash.insert(place, bytes, Waiter { worker, granted });
        closed.stashed += 1;
        self.flush(partition, cell, closed);
        Ok(Turn::Later(grant))
    }

    /// A request that waits has come to take up so much more. One that was let in meanwhile no longer counts.
    pub(crate) fn grow(&self, partition: u32, place: Place, bytes: usize) -> Result<(), Refusal> {
        let mut guard = Self::lock(self.cell(partition));
        let Some(closed) = guard.as_mut() else { return Ok(()) };
        let before = closed.stash.bytes();
        if !closed.stash.grow(place, bytes) {
            return Ok(());
        }
        // Counted also where it is refused: it is taken out with all that it weighs.
        let total = self.stashed_bytes.fetch_add(bytes, Relaxed) + bytes;
        let fits = before + bytes <= self.limits.max_bytes && total <= self.limits.max_total_bytes;
        if fits { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Puts a request back that is inside and that no pod has acted on, and holds the partition: other requests
    /// would be refused as well, or overtake this one. `is_tried`: it had waited before it was let in. `cause`: why it
    /// cannot go on, if not because its pod refused.
    pub(crate) fn put_back(
        &self,
        worker: usize,
        partition: u32,
        place: Place,
        is_tried: bool,
        bytes: usize,
        cause: Option<HoldCause>,
    ) -> oneshot::Receiver<Way> {
        let cell = self.cell(partition);
        let (granted, grant) = oneshot::channel();
        let mut guard = Self::lock(cell);
        let was_passing = matches!(cell.gate.position(), Position::Open | Position::Flushing);
        self.close(partition, cell, &mut guard, cause.unwrap_or(HoldCause::NoOwner));
        let closed = guard.get_or_insert_with(|| Box::new(Closed::new(HoldCause::NoOwner)));
        if was_passing && cause.is_none() {
            closed.back_off();
        }
        // Once nobody waits any more, the sender is dropped, which refuses it.
        if !self.shutting_down.load(Relaxed) {
            // Limits do not apply: it was let in before.
            self.stashed_bytes.fetch_add(bytes, Relaxed);
            closed.stash.insert(place, bytes, Waiter { worker, granted });
        }
        if is_tried {
            // Not earlier: ending the try first could let the next of the line start.
            closed.stash.done(place);
        }
        drop(guard);
        self.leave(worker, partition);
        self.notify(partition);
        grant
    }

    /// The outcome of a request that had waited is definite.
    pub(crate) fn done(&self, partition: u32, place: Place) {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        if let Some(closed) = guard.as_mut() {
            closed.stash.done(place);
            if closed.is_refused() {
                closed.forgive();
                closed.stash.limit_flush(self.limits.flush_concurrency);
            }
            self.flush(partition, cell, closed);
        }
        Self::forget(cell, &mut guard);
    }

    /// Takes a request out that waits no longer; why it was held. `None`: it has been let in.
    pub(crate) fn give_up(&self, partition: u32, place: Place) -> Option<HoldCause> {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        let closed = guard.as_mut()?;
        let before = closed.stash.bytes();
        closed.stash.remove(place)?;
        self.stashed_bytes.fetch_sub(before - closed.stash.bytes(), Relaxed);
        let cause = closed.cause;
        self.flush(partition, cell, closed);
        Some(cause)
    }

    pub(crate) fn max_requests(&self) -> usize {
        self.limits.max_requests
    }

    pub(crate) fn max_wait(&self) -> Duration {
        self.limits.max_wait
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Relaxed)
    }

    /// Cancelled when the partition's exchanges are severed, or since `began` were.
    pub(crate) fn sever_token(&self, worker: usize, partition: u32, began: Severs) -> CancellationToken {
        let mut tokens = self.severing[worker].lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever severed counted it before it took the tokens, under this lock.
        if self.cell(partition).gate.severs() != began {
            let token = CancellationToken::new();
            token.cancel();
            return token;
        }
        tokens.entry(partition).or_default().clone()
    }
}
