//! The role of the sidecar in front of a writer pod: registration and handoffs in each keyspace, and the fencing proxy.

mod behind;
mod process;
mod shares;
mod status;
mod stream;
mod uncoordinated;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::join_all;
use prometheus_client::registry::Registry;
use segue_config as config;
use segue_coordination::pod::{HandoffHandler, HookReports, Hooks, PodHandle, PodSettings, PodState};
use segue_coordination::session::Leases;
use segue_coordination::store::Store;
use segue_grpc::{ServiceStream, ServiceStreamSettings};
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::records::Capabilities;
use segue_proxy::sidecar::{Sidecar, Traffic, Upstream};
use segue_proxy::tls::ClientTls;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::behind::ServiceBackend;
use self::process::ServiceProcess;
use self::shares::{ProcessShare, SharedProcess};
use self::status::PodStatusSource;
use self::stream::StreamListener;
pub(crate) use self::uncoordinated::uncoordinated;
use crate::admin::StatusSource;
use crate::admin::api::OwnPod;
use crate::process::certificates::Certificates;
use crate::process::supervise::{Supervisor, UnexpectedExit};
use crate::roles::keyspace::RoleKeyspace;
use crate::telemetry::metrics::{MeteredHooks, PodMetrics};

/// Returns the capabilities of this section's pod.
pub(crate) fn capabilities(section: &config::Pod) -> Capabilities {
    let by_hooks = section.hooks.capabilities(ServiceBackend::vouches(section).is_some());
    // By its stream a service gets every task. One that cannot do it does nothing, and says so at once.
    let by_stream = section.stream.is_some();
    Capabilities { sync: by_hooks.sync || by_stream, checkpoint: by_hooks.checkpoint || by_stream, ..by_hooks }
}

/// How long requests in progress may take to end once no partition is owned any more.
const GRACE: Duration = Duration::from_secs(5);

/// A pod's sidecar with a bound socket that does not run yet.
#[derive(Debug)]
pub(crate) struct BoundPod {
    sidecar: Sidecar,
    listener: Option<StreamListener>,
    section: config::Pod,
    service_tls: Option<ClientTls>,
    admin: Option<String>,
    supervisor: Option<Arc<Supervisor>>,
}

/// A running sidecar.
#[derive(Debug)]
pub(crate) struct PodRole {
    name: String,
    pods: Vec<KeyspacePod>,
    vouches: Option<&'static str>,
    shutdown: CancellationToken,
    shutdown_timeout: Duration,
    server: JoinHandle<()>,
    /// Serves the service's streams.
    streams: Option<JoinHandle<()>>,
}

/// The pod in one keyspace.
#[derive(Debug)]
struct KeyspacePod {
    keyspace: String,
    handle: PodHandle,
    metrics: Arc<PodMetrics>,
    traffic: Arc<Traffic>,
    behind: Arc<ServiceBackend>,
    reports: HookReports,
}

impl BoundPod {
    /// Binds the address that routers connect to. `files` is the number of files it may open. `admin` is the address
    /// that others use for this process's admin endpoint.
    pub(crate) async fn bind(
        section: &config::Pod,
        files: usize,
        admin: Option<String>,
        certificates: &Certificates,
    ) -> anyhow::Result<Self> {
        let sidecar = Sidecar::bind(section.listen, certificates.pod.clone(), max_connections(files)).await;
        let sidecar = sidecar.with_context(|| format!("pod.listen: cannot listen on {}", section.listen))?;
        let listener = match &section.stream {
            Some(listen) => Some(StreamListener::bind(listen).await?),
            None => None,
        };
        let service_tls = certificates.service.clone();
        Ok(BoundPod { sidecar, listener, section: section.clone(), service_tls, admin, supervisor: None })
    }

    /// Has routers connect to the address that was bound, whatever the section says.
    pub(crate) fn advertising_itself(mut self) -> anyhow::Result<Self> {
        self.section.advertise = self.sidecar.local_addr()?.to_string();
        Ok(self)
    }

