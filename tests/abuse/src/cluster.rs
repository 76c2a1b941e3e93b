//! Everything that is attacked: a real etcd, a coordinator and routers as processes, pods in this process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use segue_coordination::store::{EtcdOptions, EtcdStore};
use segue_tests::etcd::Etcd;
use segue_tests::http;
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use tempfile::TempDir;

use crate::gauge::FileLimits;
use crate::service::{Pod, Pods};

pub(crate) const PARTITIONS: u32 = 16;
/// What the router that is attacked is told; short, so that what has to end ends while it is looked at.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
pub(crate) const CONNECTIONS: usize = 1_000;
pub(crate) const IN_FLIGHT: usize = 10_000;
const KEYSPACE: &str = "default";
/// The keyspace of the router that finds keys in paths: all routers of one keyspace have the same mapping.
const KEYED: &str = "keyed";
/// How a router finds partitions, if nothing else is said.
const BY_NUMBER: &str = "header = \"x-partition\"\norder_by = { header = \"x-key\" }";
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

    /// What it has printed, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.process.ended()?;
        Some(format!("the router has ended: {status}\n{}", self.process.output()))
    }

    /// A value of its metrics page, with its labels; 0 if it is not there.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        metric(self.admin, series).unwrap_or(0.0)
    }
}

/// A value of a metrics page, with its labels, if the page and the series are there.
pub(crate) fn metric(admin: SocketAddr, series: &str) -> Option<f64> {
    let (_, page) = http::get(admin, "/metrics")?;
    http::metric(&page, series)
}

pub(crate) struct Cluster {
    folder: TempDir,
    segue: PathBuf,
    etcd: Etcd,
    _coordinator: Process,
    pub(crate) pods: Pods,
    pub(crate) pod: Option<Pod>,
}

/// A router that finds the key in the path, and what its keyspace needs.
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
        let pods = Pods::new(Arc::new(store), KEYSPACE);
        let coordinator = coordinator(&segue, folder.path(), &etcd, KEYSPACE, "c-0")?;
        let pod = pods.start("p-0").await?;
        Ok(Cluster { folder, segue, etcd, _coordinator: coordinator, pods, pod: Some(pod) })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A router, once it is ready and leads everywhere. `more`: the sections below `[router]`, and its further keys.
    pub(crate) async fn router(&self, name: &str, keys: &str, limits: &str, upstream: &str) -> anyhow::Result<Router> {
        self.router_with(FileLimits::as_started(), name, keys, limits, upstream).await
    }

    /// The same, with so many files.
    pub(crate) async fn router_with(
        &self,
        files: FileLimits,
        name: &str,
        keys: &str,
        limits: &str,
        upstream: &str,
    ) -> anyhow::Result<Router> {
        self.router_by(files.command(&self.segue), "run", KEYSPACE, name, [keys, BY_NUMBER, limits, upstream]).await
    }

    /// A router that finds the key in the path, in a keyspace of its own.
    pub(crate) async fn keyed_router(&self, name: &str) -> anyhow::Result<Keyed> {
        let coordinator = coordinator(&self.segue, self.folder.path(), &self.etcd, KEYED, "c-keys")?;
        let pod = self.pods.in_keyspace(KEYED).start("p-keys").await?;
        let partition = "key = { path = \"/persons/{key}\" }";
        let program = FileLimits::as_started().command(&self.segue);
        let router = self.router_by(program, "run", KEYED, name, ["", partition, "", ""]).await?;
        Ok(Keyed { router, _coordinator: coordinator, _pod: pod })
    }

    /// A router whose allocator counts.
    pub(crate) async fn counted_router(&self, name: &str) -> anyhow::Result<Router> {
        let program = FileLimits::as_started().command(&std::env::current_exe()?);
        self.router_by(program, "counted-router", KEYSPACE, name, ["", BY_NUMBER, "", ""]).await
    }

    async fn router_by(
        &self,
        program: Command,
        command: &str,
        keyspace: &str,
        name: &str,
        [keys, partition, limits, upstream]: [&str; 4],
    ) -> anyhow::Result<Router> {
        let (address, admin) = (free_address(), free_address());
        let configuration = format!(
            "keyspace = {keyspace:?}\n[store]\nendpoints = [{:?}]\n[admin]\nlisten = \"{admin}\"\n[router]\nname = \"{name}\"\n\
             listen = \"{address}\"\nworkers = 2\n{keys}\n[router.partition]\n{partition}\n[router.limits]\n{limits}\n[router.upstream]\n{upstream}\n",
            self.etcd.endpoint()
        );
        let mut router =
            Router { address, admin, process: run(program, command, self.folder.path(), name, &configuration)? };
        let begun = Instant::now();
        loop {
            if let Some(ended) = router.ended() {
                bail!("{ended}");
            }
            if self.leads_everywhere(&router).await {
                return Ok(router);
            }
            ensure!(begun.elapsed() < START, "{name} is not ready:\n{}", router.process.output());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn leads_everywhere(&self, router: &Router) -> bool {
        let admin = router.admin;
        let asked = tokio::task::spawn_blocking(move || http::get(admin, "/status")).await;
        let Ok(Some((200, body))) = asked else { return false };
        body.matches("\"stage\":\"open\"").count() >= PARTITIONS as usize
    }

    /// The router that is attacked.
    pub(crate) async fn victim(&self) -> anyhow::Result<Router> {
        let limits = format!(
            "max_connections = {CONNECTIONS}\nheader_read_timeout = \"{}s\"\nmax_body_bytes = \"8MiB\"",
            HEAD_TIMEOUT.as_secs()
        );
        let upstream = format!(
            "idle_timeout = \"{}s\"\nrequest_timeout = \"5s\"\nmax_idle_per_pod = 8\nmax_in_flight_per_pod = {IN_FLIGHT}",
            IDLE_TIMEOUT.as_secs()
        );
        self.router("r-0", "", &limits, &upstream).await
    }
}

/// The coordinator of a keyspace.
fn coordinator(segue: &Path, folder: &Path, etcd: &Etcd, keyspace: &str, name: &str) -> anyhow::Result<Process> {
    let configuration = format!(
        "keyspace = {keyspace:?}\n[store]\nendpoints = [{:?}]\n[coordinator]\nname = \"{name}\"\n\
         partitions = {PARTITIONS}\nsettle = \"100ms\"\nmin_interval = \"200ms\"\nheartbeat = \"2s\"\n\
         listen = \"127.0.0.1:0\"\n",
        etcd.endpoint()
    );
    run(FileLimits::as_started().command(segue), "run", folder, name, &configuration)
}

fn run(mut program: Command, command: &str, folder: &Path, name: &str, configuration: &str) -> anyhow::Result<Process> {
    let file = folder.join(format!("{name}.toml"));
    std::fs::write(&file, configuration).context("configuration")?;
    Ok(Process::start(name, folder, program.args([command, "--config"]).arg(file)))
}
