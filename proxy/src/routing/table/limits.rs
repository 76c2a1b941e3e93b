//! How much may wait before a partition, and why a request may not.

use std::sync::Arc;
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
