//! The lines of the log about single requests (`[log] requests`), at `info`.
//!
//! # Invariants
//!
//! * Lines about failed requests are bounded: an outage does not fill the log. Each line says how many were left out before it.

use std::cell::Cell;
use std::time::Duration;

use segue_protocol::ids::{Epoch, PartitionId};
use tokio::time::Instant;

use crate::routing::request_summary::RequestSummary;
use crate::settings::LoggedRequests;

/// Most lines of a worker in a second, unless all requests are logged.
const MAX_LINES_PER_SECOND: u32 = 20;

/// The lines of one worker.
#[derive(Debug)]
pub(super) struct RequestLog {
    which: LoggedRequests,
    second: Cell<Option<Instant>>,
    lines: Cell<u32>,
    left_out: Cell<u64>,
}

/// A request that is over.
pub(super) struct RequestLine<'a> {
    pub(super) request: &'a RequestSummary,
    pub(super) partition: Option<PartitionId>,
    /// The pod and the epoch of the last attempt.
    pub(super) pod: Option<(&'a str, Option<Epoch>)>,
    /// `None` if its client had left by then.
    pub(super) status: Option<u16>,
    /// The local reply, or why the response ended early. Empty if neither is the case.
    pub(super) reason: &'static str,
    /// How long the request was held.
    pub(super) held: Duration,
    pub(super) took: Duration,
}

impl RequestLog {
    pub(super) fn new(which: LoggedRequests) -> Self {
        RequestLog { which, second: Cell::default(), lines: Cell::default(), left_out: Cell::default() }
    }

    /// Returns whether a request gets a line, if there is room for it.
    #[inline]
    pub(super) fn wants(&self, failed: bool) -> bool {
        match self.which {
            LoggedRequests::None => false,
            LoggedRequests::Failed => failed,
            LoggedRequests::All => true,
        }
    }

    /// Returns how many lines were left out since the last one, if there is room for a line now.
    fn room(&self, now: Instant) -> Option<u64> {
        let is_over = |begun: Instant| now.saturating_duration_since(begun) >= Duration::from_secs(1);
        if self.second.get().is_none_or(is_over) {
            self.second.set(Some(now));
            self.lines.set(0);
        }
        if self.lines.get() >= MAX_LINES_PER_SECOND && self.which != LoggedRequests::All {
            self.left_out.set(self.left_out.get() + 1);
            return None;
        }
        self.lines.set(self.lines.get() + 1);
        Some(self.left_out.take())
    }

    /// Writes the line of a request that is wanted.
    #[cold]
    pub(super) fn write(&self, line: &RequestLine<'_>) {
        let Some(left_out) = self.room(Instant::now()) else { return };
        let (pod, epoch) = line.pod.unzip();
        tracing::info!(
            target: "segue::requests",
            method = line.request.method(),
            path = line.request.path(),
            client = line.request.client(),
            status = line.status,
            reason = (!line.reason.is_empty()).then_some(line.reason),
            partition = line.partition.map(PartitionId::get),
            pod,
            epoch = epoch.flatten().map(Epoch::get),
            held_ms = millis(line.held),
            took_ms = millis(line.took),
            left_out = (left_out > 0).then_some(left_out),
            "request"
        );
    }
}

/// Returns a duration in milliseconds, to a tenth.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_failed_requests_are_bounded_and_those_left_out_are_counted() {
        let (log, began) = (RequestLog::new(LoggedRequests::Failed), Instant::now());
        assert!(log.wants(true) && !log.wants(false));
        let written = (0..100).filter_map(|_| log.room(began)).count();
        assert_eq!(written, MAX_LINES_PER_SECOND as usize);
        let next = began + Duration::from_secs(1);
        assert_eq!(log.room(next), Some(100 - u64::from(MAX_LINES_PER_SECOND)));
        assert_eq!(log.room(next), Some(0));
    }

    #[test]
    fn all_requests_are_all() {
        let (log, now) = (RequestLog::new(LoggedRequests::All), Instant::now());
        assert!(log.wants(false) && (0..100).all(|_| log.room(now) == Some(0)));
        let none = RequestLog::new(LoggedRequests::None);
        assert!(!none.wants(true));
    }
}
