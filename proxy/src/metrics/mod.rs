//! The metrics of the data path.
//!
//! Each worker has counters that only it writes, so counting costs a load and a store, and workers share no cache line.
//! The counters are summed when the metrics are read. Elsewhere: the names and labels under which all of it is exported
//! (`series`), and what is counted for each pod (`by_pod`).

mod by_pod;
mod series;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::StatusCode;

pub use self::by_pod::PodSeries;
use crate::message::local_reply::{LocalReply, PodReason};
use crate::routing::table::Bounce;
use crate::runtime::last_turn::LastTurn;
pub use crate::runtime::single_writer::BUCKET_BOUNDS_MICROS;
use crate::runtime::single_writer::{DurationHistogram, add};

/// Number of status codes, from 100 on, that a pod can respond with: all that three digits can say.
const CODES: usize = 900;

/// Why a response that had begun did not reach its client in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutOffCause {
    /// The pod broke the exchange off.
    Broken,
    /// The partition was severed at the end of its drain.
    Severed,
    /// No bytes have flowed for too long.
    Idle,
    /// The deadline that a gRPC call's client gave has passed.
    Deadline,
    /// The client disconnected or reset its stream.
    ClientGone,
}

impl CutOffCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [CutOffCause; 5] =
        [CutOffCause::Broken, CutOffCause::Severed, CutOffCause::Idle, CutOffCause::Deadline, CutOffCause::ClientGone];

    /// Returns the value of the label `cause`.
    pub fn as_str(self) -> &'static str {
        match self {
            CutOffCause::Broken => "broken",
            CutOffCause::Severed => "severed",
            CutOffCause::Idle => "idle",
            CutOffCause::Deadline => "deadline",
            CutOffCause::ClientGone => "client_gone",
        }
    }
}

/// The counters of all workers.
#[derive(Debug, Clone)]
pub struct Metrics {
    workers: Arc<[Arc<WorkerMetrics>]>,
}

/// The counters of one worker. Only that worker's thread writes them.
pub struct WorkerMetrics {
    passed: [AtomicU64; CODES],
    own: [AtomicU64; LocalReply::ALL.len()],
    of_pods: [AtomicU64; PodReason::ALL.len()],
    aborted: AtomicU64,
    requests_in_flight: AtomicU64,
    requests_bounced: [AtomicU64; Bounce::ALL.len()],
    responses_cut_off: [AtomicU64; CutOffCause::ALL.len()],
    durations: DurationHistogram,
    stash_waits: DurationHistogram,
    connections: AtomicU64,
    pub(crate) last_turn: LastTurn,
}

impl fmt::Debug for WorkerMetrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("WorkerMetrics").field("requests_in_flight", &self.requests_in_flight).finish_non_exhaustive()
    }
}

impl Default for WorkerMetrics {
    fn default() -> Self {
        WorkerMetrics {
            passed: std::array::from_fn(|_| AtomicU64::new(0)),
            own: std::array::from_fn(|_| AtomicU64::new(0)),
            of_pods: Default::default(),
            aborted: AtomicU64::new(0),
            requests_in_flight: AtomicU64::new(0),
            requests_bounced: Default::default(),
            responses_cut_off: Default::default(),
            durations: DurationHistogram::default(),
            stash_waits: DurationHistogram::default(),
            connections: AtomicU64::new(0),
            last_turn: LastTurn::default(),
        }
    }
}

impl WorkerMetrics {
    /// Counts a pod's response that is passed on.
    #[inline]
    pub(crate) fn passed(&self, status: StatusCode) {
        if let Some(counter) = self.passed.get(usize::from(status.as_u16()).wrapping_sub(100)) {
            add(counter, 1);
        }
    }

    /// Counts a response that a pod's layer or sidecar has made in place of the service, and that is passed on.
    #[cold]
    pub(crate) fn passed_reason(&self, reason: PodReason) {
        add(&self.of_pods[reason as usize], 1);
    }

    pub(crate) fn answered(&self, own: LocalReply) {
        add(&self.own[own.index()], 1);
    }

    /// Counts a request whose client disconnected before there was a response.
    pub(crate) fn aborted(&self) {
        add(&self.aborted, 1);
    }

    pub(crate) fn bounced(&self, bounce: Bounce) {
        add(&self.requests_bounced[bounce as usize], 1);
    }

    /// Counts a response that had begun and did not reach its client in full.
    pub(crate) fn cut_off(&self, cause: CutOffCause) {
        add(&self.responses_cut_off[cause as usize], 1);
    }

    #[inline]
    pub(crate) fn took(&self, duration: Duration) {
        self.durations.observe(duration);
    }

    /// Records how long a request was held before it was admitted.
    pub(crate) fn waited(&self, duration: Duration) {
        self.stash_waits.observe(duration);
    }

    #[inline]
    pub(crate) fn begins(&self) {
        add(&self.requests_in_flight, 1);
    }

    #[inline]
    pub(crate) fn ends(&self) {
        add(&self.requests_in_flight, 1u64.wrapping_neg());
    }

    pub(crate) fn requests_in_flight(&self) -> u64 {
        self.requests_in_flight.load(Relaxed)
    }

    pub(crate) fn connected(&self) {
        add(&self.connections, 1);
    }

    pub(crate) fn disconnected(&self) {
        add(&self.connections, 1u64.wrapping_neg());
    }
}

impl Metrics {
    /// Returns zeroed counters for so many workers.
    pub fn new(workers: usize) -> Self {
        Metrics { workers: (0..workers).map(|_| Arc::default()).collect() }
    }

    /// Returns the counters of one worker.
    pub fn worker(&self, index: usize) -> Arc<WorkerMetrics> {
        self.workers[index].clone()
    }

    fn sum(&self, counter: impl Fn(&WorkerMetrics) -> &AtomicU64) -> u64 {
        let each = self.workers.iter().map(|worker| counter(worker).load(Relaxed));
        each.fold(0, u64::wrapping_add)
    }

    /// Returns the number of requests in flight to pods, over all workers.
    pub fn requests_in_flight(&self) -> u64 {
        self.sum(|worker| &worker.requests_in_flight)
    }

    /// Returns how long ago the worker that has had no turn for longest had one. A worker has one every second; `None` if
    /// no worker runs.
    pub fn longest_silence(&self) -> Option<Duration> {
        self.workers.iter().filter_map(|worker| worker.last_turn.since()).max()
    }

    /// Returns how often the router responded itself for this reason.
    pub fn own_answers(&self, own: LocalReply) -> u64 {
        self.sum(|worker| &worker.own[own.index()])
    }

    /// Returns how many responses of pods gave this reason.
    pub fn pod_answers(&self, reason: PodReason) -> u64 {
        self.sum(|worker| &worker.of_pods[reason as usize])
    }

    /// Returns how many responses were cut off for this cause.
    pub fn responses_cut_off(&self, cause: CutOffCause) -> u64 {
        self.sum(|worker| &worker.responses_cut_off[cause as usize])
    }

    /// Returns how often a request was put back for this reason.
    pub fn requests_bounced(&self, bounce: Bounce) -> u64 {
        self.sum(|worker| &worker.requests_bounced[bounce as usize])
    }
}

#[cfg(test)]
mod tests;
