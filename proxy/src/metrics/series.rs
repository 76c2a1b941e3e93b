//! The series in which the counters are exported.
//!
//! # Invariants
//!
//! * Every series that the router itself can cause exists from the start, at zero.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use super::{BUCKET_BOUNDS_MICROS, CODES, CutOffCause, Metrics, WorkerMetrics};
use crate::message::local_reply::{LocalReply, PodReason};
use crate::routing::table::Bounce;
use crate::runtime::single_writer::DurationHistogram;

impl Metrics {
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

    fn encode_own(&self, mut requests: MetricEncoder<'_>) -> fmt::Result {
        let none: Option<&Exemplar<NoLabels, u64>> = None;
        for own in LocalReply::ALL {
            let labels = ResponseLabels { code: own.status().as_u16(), reason: own.reason() };
            // A reason that a router and a pod's sidecar share has one series.
            let of_pods = match own {
                LocalReply::UpstreamFailed => Some(PodReason::UpstreamFailed),
                LocalReply::HeadTooLarge => Some(PodReason::Limit),
                _ => None,
            };
            let count = self.own_answers(own) + of_pods.map_or(0, |reason| self.pod_answers(reason));
            requests.encode_family(&labels)?.encode_counter(&count, none)?;
        }
        let lost = PodReason::LeaseLost;
        let labels = ResponseLabels { code: lost.status().as_u16(), reason: lost.as_str() };
        requests.encode_family(&labels)?.encode_counter(&self.pod_answers(lost), none)
    }

    fn encode_times(
        &self,
        mut encoder: MetricEncoder<'_>,
        times: impl Fn(&WorkerMetrics) -> &DurationHistogram,
    ) -> fmt::Result {
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
}

/// The label set of metrics without labels.
type NoLabels = [(&'static str, &'static str); 0];

#[derive(Debug, Clone, Hash, PartialEq, Eq)]
struct ResponseLabels {
    code: u16,
    reason: &'static str,
}

impl EncodeLabelSet for ResponseLabels {
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
                let labels = ResponseLabels { code, reason: "" };
                requests.encode_family(&labels)?.encode_counter(&count, none)?;
            }
        }
        self.encode_own(requests)?;

        let help = "Responses that had begun and did not reach their clients in full, by cause";
        let mut cut_off = encoder.encode_descriptor("responses_cut_off", help, None, Counter)?;
        for cause in CutOffCause::ALL {
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
        for bounces in Bounce::ALL.chunk_by(|one, next| one.consequences().cause == next.consequences().cause) {
            let count: u64 = bounces.iter().map(|bounce| self.requests_bounced(*bounce)).sum();
            let cause = bounces[0].consequences().cause;
            bounced.encode_family(&[("cause", cause)])?.encode_counter(&count, none)?;
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
