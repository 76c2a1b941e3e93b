//! A site of real processes: an etcd, and coordinators, routers and writer pods beside it.

#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use segue_tests::etcd::Etcd;
use segue_tests::http::get;
use segue_tests::ports::free_address;
use segue_tests::process::{Process, show_logs_of_a_failure};
use serde_json::Value;
use tempfile::TempDir;

pub const PARTITIONS: u32 = 16;

/// The folder of the examples, which are built once for all tests of a run.
static EXAMPLES: LazyLock<PathBuf> = LazyLock::new(build_examples);

pub struct Site {
    writer: PathBuf,
    folder: TempDir,
    /// How long a writer takes for a request, in milliseconds.
    pub service_time: u64,
    pub etcd: Etcd,
    pub processes: BTreeMap<String, Process>,
}

/// The examples, which cargo builds for a run of all tests, and which have to be asked for in a run of this one. Built as the
/// whole workspace builds it, or its dependencies would be built again with other features.
fn build_examples() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--locked", "--workspace", "--examples"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    std::env::current_exe().unwrap().parent().unwrap().join("../examples")
}

/// The executable of an example.
pub fn example(name: &str) -> PathBuf {
    EXAMPLES.join(name)
}

/// The head and body of the answer to `GET path` for partition 0; `None` if there was none.
pub fn http(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

impl Drop for Site {
    fn drop(&mut self) {
        show_logs_of_a_failure(self.folder.path());
    }
}

impl Site {
    pub fn start() -> Self {
        Site {
            writer: example("writer"),
            folder: TempDir::new().unwrap(),
            service_time: 2,
            etcd: Etcd::start(),
            processes: BTreeMap::new(),
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn logs(&self) -> PathBuf {
        self.path().join("partitions")
    }

    pub fn role(&mut self, name: &str, sections: &str) {
        let process = self.run(name, sections);
        self.processes.insert(name.to_owned(), process);
    }

    /// A process with these sections in its file.
    pub fn run(&self, name: &str, sections: &str) -> Process {
        let store = format!("[store]\nendpoints = [\"{}\"]\n", self.etcd.endpoint());
        let config = self.path().join(format!("{name}.toml"));
        std::fs::write(&config, store + sections).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
        Process::start(name, self.path(), command.args(["run", "--config"]).arg(config))
    }

    pub fn coordinator(&mut self, name: &str) {
        self.role(
            name,
            &format!(
                "[coordinator]\nname = \"{name}\"\npartitions = {PARTITIONS}\nlease_ttl = \"2s\"\nsettle = \"100ms\"\n\
                 min_interval = \"200ms\"\nheartbeat = \"5s\"\nlisten = \"127.0.0.1:0\"\n"
            ),
        );
    }

    pub fn router(&mut self, name: &str, listen: SocketAddr, admin: SocketAddr) {
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

    pub fn writer(&mut self, name: &str) {
        let mut command = Command::new(&self.writer);
        let (listen, logs) = (free_address().to_string(), self.logs());
        command.args(["--etcd", &self.etcd.endpoint(), "--name", name, "--listen", &listen, "--lease-ttl", "2"]);
        command.args(["--service-time", &self.service_time.to_string(), "--warm-time", "30", "--log-dir"]).arg(logs);
        let process = Process::start(name, self.path(), &mut command);
        self.processes.insert(name.to_owned(), process);
    }

    pub fn take(&mut self, name: &str) -> Process {
        self.processes.remove(name).unwrap()
    }

    pub fn status(&self) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
        let output = command.args(["status", "--json", "--etcd", &self.etcd.endpoint()]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// Waits until every partition has a living owner among these pods, each has some, and nothing moves.
    pub fn settles(&self, pods: &[&str]) {
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
