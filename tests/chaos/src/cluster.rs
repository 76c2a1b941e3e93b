//! The cluster: each process on its host. Starts, kills, stops and ends processes, and waits until the cluster is at
//! rest.
//!
//! What happens to the cluster is in [`fault`](crate::fault) and [`scenario`](crate::scenario).
//!
//! # Invariants
//!
//! * The cluster knows of each process whether it should run: one that ended by itself is reported, one that was killed
//!   is not.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use segue_coordination::store::{EtcdCredentials, EtcdOptions};
use segue_tests::config::Config;
use segue_tests::etcd_admin;
use segue_tests::http;
use segue_tests::process::Process;
use segue_tests::status::Status;

use crate::disk::SlowDisk;
use crate::etcd::{self, MEMBERS};
use crate::namespaces::run;
use crate::network::Network;
use crate::timeline::Timeline;

pub(crate) const PARTITIONS: u32 = 24;
pub(crate) const COORDINATORS: [&str; 2] = ["c-0", "c-1"];
pub(crate) const ROUTERS: [&str; 3] = ["r-0", "r-1", "r-2"];
/// The first four from the beginning; the others join and leave.
pub(crate) const PODS: [&str; 6] = ["w-0", "w-1", "w-2", "w-3", "w-4", "w-5"];
pub(crate) const FIRST_PODS: usize = 4;

/// How long a registration outlives its process.
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(3);
/// How long a router holds a request.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(10);
/// How long it waits for a pod's answer.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);

const ROUTER_PORT: u16 = 8080;
const POD_PORT: u16 = 8181;
const ADMIN_PORT: u16 = 9090;
const START: Duration = Duration::from_secs(40);
const FIRST_PASSWORD: &str = "first";

/// The settings of writers, which differ when a cluster is broken on purpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writers {
    /// Their log refuses epochs that are over.
    pub(crate) fence: bool,
    pub(crate) lease_ttl: Duration,
    pub(crate) service_time: Duration,
}

impl Default for Writers {
    fn default() -> Self {
        Writers { fence: true, lease_ttl: LEASE_TTL, service_time: Duration::from_millis(4) }
    }
}

#[derive(Debug)]
pub(crate) struct Cluster {
    folder: PathBuf,
    segue: PathBuf,
    writer: PathBuf,
    writers: Writers,
    /// `coordinator.coordination` of the coordinators.
    coordination: String,
    pub(crate) network: Network,
    pub(crate) disk: SlowDisk,
    timeline: Arc<Timeline>,
    processes: BTreeMap<String, Process>,
    /// The ends of outputs that nobody reads.
    unread: BTreeMap<String, UnixStream>,
    stopped: BTreeSet<String>,
    /// Pods whose process was ever stopped: their writes may reach the log late.
    pub(crate) were_stopped: BTreeSet<String>,
    /// Processes that ended by themselves, or not as they should.
    pub(crate) faults: Vec<String>,
}

impl Cluster {
    /// The hosts, with nothing on them yet.
    pub(crate) fn build(
        folder: &Path,
        group: &str,
        writers: Writers,
        coordination: &str,
        timeline: Arc<Timeline>,
    ) -> anyhow::Result<Self> {
        let programs = std::env::current_exe()?.parent().map(Path::to_path_buf).unwrap_or_default();
        let (segue, writer) = (programs.join("segue"), programs.join("examples/writer"));
        for program in [&segue, &writer] {
            ensure!(program.is_file(), "{} is not built; `make chaos` builds it", program.display());
        }
        let hosts = MEMBERS.into_iter().chain(COORDINATORS).chain(ROUTERS).chain(PODS);
        Ok(Cluster {
            folder: folder.to_owned(),
            segue,
            writer,
            writers,
            coordination: coordination.to_owned(),
            network: Network::build(hosts)?,
            disk: SlowDisk::find(folder, group),
            timeline,
            processes: BTreeMap::new(),
            unread: BTreeMap::new(),
            stopped: BTreeSet::new(),
            were_stopped: BTreeSet::new(),
            faults: Vec::new(),
        })
    }

