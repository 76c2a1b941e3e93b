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

use super::printable::{on_one_line, printable};

/// How long the end of a process waits for the reader of its last line.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes a text to standard error, as one line whatever it contains.
pub fn say_line(text: &str) {
    say(&on_one_line(text));
}

/// Writes a text of one or more lines to standard error.
pub fn say(text: &str) {
    let line = format!("{}\n", printable(text));
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
