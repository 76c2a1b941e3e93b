//! The events of a run, as a hash that tells two runs apart and, on demand, as lines to read.
//!
//! Every event is hashed with its simulated time.
//!
//! # Invariants
//!
//! * Nothing is hashed that depends on the machine, the wall clock or an address in memory: a seed has one hash.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// The history of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    began: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    hash: DefaultHasher,
    events: u64,
    /// Only if they were asked for.
    lines: Option<Vec<String>>,
    seen: BTreeMap<&'static str, u64>,
    violations: Vec<Violation>,
}

/// A broken promise.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Which one, by the name that the protocol gives it.
    pub invariant: &'static str,
    /// How it was broken.
    pub what: String,
    /// When, in seconds of simulated time.
    pub at: f64,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:>10.3} {}: {}", self.at, self.invariant, self.what)
    }
}

/// What is left of a run's history.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) hash: u64,
    pub(crate) events: u64,
    pub(crate) lines: Vec<String>,
    pub(crate) seen: BTreeMap<&'static str, u64>,
    pub(crate) violations: Vec<Violation>,
}

impl Trace {
    /// `keeps_lines`: also as text, which costs time.
    pub(crate) fn new(keeps_lines: bool) -> Self {
        let inner = Inner {
            hash: DefaultHasher::new(),
            events: 0,
            lines: keeps_lines.then(Vec::new),
            seen: BTreeMap::new(),
            violations: Vec::new(),
        };
        Trace { began: Instant::now(), inner: Mutex::new(inner) }
    }

    /// Something happened.
    pub(crate) fn event(&self, what: fmt::Arguments<'_>) {
        let micros = self.began.elapsed().as_micros() as u64;
        let mut inner = self.lock();
        inner.events += 1;
        inner.hash.write_u64(micros);
        let mut text = Text { hash: &mut inner.hash };
        // Hashing text has no way to fail.
        let _ = fmt::write(&mut text, what);
        if let Some(lines) = &mut inner.lines {
            lines.push(format!("{:>10.3} {what}", micros as f64 / 1e6));
        }
    }

    /// Something happened that the whole sweep must have seen at least once.
    pub(crate) fn seen(&self, what: &'static str) {
        *self.lock().seen.entry(what).or_default() += 1;
    }

    /// A promise was broken.
    pub(crate) fn violation(&self, invariant: &'static str, what: String) {
        self.event(format_args!("VIOLATION {invariant}: {what}"));
        let at = self.began.elapsed().as_secs_f64();
        self.lock().violations.push(Violation { invariant, what, at });
    }

    pub(crate) fn is_broken(&self) -> bool {
        !self.lock().violations.is_empty()
    }

    pub(crate) fn finish(&self) -> Recorded {
        let mut inner = self.lock();
        Recorded {
            hash: inner.hash.finish(),
            events: inner.events,
            lines: inner.lines.take().unwrap_or_default(),
            seen: std::mem::take(&mut inner.seen),
            violations: std::mem::take(&mut inner.violations),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Text<'a> {
    hash: &'a mut DefaultHasher,
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.hash.write(text.as_bytes());
        Ok(())
    }
}
