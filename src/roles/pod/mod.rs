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
use segue_coordination::pod::{HandoffHandler, HookReports, Hooks, OwnershipLayer, PodHandle, PodSettings, PodState};
use segue_coordination::session::Leases;
use segue_coordination::store::Store;
use segue_grpc::{ServiceStream, ServiceStreamSettings, ServiceStreams};
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::records::Capabilities;
use segue_proxy::sidecar::{Sidecar, SidecarPods, Traffic, Upstream};
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
    site: PodSite,
    pods: Vec<KeyspacePod>,
    /// The pod in each keyspace, for the admin endpoint.
    own: OwnPod,
    server: JoinHandle<()>,
    /// The list that routers' requests are for.
    served: SidecarPods,
    /// The service's streams, if it has some, and what serves them.
    streams: Option<(ServiceStreams, JoinHandle<()>)>,
}

/// The common part of the pods of all keyspaces.
#[derive(Debug)]
struct PodSite {
    section: config::Pod,
    admin: Option<String>,
    vouches: Option<&'static str>,
    /// The service, with the traffic of no keyspace.
    service: Upstream,
    process: Arc<SharedProcess<ServiceProcess>>,
    leases: Leases,
    shutdown: CancellationToken,
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
    /// The keyspace was taken out of the list that the process follows.
    is_taken_out: bool,
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

    /// Starts the sidecar, with a pod in each keyspace. With `grows`, keyspaces may be added while it runs.
    pub(crate) fn start(
        self,
        store: &Arc<dyn Store>,
        (keyspaces, grows): (&mut [RoleKeyspace], bool),
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
        let process = SharedProcess::new(ServiceProcess::new(&section, service.clone(), supervisor)?);
        // One lease for all: a process that dies is gone in all keyspaces at once.
        let leases = Leases::new(store.clone());
        let shutdown = CancellationToken::new();
        let site = PodSite { section, admin, vouches, service, process, leases, shutdown: shutdown.clone() };
        // A pod that comes up looks at the shares of all.
        let shares: Vec<_> = keyspaces.iter().map(|_| site.process.share()).collect();
        let start = |(keyspace, share)| KeyspacePod::start(&site, (keyspace, &mut *registry), share);
        let pods: Vec<KeyspacePod> = keyspaces.iter_mut().zip(shares).map(start).collect();
        let served: SidecarPods = pods.iter().map(|pod| site.served(pod)).collect();
        let server = tokio::spawn(sidecar.serve(served.clone(), shutdown.clone(), GRACE));
        let streams = listener.map(|listener| {
            let stream = |pod: &KeyspacePod| Some((pod.behind.stream()?.clone(), pod.handle.clone()));
            let streams = ServiceStreams::new(pods.iter().filter_map(stream));
            let streams = if grows { streams.growing() } else { streams };
            (streams.clone(), tokio::spawn(listener.serve(streams, shutdown)))
        });
        let own = OwnPod::new(site.section.name.clone(), pods.iter().map(KeyspacePod::own));
        Ok(PodRole { site, pods, own, server, served, streams })
    }
}

impl PodSite {
    /// Returns what serves the requests for a pod.
    fn served(&self, pod: &KeyspacePod) -> (OwnershipLayer, Upstream) {
        (pod.handle.layer(), Upstream { traffic: pod.traffic.clone(), ..self.service.clone() })
    }
}

