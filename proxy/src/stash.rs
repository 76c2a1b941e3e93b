//! The requests that wait while a partition has no owner to go to: in which order they leave, and how many at a time.
//!
//! A plain data structure: no lock, no clock, no I/O; the [`table`](crate::table) drives it under the partition's lock.
//! Requests with an ordering key form a *line* and leave one at a time, each after the outcome of the one before is
//! definite; a request without a key is a line of its own. Lines take turns by the arrival of their first request.
//! What must stay true: nothing of a line starts while an earlier request of it is queued or being tried, unless the
//! flush has released the rest ([`Stash::begin_flush`]); one that comes back stands where its arrival puts it.

use std::collections::{BTreeMap, VecDeque};

/// When the router took a request: the order in which requests of one key leave, however often they come back.
///
/// On one worker it grows with each request. Between workers it is the machine's monotonic clock: a request that was
/// there before another one came is the earlier one, and of two that came at the same moment either may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival {
    /// By the clock, moved on where two of one worker would be the same.
    pub at: u64,
    /// The worker that took it.
    pub worker: u32,
}

/// A line of requests that must not overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum LineId {
    /// All requests with this hash of their ordering key.
    Key(u64),
    /// One request without a key.
    Alone(Arrival),
}

/// A request's place in its line: the same one from its arrival to its end, whether it waits, is tried or has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    line: LineId,
    arrival: Arrival,
}

impl Place {
    /// The place of a request with this ordering key, if any. No two requests have the same arrival.
    pub fn new(order: Option<u64>, arrival: Arrival) -> Self {
        Place { line: order.map_or(LineId::Alone(arrival), LineId::Key), arrival }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry<W> {
    arrival: Arrival,
    bytes: usize,
    waiter: W,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Line<W> {
    /// Started and without a definite outcome.
    trying: usize,
    queue: VecDeque<Entry<W>>,
}

/// How a flush goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Flush {
    /// Most requests being tried at a time.
    concurrency: usize,
    /// How many may still be started one at a time per key.
    serial_left: usize,
}

/// The waiting requests of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stash<W> {
    lines: BTreeMap<LineId, Line<W>>,
    /// Lines whose first request may start, by the arrival of that request.
    ready: BTreeMap<Arrival, LineId>,
    waiting: usize,
    bytes: usize,
    trying: usize,
    trying_in_order: usize,
    flush: Option<Flush>,
}

impl<W> Default for Stash<W> {
    fn default() -> Self {
        Stash {
            lines: BTreeMap::new(),
            ready: BTreeMap::new(),
            waiting: 0,
            bytes: 0,
            trying: 0,
            trying_in_order: 0,
            flush: None,
        }
    }
}

impl<W> Stash<W> {
    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// What they cost in memory, as their pushers said.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a request at its place: behind those of its line that came before it, ahead of those that came after. So a
    /// newcomer goes to the end, and one that a pod has refused to where it was.
    pub fn insert(&mut self, place: Place, bytes: usize, waiter: W) {
        // Most keys have one request waiting.
        let line =
            self.lines.entry(place.line).or_insert_with(|| Line { trying: 0, queue: VecDeque::with_capacity(1) });
        let index = line.queue.partition_point(|entry| entry.arrival < place.arrival);
        if index == 0
            && let Some(head) = line.queue.front()
        {
            self.ready.remove(&head.arrival);
        }
        line.queue.insert(index, Entry { arrival: place.arrival, bytes, waiter });
        self.waiting += 1;
        self.bytes += bytes;
        self.refresh(place.line);
    }

    /// Takes a request out that waits no longer. `None`: it has been started.
    pub fn remove(&mut self, place: Place) -> Option<W> {
        let line = self.lines.get_mut(&place.line)?;
        let index = line.queue.binary_search_by_key(&place.arrival, |entry| entry.arrival).ok()?;
        let entry = line.queue.remove(index)?;
        self.waiting -= 1;
        self.bytes -= entry.bytes;
        self.ready.remove(&place.arrival);
        self.refresh(place.line);
        Some(entry.waiter)
    }

    /// A request that waits takes up so much more. False: it does not wait.
    pub fn grow(&mut self, place: Place, bytes: usize) -> bool {
        let Some(line) = self.lines.get_mut(&place.line) else { return false };
        let Ok(index) = line.queue.binary_search_by_key(&place.arrival, |entry| entry.arrival) else { return false };
        line.queue[index].bytes += bytes;
        self.bytes += bytes;
        true
    }

    /// Lets requests start, `concurrency` at a time.
    ///
    /// One at a time per key cannot go on for ever: a key whose requests come faster than one after the other can be
    /// answered would never leave the stash. So the strict order holds for what waits now and as much again; what is
    /// left then is started at once, in order of arrival.
    pub fn begin_flush(&mut self, concurrency: usize) {
        self.flush = Some(Flush { concurrency: concurrency.max(1), serial_left: 2 * self.waiting + concurrency });
    }

