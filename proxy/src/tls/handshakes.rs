//! Handshakes of peers that failed, at all listeners of the process: a number for the metrics, and lines of the log.
//!
//! # Invariants
//!
//! * A peer that says nothing is no failure: balancers look in this way whether a port is open.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use segue_coordination::repeats::Repeats;
use tokio::time::Instant;

/// Statics, because every listener of the process counts here.
static FAILED: AtomicU64 = AtomicU64::new(0);
static LINES: Mutex<Repeats> = Mutex::new(Repeats::NEW);

/// Returns how many handshakes of peers have failed.
pub fn failed() -> u64 {
    FAILED.load(Relaxed)
}

/// Notes the error of a handshake.
pub fn note_failure(error: &io::Error) {
    // What rustls cannot read, or the peer's alert. All else is a peer that has gone.
    if error.kind() != io::ErrorKind::InvalidData {
        return;
    }
    FAILED.fetch_add(1, Relaxed);
    if let Some(times) = LINES.lock().unwrap_or_else(PoisonError::into_inner).note(1, Instant::now()) {
        tracing::warn!(%error, times, "TLS handshakes of peers fail");
    }
}
