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

/// A queue of requests that must not overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum QueueId {
    /// All requests with this hash of their ordering key.
    Key(u64),
    /// One request without a key.
    Alone(Arrival),
}

/// A request's position in its queue. It stays the same from arrival to end, whether the request waits, is in progress
/// or has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePosition {
    pub(super) queue: QueueId,
    pub(super) arrival: Arrival,
}

impl QueuePosition {
    /// Returns the position of a request with this ordering key, if any. No two requests have the same arrival.
    pub fn new(order: Option<u64>, arrival: Arrival) -> Self {
        QueuePosition { queue: order.map_or(QueueId::Alone(arrival), QueueId::Key), arrival }
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
    pub(super) fn start_order(&self) -> StartOrder {
        (self.rank, self.arrival)
    }
}

/// The order in which first requests of queues start: the lower rank, then the earlier arrival.
pub(super) type StartOrder = (u32, Arrival);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct KeyQueue<W> {
    /// Requests that have started and have no definite outcome.
    pub(super) in_progress: usize,
    /// How many of those have given their place away.
    pub(super) slow: usize,
    /// How many of the requests in progress had waited with a key and have not been sent yet.
    pub(super) unsent: usize,
    /// How many waiting requests of a relaxed queue may still start before any of the batch is sent. A batch is the
    /// requests that waited when its first one started. Later requests are the next batch.
    pub(super) batch: usize,
    /// How many more requests of the queue leave one at a time, even if the flush has relaxed the order of others:
    /// those that were there when it began, and as many again.
    pub(super) owed: usize,
    pub(super) claim: FlushClaim,
    pub(super) entries: VecDeque<Entry<W>>,
}

/// A queue's claim on the end of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum FlushClaim {
    /// Nothing: it came later, or its requests that were there when the flush began are done.
    Free,
    /// A request that was there when the flush began has still to be tried or, if it has a key, to get its outcome.
    Due,
    /// As [`Due`](Self::Due), but a request of the queue has given its place away, and the others wait for that one.
    Slow,
}

impl<W> KeyQueue<W> {
    pub(super) fn new() -> Self {
        // Most keys have one request waiting.
        KeyQueue {
            in_progress: 0,
            slow: 0,
            unsent: 0,
            batch: 0,
            owed: 0,
            claim: FlushClaim::Free,
            entries: VecDeque::with_capacity(1),
        }
    }

    pub(super) fn claim_now(&self, id: QueueId) -> FlushClaim {
        match id {
            _ if self.owed == 0 => FlushClaim::Free,
            // No request waits for the outcome of one without a key.
            QueueId::Alone(_) if self.entries.is_empty() => FlushClaim::Free,
            QueueId::Alone(_) => FlushClaim::Due,
            QueueId::Key(_) if self.slow > 0 => FlushClaim::Slow,
            QueueId::Key(_) => FlushClaim::Due,
        }
    }
}
