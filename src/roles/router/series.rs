//! The series of a router in one keyspace.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use segue_config as config;
use segue_proxy::metrics::Metrics;
use segue_proxy::spans::Tracer;

use crate::roles::keyspace::RoleKeyspace;
use crate::telemetry::handoff_traces::HandoffTraces;
use crate::telemetry::metrics::RouterMetrics;

/// The series of a router in one keyspace.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) metrics: Arc<RouterMetrics>,
    pub(super) stash_requests: Gauge,
    pub(super) stash_bytes: Gauge,
}

impl Series {
    /// Registers the series. `counters` are those of the data path, including connections if `is_only`.
    pub(super) fn new(
        keyspace: &mut RoleKeyspace,
        registry: &mut Registry,
        counters: &Metrics,
        is_only: bool,
        tracer: Option<&Tracer>,
        section: &config::Router,
    ) -> Self {
        let (keys, participants) = (keyspace.keys.clone(), keyspace.participants.clone());
        let registry = keyspace.registry(registry);
        if is_only {
            counters.register(registry);
        } else {
            counters.register_keyspace(registry);
        }
        let traces = tracer.map(|tracer| HandoffTraces::new(tracer.clone(), keys, section.name.clone()));
        let metrics = RouterMetrics::new(registry, participants).with_traces(traces);
        let (stash_requests, stash_bytes) = (Gauge::default(), Gauge::default());
        registry.register("stash_requests", "Requests that wait", stash_requests.clone());
        registry.register("stash_bytes", "Memory that waiting requests take", stash_bytes.clone());
        Series { metrics: Arc::new(metrics), stash_requests, stash_bytes }
    }
}
