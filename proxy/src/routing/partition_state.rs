//! One partition in a router, as a pure state machine: what its gate lets through, which requests wait, and what a cutover
//! does to both.
//!
//! No lock, no clock, no I/O. The routing table drives it under the partition's lock and keeps the gate's state in a word of
//! its own, which requests read without the lock; the model of the protocol drives the same type. That is why each step
//! takes the gate's state and returns the new one, or `None` if the state stays.
//! Not here: the pods, limits, times and the number of requests in flight, which are the driver's.
//!
//! # Invariants
//!
//! * A waiting request starts only while the gate is flushing.
//! * The gate opens only once a newcomer would overtake no request.
//! * A request that comes back stands in its queue before the next request of its key may start.

use super::gate::GateState;
use super::stash::{QueuePosition, Stash};

/// The requests that wait for one partition, and the steps of its gate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartitionState<W> {
    stash: Stash<W>,
}

impl<W> Default for PartitionState<W> {
    fn default() -> Self {
        PartitionState { stash: Stash::default() }
    }
}

impl<W> PartitionState<W> {
    /// Returns the requests that wait.
    pub fn stash(&self) -> &Stash<W> {
        &self.stash
    }

    /// Makes a newcomer wait at its position.
    pub fn wait(&mut self, position: QueuePosition, bytes: usize, waiter: W) {
        self.stash.insert(position, bytes, waiter);
    }

    /// Adds to the memory of a waiting request. Returns `false` if the request does not wait.
    pub fn grow(&mut self, position: QueuePosition, bytes: usize) -> bool {
        self.stash.grow(position, bytes)
    }

    /// Takes out a request that no longer waits. Returns `None` if it has been started.
    pub fn give_up(&mut self, position: QueuePosition) -> Option<W> {
        self.stash.remove(position)
    }

    /// Takes out all waiting requests, in order of arrival.
    pub fn give_up_all(&mut self) -> Vec<W> {
        self.stash.take_all()
    }

    /// Gives the place of a started request to one of another key. Returns whether it held a place.
    pub fn give_way(&mut self, position: QueuePosition) -> bool {
        self.stash.give_way(position)
    }

    /// Sets the flush's number of places from here on.
    pub fn limit_flush(&mut self, concurrency: usize) {
        self.stash.limit_flush(concurrency);
    }

    /// Limits the flush to one place, to probe a pod that has refused; see [`Stash::probe`].
    pub fn probe(&mut self, newest: bool) {
        self.stash.probe(newest);
    }

    /// Makes newcomers wait, and lets no waiting request start.
    pub fn stop(&mut self, gate: GateState) -> Option<GateState> {
        let stopped = gate.stopped()?;
        self.stash.end_flush();
        Some(stopped)
    }

    /// Begins the flush towards an owner, `concurrency` requests at a time. Requests may be in flight only if the gate
    /// `leads_there` already.
    pub fn switch(&mut self, gate: GateState, leads_there: bool, concurrency: usize) -> Option<GateState> {
        let switched = gate.switched(leads_there)?;
        if !leads_there {
            self.stash.forget_ranks();
        }
        self.stash.begin_flush(concurrency);
        Some(switched)
    }

    /// Begins a flush anew, as if all that wait had waited when it began.
    pub fn begin_flush_again(&mut self, gate: GateState, concurrency: usize) {
        if gate == GateState::Flushing {
            self.stash.begin_flush(concurrency);
        }
    }

    /// Starts the next waiting request that may start. Its key waits for its [`finish`](Self::finish), or for it to be
    /// [`sent`](Self::sent) if the flush has relaxed the order.
    pub fn start_next(&mut self, gate: GateState) -> Option<(QueuePosition, W)> {
        (gate == GateState::Flushing).then(|| self.stash.start_next()).flatten()
    }

    /// Notes that a started request has been sent. Returns whether newcomers of its key may have waited for that.
    pub fn sent(&mut self, position: QueuePosition) -> bool {
        self.stash.sent(position)
    }

    /// Starts a newcomer that need not wait although the gate is not open yet. Returns whether it did.
    pub fn start_at_once(&mut self, gate: GateState, position: QueuePosition) -> bool {
        gate == GateState::Flushing && self.stash.start_at_once(position)
    }

    /// Ends a flush that is over.
    pub fn open(&mut self, gate: GateState) -> Option<GateState> {
        let open = gate.flushed(self.stash.is_flushed())?;
        self.stash.end_flush();
        Some(open)
    }

    /// Queues a request again that no pod has acted on. `was_started`: its key waits for its outcome. Without a `waiter`
    /// the request is given up instead.
    pub fn put_back(&mut self, position: QueuePosition, rank: u32, bytes: usize, waiter: Option<W>, was_started: bool) {
        if let Some(waiter) = waiter {
            self.stash.insert_ranked(position, rank, bytes, waiter);
        }
        if was_started {
            self.stash.done(position);
        }
    }

    /// Notes that the outcome of a started request is definite: the next of its key may start.
    pub fn finish(&mut self, position: QueuePosition) {
        self.stash.done(position);
    }
}

#[cfg(test)]
mod tests {
    use super::super::stash::Arrival;
    use super::*;

    fn of_key(at: u64) -> QueuePosition {
        QueuePosition::new(Some(7), Arrival { at, worker: 0 })
    }

    /// A partition that is held, with the requests 1 and 2 of one key waiting.
    fn holding_two() -> PartitionState<u64> {
        let mut state = PartitionState::default();
        [1, 2].into_iter().for_each(|at| state.wait(of_key(at), 1, at));
        state
    }

    #[test]
    fn a_request_that_comes_back_goes_before_the_next_of_its_key() {
        let mut state = holding_two();
        let gate = state.switch(GateState::Closed, false, 16).unwrap();
        let (position, first) = state.start_next(gate).unwrap();
        assert_eq!((first, state.start_next(gate)), (1, None), "one of a key at a time");
        state.put_back(position, 0, 1, Some(first), true);
        assert_eq!(state.start_next(gate), Some((of_key(1), 1)));
    }

    #[test]
    fn nothing_starts_once_the_gate_has_been_stopped_in_the_middle_of_a_flush() {
        let mut state = holding_two();
        let gate = state.switch(GateState::Closed, false, 16).unwrap();
        let (position, _) = state.start_next(gate).unwrap();
        let gate = state.stop(gate).unwrap();
        state.finish(position);
        assert_eq!((gate, state.start_next(gate)), (GateState::Draining, None));
        assert_eq!(state.open(gate), None);
    }

    #[test]
    fn the_gate_opens_when_the_last_waiting_request_has_its_outcome() {
        let mut state = holding_two();
        let gate = state.switch(GateState::Closed, false, 16).unwrap();
        for _ in 0..2 {
            let (position, _) = state.start_next(gate).unwrap();
            assert_eq!(state.open(gate), None);
            state.finish(position);
        }
        assert_eq!((state.start_next(gate), state.open(gate)), (None, Some(GateState::Open)));
    }

    #[test]
    fn a_gate_that_still_drains_switches_to_nobody_else() {
        let mut state = holding_two();
        let draining = state.stop(GateState::Open).unwrap();
        assert_eq!(state.switch(draining, false, 16), None);
        assert_eq!(state.switch(draining, true, 16), Some(GateState::Flushing));
    }
}
