//! The coordinator's role: the shell of `segue-coordination` with its metrics and its part of the admin endpoint.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use segue_config as config;
use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::admin::StatusSource;
use crate::metrics::{CoordinatorMetrics, ParticipantMetrics};

/// A running coordinator.
#[derive(Debug)]
pub struct CoordinatorRole {
    source: Arc<CoordinatorStatusSource>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl CoordinatorRole {
    /// Starts the coordinator.
    pub fn start(
        store: Arc<dyn Store>,
        keys: Keyspace,
        section: &config::Coordinator,
        registry: &mut Registry,
        participants: ParticipantMetrics,
    ) -> Self {
        let (sender, status) = watch::channel(CoordinatorStatus::default());
        let shutdown = CancellationToken::new();
        let metrics = Arc::new(CoordinatorMetrics::new(registry, participants));
        let settings = CoordinatorSettings {
            name: section.name.clone(),
            lease_ttl: section.lease_ttl,
            policy: section.policy.clone(),
        };
        let task = tokio::spawn(run_coordinator(store, keys, settings, metrics.clone(), sender, shutdown.clone()));
        CoordinatorRole { source: Arc::new(CoordinatorStatusSource { status, metrics }), shutdown, task }
    }

    /// Returns the coordinator's part of the admin endpoint.
    pub fn status_source(&self) -> Arc<dyn StatusSource> {
        self.source.clone()
    }

    /// Resigns and ends.
    pub async fn stop(self) {
        self.shutdown.cancel();
        // The task ends by itself now. The runtime has reported any panic in it.
        let _ = self.task.await;
    }
}

#[derive(Debug)]
struct CoordinatorStatusSource {
    status: watch::Receiver<CoordinatorStatus>,
    metrics: Arc<CoordinatorMetrics>,
}

impl StatusSource for CoordinatorStatusSource {
    fn name(&self) -> &'static str {
        "coordinator"
    }

    fn ready(&self) -> Result<(), String> {
        // A standby is ready: it waits for its election.
        self.status.borrow().not_ready.clone().map_or(Ok(()), Err)
    }

    fn status(&self) -> Value {
        let status = self.status.borrow();
        json!({ "leads": status.leads, "not_ready": status.not_ready, "notices": status.notices })
    }

    fn summary(&self) -> Option<Value> {
        let status = self.status.borrow();
        Some(json!({ "leads": status.leads, "not_ready": status.not_ready, "notices": status.notices }))
    }

    fn refresh(&self) {
        self.metrics.set_trusted_until(self.status.borrow().trusted_until);
    }
}
