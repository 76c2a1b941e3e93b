//! Runs many seeds of the data path, several at a time.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use super::{DataPathOutcome, run_data_path};

/// The sums over many seeds.
#[derive(Debug, Default)]
pub struct DataPathTotal {
    seeds: u64,
    requests: u64,
    /// Number of faults that pods have made.
    pub faults: u64,
    cutovers: u64,
    /// Number of pairs of requests whose order was judged.
    pub held_pairs: u64,
    /// The violations, each with its seed.
    pub violations: Vec<(u64, String)>,
}

impl DataPathTotal {
    fn of(seed: u64, outcome: DataPathOutcome) -> Self {
        let DataPathOutcome { requests, faults, cutovers, held_pairs, violations, .. } = outcome;
        let violations = violations.into_iter().map(|violation| (seed, violation)).collect();
        DataPathTotal { seeds: 1, requests, faults, cutovers, held_pairs, violations }
    }

    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.requests += other.requests;
        self.faults += other.faults;
        self.cutovers += other.cutovers;
        self.held_pairs += other.held_pairs;
        self.violations.extend(other.violations);
    }
}

impl fmt::Display for DataPathTotal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DataPathTotal { seeds, requests, faults, cutovers, held_pairs, violations } = self;
        write!(
            out,
            "data-path: seeds={seeds} requests={requests} faults={faults} cutovers={cutovers} held_pairs={held_pairs} \
             violations={}",
            violations.len()
        )
    }
}

/// Runs this many seeds, `jobs` at a time.
///
/// # Errors
///
/// Fails if a seed cannot be run at all.
pub fn sweep_data_path(from: u64, seeds: u64, jobs: usize) -> io::Result<DataPathTotal> {
    let next = AtomicU64::new(from);
    let some = || {
        let mut total = DataPathTotal::default();
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= from + seeds {
                return Ok(total);
            }
            total.add(DataPathTotal::of(seed, run_data_path(seed, false)?));
        }
    };
    let totals: Vec<io::Result<DataPathTotal>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(some)).collect();
        let end = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a seed has panicked")))
        };
        threads.into_iter().map(end).collect()
    });
    let mut sum = DataPathTotal::default();
    for total in totals {
        sum.add(total?);
    }
    sum.violations.sort();
    Ok(sum)
}
