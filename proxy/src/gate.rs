//! The gate of a partition: open or closed, and how many are inside.
//!
//! A mechanism: no I/O, no protocol. To enter costs one atomic read-modify-write on a counter of the worker's own and one
//! read of a word that all workers share and that changes only in a cutover; to leave costs the same. So workers
//! that hit the same partition do not slow each other down.
//!
//! What must stay true: *an enterer that saw the gate open is in the sum that a later closer takes, and whoever leaves
//! last after a close sees that it is draining*. Both sides write their own word and then read the other's, in one total
//! order (sequential consistency), so at least one of the two sees the other. The word is changed only by the
//! holder of the partition's lock ([`table`](crate::table)).

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// What the gate lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Position {
    /// Closed and empty.
    Held = 0,
    /// Everyone may enter.
    Open = 1,
    /// Closed; some are still inside.
    Draining = 2,
    /// Closed to newcomers; those who waited are let in one by one.
    Flushing = 3,
}

/// The shared word. Starts closed and empty.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    word: AtomicU32,
}

/// How many entered through one worker and have not left.
#[derive(Debug, Default)]
pub(crate) struct Inside(AtomicU32);

impl Gate {
    /// Counts the caller in; whether the gate was open. If not, the caller must [`leave`](Self::leave) again.
    #[inline]
    #[must_use]
    pub(crate) fn enter(&self, inside: &Inside) -> bool {
        inside.0.fetch_add(1, SeqCst);
        self.word.load(SeqCst) == Position::Open as u32
    }

    /// Counts the caller out; whether the gate is draining, so that the caller has to look if it was the last.
    #[inline]
    #[must_use]
    pub(crate) fn leave(&self, inside: &Inside) -> bool {
        inside.0.fetch_sub(1, SeqCst);
        self.word.load(SeqCst) == Position::Draining as u32
    }

    /// Counts someone in whom the holder of the lock admits, whatever the position.
    pub(crate) fn admit(&self, inside: &Inside) {
        inside.0.fetch_add(1, SeqCst);
    }

    /// Changes the position. Only under the partition's lock.
    pub(crate) fn set(&self, position: Position) {
        self.word.store(position as u32, SeqCst);
    }

    /// The position; stable only under the partition's lock.
    pub(crate) fn position(&self) -> Position {
        match self.word.load(SeqCst) {
            1 => Position::Open,
            2 => Position::Draining,
            3 => Position::Flushing,
            _ => Position::Held,
        }
    }
}

impl Inside {
    /// How many are inside through this worker.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(SeqCst)
    }
}
