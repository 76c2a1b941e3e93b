//! The stash against a list of requests that is searched from end to end for each question: who starts next, what waits
//! and what it weighs, after any sequence of arrivals, grants, returns and departures.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use segue_proxy::stash::{Arrival, Place, Stash};

/// Indices are of the requests that are there, and go round.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum Operation {
    /// A newcomer, or one that had passed an open gate and was refused: it may have been taken at any time.
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
    /// A client hangs up, or its time is over, wherever its request is.
    Remove {
        index: u8,
    },
    /// Every request that may start does.
    Flush {
        concurrency: u8,
    },
    StartNext,
    EndFlush,
    Done {
        index: u8,
    },
    /// A pod has refused it.
    PutBack {
        index: u8,
        bytes: u8,
    },
    TakeAll,
}

fuzz_target!(|operations: Vec<Operation>| run(&operations));

fn run(operations: &[Operation]) {
    let mut both = Both::default();
    for operation in operations {
        both.act(*operation);
        both.agree();
    }
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
                // One key in four is none.
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
            // A gate that leads somewhere is stopped before it is switched.
            Operation::Flush { .. } if self.twin.flush.is_some() => {}
            Operation::Flush { concurrency } => self.begin_flush(usize::from(concurrency % 8) + 1),
            Operation::StartNext => drop(self.start_next()),
            Operation::EndFlush => {
                self.stash.end_flush();
                self.twin.flush = None;
            }
            Operation::Done { index } => {
                let Some(request) = self.tried(index) else { return };
                self.done(request);
            }
            Operation::PutBack { index, bytes } => {
                let Some(request) = self.tried(index) else { return };
                // Ending the try first could let the next of its line start.
                self.stash.insert(request.place(), bytes.into(), request.name);
                self.stash.done(request.place());
                self.twin.forget(request.name);
                self.twin.requests.push(Request { bytes: bytes.into(), tried: false, ..request });
            }
            Operation::TakeAll => {
                let mut waiting: Vec<Request> = self.twin.requests.extract_if(.., |request| !request.tried).collect();
                waiting.sort_by_key(|request| request.arrival);
                let names: Vec<u32> = waiting.iter().map(|request| request.name).collect();
                assert_eq!(self.stash.take_all(), names);
            }
        }
    }

    fn insert(&mut self, key: Option<u64>, arrival: Arrival, bytes: u8) {
        if self.twin.requests.iter().any(|request| request.arrival == arrival) {
            return;
        }
        self.inserted += 1;
        let request = Request { name: self.inserted, key, arrival, bytes: bytes.into(), tried: false };
        self.stash.insert(request.place(), request.bytes, request.name);
        self.twin.requests.push(request);
    }

    fn begin_flush(&mut self, concurrency: usize) {
        self.stash.begin_flush(concurrency);
        self.twin.flush = Some(Flush { concurrency, in_order: 2 * self.twin.waiting().count() + concurrency });
    }

    /// Whether somebody could.
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
        let keyed_tried = twin.requests.iter().any(|request| request.tried && request.key.is_some());
        let flushed = twin.waiting().count() == 0 && (!keyed_tried || twin.is_releasing());
        assert_eq!(stash.is_flushed(), flushed, "whether newcomers may pass");
    }

    /// Whatever happened, everyone gets out, and nothing is left behind.
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
        self.stash.end_flush();
        assert_eq!(self.stash, Stash::default());
    }
}

/// What the stash is for, said as plainly as can be.
#[derive(Default)]
struct Twin {
    requests: Vec<Request>,
    flush: Option<Flush>,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    name: u32,
    key: Option<u64>,
    arrival: Arrival,
    bytes: usize,
    tried: bool,
}

struct Flush {
    concurrency: usize,
    /// How many may still be started before the rest is let go at once.
    in_order: usize,
}

impl Request {
    fn place(&self) -> Place {
        Place::new(self.key, self.arrival)
    }

    /// Whether this one must not start while the other is there.
    fn stands_behind(&self, other: &Request, releasing: bool) -> bool {
        let one_line = self.key.is_some() && self.key == other.key && self.name != other.name;
        one_line && if other.tried { !releasing } else { other.arrival < self.arrival }
    }
}

impl Twin {
    fn waiting(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|request| !request.tried)
    }

    fn is_releasing(&self) -> bool {
        self.flush.as_ref().is_some_and(|flush| flush.in_order == 0)
    }

    fn forget(&mut self, name: u32) {
        self.requests.retain(|request| request.name != name);
    }

    /// The first to arrive of those who stand behind nobody.
    fn start_next(&mut self) -> Option<Request> {
        let releasing = self.is_releasing();
        let flush = self.flush.as_mut()?;
        let tried = self.requests.iter().filter(|request| request.tried).count();
        if !releasing && tried >= flush.concurrency {
            return None;
        }
        let may_start = |request: &&Request| {
            !request.tried && !self.requests.iter().any(|other| request.stands_behind(other, releasing))
        };
        let first = self.requests.iter().filter(may_start).min_by_key(|request| request.arrival).copied()?;
        flush.in_order = flush.in_order.saturating_sub(1);
        self.requests.iter_mut().filter(|request| request.name == first.name).for_each(|request| request.tried = true);
        Some(first)
    }
}

fn pick(requests: &mut [Request], index: u8) -> Option<&mut Request> {
    let index = usize::from(index).checked_rem(requests.len())?;
    requests.get_mut(index)
}
