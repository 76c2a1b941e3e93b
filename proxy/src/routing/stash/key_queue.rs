//! The queue of one key: where a request stands in it, and what it means for the end of a flush.
//!
//! Not here: how the queues of a partition take turns ([`stash`](super)).

use std::collections::VecDeque;

/// When the router took a request. Requests of one key leave in this order, however often they come back.
///
/// On one worker it grows with each request. Between workers it is the machine's monotonic clock: a request that
/// arrived before another one is the earlier one, and two that arrive at the same moment may stand in either order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival {
    /// The time by the clock, moved on where two requests of one worker would have the same.
    pub at: u64,
    /// The worker that took the request.
    pub worker: u32,
}

/// A line of requests that must not overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum LineId {
    /// All requests with this hash of their ordering key.
    Key(u64),
    /// One request without a key.
    Alone(Arrival),
}

/// A request's place in its line. It stays the same from arrival to end, whether the request waits, is tried or has
/// passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePosition {
    pub(super) line: LineId,
    pub(super) arrival: Arrival,
}

impl QueuePosition {
    /// Returns the place of a request with this ordering key, if any. No two requests have the same arrival.
    pub fn new(order: Option<u64>, arrival: Arrival) -> Self {
        QueuePosition { line: order.map_or(LineId::Alone(arrival), LineId::Key), arrival }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Entry<W> {
    pub(super) arrival: Arrival,
    pub(super) rank: u32,
    pub(super) bytes: usize,
    pub(super) waiter: W,
}

impl<W> Entry<W> {
    pub(super) fn turn(&self) -> Turn {
        (self.rank, self.arrival)
    }
}

/// The order in which first requests of lines start: the lower rank, then the earlier arrival.
pub(super) type Turn = (u32, Arrival);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct KeyQueue<W> {
    /// Requests that have started and have no definite outcome.
    pub(super) trying: usize,
    /// How many of those have given their place away.
    pub(super) slow: usize,
    /// How many more requests of the line leave one at a time, even if the flush has released others: those that were
    /// there when it began, and as many again.
    pub(super) owed: usize,
    pub(super) standing: Standing,
    pub(super) queue: VecDeque<Entry<W>>,
}

/// What a line means for the end of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    /// Nothing: it came later, or its requests that were there when the flush began are done.
    Free,
    /// A request that was there when the flush began has still to be tried or, if it has a key, to get its outcome.
    Due,
    /// As [`Due`](Self::Due), but a request of the line has given its place away, and the others wait for that one.
    Slow,
}

impl<W> KeyQueue<W> {
    pub(super) fn new() -> Self {
        // Most keys have one request waiting.
        KeyQueue { trying: 0, slow: 0, owed: 0, standing: Standing::Free, queue: VecDeque::with_capacity(1) }
    }

    pub(super) fn stands(&self, id: LineId) -> Standing {
        match id {
            _ if self.owed == 0 => Standing::Free,
            // No request waits for the outcome of one without a key.
            LineId::Alone(_) if self.queue.is_empty() => Standing::Free,
            LineId::Alone(_) => Standing::Due,
            LineId::Key(_) if self.slow > 0 => Standing::Slow,
            LineId::Key(_) => Standing::Due,
        }
    }
}
