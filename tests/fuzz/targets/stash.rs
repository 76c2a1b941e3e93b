//! Compares the stash with a plain list of requests that is searched from end to end for each question: which request
//! starts next, which wait, and how many bytes they hold, after any sequence of arrivals, grants, returns and
//! departures. After any sequence, a request that is always refused does not block the requests of another line.

use std::collections::HashMap;

use arbitrary::{Arbitrary, Unstructured};
use segue_proxy::routing::stash::{Arrival, QueuePosition, Stash};

use crate::Outcome;

/// An operation. An index selects one of the present requests and wraps around.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum Operation {
    /// A new request, or one that had passed an open gate and was refused. The latter may have arrived at any time.
    Insert {
        key: u8,
        at: u8,
        worker: bool,
        bytes: u8,
    },
    Grow {
        index: u8,
        bytes: u8,
    },
    /// A client disconnects or its time is over, wherever its request is.
    Remove {
        index: u8,
    },
    /// Starts every request that may start.
    Flush {
        concurrency: u8,
    },
    StartNext,
    /// A new request that starts at once if no other is before it.
    StartAtOnce {
        key: u8,
        at: u8,
        worker: bool,
    },
    /// A request in progress waits for its client or its pod, and gives its place away.
    GiveWay {
        index: u8,
    },
    /// The pod has refused a request, which leaves one place.
    Probe {
        newest: bool,
    },
    /// The pod has accepted a request again.
    Limit {
        concurrency: u8,
    },
    EndFlush,
    Done {
        index: u8,
    },
    /// A pod has refused the request.
    PutBack {
        index: u8,
        rank: u8,
        bytes: u8,
    },
    ForgetRanks,
    TakeAll,
    Sent {
        index: u8,
    },
}

pub fn run(data: &[u8]) -> Outcome {
    let Ok(operations) = Vec::arbitrary_take_rest(Unstructured::new(data)) else { return Outcome::NoInput };
    check(&operations);
    Outcome::Checked
}

fn check(operations: &[Operation]) {
    let mut both = Both::default();
    for operation in operations {
        both.act(*operation);
        both.agree();
    }
    both.starve();
    both.drain();
}

#[derive(Default)]
struct Both {
    stash: Stash<u32>,
    twin: Twin,
    inserted: u32,
}

impl Both {
    fn act(&mut self, operation: Operation) {
        match operation {
            Operation::Insert { key, at, worker, bytes } => {
                let arrival = Arrival { at: at.into(), worker: worker.into() };
                // One request in four has no key.
                self.insert((key % 4 > 0).then(|| u64::from(key % 4)), arrival, bytes);
            }
            Operation::Grow { index, bytes } => {
                let Some(request) = pick(&mut self.twin.requests, index) else { return };
                let waits = !request.tried;
                request.bytes += if waits { usize::from(bytes) } else { 0 };
                let place = request.place();
                assert_eq!(self.stash.grow(place, bytes.into()), waits);
            }
            Operation::Remove { index } => {
                let Some(request) = pick(&mut self.twin.requests, index).copied() else { return };
                let removed = self.stash.remove(request.place());
                assert_eq!(removed, (!request.tried).then_some(request.name));
                if !request.tried {
                    self.twin.forget(request.name);
                    assert_eq!(self.stash.remove(request.place()), None);
                }
            }
            // A partition that flushes is stopped before it is switched again.
            Operation::Flush { .. } if self.twin.flush.is_some() => {}
            Operation::Flush { concurrency } => self.begin_flush(usize::from(concurrency % 8) + 1),
            Operation::StartNext => drop(self.start_next()),
            Operation::StartAtOnce { key, at, worker } => {
                let arrival = Arrival { at: at.into(), worker: worker.into() };
                self.start_at_once((key % 4 > 0).then(|| u64::from(key % 4)), arrival);
            }
            Operation::GiveWay { index } => {
                let Some(request) = self.tried(index) else { return };
                assert_eq!(self.stash.give_way(request.place()), !request.is_slow, "gives way once");
                self.twin.change(request.name, |request| (request.is_slow, request.is_unsent) = (true, false));
            }
            Operation::Sent { index } => {
                let Some(request) = self.tried(index) else { return };
                assert_eq!(
                    self.stash.sent(request.place()),
                    request.is_unsent,
                    "whether others may have waited for it"
                );
                self.twin.change(request.name, |request| request.is_unsent = false);
            }
            Operation::Probe { newest } => {
                self.stash.probe(newest);
                self.twin.limit(1, newest);
            }
            Operation::Limit { concurrency } => {
                let concurrency = usize::from(concurrency % 8) + 1;
                self.stash.limit_flush(concurrency);
                self.twin.limit(concurrency, false);
            }
            Operation::EndFlush => self.end_flush(),
            Operation::Done { index } => {
                let Some(request) = self.tried(index) else { return };
                self.done(request);
            }
            Operation::PutBack { index, rank, bytes } => {
                let Some(request) = self.tried(index) else { return };
                self.put_back(request, u32::from(rank % 4), bytes.into());
            }
            Operation::ForgetRanks => {
                self.stash.forget_ranks();
                self.twin.requests.iter_mut().for_each(|request| request.rank = 0);
            }
            Operation::TakeAll => {
                let mut waiting: Vec<Request> = self.twin.requests.extract_if(.., |request| !request.tried).collect();
                waiting.sort_by_key(|request| request.arrival);
                self.twin.forget_empty_lines();
                let names: Vec<u32> = waiting.iter().map(|request| request.name).collect();
                assert_eq!(self.stash.take_all(), names);
            }
        }
    }

