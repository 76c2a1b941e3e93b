//! What a step costs, read from etcd's metrics and from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;
use segue_protocol::ids::Revision;
use segue_tests::etcd::Etcd;

/// Clock ticks per second in `/proc/PID/stat`: `USER_HZ`, which is the same on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// A reading of all meters.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    revision: Revision,
    puts: f64,
    deletes: f64,
    sent_bytes: f64,
    changes: f64,
    watches: f64,
    coordinator_cpu: Duration,
    /// Of all routers.
    router_cpu: Vec<Duration>,
    harness_cpu: Duration,
    etcd_cpu: Duration,
}

/// The cost of a step.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) took: Duration,
    pub(crate) moves: u64,
    /// Transactions that wrote.
    pub(crate) transactions: f64,
    pub(crate) puts: f64,
    pub(crate) deletes: f64,
    /// Bytes that etcd sent to all its clients.
    pub(crate) sent_bytes: f64,
    /// Changes that etcd sent to all watches.
    pub(crate) changes: f64,
    /// Watches at the end of the step.
    pub(crate) watches: f64,
    pub(crate) coordinator_cpu: Duration,
    /// Of the router that took most.
    pub(crate) router_cpu: Duration,
    /// Of this process, which measures and has all pods.
    pub(crate) harness_cpu: Duration,
    pub(crate) etcd_cpu: Duration,
}

impl Reading {
    /// Reads all meters. `revision` is that of the store.
    pub(crate) fn take(
        etcd: &Etcd,
        revision: Revision,
        coordinator: Option<u32>,
        routers: &[u32],
    ) -> anyhow::Result<Self> {
        let metric = |names: &[&str]| {
            let found = names.iter().find_map(|name| etcd.metric(name));
            found.with_context(|| format!("etcd does not serve {}", names[0]))
        };
        Ok(Reading {
            revision,
            puts: metric(&["etcd_mvcc_put_total", "etcd_debugging_mvcc_put_total"])?,
            deletes: metric(&["etcd_mvcc_delete_total", "etcd_debugging_mvcc_delete_total"])?,
            sent_bytes: metric(&["etcd_network_client_grpc_sent_bytes_total"])?,
            changes: metric(&["etcd_debugging_mvcc_events_total"])?,
            watches: metric(&["etcd_debugging_mvcc_watcher_total"])?,
            coordinator_cpu: coordinator.map(cpu).unwrap_or_default(),
            router_cpu: routers.iter().copied().map(cpu).collect(),
            harness_cpu: cpu(std::process::id()),
            etcd_cpu: Duration::from_secs_f64(metric(&["process_cpu_seconds_total"])?),
        })
    }

    /// Returns what has been spent since an earlier reading.
    pub(crate) fn since(&self, before: &Reading, took: Duration, moves: u64) -> Cost {
        let routers = self.router_cpu.iter().zip(&before.router_cpu);
        Cost {
            took,
            moves,
            transactions: (self.revision.get() - before.revision.get()) as f64,
            puts: self.puts - before.puts,
            deletes: self.deletes - before.deletes,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            changes: self.changes - before.changes,
            watches: self.watches,
            coordinator_cpu: self.coordinator_cpu.saturating_sub(before.coordinator_cpu),
            router_cpu: routers.map(|(now, before)| now.saturating_sub(*before)).max().unwrap_or_default(),
            harness_cpu: self.harness_cpu.saturating_sub(before.harness_cpu),
            etcd_cpu: self.etcd_cpu.saturating_sub(before.etcd_cpu),
        }
    }
}

/// Returns the CPU time that a process has taken.
pub(crate) fn cpu(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program, in parentheses, may contain spaces. User and system time are the 12th and 13th after it.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// Returns the resident memory of a process.
pub(crate) fn rss_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) / 1024.0
}
