//! The stash: requests that wait while their partition has no owner to go to. It decides in which order they leave, and
//! how many at a time.
//!
//! A plain data structure: no lock, no clock, no I/O; the [`table`](crate::routing::table) drives it under the
//! partition's lock. Requests with an ordering key form a *queue* and leave one at a time, each after the outcome of
//! the one before is definite. A request without a key is a queue of its own. Queues take turns by the arrival of their
//! first request.
//!
//! A flush has a number of *places*: the most requests that it tries at a time. A request that is slow, or that waits
//! for its own client, gives its place to another queue ([`Stash::give_way`]) and still holds up its own. A request
//! that its pod has refused several times ranks behind the others ([`Stash::insert_ranked`]), so it too holds up only
//! its own queue.
//!
//! # Invariants
//!
//! * No request of a queue starts while an earlier one of it waits.
//! * No request of a queue starts while an earlier one of it is in progress, unless the flush has relaxed the queue's
//!   order ([`Stash::begin_flush`]).
//! * Even in a relaxed queue, no newcomer starts while a request that waited has been started but not sent. This holds
//!   for the first [`GUARDED_STARTS`] starts.
//! * A request that comes back stands where its arrival puts it in its queue.

mod key_queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use self::key_queue::{Arrival, QueuePosition};
use self::key_queue::{Entry, FlushClaim, KeyQueue, QueueId, StartOrder};

/// How many requests a flush starts from relaxed queues before newcomers may pass those that have not been sent yet.
/// The number is far larger than the number of requests that arrive while a task waits to be polled. Without a bound, a
/// key whose requests arrive faster than the worker polls its tasks would keep the gate from opening.
pub const GUARDED_STARTS: usize = 10_000;

/// The state of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Flush {
    /// Most requests that have a place at a time.
    concurrency: usize,
    /// How many requests may still be started in strict order, each with a place and one at a time per key.
    in_order_left: usize,
    /// How many requests of relaxed queues may still be started before newcomers need not wait for them to be sent.
    guarded_left: usize,
    /// Whether the latest arrival among those of the lowest rank goes first.
    newest_first: bool,
}

/// The waiting requests of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stash<W> {
    queues: BTreeMap<QueueId, KeyQueue<W>>,
    /// Queues whose first request may start, by that request's start order.
    ready: BTreeMap<StartOrder, QueueId>,
    waiting: usize,
    bytes: usize,
    in_progress: usize,
    keyed_in_progress: usize,
    /// Requests in progress that have given their place away.
    slow: BTreeSet<QueuePosition>,
    /// Requests with a key that waited and have been started but not sent, because their tasks have not run yet.
    unsent: BTreeSet<QueuePosition>,
    /// Number of queues that are [`FlushClaim::Due`].
    due_queues: usize,
    /// Number of queues that are [`FlushClaim::Slow`].
    slow_queues: usize,
    /// Number of waiting requests with a rank above the lowest.
    ranked: usize,
    flush: Option<Flush>,
}

impl<W> Default for Stash<W> {
    fn default() -> Self {
        Stash {
            queues: BTreeMap::new(),
            ready: BTreeMap::new(),
            waiting: 0,
            bytes: 0,
            in_progress: 0,
            keyed_in_progress: 0,
            slow: BTreeSet::new(),
            unsent: BTreeSet::new(),
            due_queues: 0,
            slow_queues: 0,
            ranked: 0,
            flush: None,
        }
    }
}

impl<W> Stash<W> {
    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the arrival of the request that has waited for longest.
    pub fn oldest(&self) -> Option<Arrival> {
        self.queues.values().filter_map(|queue| queue.entries.front()).map(|entry| entry.arrival).min()
    }

    /// Returns the memory that the waiting requests take, as their inserters stated it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a request at its position: behind those of its queue that arrived before it, ahead of those that arrived
    /// after. So a newcomer goes to the end, and a refused request to where it was.
    pub fn insert(&mut self, position: QueuePosition, bytes: usize, waiter: W) {
        self.insert_ranked(position, 0, bytes, waiter);
    }

