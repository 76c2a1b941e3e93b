//! What the terminal shows: lines of the copies, each behind its pod's name, and the command's own words.
//!
//! # Invariants
//!
//! * The site goes on while nobody reads its words: a thread of their own writes them.
//! * The last lines of each copy are kept, for the report of a failure.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::process::printable::{printable, shown};
use crate::process::supervise::{OutputStream, ServiceOutput};

/// Most lines of a copy that are kept.
const KEPT_LINES: usize = 10;
/// How long the end waits for a reader of the last words.
const PATIENCE: Duration = Duration::from_secs(1);
/// The name before the command's own words.
const OWN_NAME: &str = "segue";

/// The terminal.
#[derive(Debug)]
pub(super) struct Console {
    words: mpsc::Sender<String>,
    written: mpsc::Receiver<()>,
    /// The width of the names before lines.
    width: usize,
}

impl Console {
    /// Begins to show what this many copies write.
    pub(super) fn start(copies: usize) -> io::Result<Self> {
        let (words, lines) = mpsc::channel::<String>();
        let (done, written) = mpsc::channel();
        thread::Builder::new().name("console".to_owned()).spawn(move || {
            for line in lines {
                let _ = io::stderr().write_all(line.as_bytes());
            }
            let _ = done.send(());
        })?;
        Ok(Console { words, written, width: format!("dev-{copies}").len().max(OWN_NAME.len()) })
    }

    /// Says something, on a line behind the command's name.
    pub(super) fn say(&self, text: &str) {
        self.show(&(self.prefix(OWN_NAME) + text));
    }

    /// Shows lines as they are.
    pub(super) fn show(&self, text: &str) {
        let _ = self.words.send(format!("{}\n", printable(text)));
    }

    /// Returns what shows the lines of the copy with this name.
    pub(super) fn output_of(&self, name: &str) -> Arc<CopyOutput> {
        Arc::new(CopyOutput { prefix: self.prefix(name), last: Mutex::default() })
    }

    /// Returns once everything is written, or nobody reads it.
    pub(super) fn finish(self) {
        drop(self.words);
        let _ = self.written.recv_timeout(PATIENCE);
    }

    fn prefix(&self, name: &str) -> String {
        format!("{name:width$} | ", width = self.width)
    }
}

/// The lines of a copy.
#[derive(Debug)]
pub(super) struct CopyOutput {
    prefix: String,
    last: Mutex<VecDeque<String>>,
}

impl CopyOutput {
    /// Returns the last lines.
    pub(super) fn last(&self) -> Vec<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl ServiceOutput for CopyOutput {
    fn line(&self, stream: OutputStream, line: &[u8]) {
        {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.len() == KEPT_LINES {
                last.pop_front();
            }
            last.push_back(shown(line.strip_suffix(b"\r").unwrap_or(line)));
        }
        // As the copy would write it itself.
        let line = [self.prefix.as_bytes(), line, b"\n"].concat();
        let _ = match stream {
            OutputStream::Out => io::stdout().lock().write_all(&line),
            OutputStream::Err => io::stderr().lock().write_all(&line),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_a_copy_are_kept() {
        let console = Console::start(12).unwrap();
        assert_eq!(console.prefix("dev-1"), "dev-1  | ");
        let output = console.output_of("dev-1");
        for number in 0..KEPT_LINES + 2 {
            output.line(OutputStream::Err, format!("line {number}\r").as_bytes());
        }
        let last = output.last();
        assert_eq!((last.len(), &*last[0], &*last[KEPT_LINES - 1]), (KEPT_LINES, "line 2", "line 11"));
        console.finish();
    }
}
