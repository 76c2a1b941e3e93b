//! Compares the stash with a plain list of requests that is searched from end to end for each question: which request
//! starts next, which wait, and how many bytes they hold, after any sequence of arrivals, grants, returns and
//! departures. After any sequence, a request that is always refused does not block the requests of another line.

use arbitrary::{Arbitrary, Unstructured};
use segue_proxy::routing::stash::{Arrival, Stash};

use self::twin::{Request, Twin};
use crate::Outcome;

mod twin;

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

fn pick(requests: &mut [Request], index: u8) -> Option<&mut Request> {
    let index = usize::from(index).checked_rem(requests.len())?;
    requests.get_mut(index)
}
