//! Writer pods in Python that take part by gRPC alone (`examples/python-grpc-pod`), as processes under load.
//!
//! Pods join, leave, are killed, restart, and lose the coordinator that they talk to. Then clients' records are compared
//! with the pods' logs.
#![allow(clippy::unwrap_used)]

mod writers;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use segue_demo::check::{Evidence, check};
use segue_demo::load::{Load, LoadSettings};
use segue_demo::log::Log;
use segue_demo::record::Outcome;
use segue_tests::http::is_ready;
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use writers::{PARTITIONS, WriterCluster};

/// Returns the folder of the Python pod, and a command that runs Python with what the pod needs.
fn python() -> (PathBuf, Command) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".tools/pods/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/setup pods", python.display());
    let mut command = Command::new(python);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    (root.join("examples/python-grpc-pod"), command)
}

/// Starts a pod that knows these coordinators.
fn pod(cluster: &mut WriterCluster, name: &str, coordinators: &[SocketAddr]) {
    let (folder, mut command) = python();
    command.arg(folder.join("pod.py"));
    for coordinator in coordinators {
        command.args(["--coordinator", &coordinator.to_string()]);
    }
    command.args(["--name", name, "--listen", &free_address().to_string(), "--lease-ttl", "3"]);
    command.args(["--warm-time", "0.03", "--service-time", "0.002", "--log-dir"]).arg(cluster.logs());
    let process = Process::start(name, cluster.path(), &mut command);
    cluster.processes.insert(name.to_owned(), process);
}

#[test]
fn a_python_pod_writes_nothing_that_an_earlier_life_has_accepted() {
    let (folder, mut command) = python();
    let output = command.args(["-m", "unittest", "test_membership"]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_python_pods_and_their_coordinators_come_and_go() {
    let mut cluster = WriterCluster::start();
    let (router, admin) = (free_address(), free_address());
    let listen = [free_address(), free_address()];
    for (name, listen) in ["c-0", "c-1"].into_iter().zip(listen) {
        cluster.coordinator_at(name, Some(listen));
    }
    let config = cluster.router_config("r-0", router, admin).set("router.upstream.protocol", "http1");
    let mut process = cluster.run("r-0", &config);
    process.until("/ready", || is_ready(admin));
    cluster.processes.insert("r-0".to_owned(), process);
    pod(&mut cluster, "py-0", &listen);
    pod(&mut cluster, "py-1", &[listen[1], listen[0]]);
    cluster.settles(&["py-0", "py-1"]);

    let load = Load::start(LoadSettings {
        routers: vec![router.into()],
        partitions: PARTITIONS,
        clients: 12,
        bursts: 1,
        rate: 0,
        patience: Duration::from_secs(60),
        seed: 11,
        partition_header: Some("x-partition".parse().unwrap()),
        snapshot: None,
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
        pod(&mut cluster, "py-2", &listen);
        // One that is linked with Segue, in the same keyspace and the same log.
        cluster.writer("w-0");
        cluster.settles(&["py-0", "py-1", "py-2", "w-0"]);
        flows("after two pods have joined");

        let (status, output) = cluster.take("py-0").terminate();
        assert!(status.success(), "py-0 did not leave gracefully:\n{output}");
        cluster.settles(&["py-1", "py-2", "w-0"]);
        flows("after a pod has left");

        for round in 0..3 {
            // Whichever it is, some pods have their stream there.
            let (name, listen) = [("c-0", listen[0]), ("c-1", listen[1])][round % 2];
            cluster.take(name).kill();
            flows("after a coordinator was killed");
            cluster.coordinator_at(name, Some(listen));
        }
        cluster.settles(&["py-1", "py-2", "w-0"]);
        flows("after the coordinators were killed");

        cluster.take("py-1").kill();
        pod(&mut cluster, "py-1", &listen);
        cluster.settles(&["py-1", "py-2", "w-0"]);
        flows("after a pod was killed and came back under its name");

        let (status, output) = cluster.take("w-0").terminate();
        assert!(status.success(), "w-0 did not leave gracefully:\n{output}");
        cluster.settles(&["py-1", "py-2"]);
        flows("after the pod in Rust has left");
    });

    let exchanges = load.finish().await;
    let log = Log::in_directory(&cluster.logs()).unwrap().read_all().unwrap();
    let by_python = log.iter().filter(|record| record.pod.starts_with("py-")).count();
    let answered = exchanges.iter().filter(|exchange| matches!(exchange.outcome, Outcome::Ok)).count();
    let harm = check(&Evidence { exchanges, log: Some(log), owners: None });
    for (name, count) in harm.counts() {
        assert_eq!(count.count, 0, "{name}: {:?}", count.examples);
    }
    eprintln!("{answered} answered, {by_python} records of Python, {} reads checked", harm.reads_checked);
    assert!(answered > 2_000 && by_python > 500, "{answered} answered, {by_python} records: too little to tell");
    assert!(harm.reads_checked > 100);
}