    /// Adds a request that lets other queues go first: all whose first request has a lower rank.
    pub fn insert_ranked(&mut self, position: QueuePosition, rank: u32, bytes: usize, waiter: W) {
        let queue = self.queues.entry(position.queue).or_insert_with(KeyQueue::new);
        let index = queue.entries.partition_point(|entry| entry.arrival < position.arrival);
        if index == 0
            && let Some(head) = queue.entries.front()
        {
            self.ready.remove(&head.start_order());
        }
        queue.entries.insert(index, Entry { arrival: position.arrival, rank, bytes, waiter });
        queue.batch += usize::from(index < queue.batch);
        self.ranked += usize::from(rank > 0);
        self.waiting += 1;
        self.bytes += bytes;
        self.refresh(position.queue);
    }

    /// Takes out a request that no longer waits. Returns `None` if it has been started.
    pub fn remove(&mut self, position: QueuePosition) -> Option<W> {
        let queue = self.queues.get_mut(&position.queue)?;
        let index = queue.entries.binary_search_by_key(&position.arrival, |entry| entry.arrival).ok()?;
        let entry = queue.entries.remove(index)?;
        queue.batch -= usize::from(index < queue.batch);
        self.waiting -= 1;
        self.bytes -= entry.bytes;
        self.ready.remove(&entry.start_order());
        self.ranked -= usize::from(entry.rank > 0);
        self.refresh(position.queue);
        Some(entry.waiter)
    }

    /// Adds to the memory of a waiting request. Returns `false` if the request does not wait.
    pub fn grow(&mut self, position: QueuePosition, bytes: usize) -> bool {
        let Some(queue) = self.queues.get_mut(&position.queue) else { return false };
        let Ok(index) = queue.entries.binary_search_by_key(&position.arrival, |entry| entry.arrival) else {
            return false;
        };
        queue.entries[index].bytes += bytes;
        self.bytes += bytes;
        true
    }

    /// Lets requests start, with `concurrency` places.
    ///
    /// One at a time per key cannot go on for ever: a key whose requests arrive faster than they are served one after
    /// the other would never leave the stash. So the strict order, and the number of places, hold for twice the
    /// requests that wait now and a few more. Requests that are left then start at once, in order of arrival, and
    /// newcomers follow when those have been [`sent`](Self::sent). A key that has requests here now keeps its order
    /// until those, and as many again of its own, have been started.
    pub fn begin_flush(&mut self, concurrency: usize) {
        let concurrency = concurrency.max(1);
        let in_order_left = 2 * self.waiting + concurrency;
        self.flush = Some(Flush { concurrency, in_order_left, guarded_left: GUARDED_STARTS, newest_first: false });
        self.owe(|queue| 2 * (queue.entries.len() + queue.in_progress));
    }

    /// Sets the flush's number of places from here on. The number of requests that start under strict order stays as it
    /// is.
    pub fn limit_flush(&mut self, concurrency: usize) {
        if let Some(flush) = &mut self.flush {
            flush.concurrency = concurrency.max(1);
            flush.newest_first = false;
        }
    }

    /// Limits the flush to one place, to probe a pod that has refused. `newest`: among the lowest rank, the latest
    /// arrival is tried.
    pub fn probe(&mut self, newest: bool) {
        self.limit_flush(1);
        if let Some(flush) = &mut self.flush {
            flush.newest_first = newest;
        }
    }

    /// Lets no further request start.
    pub fn end_flush(&mut self) {
        self.flush = None;
        self.owe(|_| 0);
        let queues: Vec<QueueId> = self.ready.values().copied().collect();
        for queue in queues {
            self.refresh(queue);
        }
    }

    /// Sets for each queue how many of its requests leave one at a time even after the order is relaxed.
    fn owe(&mut self, owed: impl Fn(&KeyQueue<W>) -> usize) {
        (self.due_queues, self.slow_queues) = (0, 0);
        for (id, queue) in &mut self.queues {
            queue.owed = owed(queue);
            queue.claim = queue.claim_now(*id);
            match queue.claim {
                FlushClaim::Free => {}
                FlushClaim::Due => self.due_queues += 1,
                FlushClaim::Slow => self.slow_queues += 1,
            }
        }
    }

    /// Forgets all ranks: the pod that refused is no longer the one to try.
    pub fn forget_ranks(&mut self) {
        if std::mem::take(&mut self.ranked) == 0 {
            return;
        }
        for entry in self.queues.values_mut().flat_map(|queue| queue.entries.iter_mut()) {
            entry.rank = 0;
        }
        self.ready =
            std::mem::take(&mut self.ready).into_iter().map(|((_, arrival), queue)| ((0, arrival), queue)).collect();
    }

