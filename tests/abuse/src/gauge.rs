//! Memory and open files of a process, read from /proc, and whether the machine stands still.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinHandle;

/// Its resident memory, in KiB; 0: it is gone.
pub(crate) fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

/// Its open files.
pub(crate) fn files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Looks at the memory of a process many times a second.
pub(crate) struct Peak(JoinHandle<()>, Arc<AtomicU64>);

impl Peak {
    pub(crate) fn watch(pid: u32) -> Self {
        let peak = Arc::<AtomicU64>::default();
        let seen = peak.clone();
        let looking = tokio::spawn(async move {
            loop {
                seen.fetch_max(rss_kib(pid), Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        Peak(looking, peak)
    }

    /// In KiB.
    pub(crate) fn end(self) -> u64 {
        self.0.abort();
        self.1.load(Relaxed)
    }
}

/// Sees whether this machine stands still: a thread that sleeps for a moment, again and again, wakes late then.
pub(crate) struct Stalls {
    /// In milliseconds.
    longest: Arc<AtomicU64>,
    _dropped: mpsc::Sender<()>,
}

impl Stalls {
    pub(crate) fn watch() -> Self {
        const MOMENT: Duration = Duration::from_millis(5);
        let longest = Arc::<AtomicU64>::default();
        let (dropped, told) = mpsc::channel();
        let seen = longest.clone();
        std::thread::spawn(move || {
            let mut before = Instant::now();
            while told.recv_timeout(MOMENT) == Err(mpsc::RecvTimeoutError::Timeout) {
                seen.fetch_max(before.elapsed().saturating_sub(MOMENT).as_millis() as u64, Relaxed);
                before = Instant::now();
            }
        });
        Stalls { longest, _dropped: dropped }
    }

    /// How long it stood still at a time.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Relaxed))
    }
}

/// How many files a process may open: the soft limit and the hard one; none: as many as it likes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileLimits {
    soft: Option<u64>,
    hard: Option<u64>,
}

static STARTED_WITH: OnceLock<FileLimits> = OnceLock::new();

impl FileLimits {
    pub(crate) fn of(files: u64) -> Self {
        FileLimits { soft: Some(files), hard: Some(files) }
    }

    /// Those that this process was started with: what a user would start a router with.
    pub(crate) fn as_started() -> Self {
        *STARTED_WITH.get_or_init(|| {
            let limit = getrlimit(Resource::Nofile);
            FileLimits { soft: limit.current, hard: limit.maximum }
        })
    }

    /// A command that will have these limits, whatever this process has made of its own. A shell sets them, as between a fork
    /// and an exec only unsafe code could.
    pub(crate) fn command(self, program: &Path) -> Command {
        let limit = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |files| files.to_string());
        let mut command = Command::new("/bin/sh");
        // The soft one first: the hard one may not go below it.
        command.args(["-c", "ulimit -Sn \"$1\" && ulimit -Hn \"$2\" && shift 2 && exec \"$@\"", "sh"]);
        command.args([limit(self.soft), limit(self.hard)]).arg(program);
        command
    }
}

/// Lets this process open so many files, or as many as it may. How many that is. To be called once the limits that it was
/// started with are known.
pub(crate) fn raise_file_limit(wanted: u64) -> u64 {
    FileLimits::as_started();
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(wanted).max(wanted);
    // Root may go above its maximum; others get what they may.
    for files in [most, limit.maximum.unwrap_or(wanted)] {
        if setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum: Some(files) }).is_ok() {
            return files;
        }
    }
    limit.current.unwrap_or(0)
}
