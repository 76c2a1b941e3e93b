//! How much may wait before a partition, and why a request may not.

use std::sync::Arc;
// Not loom's: settings order nothing, and would cost its models interleavings.
use std::sync::atomic::{AtomicU64, AtomicUsize as Setting, Ordering::Relaxed};
use std::time::Duration;

use segue_protocol::handoff::router::HoldCause;

use crate::routing::sync::AtomicUsize;

/// Bounds on what waits, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StashLimits {
    /// Most requests that wait for one partition.
    pub max_requests: usize,
    /// Most bytes that wait for one partition.
    pub max_bytes: usize,
    /// Most bytes that wait in all, in every table with the same [`StashTotal`].
    pub max_total_bytes: usize,
    /// Longest time that a request waits, counted from when it was first held.
    pub max_wait: Duration,
    /// Most requests of a partition that a flush has in flight.
    pub flush_concurrency: usize,
}

/// The defaults of the file.
impl Default for StashLimits {
    fn default() -> Self {
        StashLimits {
            max_requests: 10_000,
            max_bytes: 64 << 20,
            max_total_bytes: 512 << 20,
            max_wait: Duration::from_secs(30),
            flush_concurrency: 64,
        }
    }
}

/// The limits of a table, which may change while requests wait. Each is read when it is needed.
///
/// Requests that wait keep their place and their time. One whose body still arrives is refused if the memory that it
/// adds exceeds the new limits.
#[derive(Debug)]
pub(super) struct LimitsInForce {
    max_requests: Setting,
    max_bytes: Setting,
    max_total_bytes: Setting,
    max_wait_nanos: AtomicU64,
    flush_concurrency: Setting,
}

impl LimitsInForce {
    pub(super) fn new(limits: StashLimits) -> Self {
        let StashLimits { max_requests, max_bytes, max_total_bytes, max_wait, flush_concurrency } = limits;
        LimitsInForce {
            max_requests: max_requests.into(),
            max_bytes: max_bytes.into(),
            max_total_bytes: max_total_bytes.into(),
            max_wait_nanos: nanos(max_wait).into(),
            flush_concurrency: flush_concurrency.into(),
        }
    }

    pub(super) fn set(&self, limits: StashLimits) {
        let StashLimits { max_requests, max_bytes, max_total_bytes, max_wait, flush_concurrency } = limits;
        self.max_requests.store(max_requests, Relaxed);
        self.max_bytes.store(max_bytes, Relaxed);
        self.max_total_bytes.store(max_total_bytes, Relaxed);
        self.max_wait_nanos.store(nanos(max_wait), Relaxed);
        self.flush_concurrency.store(flush_concurrency, Relaxed);
    }

    pub(super) fn max_requests(&self) -> usize {
        self.max_requests.load(Relaxed)
    }

    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes.load(Relaxed)
    }

    pub(super) fn max_total_bytes(&self) -> usize {
        self.max_total_bytes.load(Relaxed)
    }

    pub(super) fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.max_wait_nanos.load(Relaxed))
    }

    pub(super) fn flush_concurrency(&self) -> usize {
        self.flush_concurrency.load(Relaxed)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The bytes that wait in several tables, such as those of a router's keyspaces.
#[derive(Debug, Clone)]
pub struct StashTotal(pub(super) Arc<AtomicUsize>);

impl Default for StashTotal {
    fn default() -> Self {
        StashTotal(Arc::new(AtomicUsize::new(0)))
    }
}

/// Why a request is neither passed on nor held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The stash is full.
    #[error("too many requests wait for the partition")]
    Full,
    /// It has waited as long as it may.
    #[error("waited too long: {}", match .0 { HoldCause::NoOwner => "no pod owns the partition", HoldCause::Handoff => "the partition is being handed over", HoldCause::Fenced => "the store cannot be reached" })]
    Waited(HoldCause),
    /// The router is shutting down.
    #[error("the router is shutting down")]
    Shutdown,
}