    fn insert(&mut self, key: Option<u64>, arrival: Arrival, bytes: u8) {
        if self.twin.requests.iter().any(|request| request.arrival == arrival) {
            return;
        }
        let mut request = self.newcomer(key, arrival, bytes.into());
        request.is_batched = self.twin.joins_batch(&request);
        self.stash.insert(request.place(), request.bytes, request.name);
        self.twin.requests.push(request);
    }

    fn newcomer(&mut self, key: Option<u64>, arrival: Arrival, bytes: usize) -> Request {
        self.inserted += 1;
        Request {
            name: self.inserted,
            key,
            arrival,
            rank: 0,
            bytes,
            tried: false,
            is_slow: false,
            is_unsent: false,
            is_batched: false,
        }
    }

    fn start_at_once(&mut self, key: Option<u64>, arrival: Arrival) {
        if self.twin.requests.iter().any(|request| request.arrival == arrival) {
            return;
        }
        let request = self.newcomer(key, arrival, 0);
        let goes = self.twin.goes_at_once(&request);
        assert_eq!(self.stash.start_at_once(request.place()), goes, "whether a newcomer need not wait");
        if goes {
            self.twin.requests.push(request);
            self.twin.start(request.name);
            self.twin.change(request.name, |request| request.is_unsent = false);
        }
    }

    fn put_back(&mut self, request: Request, rank: u32, bytes: usize) {
        // Ending the attempt first could let the next request of its line start.
        self.stash.insert_ranked(request.place(), rank, bytes, request.name);
        self.stash.done(request.place());
        self.twin.requests.retain(|other| other.name != request.name);
        let mut again = Request { rank, bytes, tried: false, is_slow: false, is_unsent: false, ..request };
        again.is_batched = self.twin.joins_batch(&again);
        self.twin.requests.push(again);
    }

    fn begin_flush(&mut self, concurrency: usize) {
        self.stash.begin_flush(concurrency);
        self.twin.begin_flush(concurrency);
    }

    fn end_flush(&mut self) {
        self.stash.end_flush();
        self.twin.flush = None;
        self.twin.owed.clear();
    }

    /// Starts the next request. Returns whether there was one.
    fn start_next(&mut self) -> bool {
        let expected = self.twin.start_next();
        let started = self.stash.start_next();
        assert_eq!(started, expected.map(|request| (request.place(), request.name)), "who starts");
        started.is_some()
    }

    fn tried(&mut self, index: u8) -> Option<Request> {
        let mut tried: Vec<Request> = self.twin.requests.iter().filter(|request| request.tried).copied().collect();
        pick(&mut tried, index).copied()
    }

    fn done(&mut self, request: Request) {
        self.stash.done(request.place());
        self.twin.forget(request.name);
    }

    fn agree(&self) {
        let (stash, twin) = (&self.stash, &self.twin);
        let bytes: usize = twin.waiting().map(|request| request.bytes).sum();
        assert_eq!((stash.waiting(), stash.bytes()), (twin.waiting().count(), bytes), "requests and bytes that wait");
        assert_eq!(stash.is_idle(), twin.requests.is_empty());
        let mut tried = twin.requests.iter().filter(|request| request.tried);
        let keeps_order =
            tried.any(|request| request.key.is_some() && (!twin.is_released(request) || request.is_unsent));
        assert_eq!(stash.is_flushed(), twin.waiting().count() == 0 && !keeps_order, "whether newcomers may pass");
        assert_eq!(stash.is_under_way(), twin.is_under_way(), "whether what was there is under way");
    }

    /// Refuses one request whenever it is tried. The requests of all other lines must get out all the same, after at
    /// most three attempts of the refused one.
    fn starve(&mut self) {
        const TRIES: u32 = 3;
        let tried: Vec<Request> = self.twin.requests.iter().filter(|request| request.tried).copied().collect();
        tried.into_iter().for_each(|request| self.done(request));
        self.act(Operation::ForgetRanks);
        let Some(poison) = self.twin.waiting().min_by_key(|request| request.arrival).copied() else { return };
        let others = |both: &Both| both.twin.waiting().filter(|it| it.line() != poison.line()).count();
        let (mut returns, mut newest) = (0, false);
        while others(self) > 0 {
            self.end_flush();
            self.begin_flush(1);
            self.stash.probe(newest);
            self.twin.limit(1, newest);
            newest = !newest;
            assert!(self.start_next(), "nobody may start");
            let Some(started) = self.tried(0) else { return };
            if started.name == poison.name {
                returns += 1;
                assert!(returns <= TRIES, "a request that always comes back starves another line");
                self.put_back(started, returns / TRIES, started.bytes);
            } else {
                self.done(started);
            }
            self.agree();
        }
    }