    /// Has this supervisor run the service of a section with `exec`.
    pub(crate) fn supervised_by(self, supervisor: Arc<Supervisor>) -> Self {
        BoundPod { supervisor: Some(supervisor), ..self }
    }

    /// Starts the sidecar, with a pod in each keyspace.
    pub(crate) fn start(
        self,
        store: &Arc<dyn Store>,
        keyspaces: &[RoleKeyspace],
        registry: &mut Registry,
    ) -> anyhow::Result<PodRole> {
        let BoundPod { sidecar, listener, section, service_tls, admin, supervisor } = self;
        let vouches = ServiceBackend::vouches(&section);
        match vouches {
            Some(way) => info!(by = way, "the end of the service's work is guaranteed; the pod has fence"),
            None => warn!(
                "the service can outlive this sidecar and its lease, so the pod has no fence: a single writer is not assured \
                 if the sidecar fails while the service works; set one of pod.exec, pod.hooks.lease, \
                 pod.work_ends_within and pod.stream"
            ),
        }
        let service = Upstream {
            address: section.upstream.clone(),
            tls: service_tls,
            protocol: section.protocol,
            work_ends_within: section.work_ends_within,
            traffic: Arc::default(),
        };
        let process = ServiceProcess::new(&section, service.clone(), supervisor)?;
        let shares = SharedProcess::of(process, keyspaces.len());
        // One lease for all: a process that dies is gone in all keyspaces at once.
        let leases = Leases::new(store.clone());
        let start = |(share, keyspace)| {
            let service = Upstream { traffic: Arc::new(service.traffic.beside()), ..service.clone() };
            KeyspacePod::start(&leases, (keyspace, &mut *registry), &section, admin.clone(), (share, service))
        };
        let pods: Vec<KeyspacePod> = shares.into_iter().zip(keyspaces).map(start).collect();
        let shutdown = CancellationToken::new();
        let upstream = |pod: &KeyspacePod| Upstream { traffic: pod.traffic.clone(), ..service.clone() };
        let served = pods.iter().map(|pod| (pod.handle.layer(), upstream(pod))).collect();
        let server = tokio::spawn(sidecar.serve(served, shutdown.clone(), GRACE));
        let streams = listener.map(|listener| {
            let stream = |pod: &KeyspacePod| Some((pod.behind.stream()?.clone(), pod.handle.clone()));
            tokio::spawn(listener.serve(pods.iter().filter_map(stream).collect(), shutdown.clone()))
        });
        let (name, shutdown_timeout) = (section.name, section.shutdown_timeout);
        Ok(PodRole { name, pods, vouches, shutdown, shutdown_timeout, server, streams })
    }
}

impl KeyspacePod {
    fn start(
        leases: &Leases,
        (keyspace, registry): (&RoleKeyspace, &mut Registry),
        section: &config::Pod,
        admin: Option<String>,
        (process, upstream): (ProcessShare<ServiceProcess>, Upstream),
    ) -> Self {
        let (registry, keys, participants) =
            (keyspace.registry(registry), keyspace.keys.clone(), &keyspace.participants);
        let (span, keyspace) = (keyspace.span(), &keyspace.section.name);
        let stream = section.stream.is_some().then(|| {
            let settings = ServiceStreamSettings {
                keyspace: keyspace.clone(),
                pod: section.name.clone(),
                lease_ttl: section.lease_ttl,
                needs_fence: ServiceBackend::vouches(section) == Some(behind::STREAM),
            };
            span.in_scope(|| ServiceStream::new(settings))
        });
        let traffic = upstream.traffic.clone();
        let behind = ServiceBackend::new(process, upstream, stream.clone());
        let present = Callback::ALL.into_iter().filter(|callback| section.hooks.of(*callback).is_some()).collect();
        let hooks = Hooks::new(section.hooks.clone(), keyspace);
        let reports = hooks.reports().clone();
        let settings = PodSettings {
            name: section.name.clone(),
            address: section.advertise.clone(),
            lease_ttl: section.lease_ttl,
            weight: section.weight,
            zone: section.zone.clone(),
            capabilities: capabilities(section),
            admin,
            version: section.version.clone(),
            work_ends_within: section.work_ends_within,
            load_interval: section.load_interval,
        };
        let handler: Arc<dyn HandoffHandler> = match stream {
            Some(stream) => Arc::new(MeteredHooks::new(stream, Callback::ALL.to_vec(), registry)),
            None => Arc::new(MeteredHooks::new(hooks, present, registry)),
        };
        let handle = span
            .in_scope(|| PodHandle::start_before(leases.clone(), keyspace, keys, settings, handler, behind.clone()));
        let metrics = Arc::new(PodMetrics::new(registry, participants, &handle, traffic.clone()));
        KeyspacePod { keyspace: keyspace.clone(), handle, metrics, traffic, behind, reports }
    }

