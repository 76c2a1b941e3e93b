//! What a process says on standard error at its end.
//!
//! # Invariants
//!
//! * The end waits a second at most for a reader.
//! * Nothing panics if standard error is closed.

use std::io::Write as _;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::printable::printable;

/// How long the end of a process waits for the reader of its last line.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes a line to standard error.
pub fn say(line: &str) {
    let line = format!("{}\n", printable(line));
    let (written, is_written) = mpsc::channel();
    // A write to a full pipe cannot be given up. The end of the process ends the thread.
    let writer = thread::Builder::new().spawn(move || {
        let _ = std::io::stderr().write_all(line.as_bytes());
        let _ = written.send(());
    });
    if writer.is_ok() {
        let _ = is_written.recv_timeout(PATIENCE);
    }
}
