//! Runs many seeds, one thread for each job, and adds up the results and what none of them has seen.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::run::{Outcome, Scenario, run};
use crate::sabotage::Sabotage;
use crate::trace::Violation;

/// How many of a failure's last events are shown.
const LAST_EVENTS: usize = 40;
/// After so many failures it is enough.
const ENOUGH: usize = 5;

/// What the seeds of a sweep must have seen between them: a fault that never bites tests nothing.
pub const MUST_BE_SEEN: &[&str] = &[
    "a handoff completed",
    "a handoff was cancelled",
    "a new owner started from a checkpoint",
    "a new owner died after it had taken over",
    "a coordinator was elected",
    "an assignment round closed",
    "a request was held",
    "a held request was flushed",
    "a slow request gave its place in a flush away",
    "a stash was full",
    "a request waited too long",
    "a request waited too long for a fenced router",
    "a 421 was put back",
    "a pod could not be reached",
    "a client hung up while held",
    "a client hung up on an exchange",
    "an exchange broke",
    "an exchange was severed",
    "a drain was severed",
    "a lease ran out",
    "a lease ran out while a connection was made",
    "a guard refused a write",
    "a watch was lost",
    "the store went back",
    "a watch fell behind a compaction",
    "a registration was detached from its lease",
    "a process stood still in one keyspace",
    "a partition moved for load",
    "a pod sent no heartbeats",
    "a heartbeat was written by another hand",
    "the outcome of a store call stayed unknown",
    "the log refused an old epoch",
];

/// A seed that once found a fault, and why it is kept.
#[derive(Debug, Clone, Copy)]
pub struct Regression {
    /// The seed.
    pub seed: u64,
    /// What it found.
    pub why: &'static str,
}

/// The seeds that every sweep runs first.
pub fn regressions() -> Vec<Regression> {
    let lines = include_str!("../regressions.txt").lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (seed, why) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            Regression { seed: seed.parse().expect("a line of regressions.txt begins with a seed"), why: why.trim() }
        })
        .collect()
}

/// What is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Sweep {
    /// How many seeds.
    pub seeds: u64,
    /// The first of them.
    pub from: u64,
    /// How many at a time.
    pub jobs: usize,
    /// A rule that is broken on purpose.
    pub sabotage: Option<Sabotage>,
    /// Every seed twice; else every hundredth.
    pub check_all_twice: bool,
    /// The regressions first.
    pub regressions: bool,
}

/// A seed that broke a promise.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    sabotage: Option<Sabotage>,
    violations: Vec<Violation>,
    last_events: Vec<String>,
}

/// What came of all.
#[derive(Debug, Default)]
pub struct Total {
    /// How many seeds were run.
    pub seeds: u64,
    events: u64,
    requests: (u64, u64),
    simulated: Duration,
    took: Duration,
    seen: BTreeMap<&'static str, u64>,
    /// The seeds that broke a promise, lowest first.
    pub failures: Vec<Failure>,
}

impl Sweep {
    /// Runs it; `tell` is called now and then with how far it is.
    pub fn run(&self, tell: impl Fn(&str) + Sync) -> Total {
        let began = Instant::now();
        let known = if self.regressions { regressions() } else { Vec::new() };
        let seeds: Vec<u64> = known.iter().map(|known| known.seed).chain(self.from..self.from + self.seeds).collect();
        let (next, enough) = (AtomicU64::new(0), AtomicBool::new(false));
        let total = Mutex::new(Total::default());
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    while !enough.load(SeqCst) {
                        let turn = next.fetch_add(1, SeqCst);
                        let Some(seed) = seeds.get(turn as usize) else { return };
                        let twice = self.sabotage.is_none() && (self.check_all_twice || turn.is_multiple_of(100));
                        let (outcome, mut failure) = self.one(*seed, twice);
                        if self.sabotage.is_some() && failure.is_some() {
                            // What fails without the sabotage says nothing about it.
                            let honest = Scenario { seed: *seed, sabotage: None, keeps_lines: false };
                            let honest = run(honest).expect("a runtime can be made");
                            failure = failure.filter(|_| honest.violations.is_empty());
                        }
                        let mut total = total.lock().expect("no thread panics while it adds up");
                        total.add(&outcome);
                        total.failures.extend(failure);
                        total.took = began.elapsed();
                        if total.failures.len() >= ENOUGH || (self.sabotage.is_some() && !total.failures.is_empty()) {
                            enough.store(true, SeqCst);
                        }
                        let (done, all, failed) = (total.seeds, seeds.len(), total.failures.len());
                        tell(&format!("{done}/{all} seeds, {} events, {failed} failed", total.events));
                    }
                });
            }
        });
        let mut total = total.into_inner().expect("no thread panics while it adds up");
        total.failures.sort_by_key(|failure| failure.seed);
        total
    }

    fn one(&self, seed: u64, twice: bool) -> (Outcome, Option<Failure>) {
        let scenario = Scenario { seed, sabotage: self.sabotage, keeps_lines: false };
        let mut outcome = run(scenario).expect("a runtime can be made");
        if twice {
            let again = run(scenario).expect("a runtime can be made");
            if again.hash != outcome.hash {
                let what = format!(
                    "{} events with hash {:016x}, then {} with {:016x}",
                    outcome.events, outcome.hash, again.events, again.hash
                );
                outcome.violations.push(Violation {
                    invariant: "determinism",
                    what,
                    at: outcome.simulated.as_secs_f64(),
                });
            }
        }
        let failure = (!outcome.violations.is_empty()).then(|| {
            // Once more for its history: it repeats.
            let told = run(Scenario { keeps_lines: true, ..scenario }).expect("a runtime can be made");
            let skipped = told.lines.len().saturating_sub(LAST_EVENTS);
            let last_events = told.lines.into_iter().skip(skipped).collect();
            Failure { seed, sabotage: self.sabotage, violations: outcome.violations.clone(), last_events }
        });
        (outcome, failure)
    }
}

impl Failure {
    /// The promise that was broken first.
    pub fn invariant(&self) -> &'static str {
        self.violations.first().map_or("", |violation| violation.invariant)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "seed {} broke a promise; its last events:", self.seed)?;
        for event in &self.last_events {
            writeln!(out, "  {event}")?;
        }
        for violation in &self.violations {
            writeln!(out, "{violation}")?;
        }
        let sabotage = self.sabotage.map_or(String::new(), |sabotage| format!(" --sabotage {}", sabotage.name()));
        write!(out, "replay it: make simulate ARGS=\"--seed {}{sabotage}\"", self.seed)
    }
}

impl Total {
    /// What ought to have been seen and was not.
    pub fn unseen(&self) -> Vec<&'static str> {
        MUST_BE_SEEN.iter().filter(|what| !self.seen.contains_key(*what)).copied().collect()
    }

    fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.events += outcome.events;
        self.requests.0 += outcome.requests.0;
        self.requests.1 += outcome.requests.1;
        self.simulated += outcome.simulated;
        for (what, often) in &outcome.seen {
            *self.seen.entry(what).or_default() += often;
        }
    }
}

impl fmt::Display for Total {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated.as_secs_f64() / 3600.0;
        let rate = hours / self.took.as_secs_f64().max(0.001);
        let (requests, done) = self.requests;
        write!(
            out,
            "simulate: seeds={} events={} hours={hours:.2} violations={} hours_per_second={rate:.3} requests={requests} done={done} seconds={:.1}",
            self.seeds,
            self.events,
            self.failures.len(),
            self.took.as_secs_f64()
        )
    }
}
