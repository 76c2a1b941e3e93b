//! The coordinator's role: the shell of `segue-coordination` with its metrics and its part of the admin endpoint.

use std::sync::Arc;

use anyhow::Context as _;
use futures_util::future::join_all;
use prometheus_client::registry::Registry;
use segue_config as config;
use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::session::Leases;
use segue_coordination::store::Store;
use segue_grpc::{PodsKeyspace, PodsServer, PodsSettings, PodsStatus, PodsTls, PodsToken};
use segue_proxy::spans::Tracer;
use segue_proxy::tls::handshakes;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error};

use crate::admin::StatusSource;
use crate::admin::token_file::TokenFile;
use crate::process::certificates::Certificates;
use crate::roles::keyspace::RoleKeyspace;
use crate::roles::progress;
use crate::telemetry::handoff_traces::HandoffTraces;
use crate::telemetry::metrics::{CoordinatorMetrics, PodsServiceMetrics};

/// A coordinator that does not run yet. The socket of its pods' service is bound, if it has one.
#[derive(Debug)]
pub(crate) struct BoundCoordinator {
    section: config::Coordinator,
    listener: Option<TcpListener>,
    tls: Option<PodsTls>,
    admin: Option<String>,
}

impl BoundCoordinator {
    /// Binds the address of the pods' service. `admin` is where others reach the admin endpoint.
    pub(crate) async fn bind(
        section: &config::Coordinator,
        admin: Option<String>,
        certificates: &Certificates,
    ) -> anyhow::Result<Self> {
        let listener = match section.listen {
            Some(listen) => {
                let bound = TcpListener::bind(listen).await;
                Some(bound.with_context(|| format!("cannot listen at coordinator.listen = {listen}"))?)
            }
            None => None,
        };
        let tls = certificates.coordinator.clone();
        let tls = tls.map(|tls| PodsTls::new(move || tls.current(), handshakes::note_failure));
        Ok(BoundCoordinator { section: section.clone(), listener, tls, admin })
    }

    /// Starts a coordinator in each keyspace, and the pods' service of all.
    pub(crate) fn start(
        self,
        store: &Arc<dyn Store>,
        keyspaces: &[RoleKeyspace],
        registry: &mut Registry,
        tracer: Option<&Tracer>,
    ) -> CoordinatorRole {
        let shutdown = CancellationToken::new();
        let mut served = Vec::new();
        // One lease for all: a process that dies gives all its seats up at once.
        let leases = Leases::new(store.clone());
        let (mut tasks, mut sources) = (Vec::new(), Vec::new());
        for keyspace in keyspaces {
            let (registry, keys) = (keyspace.registry(registry), keyspace.keys.clone());
            let policy = keyspace.section.policy.clone().unwrap_or_default();
            let pods = self.listener.is_some().then(|| {
                let (keyspace_name, admin) = (keyspace.section.name.clone(), self.admin.clone());
                let settings = PodsSettings { keyspace: keyspace_name, policy: policy.clone(), admin };
                let metrics = Arc::new(PodsServiceMetrics::new(registry));
                keyspace.span().in_scope(|| PodsKeyspace::new(store.clone(), keys.clone(), settings, metrics))
            });
            let (name, lease_ttl) = (self.section.name.clone(), self.section.lease_ttl);
            let traces = tracer.map(|tracer| HandoffTraces::new(tracer.clone(), keys.clone(), name.clone()));
            let metrics = CoordinatorMetrics::new(registry, keyspace.participants.clone());
            let metrics = Arc::new(metrics.with_traces(traces));
            let (sender, status) = watch::channel(CoordinatorStatus::default());
            let settings = CoordinatorSettings { name, lease_ttl, policy };
            let run = run_coordinator(leases.clone(), keys, settings, metrics.clone(), sender, shutdown.clone());
            tasks.push(tokio::spawn(run.instrument(keyspace.span())));
            let pods_status = pods.as_ref().map(PodsKeyspace::status);
            sources.push(Arc::new(CoordinatorStatusSource { status, pods: pods_status, metrics }));
            served.extend(pods);
        }
        let pods = self.listener.map(|listener| {
            let token = self.section.token_file.as_ref().map(TokenFile::new);
            let token = token.map(|file| PodsToken::new(move |presented| file.is_token(presented)));
            let server = token.into_iter().fold(PodsServer::new(served), PodsServer::with_token);
            let serving = server.serve(listener, self.tls, shutdown.clone());
            tokio::spawn(async move {
                if let Err(error) = serving.await {
                    error!(%error, "the pods' service failed");
                }
            })
        });
        CoordinatorRole { sources, shutdown, tasks, pods }
    }
}

/// The running coordinators.
#[derive(Debug)]
pub(crate) struct CoordinatorRole {
    /// In the order of the keyspaces.
    sources: Vec<Arc<CoordinatorStatusSource>>,
    shutdown: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    pods: Option<JoinHandle<()>>,
}

impl CoordinatorRole {
    /// Returns the coordinator's part of the admin endpoint, for each keyspace in the order of the file.
    pub(crate) fn status_sources(&self) -> Vec<Arc<dyn StatusSource>> {
        self.sources.iter().map(|source| Arc::clone(source) as Arc<dyn StatusSource>).collect()
    }

    /// Resigns in all keyspaces and ends.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        // The tasks end by themselves now. The runtime has reported any panic in them.
        let _ = join_all(self.tasks).await;
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
        let status = self.status.borrow();
        status.not_ready.clone().map_or(Ok(()), Err).and_then(|()| progress::of_lease(status.trusted_until))
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
        let CoordinatorStatus { leads, not_ready, notices, warnings, .. } = &*status;
        Some(json!({ "leads": leads, "not_ready": not_ready, "notices": notices, "warnings": warnings }))
    }

    fn refresh(&self) {
        self.metrics.set_trusted_until(self.status.borrow().trusted_until);
    }
}
