//! The events of a run with their time, in plain words: on stderr as they happen, and in a file beside the logs.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Timeline {
    begun: Instant,
    file: Mutex<File>,
}

impl Timeline {
    pub(crate) fn begin(folder: &Path) -> std::io::Result<Self> {
        let file = File::options().create(true).append(true).open(folder.join("timeline"))?;
        Ok(Timeline { begun: Instant::now(), file: Mutex::new(file) })
    }

    /// Since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(crate) fn say(&self, what: &str) {
        let line = format!("{:7.1} s  {what}\n", self.elapsed().as_secs_f64());
        eprint!("{line}");
        // The file is a copy: a full disk must not end the run.
        let _ = self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    }
}