    /// The hosts again with nothing on them, for another run.
    pub(crate) fn rebuild(self, folder: &Path) -> Self {
        let (processes, unread, stopped, were_stopped, faults) = Default::default();
        Cluster { folder: folder.to_owned(), processes, unread, stopped, were_stopped, faults, ..self }
    }

    pub(crate) fn start_etcd(&mut self) -> anyhow::Result<()> {
        self.start_members()?;
        self.write_password(FIRST_PASSWORD)?;
        etcd_admin::enable_users(self.etcd_addresses()[0], FIRST_PASSWORD).map_err(anyhow::Error::msg)
    }

    fn start_members(&mut self) -> anyhow::Result<()> {
        for member in MEMBERS {
            self.start(member)?;
        }
        let begun = Instant::now();
        while self.etcd_leader().is_none() {
            ensure!(begun.elapsed() < START, "etcd has no leader:\n{}", self.processes[MEMBERS[0]].output());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Ends every member of etcd at once, copies their disks or puts the copies back, and starts them again.
    pub(crate) fn etcd_disks(&mut self, put_back: bool) -> anyhow::Result<()> {
        MEMBERS.into_iter().for_each(|member| self.kill(member));
        for member in MEMBERS {
            let (disk, copy) = (self.etcd_disk(member), self.folder.join(format!("{member}.copy")));
            let (from, to) = if put_back { (&copy, &disk) } else { (&disk, &copy) };
            let _ = std::fs::remove_dir_all(to);
            run("cp", &["-a", &from.to_string_lossy(), &to.to_string_lossy()])?;
        }
        self.start_members()
    }

    fn etcd_disk(&self, member: &str) -> PathBuf {
        self.folder.join(format!("{member}.data"))
    }

    /// Writes the password that every process reads.
    pub(crate) fn write_password(&self, password: &str) -> anyhow::Result<()> {
        Ok(std::fs::write(self.password_file(), format!("{password}\n"))?)
    }

    fn password_file(&self) -> PathBuf {
        self.folder.join("password")
    }

    /// How the cluster's history is watched, and its records are edited by hand.
    pub(crate) fn etcd_options(&self) -> EtcdOptions {
        let mut options = EtcdOptions::new(self.etcd_urls());
        let (username, password_file) = (etcd_admin::USER.to_owned(), self.password_file());
        options.credentials = Some(EtcdCredentials { username, password_file });
        options
    }

    pub(crate) fn start_all(&mut self) -> anyhow::Result<()> {
        for name in COORDINATORS.into_iter().chain(PODS.into_iter().take(FIRST_PODS)).chain(ROUTERS) {
            self.start(name)?;
        }
        Ok(())
    }

    /// Starts a process on its host. One that runs already is left as it is.
    pub(crate) fn start(&mut self, name: &str) -> anyhow::Result<()> {
        if self.processes.contains_key(name) {
            return Ok(());
        }
        let mut command = self.command(name);
        let process = Process::start(name, &self.folder, &mut command);
        self.processes.insert(name.to_owned(), process);
        Ok(())
    }

    /// Starts a process of `segue run` that logs as much as it can. Nobody reads its output, which has no room for a byte.
    pub(crate) fn start_unread(&mut self, name: &str) {
        let mut command = self.segue_run(name, &self.configuration(name).set("log.level", "trace"));
        let (process, reader) = Process::start_unread(name, &self.folder, &mut command);
        self.processes.insert(name.to_owned(), process);
        self.unread.insert(name.to_owned(), reader);
    }

    fn command(&self, name: &str) -> Command {
        match name.as_bytes()[0] {
            b'e' => {
                let mut command = self.network.command_on(name);
                let members = MEMBERS.map(|member| (member, self.network.address(member)));
                let data = self.etcd_disk(name);
                command.arg("etcd").args(etcd::arguments(name, &data.to_string_lossy(), &members));
                command
            }
            b'w' => self.writer(name),
            _ => self.segue_run(name, &self.configuration(name)),
        }
    }

    fn segue_run(&self, name: &str, configuration: &Config) -> Command {
        let mut command = self.network.command_on(name);
        command.arg(&self.segue).args(["run", "--config"]).arg(configuration.write(&self.folder, name));
        command
    }

    fn writer(&self, name: &str) -> Command {
        let mut command = self.network.command_on(name);
        let Writers { fence, lease_ttl, service_time } = self.writers;
        command.arg(&self.writer).args(["--name", name, "--log-dir"]).arg(self.logs());
        command.args(["--listen", &SocketAddr::from((self.network.address(name), POD_PORT)).to_string()]);
        for url in self.etcd_urls() {
            command.args(["--etcd", &url]);
        }
        command.args(["--etcd-user", etcd_admin::USER, "--etcd-password-file"]).arg(self.password_file());
        command.args(["--lease-ttl", &lease_ttl.as_secs().to_string(), "--warm-time", "40", "--patience", "8"]);
        command.args(["--service-time", &service_time.as_millis().to_string()]);
        command.args(fence.then_some("--fence"));
        command
    }

    fn configuration(&self, name: &str) -> Config {
        let (address, ttl) = (self.network.address(name), format!("{}s", LEASE_TTL.as_secs()));
        let config = Config::new(self.etcd_urls())
            .set("store.username", etcd_admin::USER)
            .set("store.password_file", self.password_file().to_string_lossy().into_owned())
            .admin((address, ADMIN_PORT).into())
            .set("log.level", "info");
        if name.starts_with('c') {
            let pace = "settle = \"150ms\"\nmin_interval = \"300ms\"\ncool_down = \"500ms\"\nheartbeat = \"3s\"\n\
                        warm_timeout = \"10s\"\nphase_timeout = \"8s\"";
            let config =
                config.coordinator(name, PARTITIONS).set("coordinator.coordination", self.coordination.as_str());
            config.set("coordinator.lease_ttl", ttl).with("coordinator", pace)
        } else {
            let settings = format!(
                "workers = 1\npartition = {{ header = \"x-partition\", order_by = {{ header = \"x-key\" }} }}\n\
                 stash.max_wait = \"{}s\"\ndrain.timeout = \"3s\"\nupstream.request_timeout = \"{}s\"",
                MAX_WAIT.as_secs(),
                REQUEST_TIMEOUT.as_secs()
            );
            let router = config.router(name, (address, ROUTER_PORT).into());
            router.set("router.lease_ttl", ttl).with("router", &settings)
        }
    }

    pub(crate) fn kill(&mut self, name: &str) {
        self.stopped.remove(name);
        if let Some(process) = self.processes.remove(name) {
            process.kill();
        }
    }

    /// Stops it from running, as a machine that is stuck.
    pub(crate) fn stop(&mut self, name: &str) {
        if let Some(process) = self.processes.get(name) {
            process.signal("STOP");
            self.stopped.insert(name.to_owned());
            self.were_stopped.insert(name.to_owned());
        }
    }

    pub(crate) fn resume(&mut self, name: &str) {
        if let Some(process) = self.processes.get(name).filter(|_| self.stopped.contains(name)) {
            process.signal("CONT");
        }
        self.stopped.remove(name);
    }

    /// Ends processes gracefully, all at the same time, and takes note of those that do not.
    pub(crate) fn terminate(&mut self, names: &[&str], within: Duration) {
        let mut ending: Vec<(String, Process)> =
            names.iter().filter_map(|name| self.processes.remove_entry(*name)).collect();
        for (_, process) in &ending {
            process.signal("TERM");
        }
        let begun = Instant::now();
        while !ending.is_empty() && begun.elapsed() < within {
            ending.retain_mut(|(name, process)| match process.ended() {
                None => true,
                // etcd leaves with the signal's own status.
                Some(status) => {
                    if !status.success() && !name.starts_with('e') {
                        self.faults.push(format!("{name} was told to end and ended with {status}"));
                    }
                    false
                }
            });
            std::thread::sleep(Duration::from_millis(10));
        }
        for (name, process) in ending {
            self.faults.push(format!("{name} was told to end and had not after {within:?}"));
            process.kill();
        }
    }

    /// Records processes that ended by themselves.
    pub(crate) fn look_for_the_dead(&mut self) {
        let dead: Vec<(String, String)> = self
            .processes
            .iter_mut()
            .filter_map(|(name, process)| Some((name.clone(), process.ended()?.to_string())))
            .collect();
        for (name, status) in dead {
            self.processes.remove(&name);
            self.timeline.say(&format!("{name} has ended by itself: {status}"));
            self.faults.push(format!("{name} ended by itself: {status}"));
        }
    }

    pub(crate) fn is_running(&self, name: &str) -> bool {
        self.processes.contains_key(name) && !self.stopped.contains(name)
    }

    pub(crate) fn pid(&self, name: &str) -> Option<u32> {
        self.processes.get(name).map(Process::id)
    }

    pub(crate) fn running(&self, of: &[&'static str]) -> Vec<&'static str> {
        of.iter().copied().filter(|name| self.is_running(name)).collect()
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.folder.join("partitions")
    }

    /// What a process has printed.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (String, String)> {
        let segue = COORDINATORS.into_iter().chain(ROUTERS).chain(PODS);
        segue.map(|name| {
            let text = std::fs::read_to_string(self.folder.join(format!("{name}.log"))).unwrap_or_default();
            (name.to_owned(), text)
        })
    }

    pub(crate) fn routers(&self) -> Vec<SocketAddr> {
        ROUTERS.map(|router| SocketAddr::from((self.network.address(router), ROUTER_PORT))).to_vec()
    }

    /// Where the members listen for clients.
    pub(crate) fn etcd_addresses(&self) -> [SocketAddr; 3] {
        MEMBERS.map(|member| etcd::client_address(self.network.address(member)))
    }

    fn etcd_urls(&self) -> Vec<String> {
        self.etcd_addresses().map(|address| format!("http://{address}")).to_vec()
    }

    pub(crate) fn etcd_leader(&self) -> Option<&'static str> {
        self.running(&MEMBERS)
            .into_iter()
            .find(|member| etcd::metrics(self.network.address(member)).is_some_and(|metrics| etcd::is_leader(&metrics)))
    }

    /// Asks `segue status`.
    pub(crate) fn status(&self) -> anyhow::Result<Status> {
        Status::of(&self.segue, &self.folder.join(COORDINATORS[0]).with_extension("toml")).map_err(anyhow::Error::msg)
    }

    /// The coordinator that leads.
    pub(crate) fn leader(&self) -> Option<&'static str> {
        let status = self.status().ok()?;
        COORDINATORS.into_iter().find(|name| status.leader() == Some(name))
    }

    /// Waits until every partition has a living owner, nothing moves, who is registered is who runs, and routers say that
    /// they are ready.
    pub(crate) fn settle(&mut self, within: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            self.look_for_the_dead();
            let state = match self.unsettled() {
                Ok(None) => return Ok(()),
                Ok(Some(why)) => why,
                Err(error) => format!("{error:#}"),
            };
            if begun.elapsed() > within {
                bail!("not at rest after {within:?}: {state}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn unsettled(&self) -> anyhow::Result<Option<String>> {
        let status = self.status()?;
        let (pods, routers) = (self.running(&PODS), self.running(&ROUTERS));
        let rests = status.pods() == pods
            && status.routers() == routers
            && status.is_at_rest(PARTITIONS)
            && status.leader().is_some()
            && status.is_well_formed();
        if !rests {
            return Ok(Some(format!("running are {pods:?} and {routers:?}; {status}")));
        }
        Ok(routers.iter().find(|router| !self.is_ready(router)).map(|router| format!("router {router} is not ready")))
    }

    fn admin(&self, name: &str) -> SocketAddr {
        (self.network.address(name), ADMIN_PORT).into()
    }

    /// Asks a process of `segue run` whether it is ready.
    pub(crate) fn is_ready(&self, name: &str) -> bool {
        http::is_ready(self.admin(name))
    }

    /// Asks a process of `segue run` whether lines of its log found the queue full.
    pub(crate) fn has_dropped_lines(&self, name: &str) -> bool {
        let page = http::get(self.admin(name), "/metrics").map(|(_, page)| page).unwrap_or_default();
        http::metric(&page, "segue_log_lines_dropped_total").is_some_and(|lines| lines > 0.0)
    }
}
