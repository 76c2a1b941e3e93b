//! The log of `segue run`: its format, its level, which can be changed while the process runs, and the queue before
//! standard error.
//!
//! # Invariants
//!
//! * Nobody waits for the reader of the log. A line that finds the queue full is dropped and counted, and so is one that cannot be
//!   written, as on a full disk.
//! * The end of a process waits for its last lines, a second or so at most.

use std::io::{self, IsTerminal as _, Stderr, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use segue_config::{Config, LogFormat, LogLevel};
use tracing::{error, warn};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, reload};

use super::service_manager;
use crate::process::last_words;

/// Most lines that wait to be written: some megabytes.
const MAX_LINES: usize = 16 << 10;
/// How often the process looks whether lines were dropped.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the end of a process waits for the reader of its last lines.
const PATIENCE: Duration = Duration::from_millis(1_500);

pub(super) type LevelHandle = reload::Handle<LevelFilter, tracing_subscriber::Registry>;

/// The thread that writes the log. A static, because the process also ends by [`std::process::exit`], which drops
/// nothing.
static WRITER: Mutex<Option<WorkerGuard>> = Mutex::new(None);

/// The log of this process. Its last lines are written when it is dropped.
pub(super) struct Log {
    pub(super) level: LevelHandle,
    pub(super) dropped: DroppedLines,
}

/// The number of lines that are missing in the log.
#[derive(Debug, Clone)]
pub(crate) struct DroppedLines {
    without_room: ErrorCounter,
    unwritten: Arc<AtomicU64>,
}

impl DroppedLines {
    pub(crate) fn count(&self) -> u64 {
        self.without_room.dropped_lines() as u64 + self.unwritten.load(Relaxed)
    }
}

/// Standard error. Lines that it does not take are counted: the thread that writes them ignores errors.
struct Output {
    stderr: Stderr,
    unwritten: Arc<AtomicU64>,
}

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = self.stderr.write(line);
        // An interrupted write is tried again.
        if written.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted) {
            self.unwritten.fetch_add(1, Relaxed);
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stderr.flush()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        finish();
    }
}

pub(super) fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

pub(super) fn start_logging(config: &Config) -> Log {
    let unwritten = Arc::<AtomicU64>::default();
    let (writer, guard) = queue(Output { stderr: io::stderr(), unwritten: unwritten.clone() });
    let dropped = DroppedLines { without_room: writer.error_counter(), unwritten };
    if let Ok(mut kept) = WRITER.lock() {
        *kept = Some(guard);
    }
    let (filter, level) = reload::Layer::new(level_filter(config.log.level));
    // The log of a process that another one replaces goes on in the same file, not on the terminal of the command.
    let is_terminal = io::stderr().is_terminal() && !service_manager::is_successor();
    let layer = tracing_subscriber::fmt::layer().with_writer(writer.clone()).with_ansi(is_terminal).with_target(false);
    let layer = match config.log.format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => tracing_subscriber::fmt::layer().with_writer(writer).json().boxed(),
    };
    last_words::speak_json_if(config.log.format == LogFormat::Json);
    // A thread that panics says so in the log, and by its rules.
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map(ToString::to_string);
        let text = panic.payload_as_str().unwrap_or("no text");
        error!(at, "panicked: {text}");
    }));
    // The filter is the innermost layer, so it also limits the logs of libraries.
    tracing_subscriber::registry().with(filter).with(layer).init();
    Log { level, dropped }
}

fn queue(output: Output) -> (NonBlocking, WorkerGuard) {
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(MAX_LINES).thread_name("log");
    queue.finish(output)
}

/// Writes the lines that wait, unless nobody reads them. Later lines are dropped.
pub(super) fn finish() {
    let Some(writer) = WRITER.lock().ok().and_then(|mut kept| kept.take()) else { return };
    let (written, is_written) = mpsc::channel();
    // A guard that finds the queue full says so on standard output, which may have no room either. The end of the process
    // ends the thread.
    let ending = thread::Builder::new().spawn(move || {
        drop(writer);
        let _ = written.send(());
    });
    if ending.is_ok() {
        let _ = is_written.recv_timeout(PATIENCE);
    }
}

/// Says in the log how many lines are missing, once there is room again.
pub(super) async fn tell_dropped_lines(dropped: DroppedLines) {
    let mut told = 0;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let count = dropped.count();
        if count > told {
            warn!(lines = count - told, "log lines dropped: standard error did not take them");
            // Unless this line has met with the same fate.
            if dropped.count() == count {
                told = count;
            }
        }
    }
}
