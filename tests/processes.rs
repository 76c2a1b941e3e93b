//! The main job with nothing simulated: a real etcd, and routers, coordinators and writer pods as processes of their own.
//! Pods join, leave and are killed, a router and the leader are killed, all under load; then what clients saw is held
//! against what the pods wrote.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use segue::demo::check::{Evidence, check};
use segue::demo::load::{Load, LoadSettings};
use segue::demo::log::Log;
use segue::demo::record::Outcome;
use segue_tests::etcd::Etcd;
use segue_tests::process::{Process, free_address, get};
use serde_json::Value;
use tempfile::TempDir;

const PARTITIONS: u32 = 16;

struct Site {
    writer: PathBuf,
    folder: TempDir,
    etcd: Etcd,
    processes: BTreeMap<String, Process>,
}

/// The example, which cargo builds for a run of all tests, and which has to be asked for in a run of this one. Built as the
/// whole workspace builds it, or its dependencies would be built again with other features.
fn example_writer() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--locked", "--workspace", "--example", "writer"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    std::env::current_exe().unwrap().parent().unwrap().join("../examples/writer")
}

impl Site {
    fn start() -> Self {
        Site {
            writer: example_writer(),
            folder: TempDir::new().unwrap(),
            etcd: Etcd::start(),
            processes: BTreeMap::new(),
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn logs(&self) -> PathBuf {
        self.path().join("partitions")
    }

    fn role(&mut self, name: &str, sections: &str) {
        let store = format!("[store]\nendpoints = [\"{}\"]\n", self.etcd.endpoint());
        let config = self.path().join(format!("{name}.toml"));
        std::fs::write(&config, store + sections).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
        let process = Process::start(name, self.path(), command.args(["run", "--config"]).arg(config));
        self.processes.insert(name.to_owned(), process);
    }

    fn coordinator(&mut self, name: &str) {
        self.role(
            name,
            &format!(
                "[coordinator]\nname = \"{name}\"\npartitions = {PARTITIONS}\nlease_ttl = \"2s\"\nsettle = \"100ms\"\n\
                 min_interval = \"200ms\"\nheartbeat = \"5s\"\nlisten = \"127.0.0.1:0\"\n"
            ),
        );
    }

    fn router(&mut self, name: &str, listen: SocketAddr, admin: SocketAddr) {
        self.role(
            name,
            &format!(
                "[router]\nname = \"{name}\"\nlisten = \"{listen}\"\nlease_ttl = \"2s\"\nworkers = 2\n\
                 [router.partition]\nheader = \"x-partition\"\norder_by = {{ header = \"x-key\" }}\n\
                 [router.drain]\ntimeout = \"5s\"\n[admin]\nlisten = \"{admin}\"\n"
            ),
        );
        let router = self.processes.get_mut(name).unwrap();
        router.until("/ready", || get(admin, "/ready").is_some_and(|(status, _)| status == 200));
    }

    fn writer(&mut self, name: &str) {
        let mut command = Command::new(&self.writer);
        let (listen, logs) = (free_address().to_string(), self.logs());
        command.args(["--etcd", &self.etcd.endpoint(), "--name", name, "--listen", &listen, "--lease-ttl", "2"]);
        command.args(["--service-time", "2", "--warm-time", "30", "--log-dir"]).arg(logs);
        let process = Process::start(name, self.path(), &mut command);
        self.processes.insert(name.to_owned(), process);
    }

    fn take(&mut self, name: &str) -> Process {
        self.processes.remove(name).unwrap()
    }

    fn status(&self) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
        let output = command.args(["status", "--json", "--etcd", &self.etcd.endpoint()]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// Waits until every partition has a living owner among these pods, each has some, and nothing moves.
    fn settles(&self, pods: &[&str]) {
        let begun = Instant::now();
        loop {
            let status = self.status();
            let names: Vec<&str> =
                status["pods"].as_array().into_iter().flatten().filter_map(|pod| pod["name"].as_str()).collect();
            let each = status["pods"].as_array().into_iter().flatten().all(|pod| pod["partitions"].as_u64() > Some(0));
            let rests = status["handoffs"].as_array().is_some_and(Vec::is_empty) && status["unowned"] == 0;
            if names == pods && each && rests && status["partitions"] == PARTITIONS {
                return;
            }
            if begun.elapsed() > Duration::from_secs(60) {
                let outputs = self.processes.iter().map(|(name, process)| format!("--- {name}\n{}", process.output()));
                panic!("it does not settle on {pods:?}: {status:#}\n{}", outputs.collect::<String>());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_pods_routers_and_the_leader_come_and_go() {
    let mut site = Site::start();
    let (routers, admins) = ([free_address(), free_address()], [free_address(), free_address()]);
    site.coordinator("c-0");
    site.coordinator("c-1");
    for name in ["w-0", "w-1", "w-2"] {
        site.writer(name);
    }
    for (index, name) in ["r-0", "r-1"].into_iter().enumerate() {
        site.router(name, routers[index], admins[index]);
    }
    site.settles(&["w-0", "w-1", "w-2"]);

    let load = Load::start(LoadSettings {
        routers: routers.map(Into::into).to_vec(),
        partitions: PARTITIONS,
        clients: 24,
        bursts: 2,
        rate: 0,
        patience: Duration::from_secs(60),
        seed: 7,
        partition_header: Some("x-partition".parse().unwrap()),
        places: None,
        repeats: 0,
    });
    let done = || load.gauge().ok.load(Relaxed);
    let started = Instant::now();
    let flows = |what: &str| {
        eprintln!("{:6.1} s  {} answered; requests must flow {what}", started.elapsed().as_secs_f64(), done());
        let (before, begun) = (done(), Instant::now());
        while done() < before + 200 {
            assert!(begun.elapsed() < Duration::from_secs(60), "requests do not flow {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };

    tokio::task::block_in_place(|| {
        flows("at rest");
        site.writer("w-3");
        site.settles(&["w-0", "w-1", "w-2", "w-3"]);
        flows("after a pod has joined");

        let (status, output) = site.take("w-0").terminate();
        assert!(status.success(), "w-0 did not leave gracefully:\n{output}");
        site.settles(&["w-1", "w-2", "w-3"]);
        flows("after a pod has left");

        site.take("w-1").kill();
        site.settles(&["w-2", "w-3"]);
        flows("after a pod was killed");

        let leader = site.status()["leader"].as_str().unwrap().to_owned();
        site.writer("w-4");
        site.take(&leader).kill();
        site.settles(&["w-2", "w-3", "w-4"]);
        assert_ne!(site.status()["leader"], leader.as_str());
        flows("after the leader was killed");

        site.take("r-1").kill();
        site.writer("w-5");
        site.settles(&["w-2", "w-3", "w-4", "w-5"]);
        site.router("r-1", routers[1], admins[1]);
        flows("after a router was killed and came back");

        let (status, output) = site.take("r-0").terminate();
        assert!(status.success(), "r-0 did not end gracefully:\n{output}");
        site.router("r-0", routers[0], admins[0]);
        flows("after a router was restarted");
    });

    eprintln!("{:6.1} s  the load ends", started.elapsed().as_secs_f64());
    let exchanges = load.finish().await;
    eprintln!("{:6.1} s  checking", started.elapsed().as_secs_f64());
    let log = Log::in_directory(&site.logs()).unwrap().read_all().unwrap();
    let records = log.len();
    let answered = exchanges.iter().filter(|exchange| matches!(exchange.outcome, Outcome::Ok)).count();
    let harm = check(&Evidence { exchanges, log: Some(log), owners: None });
    for (name, count) in harm.counts() {
        assert_eq!(count.count, 0, "{name}: {:?}", count.examples);
    }
    assert!(answered > 2_000 && records > 1_000, "{answered} answered, {records} records: too little to tell");
    assert!(harm.reads_checked > 200);

    let (_, metrics) = get(admins[0], "/metrics").unwrap();
    assert!(metrics.contains("segue_cutovers_total{result=\"switched\"}"), "{metrics}");
}
