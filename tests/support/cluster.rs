//! A cluster for a test: an etcd, a folder, and processes of `segue run` whose files and logs are in it.
//!
//! Which processes there are is up to the test: it puts a [`Config`] together and keeps the [`Process`]. This crate
//! does not depend on the package that builds `segue`, so a test says where the executable is:
//! `env!("CARGO_BIN_EXE_segue")`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::config::Config;
use crate::etcd::Etcd;
use crate::process::{PATIENCE, Process, show_logs_of_a_failure};
use crate::status::Status;

/// How often the status is looked at: each look is a process.
const STATUS_INTERVAL: Duration = Duration::from_millis(50);

/// An etcd and a folder for the processes that use it. Prints the processes' logs when it is dropped by a failing test.
#[derive(Debug)]
pub struct TestCluster {
    segue: PathBuf,
    folder: TempDir,
    etcd: Etcd,
}

impl TestCluster {
    /// Starts an etcd for processes of the executable `segue`.
    ///
    /// # Panics
    /// When etcd does not start.
    pub fn start(segue: impl Into<PathBuf>) -> Self {
        Self::new(segue, TempDir::new().unwrap(), Etcd::start())
    }

    /// Returns a cluster with an etcd and a folder that are there already.
    pub fn new(segue: impl Into<PathBuf>, folder: TempDir, etcd: Etcd) -> Self {
        TestCluster { segue: segue.into(), folder, etcd }
    }

    /// Returns the folder of configuration files and logs.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns its etcd.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// Returns the executable.
    pub fn segue(&self) -> &Path {
        &self.segue
    }

    /// Returns the beginning of a configuration file: the store.
    pub fn config(&self) -> Config {
        Config::new([self.etcd.endpoint()])
    }

    /// Starts `segue run` with this file.
    pub fn run(&self, name: &str, config: &Config) -> Process {
        self.run_with(name, config, Command::new(&self.segue).arg("run"))
    }

    /// Starts `command` with this file as its last argument.
    pub fn run_with(&self, name: &str, config: &Config, command: &mut Command) -> Process {
        let file = config.write(self.path(), name);
        Process::start(name, self.path(), command.arg("--config").arg(file))
    }

    /// Returns what the process `name` has printed, in all its lives.
    pub fn output(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(format!("{name}.log"))).unwrap_or_default()
    }

    /// Returns what `segue status` says, as soon as it succeeds.
    ///
    /// # Panics
    /// When it fails for longer than a minute.
    pub fn status(&self) -> Status {
        let begun = Instant::now();
        loop {
            match Status::read(&self.segue, &[self.etcd.endpoint()]) {
                Ok(status) => return status,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::sleep(STATUS_INTERVAL);
        }
    }

    /// Waits until just these pods are registered, each owns a partition, all partitions are owned, and none moves.
    ///
    /// # Panics
    /// When it takes longer than a minute.
    pub fn settles(&self, partitions: u32, pods: &[&str]) {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if status.pods() == pods && status.every_pod_owns() && status.is_at_rest(partitions) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "the cluster does not settle on {pods:?}: {status}");
            std::thread::sleep(STATUS_INTERVAL);
        }
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        show_logs_of_a_failure(self.path());
    }
}
