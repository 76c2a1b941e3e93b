//! The series of each pod, and of each service that routes lead to and that is no pod.
//!
//! # Invariants
//!
//! * The series of a pod go once no partition leads there, so their number follows that of the pods. Those of other services
//!   stay.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType::{Counter, Histogram};
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use super::BUCKET_BOUNDS_MICROS;
use crate::routing::table::{CodeClass, Table, TrafficTotal};

/// The series of the pods that partitions of a table lead to or last led to.
#[derive(Debug)]
pub struct PodSeries(Arc<Table>);

impl PodSeries {
    /// Adds the series of a table's pods to a registry whose prefix is `segue`.
    pub fn register(table: Arc<Table>, registry: &mut Registry) {
        registry.register_collector(Box::new(PodSeries(table)));
    }

    /// Returns the traffic of each service that is no pod, and of each pod, over all its lives to which partitions lead.
    fn by_name(&self) -> BTreeMap<&str, TrafficTotal> {
        let mut by_name: BTreeMap<&str, TrafficTotal> = BTreeMap::new();
        for pod in self.0.pods().chain(self.0.upstreams()) {
            by_name.entry(&pod.name).or_default().add(&pod.traffic.total());
        }
        by_name
    }
}

impl Collector for PodSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let by_name = self.by_name();
        let help =
            "Exchanges with each pod that ended with a response, or for the pod's fault without (none), by class";
        let mut requests = encoder.encode_descriptor("upstream_requests", help, None, Counter)?;
        let none: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
        for (pod, total) in &by_name {
            for (class, count) in CodeClass::ALL.into_iter().zip(total.answers) {
                let labels = [("pod", *pod), ("code_class", class.as_str())];
                requests.encode_family(&labels)?.encode_counter(&count, none)?;
            }
        }
        let help = "From the moment a request could be sent to its pod until the pod was done with it";
        let mut durations = encoder.encode_descriptor("upstream_duration_seconds", help, None, Histogram)?;
        for (pod, total) in &by_name {
            let bounds = BUCKET_BOUNDS_MICROS.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(total.buckets).collect();
            let (seconds, count) = (total.nanoseconds as f64 / 1e9, total.buckets.iter().sum());
            let labels = [("pod", *pod)];
            let mut family = durations.encode_family(&labels)?;
            family.encode_histogram::<[(&str, &str); 0]>(seconds, count, &buckets, None)?;
        }
        Ok(())
    }
}
