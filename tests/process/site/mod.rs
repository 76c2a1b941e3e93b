//! What tests with processes share: a router and a coordinator, services in the test's own process and in others, a load,
//! and questions to all of them.

pub(crate) mod curl;
pub(crate) mod load;
pub(crate) mod service;
pub(crate) mod supervised;

use std::net::SocketAddr;
use std::ops::Deref;
use std::process::Output;
use std::time::{Duration, Instant};

use segue_coordination::store::{EtcdOptions, EtcdStore, Store as _};
use segue_protocol::txn::{Keys, Op, Txn};
use segue_tests::cluster::TestCluster;
use segue_tests::config::Config;
use segue_tests::etcd::Etcd;
use segue_tests::http::{Request, get};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};
use serde_json::Value;
use tokio::runtime::Runtime;

pub(crate) const SEGUE: &str = env!("CARGO_BIN_EXE_segue");
/// Longer than anything is held or worked on.
pub(crate) const LONGEST_REQUEST: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(60);

/// A router and a coordinator in one process.
pub(crate) struct Site {
    cluster: TestCluster,
    pub(crate) router: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) control: Process,
}

impl Deref for Site {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.cluster
    }
}

impl Site {
    pub(crate) fn start(partitions: u32) -> Self {
        Self::with(|_, config| config.coordinator("c-0", partitions))
    }

    /// Starts them with several keyspaces. The first part of a path names one. `more` adds to the file, given the address of
    /// the admin endpoint.
    pub(crate) fn with_keyspaces(
        names: &[&str],
        partitions: u64,
        more: impl FnOnce(SocketAddr, Config) -> Config,
    ) -> Self {
        Self::with(|admin, config| {
            let config = names.iter().fold(config, |config, name| {
                let mapping =
                    format!("match = {{ path_prefix = \"/{name}\" }}\npartition = {{ header = \"x-partition\" }}");
                config.keyspace(name, &format!("{mapping}\npartitions = {partitions}"))
            });
            more(admin, config.set("coordinator.name", "c-0"))
        })
    }

    /// Starts them with what `more` adds to the file of the router, given the address of the admin endpoint.
    pub(crate) fn with(more: impl FnOnce(SocketAddr, Config) -> Config) -> Self {
        let (cluster, router, admin) = (TestCluster::start(SEGUE), free_address(), free_address());
        let config = more(admin, cluster.config().router("r-0", router).admin(admin)).quick();
        let control = cluster.run("control", &config);
        Site { cluster, router, admin, control }
    }

    /// Starts the sidecar of a service.
    pub(crate) fn pod(&self, name: &str, upstream: SocketAddr) -> Process {
        self.run(name, &self.config().pod(name, free_address(), upstream).quick())
    }

    /// Returns the response to `GET path` for partition 0, status and body.
    pub(crate) fn ask(&self, path: &str) -> Option<(u16, String)> {
        ask(self.router, path)
    }

    /// Waits until the service `name` responds to this path.
    pub(crate) fn served_by(&self, name: &str, path: &str) {
        until(&format!("answer of {name} at {path}"), || {
            self.ask(path).is_some_and(|(_, body)| body.starts_with(name))
        });
    }

    /// Returns what the store says of a keyspace; null while it cannot be read.
    pub(crate) fn stored(&self, keyspace: &str) -> Value {
        let words = ["status", "--json", "--keyspace", keyspace, "--etcd", &self.etcd().endpoint()];
        serde_json::from_slice(&segue(&words).stdout).unwrap_or_default()
    }

    /// Waits until each pod owns so many partitions of a keyspace, and none moves.
    pub(crate) fn settles_on(&self, keyspace: &str, expected: &[(&str, u64)]) {
        until(&format!("{expected:?} in {keyspace}"), || {
            let status = self.stored(keyspace);
            let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
            let owned: Vec<_> =
                list("pods").iter().map(|pod| (pod["name"].clone(), pod["partitions"].clone())).collect();
            let expected = expected.iter().map(|(pod, count)| (Value::from(*pod), Value::from(*count)));
            owned.into_iter().eq(expected) && status["unowned"] == 0 && list("handoffs").is_empty()
        });
    }
}

/// Returns the response to `GET path` for partition 0, status and body.
pub(crate) fn ask(router: SocketAddr, path: &str) -> Option<(u16, String)> {
    let response = Request::get(path).header("x-partition", 0).timeout(LONGEST_REQUEST).send(router)?;
    Some((response.status, response.body))
}

/// Returns the response to `GET path` as JSON; null without one.
pub(crate) fn json(admin: SocketAddr, path: &str) -> Value {
    get(admin, path).and_then(|(_, body)| serde_json::from_str(&body).ok()).unwrap_or_default()
}

/// Runs a command as the user `ann`. It is shown if the test fails.
pub(crate) fn segue(words: &[&str]) -> Output {
    let output = crate::cli::segue().args(words).env("USER", "ann").env_remove("SUDO_USER").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprintln!("$ segue {}\n{err}{out}[{}]", words.join(" "), output.status);
    output
}

/// Returns the exit code of a command, and what it printed.
pub(crate) fn says(words: &[&str]) -> (Option<i32>, String) {
    said(segue(words))
}

pub(crate) fn said(output: Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
}

/// Returns a client of this etcd. It has to be called in a runtime.
pub(crate) fn store(etcd: &Etcd) -> EtcdStore {
    EtcdStore::connect(EtcdOptions::new([etcd.endpoint()])).unwrap()
}

/// Puts a key by hand, with a lease of ten minutes if it is a registration. It has to be called outside of a runtime.
pub(crate) fn put_by_hand(etcd: &Etcd, key: String, value: &str, leased: bool) {
    Runtime::new().unwrap().block_on(async {
        let store = store(etcd);
        let lease = if leased { Some(store.grant(Duration::from_secs(600)).await.unwrap()) } else { None };
        let then = vec![Op::Put { key, value: value.into(), lease }];
        store.commit(Txn { then, ..Txn::default() }).await.unwrap();
    });
}

/// Deletes a key by hand. It has to be called outside of a runtime.
pub(crate) fn delete_by_hand(etcd: &Etcd, key: String) {
    let txn = Txn { then: vec![Op::Delete(Keys::One(key))], ..Txn::default() };
    Runtime::new().unwrap().block_on(async { store(etcd).commit(txn).await.unwrap() });
}

/// Returns the keys that begin so. It has to be called outside of a runtime.
pub(crate) fn keys_below(etcd: &Etcd, prefix: &str) -> Vec<String> {
    let all = Keys::Prefix(prefix.to_owned());
    let snapshot = Runtime::new().unwrap().block_on(async { store(etcd).snapshot(&all).await.unwrap() });
    snapshot.entries.into_iter().map(|entry| entry.key).collect()
}

/// Does what blocks beside other tasks.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < PATIENCE, "no {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
