//! The coordinator's role: the shell of `segue-coordination` with its metrics and its part of the admin endpoint.

use std::sync::Arc;

use anyhow::Context as _;
use prometheus_client::registry::Registry;
use segue_config as config;
use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::store::Store;
use segue_grpc::{PodsServer, PodsSettings, PodsStatus, PodsTls};
use segue_protocol::keys::Keyspace;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::admin::StatusSource;
use crate::certificates::Certificates;
use crate::metrics::{CoordinatorMetrics, ParticipantMetrics, PodsServiceMetrics};

/// A coordinator that does not run yet. The socket of its pods' service is bound, if it has one.
#[derive(Debug)]
pub struct BoundCoordinator {
    section: config::Coordinator,
    listener: Option<TcpListener>,
    tls: Option<PodsTls>,
}

impl BoundCoordinator {
    /// Binds the address of the pods' service.
    pub async fn bind(section: &config::Coordinator, certificates: &Certificates) -> anyhow::Result<Self> {
        let listener = match section.listen {
            Some(listen) => {
                let bound = TcpListener::bind(listen).await;
                Some(bound.with_context(|| format!("cannot listen at coordinator.listen = {listen}"))?)
            }
            None => None,
        };
        let tls = certificates.coordinator.clone().map(|tls| PodsTls::new(move || tls.current()));
        Ok(BoundCoordinator { section: section.clone(), listener, tls })
    }

    /// Starts the coordinator, and the pods' service.
    pub fn start(
        self,
        store: Arc<dyn Store>,
        keyspace: &str,
        keys: Keyspace,
        registry: &mut Registry,
        participants: ParticipantMetrics,
    ) -> CoordinatorRole {
        let pods = self.listener.map(|listener| {
            let settings = PodsSettings {
                keyspace: keyspace.to_owned(),
                warm_timeout: self.section.policy.warm_timeout,
                phase_timeout: self.section.policy.phase_timeout,
            };
            let metrics = Arc::new(PodsServiceMetrics::new(registry));
            (listener, PodsServer::new(store.clone(), keys.clone(), settings, metrics))
        });
        let status = pods.as_ref().map(|(_, server)| server.status());
        let mut role = CoordinatorRole::start(store, keys, &self.section, status, registry, participants);
        role.pods = pods.map(|(listener, server)| {
            let served = server.serve(listener, self.tls, role.shutdown.clone());
            tokio::spawn(async move {
                if let Err(error) = served.await {
                    error!(%error, "the pods' service failed");
                }
            })
        });
        role
    }
}

/// A running coordinator.
#[derive(Debug)]
pub struct CoordinatorRole {
    source: Arc<CoordinatorStatusSource>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
    pods: Option<JoinHandle<()>>,
}

impl CoordinatorRole {
    fn start(
        store: Arc<dyn Store>,
        keys: Keyspace,
        section: &config::Coordinator,
        pods: Option<PodsStatus>,
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
        CoordinatorRole {
            source: Arc::new(CoordinatorStatusSource { status, pods, metrics }),
            shutdown,
            task,
            pods: None,
        }
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
        if let Some(pods) = self.pods {
            let _ = pods.await;
        }
    }
}

#[derive(Debug)]
struct CoordinatorStatusSource {
    status: watch::Receiver<CoordinatorStatus>,
    pods: Option<PodsStatus>,
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
        let streams = self.pods.as_ref().map(PodsStatus::streams);
        json!({
            "leads": status.leads, "not_ready": status.not_ready, "notices": status.notices, "pod_streams": streams,
        })
    }

    fn summary(&self) -> Option<Value> {
        let status = self.status.borrow();
        Some(json!({ "leads": status.leads, "not_ready": status.not_ready, "notices": status.notices }))
    }

    fn refresh(&self) {
        self.metrics.set_trusted_until(self.status.borrow().trusted_until);
    }
}
