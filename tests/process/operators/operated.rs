//! A cluster whose operator knows its etcd, and what a test asks of it by commands.

use std::process::{Command, Output};

use segue_protocol::keys::Keyspace;
use segue_tests::process::{Process, until};
use serde_json::Value;

use crate::site::{put_by_hand, said, segue};
use crate::writers::{LeaseTtls, WriterCluster};

/// The exit code of a command that cannot reach the store.
const UNREACHABLE: i32 = 3;

/// A cluster whose operator knows its etcd.
pub(crate) struct Operated(pub(crate) WriterCluster);

impl Operated {
    pub(crate) fn start(pods: &[&str]) -> Self {
        Self::with_leases(LeaseTtls::LONG, pods)
    }

    pub(crate) fn with_leases(leases: LeaseTtls, pods: &[&str]) -> Self {
        let mut cluster = WriterCluster::start();
        cluster.leases = leases;
        cluster.coordinator("c-0");
        for pod in pods {
            cluster.writer(pod);
        }
        cluster.settles(pods);
        Operated(cluster)
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = crate::cli::segue();
        command.args(words).args(["--etcd", &self.0.etcd().endpoint()]).env("USER", "ann").env_remove("SUDO_USER");
        command
    }

    /// Starts a command, and waits until it says that it waits.
    pub(crate) fn begin(&self, words: &[&str], waits: &str) -> Process {
        let start = || Process::start(words[0], self.0.path(), &mut self.command(words));
        let mut process = start();
        until(waits, || {
            if process.ended().is_some() {
                process = start();
            }
            process.output().contains(waits)
        });
        process
    }

    /// Waits for the end of a command that was begun. If it has given up, its order stands and is asked for again.
    pub(crate) fn finish(&self, words: &[&str], mut process: Process) {
        if !process.wait().success() {
            eprintln!("{}", process.output());
            self.does(words);
        }
    }

    /// Runs a command, again if etcd does not respond: a busy machine may stop it for longer than a request may take.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        let mut output = self.once(words);
        until("a store that responds", || {
            let is_reached = output.status.code() != Some(UNREACHABLE);
            if !is_reached {
                output = self.once(words);
            }
            is_reached
        });
        output
    }

    fn once(&self, words: &[&str]) -> Output {
        segue(&[words, &["--etcd", &self.0.etcd().endpoint()]].concat())
    }

    /// Returns the exit code of a command, and what it printed.
    pub(crate) fn says(&self, words: &[&str]) -> (Option<i32>, String) {
        said(self.run(words))
    }

    /// Returns what a command that has to succeed printed.
    #[track_caller]
    pub(crate) fn does(&self, words: &[&str]) -> String {
        let (code, said) = self.says(words);
        assert_eq!(code, Some(0), "{words:?}: {said}");
        said
    }

    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat());
        assert!(output.status.success(), "{words:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns a pod's line of the status; null if it is not registered.
    pub(crate) fn pod(&self, name: &str) -> Value {
        let status = self.json(&["status"]);
        let pods = status["pods"].as_array().unwrap();
        pods.iter().find(|pod| pod["name"] == name).cloned().unwrap_or_default()
    }

    pub(crate) fn owns(&self, pod: &str) -> u64 {
        self.pod(pod)["partitions"].as_u64().unwrap_or(0)
    }

    pub(crate) fn life(&self, pod: &str) -> Value {
        self.pod(pod)["incarnation"].clone()
    }

    pub(crate) fn owner(&self, partition: u32) -> String {
        self.json(&["explain", &partition.to_string()])["owner"].as_str().unwrap().to_owned()
    }

    /// Returns the partitions that a pod owns.
    pub(crate) fn owned(&self, pod: &str) -> Vec<u32> {
        serde_json::from_value(self.json(&["explain", pod])["owns"].clone()).unwrap()
    }

    /// Puts a key by hand; with a lease if it is a registration.
    pub(crate) fn put(&self, key: impl FnOnce(&Keyspace) -> String, value: &str, leased: bool) {
        put_by_hand(self.0.etcd(), key(&Keyspace::new("/segue/", "default")), value, leased);
    }
}
