//! The example services that count: one with axum and `segue-pod`, one with hypercorn and the package for Python. Counters
//! move between pods of both under load.
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use segue_tests::cluster::TestCluster;
use segue_tests::examples::example;
use segue_tests::http::Request;
use segue_tests::ports::free_address;
use segue_tests::process::Process;

const PARTITIONS: usize = 4;

/// Increments the counter of a partition. Returns the count in the response.
fn count(router: SocketAddr, partition: usize) -> Option<u64> {
    let request = Request::post("/", "").header("x-partition", partition).timeout(Duration::from_secs(60));
    let response = request.send(router)?;
    assert_eq!(response.status, 200, "{}", response.body);
    Some(response.body.parse().unwrap())
}

/// Returns the command of a pod that counts in this folder.
fn axum(cluster: &TestCluster, name: &str, folder: &Path) -> Command {
    let mut command = Command::new(example("axum_pod"));
    command.args([&*cluster.etcd().endpoint(), name, &free_address().to_string()]).arg(folder);
    command
}

/// Returns the command of a pod in Python that counts in this folder.
pub(crate) fn python(coordinator: SocketAddr, keyspace: &str, name: &str, folder: &Path) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join(".tools/pods/bin/python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(root.join("clients/python/example.py"));
    command.args([&coordinator.to_string(), keyspace, name, &free_address().to_string()]).arg(folder);
    command
}

#[test]
fn counters_move_between_axum_and_python_pods_and_miss_nothing() {
    let (cluster, router) = (TestCluster::start(env!("CARGO_BIN_EXE_segue")), free_address());
    let config = cluster.config().router("r-0", router).coordinator("c-0", PARTITIONS as u32).quick();
    let coordinator = free_address();
    let config = config.set("coordinator.listen", coordinator.to_string());
    let mut control = cluster.run("control", &config);
    let folder = cluster.path().join("counters");
    std::fs::create_dir(&folder).unwrap();
    let start = |name: &str, mut command: Command| Process::start(name, cluster.path(), &mut command);
    let first = start("pod-1", python(coordinator, "default", "pod-1", &folder));
    control.until("an answer", || count(router, 0) == Some(1));
    let (over, counts) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; PARTITIONS]);
    counts[0].store(1, SeqCst);
    std::thread::scope(|scope| {
        let clients: Vec<_> = counts
            .iter()
            .enumerate()
            .map(|(partition, reached)| {
                let over = &over;
                scope.spawn(move || {
                    while !over.load(SeqCst) {
                        let next = count(router, partition).unwrap();
                        assert_eq!(next, reached.load(SeqCst) + 1, "partition {partition}");
                        reached.store(next, SeqCst);
                    }
                })
            })
            .collect();
        let mut last = ("pod-1", first);
        // From Python to axum, from there to Python, and among pods in Python.
        for (name, command) in [
            ("pod-2", axum(&cluster, "pod-2", &folder)),
            ("pod-3", python(coordinator, "default", "pod-3", &folder)),
            ("pod-4", python(coordinator, "default", "pod-4", &folder)),
        ] {
            let (leaving, process) = std::mem::replace(&mut last, (name, start(name, command)));
            cluster.settles(PARTITIONS as u32, &[leaving, name]);
            let (status, output) = process.terminate();
            assert!(status.success(), "{output}");
            cluster.settles(PARTITIONS as u32, &[name]);
        }
        let before = counts.each_ref().map(|count| count.load(SeqCst));
        control.until("counts of the last pod", || {
            clients.iter().any(|client| client.is_finished())
                || counts.iter().zip(before).all(|(count, before)| count.load(SeqCst) > before + 1)
        });
        over.store(true, SeqCst);
        clients.into_iter().for_each(|client| client.join().unwrap());
        drop(last);
    });
}
