//! What a process says on standard error at its end: its log has ended by then.
//!
//! # Invariants
//!
//! * In a process whose log is JSON, these lines are as well.
//! * The end waits a second at most for a reader.
//! * Nothing panics if standard error is closed.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::json;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use super::printable::{on_one_line, printable};

/// How long the end of a process waits for the reader of its last line.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the log of this process is JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Has later lines be JSON, as the log's lines are, if `json`.
pub(crate) fn speak_json_if(json: bool) {
    IS_JSON.store(json, Relaxed);
}

/// Returns whether lines are JSON.
pub(crate) fn is_json() -> bool {
    IS_JSON.load(Relaxed)
}

/// Writes a text to standard error, as one line whatever it contains.
pub fn say_line(text: &str) {
    if is_json() { say(text) } else { say(&on_one_line(text)) }
}

/// Writes a text of one or more lines to standard error.
pub fn say(text: &str) {
    let line = if is_json() { json_line(text) } else { format!("{}\n", printable(text)) };
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

/// Returns a line with the fields that the log's lines have.
fn json_line(text: &str) -> String {
    let mut timestamp = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let line = json!({ "timestamp": timestamp, "level": "ERROR", "fields": { "message": text }, "target": "segue" });
    format!("{line}\n")
}
