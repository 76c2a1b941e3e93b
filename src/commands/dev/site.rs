//! The roles of a site, and its copies.
//!
//! # Invariants
//!
//! * Everything that can be refused is refused before anything runs.
//! * The end takes some seconds at most: nothing is handed over, since everything ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures_util::future::join_all;
use prometheus_client::registry::Registry;
use segue_config::Pod;
use segue_coordination::pod::PodState;
use segue_protocol::back_off::BackOff;
use segue_proxy::sidecar::ServiceAddress;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error_span;

use super::console::{Console, CopyOutput};
use super::key::RoutingKey;
use super::report::{CopyPhase, CopyState};
use super::settings::SiteSettings;
use super::shell::own_program;
use super::welcome::{CopyFacts, SiteFacts, is_default};
use crate::admin::api::WritePermission;
use crate::admin::{Admin, StatusSource};
use crate::commands::logging::Log;
use crate::commands::run::{ended, metered, register_of_process};
use crate::commands::store::open;
use crate::process::files;
use crate::process::supervise::{ServiceState, Supervisor};
use crate::roles::coordinator::BoundCoordinator;
use crate::roles::keyspace::RoleKeyspace;
use crate::roles::pod::{BoundPod, PodRole};
use crate::roles::router::{BoundRouterRole, Succession};
use crate::roles::running::RunningRoles;
use crate::telemetry::otlp::Exporter;

/// How long requests in progress may take at the end.
const REQUESTS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long copies that were told to end may take.
const COPIES_TIMEOUT: Duration = Duration::from_secs(3);
/// Pauses before a copy that has ended is started again.
const RESTARTS: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// A site whose sockets are bound.
pub(super) struct BoundSite {
    admin: Admin,
    coordinator: BoundCoordinator,
    router: BoundRouterRole,
    pods: Vec<BoundPod>,
}

/// A running site.
pub(super) struct Site {
    pub(super) copies: Vec<Copy>,
    roles: RunningRoles,
    pods: Vec<PodRole>,
    exporter: Option<Exporter>,
    admin: JoinHandle<std::io::Result<()>>,
    end_admin: CancellationToken,
    /// The addresses of the router and of the admin endpoint.
    addresses: [SocketAddr; 2],
}

/// A copy of the service, and its pod.
#[derive(Debug)]
pub(super) struct Copy {
    name: String,
    pub(super) port: u16,
    service: watch::Receiver<ServiceState>,
    pod: watch::Receiver<PodState>,
    output: Arc<CopyOutput>,
}

impl BoundSite {
    /// Binds all addresses. Names each option whose address is refused.
    pub(super) async fn bind(settings: &SiteSettings, files: usize) -> anyhow::Result<Self> {
        let SiteSettings { config, certificates, pods } = settings;
        let missing = || anyhow!("a section is missing");
        let (router, admin) =
            (config.router.as_ref().with_context(missing)?, config.admin.as_ref().with_context(missing)?);
        let coordinator = config.coordinator.as_ref().with_context(missing)?;
        let advertised = admin.advertise.clone();
        let bound_router = BoundRouterRole::bind(config, router, advertised.clone(), certificates, Vec::new());
        let bound_admin = Admin::bind(admin.listen, None);
        let addresses = [router.listen, admin.listen];
        let (router, bound_admin) = match (bound_router, bound_admin) {
            (Ok(router), Ok(admin)) => (router, admin),
            (router, bound) => {
                let [listen, page] = addresses;
                return Err(in_words([("--listen", listen, router.err()), ("--admin", page, bound.err())]));
            }
        };
        let coordinator = BoundCoordinator::bind(coordinator, advertised.clone(), certificates).await?;
        let files = files::share(config, files) / pods.len().max(1);
        let mut bound = Vec::new();
        for pod in pods {
            let pod = BoundPod::bind(&anywhere(pod), files, advertised.clone(), certificates).await?;
            bound.push(pod.advertising_itself()?);
        }
        Ok(BoundSite { admin: bound_admin.with_hosts(admin.hosts.clone()), coordinator, router, pods: bound })
    }

    /// Starts everything.
    pub(super) async fn start(self, settings: &SiteSettings, log: &Log, console: &Console) -> anyhow::Result<Site> {
        let BoundSite { admin, coordinator, router, pods } = self;
        let addresses = [address(router.duplicates()?.pop())?, address(Some(admin.duplicate()?))?];
        let config = &settings.config;
        let mut registry = Registry::with_prefix("segue");
        register_of_process(log, &mut registry);
        let (store, health) = metered(open(config)?, &mut registry);
        let mut keyspaces = RoleKeyspace::all(config, &mut registry);
        let exporter = Exporter::start(config, &mut registry);
        let tracer = exporter.as_ref().map(Exporter::tracer);
        let mut roles = RunningRoles {
            coordinator: Some(coordinator.start(&store, (&mut keyspaces, false), &mut registry, tracer)),
            ..RunningRoles::default()
        };
        let router = router.traced(tracer).start(&store, &mut keyspaces, &mut registry, &watch::channel(None).1);
        roles.router = Some(router.accept().await?.ending_within(REQUESTS_TIMEOUT));
        let (mut running, mut copies) = (Vec::new(), Vec::new());
        for (pod, section) in pods.into_iter().zip(&settings.pods) {
            let output = console.output_of(&section.name);
            let supervisor = Arc::new(supervisor(section, output.clone())?);
            let registry = registry.sub_registry_with_label(("pod".into(), section.name.clone().into()));
            let span = error_span!("pod", name = section.name);
            let pod = span
                .in_scope(|| pod.supervised_by(supervisor.clone()).start(&store, (&mut keyspaces, false), registry))?;
            let state = pod.states().pop().context("a pod without a keyspace")?;
            let (name, port) = (section.name.clone(), port(section));
            copies.push(Copy { name, port, service: supervisor.state(), pod: state, output });
            running.push(pod);
        }
        let name = &keyspaces.first().context("a site without a keyspace")?.section.name;
        let of_pods = running.iter().filter_map(|pod| pod.status_source(name));
        let pods_status = PodsStatusSource(copies.iter().map(|copy| copy.name.clone()).zip(of_pods).collect());
        let sources = roles.sources(name).into_iter().chain([Arc::new(pods_status) as Arc<dyn StatusSource>]).collect();
        let shown = keyspaces
            .into_iter()
            .take(1)
            .map(|keyspace| keyspace.shown((&store, &health), Vec::clone(&sources), true))
            .collect::<Vec<_>>();
        let exemplars = exporter.as_ref().map(Exporter::exemplars).unwrap_or_default();
        let end_admin = CancellationToken::new();
        let serving =
            admin.with_exemplars(exemplars).serve(shown, registry, (WritePermission::Local, None), end_admin.clone());
        Ok(Site { copies, roles, pods: running, exporter, admin: tokio::spawn(serving), end_admin, addresses })
    }
}