    /// From here on so many may be tried at a time; how many are started in strict order stays as it is.
    pub fn limit_flush(&mut self, concurrency: usize) {
        if let Some(flush) = &mut self.flush {
            flush.concurrency = concurrency.max(1);
        }
    }

    /// Lets nothing start any more.
    pub fn end_flush(&mut self) {
        self.flush = None;
        let lines: Vec<LineId> = self.ready.values().copied().collect();
        for line in lines {
            self.refresh(line);
        }
    }

    /// The next request that may start now; it is being tried from here on, until [`done`](Self::done).
    pub fn start_next(&mut self) -> Option<(Place, W)> {
        let flush = self.flush.as_mut()?;
        if flush.serial_left > 0 && self.trying >= flush.concurrency {
            return None;
        }
        let (arrival, line_id) = self.ready.pop_first()?;
        let was_serial = flush.serial_left > 0;
        flush.serial_left = flush.serial_left.saturating_sub(1);
        let begins_release = was_serial && flush.serial_left == 0;
        let line = self.lines.get_mut(&line_id)?;
        let entry = line.queue.pop_front()?;
        line.trying += 1;
        self.trying += 1;
        self.trying_in_order += usize::from(matches!(line_id, LineId::Key(_)));
        self.waiting -= 1;
        self.bytes -= entry.bytes;
        self.refresh(line_id);
        if begins_release {
            let lines: Vec<LineId> = self.lines.keys().copied().collect();
            lines.into_iter().for_each(|line| self.refresh(line));
        }
        Some((Place { line: line_id, arrival }, entry.waiter))
    }

    /// The outcome of a started request is definite, or it has been inserted again: the next of its line may start.
    pub fn done(&mut self, place: Place) {
        let Some(line) = self.lines.get_mut(&place.line) else {
            return;
        };
        line.trying -= 1;
        self.trying -= 1;
        self.trying_in_order -= usize::from(matches!(place.line, LineId::Key(_)));
        self.refresh(place.line);
    }

    /// Whether newcomers may pass by without overtaking anyone.
    pub fn is_flushed(&self) -> bool {
        self.waiting == 0 && (self.trying_in_order == 0 || self.is_releasing())
    }

    /// Whether nobody waits and nothing is being tried.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.trying == 0
    }

    /// Takes out everyone who waits.
    pub fn take_all(&mut self) -> Vec<W> {
        self.ready.clear();
        self.waiting = 0;
        self.bytes = 0;
        let mut entries: Vec<Entry<W>> = self.lines.values_mut().flat_map(|line| line.queue.drain(..)).collect();
        self.lines.retain(|_, line| line.trying > 0);
        entries.sort_unstable_by_key(|entry| entry.arrival);
        entries.into_iter().map(|entry| entry.waiter).collect()
    }

    fn is_releasing(&self) -> bool {
        self.flush.is_some_and(|flush| flush.serial_left == 0)
    }

