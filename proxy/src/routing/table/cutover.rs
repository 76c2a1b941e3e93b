//! What the control side does to a partition: stop, switch, flush, sever.
//!
//! Not here: when it does so (`segue_coordination::router`), and what requests do ([`admission`](super::admission)).
//!
//! # Invariants
//!
//! * Where a partition leads changes only while its gate is closed and empty.
//! * A gate opens only when nobody waits and no request that had to wait can be overtaken by one of its key.

use std::sync::atomic::Ordering::Relaxed;

use segue_coordination::router::{CutoverTimes, DrainEnd};
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::{Epoch, PartitionId};
use tokio::time::Instant;

use super::hold::ClosedGate;
use super::state::{Cell, Table};
use crate::routing::gate::GateState;

impl Table {
    /// Closes the gate: from here on, requests wait.
    pub fn stop(&self, partition: PartitionId, cause: HoldCause) {
        let cell = self.cell(partition);
        let mut closed = Self::lock(cell);
        self.close(partition, cell, &mut closed, cause);
    }

    /// Names the cause of the hold, for the responses to requests that wait too long.
    pub(crate) fn name_cause(&self, partition: PartitionId, cause: HoldCause) {
        if let Some(closed) = Self::lock(self.cell(partition)).as_mut() {
            closed.cause = cause;
        }
    }

    /// Sets when the drain ends what is in flight.
    pub(crate) fn drain_ends(&self, partition: PartitionId, end: DrainEnd) {
        if let Some(closed) = Self::lock(self.cell(partition)).as_mut() {
            closed.drain_end = Some(end);
        }
    }

    /// Returns when the partition's drain ends what is in flight. `None` if it does not drain.
    pub fn drain_end(&self, partition: PartitionId) -> Option<DrainEnd> {
        let cell = self.cell(partition);
        let closed = Self::lock(cell);
        closed.as_ref().filter(|_| cell.gate.position() == GateState::Draining)?.drain_end
    }

    /// Forgets that the pod refused: it may be tried at once.
    pub(crate) fn retry_now(&self, partition: PartitionId) {
        if let Some(closed) = Self::lock(self.cell(partition)).as_mut() {
            closed.retry_at = None;
        }
    }

    pub(super) fn close(
        &self,
        partition: PartitionId,
        cell: &Cell,
        closed: &mut Option<Box<ClosedGate>>,
        cause: HoldCause,
    ) {
        let was = cell.gate.position();
        if was.stopped().is_none() {
            return;
        }
        let closed = closed.get_or_insert_with(|| Box::new(ClosedGate::new(cause)));
        closed.cause = cause;
        closed.stops(was == GateState::Open);
        if let Some(stopped) = closed.state.stop(was) {
            cell.gate.set(stopped);
        }
        self.settle(partition, cell, closed);
    }

    /// Moves the gate from draining to closed once nobody is inside.
    pub(super) fn settle(&self, partition: PartitionId, cell: &Cell, closed: &mut ClosedGate) {
        if let Some(settled) = cell.gate.position().settled(self.in_flight(partition)) {
            cell.gate.set(settled);
            closed.drained_at.get_or_insert_with(Instant::now);
            self.notify(partition);
        }
    }

    /// Leads the partition to this pod and epoch, and starts the requests that wait. The gate must be closed, and empty unless
    /// it led there already.
    pub(crate) fn switch(&self, partition: PartitionId, slot: u32, epoch: Epoch) {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        let leads_there = cell.slot.load(Relaxed) == slot && cell.epoch.load(Relaxed) == epoch.get();
        let gate = cell.gate.position();
        if gate.switched(leads_there).is_none() {
            return;
        }
        cell.slot.store(slot, Relaxed);
        cell.epoch.store(epoch.get(), Relaxed);
        let closed = guard.get_or_insert_with(|| Box::new(ClosedGate::new(HoldCause::NoOwner)));
        let now = Instant::now();
        closed.retry_at = None;
        closed.drained_at.get_or_insert(now);
        closed.switched_at.get_or_insert(now);
        if !leads_there {
            closed.forgive();
        }
        if let Some(switched) = closed.state.switch(gate, leads_there, self.limits.flush_concurrency()) {
            closed.try_pod();
            cell.gate.set(switched);
        }
        self.flush(partition, cell, closed);
    }

