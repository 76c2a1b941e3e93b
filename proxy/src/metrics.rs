//! The metrics of the data path.
//!
//! Each worker has counters that only it writes, so counting costs a load and a store, and workers share no cache line.
//! The counters are summed when the metrics are read.
//!
//! # Invariants
//!
//! * Every series that the router itself can cause exists from the start, at zero.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use crate::message::local_reply::{LocalReply, PodReason};
use crate::runtime::last_turn::LastTurn;

/// Upper bounds of the buckets of all histograms of durations, in microseconds. Dense below 50 ms, so that a cutover's
/// pause shows.
pub const BUCKET_BOUNDS_MICROS: [u64; 22] = [
    100, 200, 300, 500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 7_500, 10_000, 20_000, 30_000, 50_000, 100_000,
    250_000, 500_000, 1_000_000, 5_000_000, 15_000_000, 60_000_000,
];
/// Number of status codes, from 100 on, that a pod can respond with.
const CODES: usize = 500;

/// Why a request came back from a pod unprocessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BounceCause {
    /// The pod responded that the partition is not its own.
    Misdirected,
    /// The pod could not be reached.
    ConnectFailed,
    /// The pod had just refused others, so this request was not sent.
    BackingOff,
}

/// Why a response that had begun did not reach its client in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutOff {
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

impl CutOff {
    /// All causes, in the order of their numbers.
    pub const ALL: [CutOff; 5] = [CutOff::Broken, CutOff::Severed, CutOff::Idle, CutOff::Deadline, CutOff::ClientGone];

    /// Returns the value of the label `cause`.
    pub fn as_str(self) -> &'static str {
        match self {
            CutOff::Broken => "broken",
            CutOff::Severed => "severed",
            CutOff::Idle => "idle",
            CutOff::Deadline => "deadline",
            CutOff::ClientGone => "client_gone",
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
    requests_bounced: [AtomicU64; 3],
    responses_cut_off: [AtomicU64; CutOff::ALL.len()],
    durations: Times,
    upstream_durations: Times,
    stash_waits: Times,
    connections: AtomicU64,
    pub(crate) last_turn: LastTurn,
}

/// A histogram of durations.
struct Times {
    buckets: [AtomicU64; BUCKET_BOUNDS_MICROS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        Times { buckets: std::array::from_fn(|_| AtomicU64::new(0)), nanoseconds: AtomicU64::new(0) }
    }
}

impl Times {
    #[inline]
    fn observe(&self, duration: Duration) {
        let micros = duration.as_micros() as u64;
        let bucket =
            BUCKET_BOUNDS_MICROS.iter().position(|bound| micros <= *bound).unwrap_or(BUCKET_BOUNDS_MICROS.len());
        add(&self.buckets[bucket], 1);
        add(&self.nanoseconds, duration.as_nanos() as u64);
    }
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
            durations: Times::default(),
            upstream_durations: Times::default(),
            stash_waits: Times::default(),
            connections: AtomicU64::new(0),
            last_turn: LastTurn::default(),
        }
    }
}