impl Site {
    /// Returns what there is to show of the site.
    pub(super) fn facts<'key>(&self, key: &'key RoutingKey) -> SiteFacts<'key> {
        let [router, admin] = self.addresses;
        let copies = self.copies.iter().map(Copy::facts).collect();
        SiteFacts { key, router, admin, copies, program: own_program(), is_default: is_default(admin) }
    }

    /// Ends everything.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        if let Some(router) = self.roles.router.take() {
            router.stop(Succession::Ends).await;
        }
        join_all(self.pods.into_iter().map(|pod| pod.end(COPIES_TIMEOUT))).await;
        self.roles.stop(false, Succession::Ends).await;
        if let Some(exporter) = self.exporter {
            exporter.stop().await;
        }
        self.end_admin.cancel();
        ended(Some(self.admin)).await
    }
}

impl Copy {
    /// Returns once something of it may have changed.
    pub(super) fn changed(&self) -> impl Future<Output = ()> + use<> {
        let (mut service, mut pod) = (self.service.clone(), self.pod.clone());
        service.mark_unchanged();
        pod.mark_unchanged();
        async move {
            tokio::select! {
                _ = service.changed() => {}
                _ = pod.changed() => {}
            }
        }
    }

    /// Returns what it is doing.
    pub(super) fn phase(&self) -> CopyPhase {
        let (service, pod) = (*self.service.borrow(), self.pod.borrow());
        let state = match service {
            ServiceState::Stopped | ServiceState::Ended { again: None, .. } => CopyState::Starts,
            ServiceState::Runs(pid) if pod.not_ready.is_none() => CopyState::Ready { pid, owns: pod.owned.len() },
            ServiceState::Runs(_) => CopyState::Runs,
            ServiceState::Ended { code, failures, again: Some(again) } => CopyState::Ended { code, failures, again },
        };
        CopyPhase { name: self.name.clone(), port: self.port, state }
    }

    /// Returns the last lines that it has written.
    pub(super) fn last_lines(&self) -> Vec<String> {
        self.output.last()
    }

    fn facts(&self) -> CopyFacts {
        let pid = match *self.service.borrow() {
            ServiceState::Runs(pid) => pid,
            _ => None,
        };
        let partition = self.pod.borrow().owned.keys().next().map(|partition| partition.get());
        CopyFacts { name: self.name.clone(), address: format!("127.0.0.1:{}", self.port), pid, partition }
    }
}

/// Returns the supervisor of a copy.
fn supervisor(section: &Pod, output: Arc<CopyOutput>) -> anyhow::Result<Supervisor> {
    let exec = section.exec.clone().context("no command")?;
    Ok(Supervisor::new(exec)?.with_output(output).with_restarts(RESTARTS))
}

fn port(section: &Pod) -> u16 {
    match &section.upstream {
        ServiceAddress::Tcp(address) => address.port_u16().unwrap_or_default(),
        ServiceAddress::Unix(_) => 0,
    }
}

/// Returns a section whose sidecar listens on a port that the kernel chooses.
fn anywhere(section: &Pod) -> Pod {
    Pod { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..section.clone() }
}

fn address(listener: Option<std::net::TcpListener>) -> anyhow::Result<SocketAddr> {
    Ok(listener.context("no listener")?.local_addr()?)
}

/// Returns which addresses are refused, each with its option.
fn in_words(refused: [(&str, SocketAddr, Option<anyhow::Error>); 2]) -> anyhow::Error {
    let refused = refused
        .into_iter()
        .filter_map(|(option, address, error)| Some(format!("{option} {address}: {}", error?.root_cause())));
    let refused: Vec<String> = refused.collect();
    anyhow!("{}; expected other addresses, or the end of what listens there (another segue dev?)", refused.join("; "))
}

/// The pods, as `/status` shows them: each with its name.
struct PodsStatusSource(Vec<(String, Arc<dyn StatusSource>)>);

impl StatusSource for PodsStatusSource {
    fn name(&self) -> &'static str {
        "pods"
    }

    fn ready(&self) -> Result<(), String> {
        self.0.iter().try_for_each(|(name, pod)| pod.ready().map_err(|reason| format!("{name}: {reason}")))
    }

    fn status(&self) -> Value {
        self.0.iter().map(|(name, pod)| (name.clone(), pod.status())).collect::<Map<String, Value>>().into()
    }

    fn refresh(&self) {
        self.0.iter().for_each(|(_, pod)| pod.refresh());
    }
}
