//! What a process takes up, by /proc.

use std::fs;
use std::time::Duration;

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
pub(crate) struct Peak(JoinHandle<()>, std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Peak {
    pub(crate) fn watch(pid: u32) -> Self {
        let peak = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
        let seen = peak.clone();
        let looking = tokio::spawn(async move {
            loop {
                seen.fetch_max(rss_kib(pid), std::sync::atomic::Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        Peak(looking, peak)
    }

    /// In KiB.
    pub(crate) fn end(self) -> u64 {
        self.0.abort();
        self.1.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Lets this process, and those it starts, open so many files, or as many as it may. How many that is.
pub(crate) fn raise_file_limit(wanted: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
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