    /// Starts the next request that may start now. It counts as in progress until [`done`](Self::done), and newcomers
    /// of its key wait at least until it has been [`sent`](Self::sent).
    pub fn start_next(&mut self) -> Option<(QueuePosition, W)> {
        if !self.has_free_place() {
            return None;
        }
        let id = self.next_queue()?;
        let relaxed = self.is_relaxed(id);
        let queue = self.queues.get_mut(&id)?;
        if queue.unsent == 0 {
            queue.batch = if relaxed { queue.entries.len() } else { 0 };
        }
        let entry = queue.entries.pop_front()?;
        let position = QueuePosition { queue: id, arrival: entry.arrival };
        queue.batch = queue.batch.saturating_sub(1);
        if matches!(id, QueueId::Key(_)) {
            queue.unsent += 1;
            self.unsent.insert(position);
        }
        self.ready.remove(&entry.start_order());
        self.ranked -= usize::from(entry.rank > 0);
        self.waiting -= 1;
        self.bytes -= entry.bytes;
        self.started(id);
        if relaxed && matches!(id, QueueId::Key(_)) {
            self.count_guarded_start();
        }
        Some((position, entry.waiter))
    }

    /// Starts a newcomer that need not wait: a flush is on, a place is free, and no request is before it. It counts as
    /// in progress until [`done`](Self::done). Returns whether it was started.
    pub fn start_at_once(&mut self, position: QueuePosition) -> bool {
        // Requests that are ready wait for a place and go first.
        if !self.has_free_place() || !self.ready.is_empty() {
            return false;
        }
        if let Some(queue) = self.queues.get(&position.queue)
            && (!self.is_relaxed(position.queue) || (self.guards_unsent() && queue.unsent > 0))
        {
            return false;
        }
        self.queues.entry(position.queue).or_insert_with(KeyQueue::new);
        self.started(position.queue);
        true
    }

    fn has_free_place(&self) -> bool {
        self.flush
            .is_some_and(|flush| flush.in_order_left == 0 || self.in_progress - self.slow.len() < flush.concurrency)
    }

    fn next_queue(&self) -> Option<QueueId> {
        let (&(lowest, _), first) = self.ready.first_key_value()?;
        if !self.flush.is_some_and(|flush| flush.newest_first) {
            return Some(*first);
        }
        let none = Arrival { at: 0, worker: 0 };
        self.ready.range(..(lowest.saturating_add(1), none)).next_back().map(|(_, queue)| *queue)
    }

    /// Counts one more request of a queue as in progress.
    fn started(&mut self, id: QueueId) {
        let mut begins_relaxation = false;
        if let Some(flush) = &mut self.flush {
            begins_relaxation = flush.in_order_left == 1;
            flush.in_order_left = flush.in_order_left.saturating_sub(1);
        }
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.in_progress += 1;
        queue.owed = queue.owed.saturating_sub(1);
        self.in_progress += 1;
        self.keyed_in_progress += usize::from(matches!(id, QueueId::Key(_)));
        self.refresh(id);
        if begins_relaxation {
            self.refresh_all();
        }
    }

    fn count_guarded_start(&mut self) {
        let Some(flush) = &mut self.flush else { return };
        let was_last = flush.guarded_left == 1;
        flush.guarded_left = flush.guarded_left.saturating_sub(1);
        if was_last {
            self.refresh_all();
        }
    }

    fn refresh_all(&mut self) {
        let queues: Vec<QueueId> = self.queues.keys().copied().collect();
        queues.into_iter().for_each(|queue| self.refresh(queue));
    }

    /// Returns whether newcomers wait for the started requests of their key to be sent.
    fn guards_unsent(&self) -> bool {
        self.flush.is_some_and(|flush| flush.guarded_left > 0)
    }

    /// Records that a started request has been sent, so that newcomers of its key can no longer overtake it. Returns
    /// whether they may have waited for that.
    pub fn sent(&mut self, position: QueuePosition) -> bool {
        if !self.unsent.remove(&position) {
            return false;
        }
        if let Some(queue) = self.queues.get_mut(&position.queue) {
            queue.unsent -= 1;
        }
        self.refresh(position.queue);
        true
    }