    fn status_source(&self, vouches: Option<&'static str>) -> Arc<dyn StatusSource> {
        let (metrics, traffic, behind) = (self.metrics.clone(), self.traffic.clone(), self.behind.clone());
        // Without the handle, which would keep the pod running.
        let (reports, state) = (self.reports.clone(), self.handle.status());
        let ownership = self.handle.ownership().clone();
        Arc::new(PodStatusSource { metrics, traffic, behind, ownership, reports, vouches, state })
    }
}

impl PodRole {
    /// Returns the sidecar's part of the admin endpoint, for each keyspace in the order of the file.
    pub(crate) fn status_sources(&self) -> Vec<Arc<dyn StatusSource>> {
        self.pods.iter().map(|pod| pod.status_source(self.vouches)).collect()
    }

    /// Returns the pod for the admin endpoint.
    pub(crate) fn own_pod(&self) -> OwnPod {
        let handles = self.pods.iter().map(|pod| (pod.keyspace.clone(), pod.handle.clone()));
        OwnPod::new(self.name.clone(), handles.collect())
    }

    /// Returns a channel with the pod's state in each keyspace.
    pub(crate) fn states(&self) -> Vec<watch::Receiver<PodState>> {
        self.pods.iter().map(|pod| pod.handle.status()).collect()
    }

    /// Returns once a supervised service has ended by itself.
    pub(crate) async fn service_ended(&self) -> UnexpectedExit {
        match self.pods.first() {
            // The process is that of all pods.
            Some(pod) => pod.behind.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Hands the partitions of all keyspaces over, then stops serving, then deregisters. `ended` states that there is no
    /// service any more, so nothing can be handed over.
    pub(crate) async fn stop(self, ended: bool) {
        let timeout = if ended { Duration::ZERO } else { self.shutdown_timeout };
        join_all(self.pods.iter().map(|pod| pod.handle.shutdown(timeout))).await;
        self.close().await;
    }

    /// Ends the service, which has so long to end by itself, then stops serving and deregisters. Hands nothing over: the
    /// whole site ends.
    pub(crate) async fn end(self, within: Duration) {
        join_all(self.pods.iter().map(|pod| pod.handle.end(within))).await;
        self.close().await;
    }

    /// Stops serving.
    async fn close(self) {
        self.shutdown.cancel();
        // The task ends by itself now. The runtime has reported any panic in it.
        let _ = self.server.await;
        if let Some(streams) = self.streams {
            let _ = streams.await;
        }
    }
}

/// Returns how many connections this many files allow. Each may need another one to the service, and the store, the
/// admin endpoint and hooks need some as well.
fn max_connections(files: usize) -> usize {
    files.min(MAX_FILES).saturating_sub(RESERVED_FILES).max(2) / 2
}

/// Most files that are taken into account. More connections are no use to one service.
const MAX_FILES: usize = 1 << 20;
/// File descriptors reserved for everything but routers.
const RESERVED_FILES: usize = 64;