/// Adds without an atomic read-modify-write: each counter has one writer.
#[inline]
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
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

    pub(crate) fn bounced(&self, cause: BounceCause) {
        add(&self.requests_bounced[cause as usize], 1);
    }

    /// Counts a response that had begun and did not reach its client in full.
    pub(crate) fn cut_off(&self, cause: CutOff) {
        add(&self.responses_cut_off[cause as usize], 1);
    }

    #[inline]
    pub(crate) fn took(&self, duration: Duration) {
        self.durations.observe(duration);
    }

    /// Records how long an exchange with a pod lasted, from the moment at which the request could be sent.
    #[inline]
    pub(crate) fn upstream_took(&self, duration: Duration) {
        self.upstream_durations.observe(duration);
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

    /// Adds all series to a registry whose prefix is `segue`.
    pub fn register(&self, registry: &mut Registry) {
        self.register_keyspace(registry);
        registry.register_collector(Box::new(Connections(self.clone())));
    }

    /// Adds the series of one keyspace of several.
    pub fn register_keyspace(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    /// Adds the series of a listener of several keyspaces: connections, and responses to requests for no keyspace.
    pub fn register_listener(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(OwnResponses(self.clone())));
        registry.register_collector(Box::new(Connections(self.clone())));
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

    fn encode_own(&self, mut requests: MetricEncoder<'_>) -> fmt::Result {
        let none: Option<&Exemplar<NoLabels, u64>> = None;
        for own in LocalReply::ALL {
            let labels = Answered { code: own.status().as_u16(), reason: own.reason() };
            // A router and a pod's sidecar have one reason for a broken exchange, and so one series.
            let of_pods = if own == LocalReply::UpstreamFailed { Some(PodReason::UpstreamFailed) } else { None };
            let count = self.own_answers(own) + of_pods.map_or(0, |reason| self.pod_answers(reason));
            requests.encode_family(&labels)?.encode_counter(&count, none)?;
        }
        let lost = PodReason::LeaseLost;
        let labels = Answered { code: lost.status().as_u16(), reason: lost.as_str() };
        requests.encode_family(&labels)?.encode_counter(&self.pod_answers(lost), none)
    }

    fn encode_times(&self, mut encoder: MetricEncoder<'_>, times: impl Fn(&WorkerMetrics) -> &Times) -> fmt::Result {
        let buckets: Vec<(f64, u64)> = (0..=BUCKET_BOUNDS_MICROS.len())
            .map(|index| {
                let bound = BUCKET_BOUNDS_MICROS.get(index).map_or(f64::INFINITY, |bound| *bound as f64 / 1e6);
                (bound, self.sum(|worker| &times(worker).buckets[index]))
            })
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let seconds = self.sum(|worker| &times(worker).nanoseconds) as f64 / 1e9;
        encoder.encode_histogram::<NoLabels>(seconds, count, &buckets, None)
    }

    /// Returns how many responses were cut off for this cause.
    pub fn responses_cut_off(&self, cause: CutOff) -> u64 {
        self.sum(|worker| &worker.responses_cut_off[cause as usize])
    }

    /// Returns how often a request came back unprocessed for this cause.
    pub fn requests_bounced(&self, cause: BounceCause) -> u64 {
        self.sum(|worker| &worker.requests_bounced[cause as usize])
    }
}

/// The label set of metrics without labels.
type NoLabels = [(&'static str, &'static str); 0];

#[derive(Debug, Clone, Hash, PartialEq, Eq)]
struct Answered {
    code: u16,
    reason: &'static str,
}

impl EncodeLabelSet for Answered {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        use prometheus_client::encoding::EncodeLabel;
        ("code", u32::from(self.code)).encode(encoder.encode_label())?;
        ("reason", self.reason).encode(encoder.encode_label())
    }
}

const REQUESTS_HELP: &str = "Requests answered, by status and, for answers that are not the service's, by reason";

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        use MetricType::{Counter, Gauge, Histogram};
        let none: Option<&Exemplar<NoLabels, u64>> = None;

        let mut requests = encoder.encode_descriptor("requests", REQUESTS_HELP, None, Counter)?;
        for index in 0..CODES {
            let count = self.sum(|worker| &worker.passed[index]);
            let code = index as u16 + 100;
            if count > 0 || code == 200 {
                let labels = Answered { code, reason: "" };
                requests.encode_family(&labels)?.encode_counter(&count, none)?;
            }
        }
        self.encode_own(requests)?;

        let help = "Responses that had begun and did not reach their clients in full, by cause";
        let mut cut_off = encoder.encode_descriptor("responses_cut_off", help, None, Counter)?;
        for cause in CutOff::ALL {
            cut_off
                .encode_family(&[("cause", cause.as_str())])?
                .encode_counter(&self.responses_cut_off(cause), none)?;
        }

        let help = "Requests whose client hung up before there was an answer";
        let mut aborted = encoder.encode_descriptor("requests_aborted", help, None, Counter)?;
        aborted.encode_counter(&self.sum(|worker| &worker.aborted), none)?;

        let help = "From a request's arrival until the pod was done with it";
        self.encode_times(encoder.encode_descriptor("request_duration_seconds", help, None, Histogram)?, |worker| {
            &worker.durations
        })?;

        let help = "From the moment a request could be sent to its pod until the pod was done with it";
        self.encode_times(encoder.encode_descriptor("upstream_duration_seconds", help, None, Histogram)?, |worker| {
            &worker.upstream_durations
        })?;

        let help = "How long requests waited in the stash that were let in";
        self.encode_times(encoder.encode_descriptor("stash_wait_seconds", help, None, Histogram)?, |worker| {
            &worker.stash_waits
        })?;

        let help = "Requests that were held, or were to be, and were refused";
        let mut rejected = encoder.encode_descriptor("stash_rejected", help, None, Counter)?;
        for own in [
            LocalReply::StashFull,
            LocalReply::StashTimeout,
            LocalReply::NoOwner,
            LocalReply::Fenced,
            LocalReply::Shutdown,
        ] {
            let count = self.own_answers(own);
            rejected.encode_family(&[("reason", own.reason())])?.encode_counter(&count, none)?;
        }

        let help = "Requests that a pod is working on";
        let mut in_flight = encoder.encode_descriptor("requests_in_flight", help, None, Gauge)?;
        in_flight.encode_gauge(&(self.requests_in_flight() as i64))?;

        let help = "Requests that came back undone and were put back, by cause";
        let mut bounced = encoder.encode_descriptor("requests_bounced", help, None, Counter)?;
        let causes = [
            (BounceCause::Misdirected, "misdirected"),
            (BounceCause::ConnectFailed, "refused"),
            (BounceCause::BackingOff, "spared"),
        ];
        for (cause, name) in causes {
            bounced.encode_family(&[("cause", name)])?.encode_counter(&self.requests_bounced(cause), none)?;
        }
        Ok(())
    }
}

