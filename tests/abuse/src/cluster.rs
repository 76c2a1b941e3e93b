//! The cluster under attack: etcd, a coordinator and routers as processes, and pods in this process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use segue_coordination::store::{EtcdOptions, EtcdStore};
use segue_tests::cluster::TestCluster;
use segue_tests::config::Config;
use segue_tests::etcd::Etcd;
use segue_tests::http;
use segue_tests::ports::free_address;
use segue_tests::process::Process;

use crate::gauge::FileLimits;
use crate::service::{Pod, Pods};

pub(crate) const PARTITIONS: u32 = 16;
/// Time-outs of the router under attack, short enough to expire during an attack.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
pub(crate) const CONNECTIONS: usize = 1_000;
pub(crate) const IN_FLIGHT: usize = 10_000;
const KEYSPACE: &str = "default";
/// What one address may have in flight by default.
pub(crate) const PER_CLIENT: usize = 1_000;
const START: Duration = Duration::from_secs(40);

/// A router of its own process.
pub(crate) struct Router {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    process: Process,
}

impl Router {
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns its exit status and output if it has ended.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.process.ended()?;
        Some(format!("the router has ended: {status}\n{}", self.process.output()))
    }

    /// Returns a series of its metrics page, or 0 if it is not there.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        metric(self.admin, series).unwrap_or(0.0)
    }
}

/// Returns a series of a metrics page, if both are there.
pub(crate) fn metric(admin: SocketAddr, series: &str) -> Option<f64> {
    let (_, page) = http::get(admin, "/metrics")?;
    http::metric(&page, series)
}

pub(crate) struct Cluster {
    shared: TestCluster,
    _coordinator: Process,
    pub(crate) pods: Pods,
    pub(crate) pod: Option<Pod>,
}

/// A router that finds the partition by a key, with the coordinator and the pod of its keyspace.
pub(crate) struct Keyed {
    pub(crate) router: Router,
    _coordinator: Process,
    _pod: Pod,
}

impl Cluster {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let segue = std::env::current_exe()?.parent().map(|folder| folder.join("segue")).unwrap_or_default();
        ensure!(segue.is_file(), "{} is not built; `make abuse` builds it", segue.display());
        let folder = tempfile::Builder::new().prefix("segue-abuse-").tempdir()?;
        let etcd = tokio::task::spawn_blocking(Etcd::start).await?;
        let store = EtcdStore::connect(EtcdOptions::new([etcd.endpoint()]))?;
        let shared = TestCluster::new(segue, folder, etcd);
        let pods = Pods::new(Arc::new(store), KEYSPACE);
        let coordinator = coordinator(&shared, KEYSPACE, "c-0");
        let pod = pods.start("p-0").await?;
        Ok(Cluster { shared, _coordinator: coordinator, pods, pod: Some(pod) })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.shared.path()
    }

    /// Starts a router with these further keys in its section, and waits until it leads everywhere.
    pub(crate) async fn router(&self, name: &str, keys: &str) -> anyhow::Result<Router> {
        self.router_with(FileLimits::as_started(), name, keys).await
    }

    /// As [`router`](Self::router), with a limit of open files.
    pub(crate) async fn router_with(&self, files: FileLimits, name: &str, keys: &str) -> anyhow::Result<Router> {
        let config = self.router_config().with("router", keys);
        self.start_router(name, config, files.command(self.shared.segue()).arg("run")).await
    }

    /// Starts a router that finds this key, in a keyspace of its own: all routers of one keyspace have the same mapping.
    pub(crate) async fn keyed_router(&self, keyspace: &'static str, key: &str) -> anyhow::Result<Keyed> {
        let coordinator = coordinator(&self.shared, keyspace, &format!("c-{keyspace}"));
        let pod = self.pods.in_keyspace(keyspace).start(&format!("p-{keyspace}")).await?;
        let config = config(&self.shared, keyspace).with("router.partition", &format!("key = {{ {key} }}"));
        let mut program = FileLimits::as_started().command(self.shared.segue());
        let router = self.start_router(&format!("r-{keyspace}"), config, program.arg("run")).await?;
        Ok(Keyed { router, _coordinator: coordinator, _pod: pod })
    }

    /// Starts a router whose allocator counts.
    pub(crate) async fn counted_router(&self, name: &str) -> anyhow::Result<Router> {
        let mut program = FileLimits::as_started().command(&std::env::current_exe()?);
        self.start_router(name, self.router_config(), program.arg("counted-router")).await
    }

    /// Starts the router that is attacked.
    pub(crate) async fn victim(&self, protocol: &str) -> anyhow::Result<Router> {
        let keys = format!(
            "limits = {{ max_connections = {CONNECTIONS}, header_read_timeout = \"{}s\", max_body_bytes = \"8MiB\" }}\n\
             upstream = {{ protocol = \"{protocol}\", idle_timeout = \"{}s\", request_timeout = \"5s\", max_idle_per_pod = 8, \
             max_in_flight_per_pod = {IN_FLIGHT} }}",
            HEAD_TIMEOUT.as_secs(),
            IDLE_TIMEOUT.as_secs()
        );
        self.router(&format!("r-{protocol}"), &keys).await
    }

    /// Returns the file of a router that finds the partition and the key in headers.
    fn router_config(&self) -> Config {
        let partition = "header = \"x-partition\"\norder_by = { header = \"x-key\" }";
        config(&self.shared, KEYSPACE).with("router.partition", partition)
    }

    async fn start_router(&self, name: &str, config: Config, command: &mut Command) -> anyhow::Result<Router> {
        let (address, admin) = (free_address(), free_address());
        let config = config.router(name, address).set("router.workers", 2).admin(admin);
        let mut router = Router { address, admin, process: self.shared.run_with(name, &config, command) };
        let begun = Instant::now();
        loop {
            if let Some(ended) = router.ended() {
                bail!("{ended}");
            }
            if leads_everywhere(&router).await {
                return Ok(router);
            }
            ensure!(begun.elapsed() < START, "{name} is not ready:\n{}", router.process.output());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn leads_everywhere(router: &Router) -> bool {
    let admin = router.admin;
    let asked = tokio::task::spawn_blocking(move || http::get(admin, "/status")).await;
    let Ok(Some((200, body))) = asked else { return false };
    body.matches("\"stage\":\"open\"").count() >= PARTITIONS as usize
}

/// Returns the beginning of a configuration file: the keyspace and the store.
fn config(shared: &TestCluster, keyspace: &str) -> Config {
    shared.config().set("keyspace", keyspace)
}

/// Starts the coordinator of a keyspace.
fn coordinator(shared: &TestCluster, keyspace: &str, name: &str) -> Process {
    let pace = "settle = \"100ms\"\nmin_interval = \"200ms\"\ncool_down = \"0s\"\nheartbeat = \"2s\"";
    let config = config(shared, keyspace).coordinator(name, PARTITIONS).with("coordinator", pace);
    shared.run_with(name, &config, FileLimits::as_started().command(shared.segue()).arg("run"))
}
