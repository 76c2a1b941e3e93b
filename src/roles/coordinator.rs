//! The coordinator's role: the shell of `segue-coordination` with its metrics and its part of the admin endpoint.

use std::sync::Arc;

use anyhow::Context as _;
use futures_util::future::join_all;
use prometheus_client::registry::Registry;
use segue_config as config;
use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::session::Leases;
use segue_coordination::store::Store;
use segue_grpc::{PodsKeyspace, PodsKeyspaces, PodsServer, PodsSettings, PodsStatus, PodsTls, PodsToken};
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

    /// Starts a coordinator in each keyspace, and the pods' service of all. With `grows`, keyspaces may be added while it
    /// runs.
    pub(crate) fn start(
        self,
        store: &Arc<dyn Store>,
        (keyspaces, grows): (&mut [RoleKeyspace], bool),
        registry: &mut Registry,
        tracer: Option<&Tracer>,
    ) -> CoordinatorRole {
        let BoundCoordinator { section, listener, tls, admin } = self;
        let shutdown = CancellationToken::new();
        let site = CoordinatorSite {
            store: store.clone(),
            // One lease for all: a process that dies gives all its seats up at once.
            leases: Leases::new(store.clone()),
            section,
            admin,
            serves_pods: listener.is_some(),
            tracer: tracer.cloned(),
            shutdown: shutdown.clone(),
        };
        let started: Vec<_> = keyspaces.iter_mut().map(|keyspace| site.start(keyspace, registry)).collect();
        let (keyspaces, served): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        let mut pods_keyspaces = None;
        let pods = listener.map(|listener| {
            let token = site.section.token_file.as_ref().map(TokenFile::new);
            let token = token.map(|file| PodsToken::new(move |presented| file.is_token(presented)));
            let mut server =
                token.into_iter().fold(PodsServer::new(served.into_iter().flatten()), PodsServer::with_token);
            if grows {
                let (growing, keyspaces) = server.growing();
                (server, pods_keyspaces) = (growing, Some(keyspaces));
            }
            let serving = server.serve(listener, tls, shutdown.clone());
            tokio::spawn(async move {
                if let Err(error) = serving.await {
                    error!(%error, "the pods' service failed");
                }
            })
        });
        CoordinatorRole { site, keyspaces, pods_keyspaces, pods }
    }
}

/// The common part of the coordinators of all keyspaces.
#[derive(Debug)]
struct CoordinatorSite {
    store: Arc<dyn Store>,
    leases: Leases,
    section: config::Coordinator,
    admin: Option<String>,
    serves_pods: bool,
    tracer: Option<Tracer>,
    shutdown: CancellationToken,
}

impl CoordinatorSite {
    /// Starts the coordinator of a keyspace. Returns it, and the pods' service of the keyspace.
    fn start(
        &self,
        keyspace: &mut RoleKeyspace,
        registry: &mut Registry,
    ) -> (KeyspaceCoordinator, Option<PodsKeyspace>) {
        let (span, participants) = (keyspace.span(), keyspace.participants.clone());
        let keys = keyspace.keys.clone();
        let policy = keyspace.section.policy.clone().unwrap_or_default();
        let keyspace_name = keyspace.section.name.clone();
        let registry = keyspace.registry(registry);
        let pods = self.serves_pods.then(|| {
            let settings =
                PodsSettings { keyspace: keyspace_name.clone(), policy: policy.clone(), admin: self.admin.clone() };
            let metrics = Arc::new(PodsServiceMetrics::new(registry));
            span.in_scope(|| PodsKeyspace::new(self.store.clone(), keys.clone(), settings, metrics))
        });
        let (name, lease_ttl) = (self.section.name.clone(), self.section.lease_ttl);
        let traces = self.tracer.as_ref();
        let traces = traces.map(|tracer| HandoffTraces::new(tracer.clone(), keys.clone(), name.clone()));
        let metrics = CoordinatorMetrics::new(registry, participants);
        let metrics = Arc::new(metrics.with_traces(traces));
        let (sender, status) = watch::channel(CoordinatorStatus::default());
        let settings = CoordinatorSettings { name, lease_ttl, policy };
        let shutdown = self.shutdown.child_token();
        let run = run_coordinator(self.leases.clone(), keys, settings, metrics.clone(), sender, shutdown.clone());
        let task = tokio::spawn(run.instrument(span));
        let pods_status = pods.as_ref().map(PodsKeyspace::status);
        let source = Arc::new(CoordinatorStatusSource { status, pods: pods_status, metrics });
        (KeyspaceCoordinator { keyspace: keyspace_name, source, shutdown, task }, pods)
    }
}

/// The coordinator of one keyspace.
#[derive(Debug)]
struct KeyspaceCoordinator {
    keyspace: String,
    source: Arc<CoordinatorStatusSource>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

/// The running coordinators.
#[derive(Debug)]
pub(crate) struct CoordinatorRole {
    site: CoordinatorSite,
    keyspaces: Vec<KeyspaceCoordinator>,
    /// Those of the pods' service, if it takes in others.
    pods_keyspaces: Option<PodsKeyspaces>,
    pods: Option<JoinHandle<()>>,
}

impl CoordinatorRole {
    /// Returns the coordinator's part of the admin endpoint in a keyspace.
    pub(crate) fn status_source(&self, keyspace: &str) -> Option<Arc<dyn StatusSource>> {
        let found = self.keyspaces.iter().find(|coordinator| coordinator.keyspace == keyspace)?;
        Some(found.source.clone())
    }

    /// Takes part in one more keyspace.
    pub(crate) fn add(&mut self, keyspace: &mut RoleKeyspace, registry: &mut Registry) {
        let (coordinator, pods) = self.site.start(keyspace, registry);
        self.keyspaces.push(coordinator);
        if let (Some(served), Some(pods)) = (&self.pods_keyspaces, pods) {
            served.add(pods);
        }
    }

    /// Resigns in a keyspace.
    pub(crate) async fn remove(&mut self, keyspace: &str) {
        if let Some(served) = &self.pods_keyspaces {
            served.remove(keyspace);
        }
        if let Some(index) = self.keyspaces.iter().position(|coordinator| coordinator.keyspace == keyspace) {
            let KeyspaceCoordinator { shutdown, task, .. } = self.keyspaces.remove(index);
            shutdown.cancel();
            let _ = task.await;
        }
    }

    /// Resigns in all keyspaces and ends.
    pub(crate) async fn stop(self) {
        self.site.shutdown.cancel();
        // The tasks end by themselves now. The runtime has reported any panic in them.
        let _ = join_all(self.keyspaces.into_iter().map(|coordinator| coordinator.task)).await;
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