/// The router's own responses alone.
#[derive(Debug)]
struct OwnResponses(Metrics);

impl Collector for OwnResponses {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.encode_own(encoder.encode_descriptor("requests", REQUESTS_HELP, None, MetricType::Counter)?)
    }
}

/// The connections alone.
#[derive(Debug)]
struct Connections(Metrics);

impl Collector for Connections {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Clients' connections that are open";
        let mut connections = encoder.encode_descriptor("connections", help, None, MetricType::Gauge)?;
        connections.encode_gauge(&(self.0.sum(|worker| &worker.connections) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        let mut registry = Registry::with_prefix("segue");
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn every_series_of_the_routers_own_is_there_at_zero() {
        let text = text(&Metrics::new(2));
        for own in LocalReply::ALL {
            let line =
                format!("segue_requests_total{{code=\"{}\",reason=\"{}\"}} 0\n", own.status().as_u16(), own.reason());
            assert!(text.contains(&line), "{line} in {text}");
        }
        for line in [
            "segue_requests_total{code=\"500\",reason=\"lease-lost\"} 0\n",
            "segue_requests_bounced_total{cause=\"misdirected\"} 0\n",
            "segue_requests_bounced_total{cause=\"refused\"} 0\n",
            "segue_requests_bounced_total{cause=\"spared\"} 0\n",
            "segue_requests_in_flight 0\n",
            "segue_request_duration_seconds_count 0\n",
            "segue_upstream_duration_seconds_count 0\n",
            "segue_stash_wait_seconds_count 0\n",
            "segue_stash_rejected_total{reason=\"stash-full\"} 0\n",
            "segue_request_duration_seconds_bucket{le=\"0.0001\"} 0\n",
            "segue_request_duration_seconds_bucket{le=\"+Inf\"} 0\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn keyspaces_and_their_listener_share_no_series() {
        let (keyspace, listener) = (Metrics::new(1), Metrics::new(1));
        let mut registry = Registry::with_prefix("segue");
        keyspace.register_keyspace(registry.sub_registry_with_label(("keyspace".into(), "a".into())));
        listener.register_listener(&mut registry);
        listener.worker(0).answered(LocalReply::NoKeyspace);
        listener.worker(0).connected();
        keyspace.worker(0).passed(StatusCode::OK);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "segue_requests_total{keyspace=\"a\",code=\"200\",reason=\"\"} 1\n",
            "segue_requests_total{keyspace=\"a\",code=\"400\",reason=\"no-partition\"} 0\n",
            "segue_requests_total{code=\"400\",reason=\"no-partition\"} 1\n",
            "segue_connections 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let mut series: Vec<_> =
            text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' ')).collect();
        series.sort_unstable();
        assert!(series.windows(2).all(|two| two[0].0 != two[1].0), "{text}");
    }

    #[test]
    fn the_workers_are_added_up() {
        let metrics = Metrics::new(2);
        metrics.worker(0).passed(StatusCode::CREATED);
        metrics.worker(1).passed(StatusCode::CREATED);
        metrics.worker(0).begins();
        metrics.worker(1).took(Duration::from_micros(150));
        let text = text(&metrics);
        for line in [
            "segue_requests_total{code=\"201\",reason=\"\"} 2\n",
            "segue_requests_in_flight 1\n",
            "segue_request_duration_seconds_bucket{le=\"0.0001\"} 0\n",
            "segue_request_duration_seconds_bucket{le=\"0.0002\"} 1\n",
            "segue_request_duration_seconds_count 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        metrics.worker(0).ends();
        assert_eq!(metrics.requests_in_flight(), 0);
    }
}