    /// Makes `ready` tell the truth about a line, and forgets a line in which there is nothing.
    fn refresh(&mut self, line_id: LineId) {
        let releasing = self.is_releasing();
        let Some(line) = self.lines.get(&line_id) else { return };
        match line.queue.front() {
            Some(head) if line.trying == 0 || releasing => drop(self.ready.insert(head.arrival, line_id)),
            Some(head) => drop(self.ready.remove(&head.arrival)),
            None if line.trying == 0 => drop(self.lines.remove(&line_id)),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of the `number`-th request.
    fn place(order: Option<u64>, number: u64) -> Place {
        Place::new(order, Arrival { at: number, worker: 0 })
    }

    fn started(stash: &mut Stash<u32>) -> Vec<(Place, u32)> {
        std::iter::from_fn(|| stash.start_next()).collect()
    }

    fn names(started: &[(Place, u32)]) -> Vec<u32> {
        started.iter().map(|(_, name)| *name).collect()
    }

    #[test]
    fn requests_of_one_key_leave_one_at_a_time_and_keys_do_not_wait_for_each_other() {
        let mut stash = Stash::default();
        for (order, name) in [(7, 1), (7, 2), (9, 3), (7, 4)] {
            stash.insert(place(Some(order), name.into()), 1, name);
        }
        stash.begin_flush(64);
        let first = started(&mut stash);
        assert_eq!(names(&first), [1, 3]);
        stash.done(first[1].0);
        assert_eq!(names(&started(&mut stash)), [] as [u32; 0]);
        stash.done(first[0].0);
        let second = started(&mut stash);
        assert_eq!(names(&second), [2]);
        stash.done(second[0].0);
        assert_eq!(names(&started(&mut stash)), [4]);
        assert!(!stash.is_flushed(), "the last one is still being tried");
    }

    #[test]
    fn requests_without_a_key_start_in_order_of_arrival_and_do_not_wait() {
        let mut stash = Stash::default();
        for name in 0..5 {
            stash.insert(place(None, name.into()), 1, name);
        }
        stash.begin_flush(64);
        assert_eq!(names(&started(&mut stash)), [0, 1, 2, 3, 4]);
        assert!(stash.is_flushed());
    }

    #[test]
    fn concurrency_bounds_a_flush() {
        let mut stash = Stash::default();
        for name in 0..10 {
            stash.insert(place(None, name.into()), 1, name);
        }
        stash.begin_flush(3);
        let first = started(&mut stash);
        assert_eq!(first.len(), 3);
        stash.done(first[0].0);
        assert_eq!(started(&mut stash).len(), 1);
    }

    fn drained(stash: &mut Stash<u32>) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some((place, name)) = stash.start_next() {
            order.push(name);
            stash.done(place);
        }
        order
    }

    #[test]
    fn a_request_that_comes_back_stands_where_its_arrival_puts_it() {
        let mut stash = Stash::default();
        stash.insert(place(Some(7), 3), 1, 3);
        stash.insert(place(Some(7), 4), 1, 4);
        stash.begin_flush(64);
        let (third, name) = stash.start_next().unwrap();
        stash.end_flush();
        stash.insert(third, 1, name);
        stash.done(third);
        // These two had passed the open gate before, and were refused in the other order.
        stash.insert(place(Some(7), 2), 1, 2);
        stash.insert(place(Some(7), 1), 1, 1);
        stash.begin_flush(64);
        assert_eq!(drained(&mut stash), [1, 2, 3, 4]);
        assert!(stash.is_flushed() && stash.lines.is_empty() && stash.bytes() == 0);
    }

    #[test]
    fn a_released_request_that_comes_back_stands_before_one_that_passed_the_gate_after_it() {
        let mut stash = Stash::default();
        (1..=3).for_each(|name| stash.insert(place(Some(7), name.into()), 1, name));
        stash.begin_flush(1);
        let (mut tried, mut number) = (Vec::new(), 3);
        while stash.waiting() > 0 {
            // Arrivals keep the key busy until the rest is released.
            let Some((place_of, name)) = stash.start_next() else { break };
            tried.push((place_of, name));
            if tried.len() < 7 {
                stash.done(place_of);
                number += 1;
                stash.insert(place(Some(7), number), 1, number as u32);
            }
        }
        assert!(stash.is_flushed(), "the gate opens while the released ones are in flight");
        let &(released, name) = tried.last().unwrap();
        stash.end_flush();
        stash.insert(place(Some(7), 100), 1, 100);
        stash.insert(released, 1, name);
        stash.done(released);
        stash.begin_flush(64);
        assert_eq!(stash.start_next().map(|(_, first)| first), None, "others of its key are still being tried");
        tried.iter().rev().skip(1).take(tried.len() - 7).for_each(|(place, _)| stash.done(*place));
        assert_eq!(drained(&mut stash), [name, 100]);
    }

    #[test]
    fn a_key_that_never_rests_is_released_in_order_after_a_bounded_number() {
        let mut stash = Stash::default();
        stash.insert(place(Some(7), 0), 1, 0);
        stash.begin_flush(1);
        let mut name = 0;
        // One more arrives whenever one is answered.
        for _ in 0..10 {
            let Some((started, _)) = stash.start_next() else { break };
            for _ in 0..2 {
                name += 1;
                stash.insert(place(Some(7), name.into()), 1, name);
            }
            stash.done(started);
        }
        let rest = started(&mut stash);
        assert!(names(&rest).is_sorted());
        assert!(stash.waiting() == 0 && stash.is_flushed());
    }

    #[test]
    fn looking_for_somebody_who_may_start_does_not_bring_the_release_nearer() {
        let mut stash = Stash::default();
        stash.insert(place(Some(7), 0), 1, 0);
        stash.insert(place(Some(7), 1), 1, 1);
        stash.begin_flush(64);
        let first = started(&mut stash);
        for _ in 0..200 {
            assert!(stash.start_next().is_none(), "the first of the line is still being tried");
        }
        stash.done(first[0].0);
        assert_eq!(names(&started(&mut stash)), [1]);
    }

    #[test]
    fn what_has_grown_is_taken_out_with_all_that_it_weighs() {
        let mut stash = Stash::default();
        (1..=2).for_each(|name| stash.insert(place(Some(7), name.into()), 10, name));
        assert!(stash.grow(place(Some(7), 2), 5) && !stash.grow(place(Some(7), 3), 5));
        assert_eq!(stash.bytes(), 25);
        stash.begin_flush(64);
        let first = started(&mut stash);
        assert_eq!((names(&first), stash.bytes()), (vec![1], 15));
        assert!(!stash.grow(first[0].0, 5), "it has been started");
        assert_eq!((stash.remove(place(Some(7), 2)), stash.bytes()), (Some(2), 0));
    }

    #[test]
    fn one_that_gives_up_leaves_no_trace() {
        let mut stash = Stash::default();
        let first = place(Some(7), 1);
        stash.insert(first, 10, 1);
        stash.insert(place(Some(7), 2), 20, 2);
        assert_eq!(stash.remove(first), Some(1));
        assert_eq!(stash.remove(first), None);
        assert_eq!((stash.waiting(), stash.bytes()), (1, 20));
        stash.begin_flush(64);
        assert_eq!(names(&started(&mut stash)), [2]);
    }
}
