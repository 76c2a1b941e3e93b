//! What a pod has answered, and how long its exchanges lasted.
//!
//! Each worker has counters of its own, which only it writes. Elsewhere: whether the pod accepts its requests
//! ([`pod_health`](super::pod_health)).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::StatusCode;

use crate::runtime::single_writer::{BUCKET_BOUNDS_MICROS, DurationHistogram, add};

/// The class of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeClass {
    /// An interim status, of a switch of protocols.
    Informational,
    /// 2xx.
    Success,
    /// 3xx.
    Redirection,
    /// 4xx.
    ClientError,
    /// 5xx, and statuses that mean nothing.
    ServerError,
    /// No response, for the pod's fault.
    NoResponse,
}

impl CodeClass {
    /// All classes, in the order of their numbers.
    pub const ALL: [CodeClass; 6] = [
        CodeClass::Informational,
        CodeClass::Success,
        CodeClass::Redirection,
        CodeClass::ClientError,
        CodeClass::ServerError,
        CodeClass::NoResponse,
    ];

    /// Returns the value of the label `code_class`.
    pub fn as_str(self) -> &'static str {
        match self {
            CodeClass::Informational => "1xx",
            CodeClass::Success => "2xx",
            CodeClass::Redirection => "3xx",
            CodeClass::ClientError => "4xx",
            CodeClass::ServerError => "5xx",
            CodeClass::NoResponse => "none",
        }
    }

    /// Returns whether the pod, and not its client, is at fault.
    pub fn is_failure(self) -> bool {
        matches!(self, CodeClass::ServerError | CodeClass::NoResponse)
    }
}

impl From<StatusCode> for CodeClass {
    #[inline]
    fn from(status: StatusCode) -> Self {
        match status.as_u16() / 100 {
            1 => CodeClass::Informational,
            2 => CodeClass::Success,
            3 => CodeClass::Redirection,
            4 => CodeClass::ClientError,
            _ => CodeClass::ServerError,
        }
    }
}

/// The traffic of one life of a pod.
#[derive(Debug)]
pub(crate) struct PodTraffic {
    workers: Box<[WorkerTraffic]>,
}

/// One worker's part of it. Aligned so that two workers' counters share no cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct WorkerTraffic {
    answers: [AtomicU64; CodeClass::ALL.len()],
    durations: DurationHistogram,
}

impl WorkerTraffic {
    /// Counts an answer.
    #[inline]
    pub(crate) fn answered(&self, class: CodeClass) {
        add(&self.answers[class as usize], 1);
    }

    /// Records how long an exchange lasted, from the moment at which the request could be sent.
    #[inline]
    pub(crate) fn took(&self, duration: Duration) {
        self.durations.observe(duration);
    }
}

impl PodTraffic {
    pub(super) fn new(workers: usize) -> Self {
        PodTraffic { workers: (0..workers).map(|_| WorkerTraffic::default()).collect() }
    }

    #[inline]
    pub(in crate::routing) fn of(&self, worker: usize) -> &WorkerTraffic {
        &self.workers[worker]
    }

    /// Returns the traffic of all workers.
    pub(crate) fn total(&self) -> TrafficTotal {
        let mut total = TrafficTotal::default();
        for worker in &self.workers {
            let counters = worker.answers.iter().chain(&worker.durations.buckets);
            let sums = total.answers.iter_mut().chain(&mut total.buckets);
            sums.zip(counters).for_each(|(sum, counter)| *sum += counter.load(Relaxed));
            total.nanoseconds += worker.durations.nanoseconds.load(Relaxed);
        }
        total
    }
}

/// Traffic, added up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TrafficTotal {
    /// By class.
    pub(crate) answers: [u64; CodeClass::ALL.len()],
    /// By the bounds [`BUCKET_BOUNDS_MICROS`].
    pub(crate) buckets: [u64; BUCKET_BOUNDS_MICROS.len() + 1],
    pub(crate) nanoseconds: u64,
}

impl TrafficTotal {
    pub(crate) fn add(&mut self, other: &TrafficTotal) {
        let sums = self.answers.iter_mut().chain(&mut self.buckets);
        sums.zip(other.answers.iter().chain(&other.buckets)).for_each(|(sum, other)| *sum += other);
        self.nanoseconds += other.nanoseconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_are_added_up() {
        let traffic = PodTraffic::new(2);
        traffic.of(0).answered(CodeClass::from(StatusCode::OK));
        traffic.of(1).answered(CodeClass::from(StatusCode::CREATED));
        traffic.of(1).answered(CodeClass::NoResponse);
        traffic.of(0).took(Duration::from_micros(150));
        traffic.of(1).took(Duration::from_micros(50));
        let mut total = traffic.total();
        assert_eq!(total.answers, [0, 2, 0, 0, 0, 1]);
        assert_eq!((&total.buckets[..3], total.nanoseconds), (&[1, 1, 0][..], 200_000));
        total.add(&traffic.total());
        assert_eq!((total.answers[1], total.buckets[1], total.nanoseconds), (4, 2, 400_000));
    }

    #[test]
    fn a_status_that_means_nothing_is_an_error_of_the_server() {
        for (status, class) in [(101, "1xx"), (204, "2xx"), (304, "3xx"), (421, "4xx"), (503, "5xx"), (999, "5xx")] {
            assert_eq!(CodeClass::from(StatusCode::from_u16(status).unwrap()).as_str(), class);
        }
    }
}
