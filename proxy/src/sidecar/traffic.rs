//! The traffic of a sidecar, as far as other parts need it: which exchanges are in flight, when the service was last
//! sent something, whether it refuses connections, and what routers were answered.
//!
//! # Invariants
//!
//! * An exchange counts from before its first byte is sent until the service has ended it.

use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use segue_protocol::ids::PartitionId;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::service_address::ServiceAddress;
use super::shared_histogram::SharedHistogram;
use super::under_way::{ExchangeNumber, Exchanges};
use crate::routing::request_summary::RequestSummary;
use crate::runtime::repeated_line::RepeatedLine;

/// The traffic of one service, in one keyspace.
#[derive(Debug)]
pub struct Traffic {
    base: Instant,
    under_way: AtomicUsize,
    exchanges: Exchanges,
    /// Microseconds after `base`.
    last_sent: AtomicU64,
    idle: Notify,
    /// Shared by all traffic of a service.
    refused: Arc<Notify>,
    /// How often each status from 100 on was answered.
    answered: [AtomicU64; STATUSES],
    /// How many responses the service broke off.
    cut_off: AtomicU64,
    /// How long exchanges lasted.
    durations: SharedHistogram,
    http2_noted: Mutex<RepeatedLine>,
}

/// Number of status codes, from 100 on, that are counted: all that three digits can say.
const STATUSES: usize = 900;

impl Default for Traffic {
    fn default() -> Self {
        Traffic {
            base: Instant::now(),
            under_way: AtomicUsize::new(0),
            exchanges: Exchanges::default(),
            last_sent: AtomicU64::new(0),
            idle: Notify::new(),
            refused: Arc::default(),
            answered: std::array::from_fn(|_| AtomicU64::new(0)),
            cut_off: AtomicU64::new(0),
            durations: SharedHistogram::default(),
            http2_noted: Mutex::default(),
        }
    }
}

/// An exchange that is in flight until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay {
    traffic: Arc<Traffic>,
    number: ExchangeNumber,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(lasted) = self.traffic.exchanges.end(self.number) {
            self.traffic.durations.observe(lasted);
        }
        if self.traffic.under_way.fetch_sub(1, SeqCst) == 1 {
            self.traffic.idle.notify_waiters();
        }
    }
}

impl Traffic {
    /// Returns the traffic of the same service in another keyspace.
    pub fn beside(&self) -> Self {
        Traffic { refused: self.refused.clone(), ..Traffic::default() }
    }

    /// Returns the number of exchanges that the service has not ended.
    pub fn under_way(&self) -> usize {
        self.under_way.load(SeqCst)
    }

    /// Returns the oldest exchange of each partition that has any, and since when it has lasted.
    pub fn oldest(&self) -> BTreeMap<PartitionId, (Instant, RequestSummary)> {
        self.exchanges.oldest()
    }

    /// Returns once the service has ended all exchanges.
    pub async fn ended(&self) {
        loop {
            let idle = self.idle.notified();
            if self.under_way() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Returns once the kernel has taken nothing of any request to the service for so long. What stays in the socket
    /// buffers because the service does not read counts as sent.
    pub async fn silent_for(&self, time: Duration) {
        let begun = Instant::now();
        loop {
            let until = begun.max(self.base + Duration::from_micros(self.last_sent.load(SeqCst))) + time;
            if Instant::now() >= until {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// Returns once the service has refused a connection since the last call.
    pub(super) async fn refusal(&self) {
        self.refused.notified().await;
    }

    /// Counts a response to a router.
    pub(super) fn count_answer(&self, status: StatusCode) {
        if let Some(count) = self.answered.get(usize::from(status.as_u16()).wrapping_sub(100)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Counts a response that the service began and broke off.
    pub(super) fn count_cut_off(&self) {
        self.cut_off.fetch_add(1, Relaxed);
    }

    /// Returns how many responses the service broke off.
    pub fn responses_cut_off(&self) -> u64 {
        self.cut_off.load(Relaxed)
    }

    /// Returns how long exchanges lasted, from before their first byte was sent until the service had ended them.
    pub fn durations(&self) -> &SharedHistogram {
        &self.durations
    }

    /// Returns how often each status was answered.
    pub fn answered(&self) -> impl Iterator<Item = (StatusCode, u64)> {
        (100..)
            .zip(&self.answered)
            .filter_map(|(code, count)| Some((StatusCode::from_u16(code).ok()?, count.load(Relaxed))))
    }

    pub(super) fn enter(self: &Arc<Self>, partition: Option<PartitionId>, request: RequestSummary) -> UnderWay {
        self.under_way.fetch_add(1, SeqCst);
        UnderWay { traffic: self.clone(), number: self.exchanges.begin(partition, request) }
    }

    pub(super) fn sent(&self) {
        self.last_sent.store(self.base.elapsed().as_micros() as u64, SeqCst);
    }

    pub(super) fn refused(&self) {
        self.refused.notify_one();
    }

    /// Logs that the service answers HTTP/1.1 in HTTP/2.
    #[cold]
    pub(super) fn speaks_http2(&self, upstream: &ServiceAddress) {
        if let Some(requests) = self.http2_noted.lock().unwrap_or_else(PoisonError::into_inner).note() {
            tracing::warn!(%upstream, requests, "service speaks HTTP/2 only; answering 502; set pod.protocol to http2");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_service_has_ended_its_work_a_while_after_the_last_byte() {
        let traffic = Arc::new(Traffic::default());
        let begun = Instant::now();
        let wait = tokio::spawn({
            let traffic = traffic.clone();
            async move { traffic.silent_for(Duration::from_secs(10)).await }
        });
        tokio::time::sleep(Duration::from_secs(4)).await;
        traffic.sent();
        wait.await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 14);
    }

    #[test]
    fn a_status_that_means_nothing_is_counted_as_well() {
        let traffic = Traffic::default();
        traffic.count_answer(StatusCode::from_u16(999).unwrap());
        assert_eq!(traffic.answered().map(|(_, count)| count).sum::<u64>(), 1);
    }

    #[tokio::test]
    async fn the_last_exchange_ends_the_wait() {
        let traffic = Arc::new(Traffic::default());
        let enter = || {
            let request = RequestSummary::new(&http::Method::GET, &http::Uri::from_static("/"), "");
            traffic.enter(Some(PartitionId::new(0)), request)
        };
        let (one, other) = (enter(), enter());
        let waits = tokio::spawn({
            let traffic = traffic.clone();
            async move { traffic.ended().await }
        });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(other);
        waits.await.unwrap();
        assert_eq!(traffic.durations().buckets().map(|(_, count)| count).sum::<u64>(), 2);
    }
}