impl KeyspacePod {
    fn start(
        site: &PodSite,
        (keyspace, registry): (&mut RoleKeyspace, &mut Registry),
        process: ProcessShare<ServiceProcess>,
    ) -> Self {
        let section = &site.section;
        let upstream = Upstream { traffic: Arc::new(site.service.traffic.beside()), ..site.service.clone() };
        let (keys, participants, span) = (keyspace.keys.clone(), keyspace.participants.clone(), keyspace.span());
        let name = keyspace.section.name.clone();
        let registry = keyspace.registry(registry);
        let stream = section.stream.is_some().then(|| {
            let settings = ServiceStreamSettings {
                keyspace: name.clone(),
                pod: section.name.clone(),
                lease_ttl: section.lease_ttl,
                needs_fence: ServiceBackend::vouches(section) == Some(behind::STREAM),
            };
            span.in_scope(|| ServiceStream::new(settings))
        });
        let traffic = upstream.traffic.clone();
        let behind = ServiceBackend::new(process, upstream, stream.clone());
        let present = Callback::ALL.into_iter().filter(|callback| section.hooks.of(*callback).is_some()).collect();
        let hooks = Hooks::new(section.hooks.clone(), &name);
        let reports = hooks.reports().clone();
        let settings = PodSettings {
            name: section.name.clone(),
            address: section.advertise.clone(),
            lease_ttl: section.lease_ttl,
            weight: section.weight,
            zone: section.zone.clone(),
            capabilities: capabilities(section),
            admin: site.admin.clone(),
            version: section.version.clone(),
            work_ends_within: section.work_ends_within,
            load_interval: section.load_interval,
        };
        let handler: Arc<dyn HandoffHandler> = match stream {
            Some(stream) => Arc::new(MeteredHooks::new(stream, Callback::ALL.to_vec(), registry)),
            None => Arc::new(MeteredHooks::new(hooks, present, registry)),
        };
        let leases = site.leases.clone();
        let handle = span.in_scope(|| PodHandle::start_before(leases, &name, keys, settings, handler, behind.clone()));
        let metrics = Arc::new(PodMetrics::new(registry, &participants, &handle, traffic.clone()));
        KeyspacePod { keyspace: name, handle, metrics, traffic, behind, reports, is_taken_out: false }
    }

    fn own(&self) -> (String, PodHandle) {
        (self.keyspace.clone(), self.handle.clone())
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
    /// Returns the sidecar's part of the admin endpoint in a keyspace.
    pub(crate) fn status_source(&self, keyspace: &str) -> Option<Arc<dyn StatusSource>> {
        let found = self.pods.iter().find(|pod| pod.keyspace == keyspace)?;
        Some(found.status_source(self.site.vouches))
    }

    /// Returns the pod for the admin endpoint.
    pub(crate) fn own_pod(&self) -> OwnPod {
        self.own.clone()
    }

    /// Takes part in one more keyspace.
    pub(crate) fn add(&mut self, keyspace: &mut RoleKeyspace, registry: &mut Registry) {
        let pod = KeyspacePod::start(&self.site, (keyspace, registry), self.site.process.share());
        let (layer, upstream) = self.site.served(&pod);
        self.served.add(layer, upstream);
        if let (Some((streams, _)), Some(stream)) = (&self.streams, pod.behind.stream()) {
            streams.add(stream.clone(), pod.handle.clone());
        }
        self.own.add(pod.own());
        self.pods.push(pod);
    }

    /// Sets whether a keyspace was taken out. The pod stays in it until it ends: nobody would take its partitions over, and
    /// whoever adds the keyspace again finds them as they were.
    pub(crate) fn set_taken_out(&mut self, keyspace: &str, is_taken_out: bool) {
        if let Some(pod) = self.pods.iter_mut().find(|pod| pod.keyspace == keyspace) {
            pod.is_taken_out = is_taken_out;
        }
    }

    /// Returns a channel with the pod's state in each keyspace.
    pub(crate) fn states(&self) -> Vec<watch::Receiver<PodState>> {
        self.pods.iter().map(|pod| pod.handle.status()).collect()
    }

    /// Completes once a supervised service has ended by itself.
    pub(crate) fn service_ended(&self) -> impl Future<Output = UnexpectedExit> + use<> {
        // The process is that of all pods.
        let process = self.site.process.clone();
        async move { process.process().ended().await }
    }

    /// Hands the partitions of all keyspaces over, then stops serving, then deregisters. `ended` states that there is no
    /// service any more, so nothing can be handed over.
    pub(crate) async fn stop(self, ended: bool) {
        let timeout = |pod: &KeyspacePod| {
            if ended || pod.is_taken_out { Duration::ZERO } else { self.site.section.shutdown_timeout }
        };
        join_all(self.pods.iter().map(|pod| pod.handle.shutdown(timeout(pod)))).await;
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
        self.site.shutdown.cancel();
        // The task ends by itself now. The runtime has reported any panic in it.
        let _ = self.server.await;
        if let Some((_, serving)) = self.streams {
            let _ = serving.await;
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