    /// Starts the requests that may start, and opens the gate once none waits and no early one has still to enter.
    pub(super) fn flush(&self, partition: PartitionId, cell: &Cell, closed: &mut ClosedGate) {
        let gate = cell.gate.position();
        if gate != GateState::Flushing || self.has_early() {
            return;
        }
        let before = closed.state.stash().bytes();
        let mut route = cell.route(cell.gate.severs());
        while let Some((position, waiter)) = closed.state.start_next(gate) {
            let inside = self.inside(waiter.worker, partition);
            cell.gate.admit(inside);
            route.last_try = waiter
                .refusals
                .is_some_and(|refusals| refusals.leave_one_try(route.slot, route.epoch, closed.taken, Instant::now()));
            if waiter.granted.send(route).is_err() {
                // The request has just given up. The gate is not draining, so leaving cannot empty it.
                let _ = cell.gate.leave(inside);
                closed.state.finish(position);
            }
        }
        self.stashed_bytes.fetch_sub(before - closed.state.stash().bytes(), Relaxed);
        if closed.state.stash().is_flushed() {
            closed.forgive();
        }
        let begins_to_flow = closed.begins_to_flow();
        let opens = closed.state.open(gate);
        if let Some(open) = opens {
            cell.gate.set(open);
        }
        if begins_to_flow || opens.is_some() {
            self.notify(partition);
        }
    }

    /// Takes the times of the cutover that ended last.
    pub(crate) fn take_times(&self, partition: PartitionId) -> Option<CutoverTimes> {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        let times = guard.as_mut()?.times.take();
        Self::forget(cell, &mut guard);
        times
    }

    /// Frees what is kept for a closed gate, once it is open and nothing needs it.
    pub(super) fn forget(cell: &Cell, closed: &mut Option<Box<ClosedGate>>) {
        let over = |closed: &ClosedGate| closed.times.is_none() && closed.state.stash().is_idle();
        if cell.gate.position() == GateState::Open && closed.as_deref().is_some_and(over) {
            *closed = None;
        }
    }

    /// Returns whether nothing of the last cutover is kept.
    #[cfg(segue_loom)]
    pub(crate) fn is_forgotten(&self, partition: PartitionId) -> bool {
        Self::lock(self.cell(partition)).is_none()
    }

    /// Ends every exchange of the partition. Returns how many there were.
    pub fn sever(&self, partition: PartitionId) -> u32 {
        let cell = self.cell(partition);
        let guard = Self::lock(cell);
        let severed = self.in_flight(partition);
        // Before the tokens are cancelled: an exchange takes one only after a while, and this tells it that it is too late.
        cell.gate.sever();
        drop(guard);
        self.cancel(partition, |_| true);
        severed
    }

    /// Ends every exchange, with a key or without one.
    pub(crate) fn sever_all(&self) {
        for partition in PartitionId::all(self.partitions()) {
            self.sever(partition);
        }
        self.keyless.cancel();
    }

    /// Refuses all requests that wait, and those that would have to wait from here on.
    pub fn shut_down(&self) {
        self.shutting_down.store(true, Relaxed);
        self.known.cancel();
        for partition in PartitionId::all(self.partitions()) {
            if let Some(closed) = Self::lock(self.cell(partition)).as_mut() {
                self.stashed_bytes.fetch_sub(closed.state.stash().bytes(), Relaxed);
                // A request that waits sees that its sender is gone.
                drop(closed.state.give_up_all());
            }
        }
    }
}
