//! The role of the sidecar in front of a writer pod: registration and handoffs, and the fencing proxy.

mod behind;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use prometheus_client::registry::Registry;
use segue_config as config;
use segue_coordination::pod::{HookReport, HookReports, Hooks, PodHandle, PodSettings, PodState};
use segue_coordination::store::Store;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::records::Capabilities;
use segue_proxy::sidecar::{Sidecar, Traffic, Upstream};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::behind::Behind;
use crate::admin::StatusSource;
use crate::api::OwnPod;
use crate::certificates::Certificates;
use crate::metrics::{MeteredHooks, ParticipantMetrics, PodMetrics};
use crate::supervise::Ended;

/// Returns the capabilities of this section's pod.
pub fn capabilities(section: &config::Pod) -> Capabilities {
    section.hooks.capabilities(Behind::vouches(section).is_some())
}

/// How long requests in progress may take to end once no partition is owned any more.
const GRACE: Duration = Duration::from_secs(5);

/// A pod's sidecar with a bound socket that does not run yet.
#[derive(Debug)]
pub struct BoundPod {
    sidecar: Sidecar,
    section: config::Pod,
    admin: Option<String>,
}

/// A running sidecar.
#[derive(Debug)]
pub struct PodRole {
    name: String,
    handle: PodHandle,
    metrics: Arc<PodMetrics>,
    traffic: Arc<Traffic>,
    behind: Arc<Behind>,
    reports: HookReports,
    vouches: Option<&'static str>,
    shutdown: CancellationToken,
    shutdown_timeout: Duration,
    server: JoinHandle<()>,
}

impl BoundPod {
    /// Binds the address that routers connect to. `files` is the number of files it may open. `admin` is the address
    /// that others use for this process's admin endpoint.
    pub async fn bind(
        section: &config::Pod,
        files: usize,
        admin: Option<String>,
        certificates: &Certificates,
    ) -> anyhow::Result<Self> {
        let sidecar = Sidecar::bind(section.listen, certificates.pod.clone(), max_connections(files)).await;
        let sidecar = sidecar.with_context(|| format!("pod.listen: cannot listen on {}", section.listen))?;
        Ok(BoundPod { sidecar, section: section.clone(), admin })
    }

    /// Starts the sidecar.
    pub fn start(
        self,
        store: Arc<dyn Store>,
        keyspace: &str,
        keys: Keyspace,
        registry: &mut Registry,
        participants: &ParticipantMetrics,
    ) -> anyhow::Result<PodRole> {
        let section = self.section;
        let vouches = Behind::vouches(&section);
        match vouches {
            Some(way) => info!(by = way, "the end of the service's work is guaranteed; the pod has fence"),
            None => warn!(
                "the service can outlive this sidecar and its lease, so the pod has no fence: a single writer is not assured \
                 if the sidecar fails while the service works; set one of pod.exec, pod.hooks.lease and \
                 pod.work_ends_within"
            ),
        }
        let address = section.upstream.parse().context("pod.upstream")?;
        let traffic = Arc::<Traffic>::default();
        let upstream = Upstream { address, work_ends_within: section.work_ends_within, traffic: traffic.clone() };
        let behind = Arc::new(Behind::new(&section, upstream.clone())?);
        let present = Callback::ALL.into_iter().filter(|callback| section.hooks.of(*callback).is_some()).collect();
        let capabilities = section.hooks.capabilities(vouches.is_some());
        let hooks = Hooks::new(section.hooks);
        let reports = hooks.reports().clone();
        let name = section.name.clone();
        let settings = PodSettings {
            name: section.name,
            address: section.advertise,
            lease_ttl: section.lease_ttl,
            weight: section.weight,
            zone: section.zone,
            capabilities,
            admin: self.admin,
            version: section.version,
            work_ends_within: section.work_ends_within,
            load_interval: section.load_interval,
        };
        let hooks = Arc::new(MeteredHooks::new(hooks, present, registry));
        let handle = PodHandle::start_before(store, keyspace, keys, settings, hooks, behind.clone());
        let metrics = Arc::new(PodMetrics::new(registry, participants, &handle, traffic.clone()));
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(self.sidecar.serve(handle.layer(), upstream, shutdown.clone(), GRACE));
        Ok(PodRole {
            name,
            handle,
            metrics,
            traffic,
            behind,
            reports,
            vouches,
            shutdown,
            shutdown_timeout: section.shutdown_timeout,
            server,
        })
    }
}

impl PodRole {
    /// Returns the sidecar's part of the admin endpoint.
    pub fn status_source(&self) -> Arc<dyn StatusSource> {
        let (metrics, traffic, behind) = (self.metrics.clone(), self.traffic.clone(), self.behind.clone());
        // Without the handle, which would keep the pod running.
        let (reports, vouches, state) = (self.reports.clone(), self.vouches, self.handle.status());
        Arc::new(PodStatusSource { metrics, traffic, behind, reports, vouches, state })
    }

    /// Returns the pod for the admin endpoint.
    pub fn own_pod(&self) -> OwnPod {
        OwnPod::new(self.name.clone(), self.handle.clone())
    }

    /// Returns once a supervised service has ended by itself.
    pub async fn service_ended(&self) -> Ended {
        self.behind.ended().await
    }

    /// Hands its partitions over, then stops serving, then deregisters. `ended` states that there is no service any
    /// more, so nothing can be handed over.
    pub async fn stop(self, ended: bool) {
        self.handle.shutdown(if ended { Duration::ZERO } else { self.shutdown_timeout }).await;
        self.shutdown.cancel();
        // The task ends by itself now. The runtime has reported any panic in it.
        let _ = self.server.await;
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

struct PodStatusSource {
    metrics: Arc<PodMetrics>,
    traffic: Arc<Traffic>,
    behind: Arc<Behind>,
    reports: HookReports,
    vouches: Option<&'static str>,
    state: watch::Receiver<PodState>,
}

fn hook_status(partition: PartitionId, report: &HookReport) -> Value {
    json!({
        "partition": partition,
        "hook": report.callback.as_str(),
        "handoff": report.handoff,
        "epoch": report.epoch,
        "running": report.is_running,
        "for_ms": report.since.elapsed().as_millis() as u64,
        "progress": report.progress,
        "detail": report.detail,
        "failures": report.failures,
        "failure": report.failure,
    })
}

impl StatusSource for PodStatusSource {
    fn name(&self) -> &'static str {
        "pod"
    }

    fn ready(&self) -> Result<(), String> {
        let not_ready = self.behind.not_ready().or_else(|| self.state.borrow().not_ready.clone());
        not_ready.map_or(Ok(()), Err)
    }

    fn status(&self) -> Value {
        let state = self.state.borrow();
        json!({
            "not_ready": self.ready().err(),
            "fence_by": self.vouches,
            "service_up": self.behind.not_ready().is_none(),
            "incarnation": state.incarnation,
            "draining": state.draining,
            "owned": state.owned.iter().map(|(partition, epoch)| json!({ "partition": partition, "epoch": epoch })).collect::<Vec<_>>(),
            "hooks": self.reports.all().iter().map(|(partition, report)| hook_status(*partition, report)).collect::<Vec<_>>(),
            "in_flight": self.traffic.under_way(),
            "lease_remaining_ms": state.lease_remaining().as_millis() as u64,
            "resyncs": state.resyncs,
        })
    }

    fn refresh(&self) {
        self.metrics.refresh();
    }
}