    /// Checks that after any sequence all requests get out and nothing is left behind.
    fn drain(&mut self) {
        if self.twin.flush.is_none() {
            self.begin_flush(1);
        }
        while !self.twin.requests.is_empty() {
            let started = self.start_next();
            let ended = self.tried(0);
            ended.into_iter().for_each(|request| self.done(request));
            assert!(started || ended.is_some(), "requests wait for nobody: {:?}", self.twin.requests);
            self.agree();
        }
        self.end_flush();
        assert_eq!(self.stash, Stash::default());
    }
}

/// The rules of the stash in their plainest form.
#[derive(Default)]
struct Twin {
    requests: Vec<Request>,
    flush: Option<Flush>,
    /// Number of requests that still go one at a time, whatever is released, for each line that was there when the
    /// flush began.
    owed: HashMap<Line, usize>,
}

/// All requests of a key, or a single request without one.
type Line = (Option<u64>, Option<Arrival>);

#[derive(Debug, Clone, Copy)]
struct Request {
    name: u32,
    key: Option<u64>,
    arrival: Arrival,
    rank: u32,
    bytes: usize,
    tried: bool,
    /// Whether the request has given its place away.
    is_slow: bool,
    /// Whether the request waited, has been started, and has not been sent.
    is_unsent: bool,
    /// Whether the request waited when the first unsent one of its released line started: they start together.
    is_batched: bool,
}

struct Flush {
    concurrency: usize,
    /// Number of requests that are still started in order before the rest is started at once.
    in_order: usize,
    newest_first: bool,
}

impl Request {
    fn place(&self) -> QueuePosition {
        QueuePosition::new(self.key, self.arrival)
    }

    fn line(&self) -> Line {
        (self.key, self.key.is_none().then_some(self.arrival))
    }
}

impl Twin {
    fn waiting(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|request| !request.tried)
    }

    fn begin_flush(&mut self, concurrency: usize) {
        let in_order = 2 * self.waiting().count() + concurrency;
        self.flush = Some(Flush { concurrency, in_order, newest_first: false });
        self.owed.clear();
        for request in &self.requests {
            *self.owed.entry(request.line()).or_default() += 2;
        }
    }

    fn limit(&mut self, concurrency: usize, newest_first: bool) {
        if let Some(flush) = &mut self.flush {
            (flush.concurrency, flush.newest_first) = (concurrency, newest_first);
        }
    }

    fn owes(&self, line: Line) -> bool {
        self.owed.get(&line).is_some_and(|owed| *owed > 0)
    }

    fn is_released(&self, request: &Request) -> bool {
        self.flush.as_ref().is_some_and(|flush| flush.in_order == 0) && !self.owes(request.line())
    }

    fn is_under_way(&self) -> bool {
        let is_behind_a_slow_one =
            |line: Line| line.0.is_some() && self.requests.iter().any(|it| it.line() == line && it.is_slow);
        let is_due = |it: &Request| {
            let holds = it.key.is_some() || !it.tried;
            self.owes(it.line()) && holds && !is_behind_a_slow_one(it.line())
        };
        self.flush.is_some() && !self.requests.iter().any(is_due)
    }

    fn forget(&mut self, name: u32) {
        self.requests.retain(|request| request.name != name);
        self.forget_empty_lines();
    }

    fn forget_empty_lines(&mut self) {
        let requests = &self.requests;
        self.owed.retain(|line, _| requests.iter().any(|request| request.line() == *line));
    }

    fn change(&mut self, name: u32, change: impl FnMut(&mut Request)) {
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

    fn goes_at_once(&self, newcomer: &Request) -> bool {
        let is_alone = || !self.requests.iter().any(|other| self.stands_behind(newcomer, other));
        self.has_place() && self.ready().next().is_none() && is_alone()
    }

    /// Starts the first request that stands behind no other.
    fn start_next(&mut self) -> Option<Request> {
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
    fn joins_batch(&self, it: &Request) -> bool {
        self.waiting().any(|other| other.line() == it.line() && other.is_batched && other.arrival > it.arrival)
    }

    fn start(&mut self, name: u32) {
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

fn pick(requests: &mut [Request], index: u8) -> Option<&mut Request> {
    let index = usize::from(index).checked_rem(requests.len())?;
    requests.get_mut(index)
}
