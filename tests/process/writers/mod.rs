//! A cluster of coordinators, routers and the example's writer pods. Each is a process with a name.

#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

pub mod load;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use segue_tests::cluster::TestCluster;
use segue_tests::config::Config;
use segue_tests::etcd::Etcd;
use segue_tests::examples::example;
use segue_tests::http::is_ready;
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use segue_tests::status::Status;

pub const PARTITIONS: u32 = 16;

/// The TTLs of leases in seconds.
#[derive(Clone, Copy)]
pub struct LeaseTtls {
    pub coordinator: u64,
    pub router: u64,
    pub writer: u64,
}

impl LeaseTtls {
    /// Those of a test that waits for the end of none.
    pub const LONG: Self = LeaseTtls { coordinator: 600, router: 600, writer: 600 };
}

pub struct WriterCluster {
    /// How long a writer takes for a request, in milliseconds.
    pub service_time: u64,
    /// The leases of processes that start later, at first [`LeaseTtls::LONG`].
    pub leases: LeaseTtls,
    pub processes: BTreeMap<String, Process>,
    /// The token that pods by gRPC have to present to the coordinators.
    pub token_file: Option<PathBuf>,
    writer: PathBuf,
    cluster: TestCluster,
}

impl WriterCluster {
    pub fn start() -> Self {
        // First, as it may have to be built.
        let writer = example("writer");
        let cluster = TestCluster::start(env!("CARGO_BIN_EXE_segue"));
        let (leases, processes) = (LeaseTtls::LONG, BTreeMap::new());
        WriterCluster { service_time: 2, leases, processes, token_file: None, writer, cluster }
    }

    pub fn path(&self) -> &Path {
        self.cluster.path()
    }

    pub fn etcd(&self) -> &Etcd {
        self.cluster.etcd()
    }

    /// The folder of the partitions' logs.
    pub fn logs(&self) -> PathBuf {
        self.path().join("partitions")
    }

    pub fn coordinator(&mut self, name: &str) {
        self.coordinator_at(name, None);
    }

    /// Starts a coordinator that serves pods by gRPC at this address.
    pub fn coordinator_at(&mut self, name: &str, listen: Option<SocketAddr>) {
        let mut config = self.cluster.config().coordinator(name, PARTITIONS).with(
            "coordinator",
            "settle = \"100ms\"\nmin_interval = \"200ms\"\ncool_down = \"0s\"\nheartbeat = \"5s\"\n\
             checkpoint_interval = \"1s\"\ncheckpoint_timeout = \"2s\"",
        );
        if let Some(listen) = listen {
            config = config.set("coordinator.listen", listen.to_string());
            if let Some(file) = &self.token_file {
                config = config.set("coordinator.token_file", file.to_str().unwrap());
            }
        }
        let config = config.lease("coordinator", &format!("{}s", self.leases.coordinator)).quick();
        let process = self.run(name, &config);
        self.processes.insert(name.to_owned(), process);
    }

    /// Returns the file of a router with two workers, which finds the partition and the key in headers.
    pub fn router_config(&self, name: &str, listen: SocketAddr, admin: SocketAddr) -> Config {
        self.router_config_by("header = \"x-partition\"\norder_by = { header = \"x-key\" }", name, listen, admin)
    }

    /// Returns the file of a router with two workers and this `[router.partition]`.
    pub fn router_config_by(&self, partition: &str, name: &str, listen: SocketAddr, admin: SocketAddr) -> Config {
        let router = self.cluster.config().router(name, listen).with("router.partition", partition);
        let router = router.with("router", "workers = 2\ndrain = { timeout = \"5s\" }").admin(admin);
        router.lease("router", &format!("{}s", self.leases.router)).quick()
    }

    pub fn router(&mut self, name: &str, listen: SocketAddr, admin: SocketAddr) {
        let mut router = self.run(name, &self.router_config(name, listen, admin));
        router.until("/ready", || is_ready(admin));
        self.processes.insert(name.to_owned(), router);
    }

    pub fn writer(&mut self, name: &str) {
        let mut command = Command::new(&self.writer);
        let (listen, logs) = (free_address().to_string(), self.logs());
        command.args(["--etcd", &self.etcd().endpoint(), "--name", name, "--listen", &listen]);
        command.args(["--lease-ttl", &self.leases.writer.to_string()]);
        command.args(["--service-time", &self.service_time.to_string(), "--warm-time", "30", "--log-dir"]).arg(logs);
        let process = Process::start(name, self.path(), &mut command);
        self.processes.insert(name.to_owned(), process);
    }

    /// Starts `segue run`, as a process that the test keeps.
    pub fn run(&self, name: &str, config: &Config) -> Process {
        self.cluster.run(name, config)
    }

    /// Takes a process out of the cluster.
    pub fn take(&mut self, name: &str) -> Process {
        self.processes.remove(name).unwrap()
    }

    pub fn status(&self) -> Status {
        self.cluster.status()
    }

    /// Waits until just these pods are registered, each owns a partition, all partitions are owned, and none moves.
    pub fn settles(&self, pods: &[&str]) {
        self.cluster.settles(PARTITIONS, pods);
    }

    /// What the process `name` has printed, in all its lives.
    pub fn output(&self, name: &str) -> String {
        self.cluster.output(name)
    }
}
