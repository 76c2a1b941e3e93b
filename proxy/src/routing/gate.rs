//! The gate of a partition: open or closed, and how many are inside.
//!
//! A mechanism: no I/O, no protocol. To enter costs one atomic read-modify-write on a counter of the worker's own and one
//! read of a word that all workers share and that changes only in a cutover; to leave costs the same. So workers
//! that hit the same partition do not slow each other down.
//!
//! What must stay true: *an enterer that saw the gate open is in the sum that a later closer takes, and whoever leaves
//! last after a close sees that it is draining*. Both sides write their own word and then read the other's, in one total
//! order (sequential consistency), so at least one of the two sees the other. The word is changed only by the
//! holder of the partition's lock ([`table`](crate::routing::table)).

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::routing::sync::AtomicU32;

/// What the gate lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum GateState {
    /// Closed and empty.
    #[default]
    Held = 0,
    /// Everyone may enter.
    Open = 1,
    /// Closed; some are still inside.
    Draining = 2,
    /// Closed to newcomers; those who waited are let in one by one.
    Flushing = 3,
}

/// The moves of a gate, as plain functions: the table asks them under the partition's lock, the model of the protocol asks
/// the same ones. `None`: it stays where it is.
impl GateState {
    /// Newcomers are to wait.
    pub fn stopped(self) -> Option<Self> {
        matches!(self, GateState::Open | GateState::Flushing).then_some(GateState::Draining)
    }

    /// So many are inside now.
    pub fn settled(self, inside: u32) -> Option<Self> {
        (self == GateState::Draining && inside == 0).then_some(GateState::Held)
    }

    /// It is to lead somewhere, those who wait going first. Who is inside may only stay if it `leads_there` already.
    pub fn switched(self, leads_there: bool) -> Option<Self> {
        let may = self == GateState::Held || (self == GateState::Draining && leads_there);
        may.then_some(GateState::Flushing)
    }

    /// `is_flushed`: newcomers would overtake nobody.
    pub fn flushed(self, is_flushed: bool) -> Option<Self> {
        (self == GateState::Flushing && is_flushed).then_some(GateState::Open)
    }
}

/// The bits of the word that hold the position. Those above count how often the exchanges were severed.
const POSITION: u32 = 0b11;
const SEVERED_ONCE: u32 = POSITION + 1;

/// The shared word. Starts closed and empty.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    word: AtomicU32,
}

/// How often the exchanges of a partition had been severed. An exchange that began at another count is one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AbortGeneration(u32);

/// How many entered through one worker and have not left.
#[derive(Debug, Default)]
pub(crate) struct Inside(AtomicU32);

impl Gate {
    /// Counts the caller in; `Some` if the gate was open. If not, the caller must [`leave`](Self::leave) again.
    #[inline]
    #[must_use]
    pub(crate) fn enter(&self, inside: &Inside) -> Option<AbortGeneration> {
        inside.0.fetch_add(1, SeqCst);
        let word = self.word.load(SeqCst);
        (word & POSITION == GateState::Open as u32).then_some(AbortGeneration(word / SEVERED_ONCE))
    }

    /// Counts the caller out; whether the gate is draining, so that the caller has to look if it was the last.
    #[inline]
    #[must_use]
    pub(crate) fn leave(&self, inside: &Inside) -> bool {
        inside.0.fetch_sub(1, SeqCst);
        self.word.load(SeqCst) & POSITION == GateState::Draining as u32
    }

    /// Counts someone in whom the holder of the lock admits, whatever the position.
    pub(crate) fn admit(&self, inside: &Inside) {
        inside.0.fetch_add(1, Relaxed);
    }

    /// Changes the position. Only under the partition's lock.
    pub(crate) fn set(&self, position: GateState) {
        let severs = self.word.load(Relaxed) & !POSITION;
        self.word.store(severs | position as u32, SeqCst);
    }

    /// The position. Only under the partition's lock, which orders what it reads.
    pub(crate) fn position(&self) -> GateState {
        match self.word.load(Relaxed) & POSITION {
            1 => GateState::Open,
            2 => GateState::Draining,
            3 => GateState::Flushing,
            _ => GateState::Held,
        }
    }

    /// Counts one severing more. Only under the partition's lock.
    pub(crate) fn sever(&self) {
        let word = self.word.load(Relaxed);
        self.word.store(word.wrapping_add(SEVERED_ONCE), SeqCst);
    }

    /// How often it was severed.
    pub(crate) fn severs(&self) -> AbortGeneration {
        AbortGeneration(self.word.load(Relaxed) / SEVERED_ONCE)
    }
}

impl Inside {
    /// How many are inside through this worker.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(SeqCst)
    }
}