    /// Gives the place of a request in progress to another queue, because it waits for its client, or for its
    /// pod. Returns whether it held a place.
    pub fn give_way(&mut self, position: QueuePosition) -> bool {
        let Some(queue) = self.queues.get_mut(&position.queue).filter(|queue| queue.slow < queue.in_progress) else {
            return false;
        };
        if !self.slow.insert(position) {
            return false;
        }
        queue.slow += 1;
        // It no longer holds up the newcomers of a relaxed queue either.
        queue.unsent -= usize::from(self.unsent.remove(&position));
        self.refresh(position.queue);
        true
    }

    /// Records that the outcome of a started request is definite, or that it has been inserted again: the next of its
    /// queue may start.
    pub fn done(&mut self, position: QueuePosition) {
        let Some(queue) = self.queues.get_mut(&position.queue) else {
            return;
        };
        queue.in_progress -= 1;
        queue.slow -= usize::from(self.slow.remove(&position));
        queue.unsent -= usize::from(self.unsent.remove(&position));
        self.in_progress -= 1;
        self.keyed_in_progress -= usize::from(matches!(position.queue, QueueId::Key(_)));
        self.refresh(position.queue);
    }

    /// Returns whether newcomers may pass by without overtaking a request.
    pub fn is_flushed(&self) -> bool {
        let keeps_order = match self.flush {
            Some(flush) if flush.in_order_left == 0 => {
                self.due_queues + self.slow_queues > 0 || (flush.guarded_left > 0 && !self.unsent.is_empty())
            }
            _ => self.keyed_in_progress > 0,
        };
        self.waiting == 0 && !keeps_order
    }

    /// Returns whether no request that was there when the flush began holds it up any more: each one without a key has
    /// been started, and those of each key are done or wait for one of them that has given its place away.
    pub fn is_under_way(&self) -> bool {
        self.flush.is_some() && self.due_queues == 0
    }

    /// Returns whether no request waits or is in progress.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.in_progress == 0
    }

    /// Takes out all waiting requests, in order of arrival.
    pub fn take_all(&mut self) -> Vec<W> {
        self.ready.clear();
        self.waiting = 0;
        self.ranked = 0;
        self.bytes = 0;
        let mut entries: Vec<Entry<W>> = self.queues.values_mut().flat_map(|queue| queue.entries.drain(..)).collect();
        self.queues.retain(|_, queue| queue.in_progress > 0);
        self.queues.values_mut().for_each(|queue| queue.batch = 0);
        self.owe(|queue| queue.owed);
        entries.sort_unstable_by_key(|entry| entry.arrival);
        entries.into_iter().map(|entry| entry.waiter).collect()
    }

    /// Returns whether requests of this queue start without waiting for each other's outcome.
    fn is_relaxed(&self, id: QueueId) -> bool {
        let owes_nothing = self.queues.get(&id).is_none_or(|queue| queue.owed == 0);
        owes_nothing && self.flush.is_some_and(|flush| flush.in_order_left == 0)
    }

    /// Updates `ready` and the counts for a queue, and removes a queue that is empty.
    fn refresh(&mut self, id: QueueId) {
        let relaxed = self.is_relaxed(id);
        let guarded = self.guards_unsent();
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let flows = relaxed && !(guarded && queue.unsent > 0 && queue.batch == 0);
        let is_empty = queue.entries.is_empty() && queue.in_progress == 0;
        let stands = if is_empty { FlushClaim::Free } else { queue.claim_now(id) };
        let stood = std::mem::replace(&mut queue.claim, stands);
        match queue.entries.front() {
            Some(head) if queue.in_progress == 0 || flows => drop(self.ready.insert(head.start_order(), id)),
            Some(head) => drop(self.ready.remove(&head.start_order())),
            None if is_empty => drop(self.queues.remove(&id)),
            None => {}
        }
        self.due_queues -= usize::from(stood == FlushClaim::Due);
        self.due_queues += usize::from(stands == FlushClaim::Due);
        self.slow_queues -= usize::from(stood == FlushClaim::Slow);
        self.slow_queues += usize::from(stands == FlushClaim::Slow);
    }
}
