//! The stash as a plain list of requests, searched from end to end for each question.

use std::collections::HashMap;

use segue_proxy::routing::stash::{Arrival, QueuePosition};

/// The rules of the stash in their plainest form.
#[derive(Default)]
pub(super) struct Twin {
    pub(super) requests: Vec<Request>,
    pub(super) flush: Option<Flush>,
    /// Number of requests that still go one at a time, whatever is released, for each line that was there when the
    /// flush began.
    pub(super) owed: HashMap<Line, usize>,
}

/// All requests of a key, or a single request without one.
pub(super) type Line = (Option<u64>, Option<Arrival>);

#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) name: u32,
    pub(super) key: Option<u64>,
    pub(super) arrival: Arrival,
    pub(super) rank: u32,
    pub(super) bytes: usize,
    pub(super) tried: bool,
    /// Whether the request has given its place away.
    pub(super) is_slow: bool,
    /// Whether the request waited, has been started, and has not been sent.
    pub(super) is_unsent: bool,
    /// Whether the request waited when the first unsent one of its released line started: they start together.
    pub(super) is_batched: bool,
}

pub(super) struct Flush {
    concurrency: usize,
    /// Number of requests that are still started in order before the rest is started at once.
    in_order: usize,
    newest_first: bool,
}

impl Request {
    pub(super) fn place(&self) -> QueuePosition {
        QueuePosition::new(self.key, self.arrival)
    }

    pub(super) fn line(&self) -> Line {
        (self.key, self.key.is_none().then_some(self.arrival))
    }
}

impl Twin {
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|request| !request.tried)
    }

    pub(super) fn begin_flush(&mut self, concurrency: usize) {
        let in_order = 2 * self.waiting().count() + concurrency;
        self.flush = Some(Flush { concurrency, in_order, newest_first: false });
        self.owed.clear();
        for request in &self.requests {
            *self.owed.entry(request.line()).or_default() += 2;
        }
    }

    pub(super) fn limit(&mut self, concurrency: usize, newest_first: bool) {
        if let Some(flush) = &mut self.flush {
            (flush.concurrency, flush.newest_first) = (concurrency, newest_first);
        }
    }

    fn owes(&self, line: Line) -> bool {
        self.owed.get(&line).is_some_and(|owed| *owed > 0)
    }

    pub(super) fn is_released(&self, request: &Request) -> bool {
        self.flush.as_ref().is_some_and(|flush| flush.in_order == 0) && !self.owes(request.line())
    }

    pub(super) fn is_under_way(&self) -> bool {
        let is_behind_a_slow_one =
            |line: Line| line.0.is_some() && self.requests.iter().any(|it| it.line() == line && it.is_slow);
        let is_due = |it: &Request| {
            let holds = it.key.is_some() || !it.tried;
            self.owes(it.line()) && holds && !is_behind_a_slow_one(it.line())
        };
        self.flush.is_some() && !self.requests.iter().any(is_due)
    }

    pub(super) fn forget(&mut self, name: u32) {
        self.requests.retain(|request| request.name != name);
        self.forget_empty_lines();
    }

    pub(super) fn forget_empty_lines(&mut self) {
        let requests = &self.requests;
        self.owed.retain(|line, _| requests.iter().any(|request| request.line() == *line));
    }

    pub(super) fn change(&mut self, name: u32, change: impl FnMut(&mut Request)) {
        self.requests.iter_mut().find(|request| request.name == name).into_iter().for_each(change);
    }

    fn has_place(&self) -> bool {
        let places = self.requests.iter().filter(|request| request.tried && !request.is_slow).count();
        self.flush.as_ref().is_some_and(|flush| flush.in_order == 0 || places < flush.concurrency)
    }

    /// Returns whether `it` must not start while `other` is there.
    fn stands_behind(&self, it: &Request, other: &Request) -> bool {
        let one_line = it.line() == other.line() && it.name != other.name;
        let goes_along = self.is_released(it) && (!other.is_unsent || (it.is_batched && !it.tried));
        one_line && if other.tried { !goes_along } else { other.arrival < it.arrival }
    }

    /// Returns the requests that may start as soon as there is a place.
    fn ready(&self) -> impl Iterator<Item = &Request> {
        self.waiting().filter(|it| !self.requests.iter().any(|other| self.stands_behind(it, other)))
    }

    pub(super) fn goes_at_once(&self, newcomer: &Request) -> bool {
        let is_alone = || !self.requests.iter().any(|other| self.stands_behind(newcomer, other));
        self.has_place() && self.ready().next().is_none() && is_alone()
    }

    /// Starts the first request that stands behind no other.
    pub(super) fn start_next(&mut self) -> Option<Request> {
        if !self.has_place() {
            return None;
        }
        let lowest = self.ready().map(|request| request.rank).min()?;
        let first = self.ready().filter(|request| request.rank == lowest);
        let first = match self.flush.as_ref()?.newest_first {
            true => first.max_by_key(|request| request.arrival),
            false => first.min_by_key(|request| request.arrival),
        };
        let first = *first?;
        self.start(first.name);
        Some(first)
    }

    /// Returns whether a request that is about to wait stands before one of a batch that starts together.
    pub(super) fn joins_batch(&self, it: &Request) -> bool {
        self.waiting().any(|other| other.line() == it.line() && other.is_batched && other.arrival > it.arrival)
    }

    pub(super) fn start(&mut self, name: u32) {
        let Some(request) = self.requests.iter().find(|request| request.name == name).copied() else { return };
        let line = request.line();
        if !self.requests.iter().any(|other| other.line() == line && other.is_unsent) {
            let is_released = self.is_released(&request);
            let waiting = self.requests.iter_mut().filter(|other| !other.tried && other.line() == line);
            waiting.for_each(|other| other.is_batched = is_released);
        }
        self.change(name, |request| {
            (request.tried, request.rank, request.is_unsent) = (true, 0, request.key.is_some());
        });
        if let Some(flush) = &mut self.flush {
            flush.in_order = flush.in_order.saturating_sub(1);
        }
        if let Some(owed) = self.owed.get_mut(&line) {
            *owed = owed.saturating_sub(1);
        }
    }
}
