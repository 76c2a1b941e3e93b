//! The gate of a partition: whether it is open, and how many requests are inside.
//!
//! A mechanism: no I/O, no protocol. Entering costs one atomic read-modify-write on a counter of the worker's own, and
//! one read of a word that all workers share and that changes only in a cutover. Leaving costs the same. So workers
//! that use the same partition do not slow each other down.
//!
//! # Invariants
//!
//! * A request that saw the gate open is in the sum that a later closer takes.
//! * The last request to leave after a close sees that the gate is draining.
//! * The shared word is changed only by the holder of the partition's lock ([`table`](crate::routing::table)).
//!
//! For the first two, either side writes its own word and then reads the other's, in one total order (sequential
//! consistency), so at least one of them sees the other.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::routing::sync::{AtomicU32, AtomicU64};

/// The state of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum GateState {
    /// Closed and empty.
    #[default]
    Closed = 0,
    /// All requests may enter.
    Open = 1,
    /// Closed, with requests still inside.
    Draining = 2,
    /// Closed to newcomers, while the requests that waited are admitted one by one.
    Flushing = 3,
}

/// The transitions of a gate, as plain functions: the table calls them under the partition's lock, and the model of the
/// protocol calls the same ones. `None` means that the state stays.
impl GateState {
    /// Returns the state that makes newcomers wait.
    pub fn stopped(self) -> Option<Self> {
        matches!(self, GateState::Open | GateState::Flushing).then_some(GateState::Draining)
    }

    /// Returns the state once `inside` requests are left inside.
    pub fn settled(self, inside: u32) -> Option<Self> {
        (self == GateState::Draining && inside == 0).then_some(GateState::Closed)
    }

    /// Returns the state in which the gate leads somewhere and the waiting requests go first. Requests may be inside
    /// only if the gate `leads_there` already.
    pub fn switched(self, leads_there: bool) -> Option<Self> {
        let may = self == GateState::Closed || (self == GateState::Draining && leads_there);
        may.then_some(GateState::Flushing)
    }

    /// Returns the state once the flush is over. `is_flushed`: newcomers would overtake no request.
    pub fn flushed(self, is_flushed: bool) -> Option<Self> {
        (self == GateState::Flushing && is_flushed).then_some(GateState::Open)
    }
}

/// The bits of the word that hold the state. The bits above count how often the exchanges were severed.
const STATE_MASK: u32 = 0b11;
const SEVERED_ONCE: u32 = STATE_MASK + 1;

/// The word that all workers share. Starts closed and empty.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    word: AtomicU32,
}

/// How often the exchanges of a partition have been severed. An exchange that began at another count has
/// been severed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AbortGeneration(u32);

/// The number of requests that entered through one worker and have not left, in the lower half; in the upper half that of
/// all that have ever tried to enter, which begins anew after 2^32. Both in one word, so that counting arrivals costs
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct Inside(AtomicU64);

/// One arrival.
const ARRIVAL: u64 = 1 << 32;

impl Gate {
    /// Counts the caller in. Returns `None` if the gate was not open: then the caller must [`leave`](Self::leave)
    /// again.
    #[inline]
    #[must_use]
    pub(crate) fn enter(&self, inside: &Inside) -> Option<AbortGeneration> {
        inside.0.fetch_add(ARRIVAL + 1, SeqCst);
        let word = self.word.load(SeqCst);
        (word & STATE_MASK == GateState::Open as u32).then_some(AbortGeneration(word / SEVERED_ONCE))
    }

    /// Counts the caller out. Returns whether the gate is draining, so that the caller has to check whether it was the
    /// last.
    #[inline]
    #[must_use]
    pub(crate) fn leave(&self, inside: &Inside) -> bool {
        inside.0.fetch_sub(1, SeqCst);
        self.word.load(SeqCst) & STATE_MASK == GateState::Draining as u32
    }

    /// Counts a request in that the holder of the lock admits in any state.
    pub(crate) fn admit(&self, inside: &Inside) {
        inside.0.fetch_add(1, Relaxed);
    }

    /// Changes the state. Only under the partition's lock.
    pub(crate) fn set(&self, position: GateState) {
        let severs = self.word.load(Relaxed) & !STATE_MASK;
        self.word.store(severs | position as u32, SeqCst);
    }

    /// Returns the state. Only under the partition's lock, which orders the read.
    pub(crate) fn position(&self) -> GateState {
        match self.word.load(Relaxed) & STATE_MASK {
            1 => GateState::Open,
            2 => GateState::Draining,
            3 => GateState::Flushing,
            _ => GateState::Closed,
        }
    }

    /// Counts one more severing. Only under the partition's lock.
    pub(crate) fn sever(&self) {
        let word = self.word.load(Relaxed);
        self.word.store(word.wrapping_add(SEVERED_ONCE), SeqCst);
    }

    /// Returns how often the exchanges were severed.
    pub(crate) fn severs(&self) -> AbortGeneration {
        AbortGeneration(self.word.load(Relaxed) / SEVERED_ONCE)
    }
}

impl Inside {
    /// Returns the number of requests inside through this worker.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(SeqCst) as u32
    }

    /// Returns the number of requests that have tried to enter through this worker.
    pub(crate) fn arrivals(&self) -> u32 {
        (self.0.load(Relaxed) / ARRIVAL) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_that_comes_is_an_arrival_once_whether_it_gets_in_or_not() {
        let (gate, inside) = (Gate::default(), Inside::default());
        let counts = || (inside.count(), inside.arrivals());
        assert!(gate.enter(&inside).is_none(), "closed");
        assert!(!gate.leave(&inside));
        assert_eq!(counts(), (0, 1));
        // The one that waited.
        gate.admit(&inside);
        gate.set(GateState::Open);
        assert!(gate.enter(&inside).is_some());
        assert_eq!(counts(), (2, 2));
        assert!(!gate.leave(&inside) && !gate.leave(&inside));
        assert_eq!(counts(), (0, 2));
    }
}
