//! Writer pods in Python as processes under load: by gRPC alone (`examples/python-grpc-pod`), and straight on etcd
//! (`examples/python-etcd-pod`).
//!
//! Pods join, leave, are killed, restart, and lose the coordinator that they talk to. Then clients' records are compared
//! with the pods' logs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use segue_tests::http::is_ready;
use segue_tests::ports::free_address;
use segue_tests::process::Process;

use crate::writers::WriterCluster;
use crate::writers::load::CheckedLoad;

/// Returns a folder of the repository, and a command that runs Python with what the examples need.
fn python(folder: &str) -> (PathBuf, Command) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".tools/pods/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/setup python-pods", python.display());
    let mut command = Command::new(python);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    (root.join(folder), command)
}

/// Starts a pod that knows these coordinators.
fn grpc_pod(cluster: &mut WriterCluster, name: &str, coordinators: &[SocketAddr]) {
    let coordinators: Vec<String> = coordinators.iter().map(ToString::to_string).collect();
    let token = cluster.token_file.clone().unwrap();
    let known = coordinators.iter().flat_map(|at| ["--coordinator", at]);
    let known = known.chain(["--token-file", token.to_str().unwrap()]);
    pod(cluster, "examples/python-grpc-pod", name, &known.collect::<Vec<_>>());
}

/// Starts a pod that talks to etcd.
fn etcd_pod(cluster: &mut WriterCluster, name: &str) {
    let endpoint = cluster.etcd().endpoint();
    pod(cluster, "examples/python-etcd-pod", name, &["--etcd", &endpoint]);
}

fn pod(cluster: &mut WriterCluster, folder: &str, name: &str, whom: &[&str]) {
    let (folder, mut command) = python(folder);
    command.arg(folder.join("pod.py")).args(whom);
    command.args(["--name", name, "--listen", &free_address().to_string(), "--lease-ttl", "3"]);
    command.args(["--warm-time", "0.03", "--service-time", "0.002", "--log-dir"]).arg(cluster.logs());
    let process = Process::start(name, cluster.path(), &mut command);
    cluster.processes.insert(name.to_owned(), process);
}

/// Runs the unit tests of a module in this folder.
fn unit_tests(folder: &str, module: &str) {
    let (folder, mut command) = python(folder);
    command.env("SEGUE", env!("CARGO_BIN_EXE_segue"));
    let output = command.args(["-m", "unittest", module]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_package_for_python_admits_acknowledges_and_resumes_as_the_protocol_has_it() {
    for module in ["test_ownership", "test_asgi", "test_tasks", "test_membership"] {
        unit_tests("clients/python/tests", module);
    }
}

#[test]
fn the_forwarder_in_front_of_pods_ends_all_its_connections() {
    unit_tests("tests/pods", "test_breaker");
}

#[test]
fn persons_are_routed_as_the_example_says_while_they_move_and_pods_are_killed() {
    unit_tests("tests/pods", "test_person_service");
}

#[test]
fn a_pod_straight_on_etcd_derives_from_the_records_what_it_serves_and_does() {
    unit_tests("examples/python-etcd-pod", "test_handoff");
}

#[test]
fn a_pod_straight_on_etcd_makes_checkpoints_when_they_are_due_and_waits_for_those_of_others() {
    unit_tests("examples/python-etcd-pod", "test_checkpoint");
}

#[test]
fn a_pod_straight_on_etcd_ends_its_life_when_the_store_goes_back() {
    unit_tests("examples/python-etcd-pod", "test_horizon");
}

#[test]
fn a_pod_straight_on_etcd_keeps_and_loses_its_registration_as_the_protocol_has_it() {
    unit_tests("tests/pods", "test_etcd_membership");
}

#[test]
fn a_pod_on_kafka_ignores_what_an_earlier_epoch_has_left_in_flight() {
    unit_tests("examples/kafka-pod", "test_pod");
}

#[test]
fn a_pod_on_kafka_serves_its_first_request_although_its_producer_is_new() {
    unit_tests("tests/pods", "test_kafka_pod");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_python_pods_and_their_coordinators_come_and_go() {
    let mut cluster = WriterCluster::start();
    cluster.leases.coordinator = 2;
    let token = cluster.path().join("token");
    std::fs::write(&token, "a token of all pods\n").unwrap();
    cluster.token_file = Some(token);
    let (router, admin) = (free_address(), free_address());
    let listen = [free_address(), free_address()];
    for (name, listen) in ["c-0", "c-1"].into_iter().zip(listen) {
        cluster.coordinator_at(name, Some(listen));
    }
    let config = cluster.router_config("r-0", router, admin);
    let mut process = cluster.run("r-0", &config);
    process.until("/ready", || is_ready(admin));
    cluster.processes.insert("r-0".to_owned(), process);
    grpc_pod(&mut cluster, "py-0", &listen);
    grpc_pod(&mut cluster, "py-1", &[listen[1], listen[0]]);
    cluster.settles(&["py-0", "py-1"]);

    let load = CheckedLoad::start(&[router], 12, 1, 11);
    let flows = |what: &str| load.flows(what);

    tokio::task::block_in_place(|| {
        flows("at rest");
        grpc_pod(&mut cluster, "py-2", &listen);
        etcd_pod(&mut cluster, "et-0");
        // One that is linked with Segue, in the same keyspace and the same log.
        cluster.writer("w-0");
        cluster.settles(&["et-0", "py-0", "py-1", "py-2", "w-0"]);
        flows("after three pods have joined");

        let (status, output) = cluster.take("py-0").terminate();
        assert!(status.success(), "py-0 did not leave gracefully:\n{output}");
        cluster.settles(&["et-0", "py-1", "py-2", "w-0"]);
        flows("after a pod has left");

        for round in 0..3 {
            // Whichever it is, some pods have their stream there.
            let (name, listen) = [("c-0", listen[0]), ("c-1", listen[1])][round % 2];
            cluster.take(name).kill();
            flows("after a coordinator was killed");
            cluster.coordinator_at(name, Some(listen));
        }
        cluster.settles(&["et-0", "py-1", "py-2", "w-0"]);
        flows("after the coordinators were killed");

        cluster.take("py-1").kill();
        grpc_pod(&mut cluster, "py-1", &listen);
        cluster.settles(&["et-0", "py-1", "py-2", "w-0"]);
        flows("after a pod was killed and came back under its name");

        cluster.take("et-0").kill();
        etcd_pod(&mut cluster, "et-0");
        cluster.settles(&["et-0", "py-1", "py-2", "w-0"]);
        flows("after the pod on etcd was killed and came back under its name");

        for (name, left) in [("w-0", &["et-0", "py-1", "py-2"][..]), ("et-0", &["py-1", "py-2"])] {
            let (status, output) = cluster.take(name).terminate();
            assert!(status.success(), "{name} did not leave gracefully:\n{output}");
            cluster.settles(left);
            flows("after a pod has left");
        }
    });

    let shown = load.finish(&cluster.logs()).await;
    let [by_grpc, by_etcd] = ["py-", "et-"].map(|pods| shown.records_by(pods));
    let answered = shown.answered;
    let what = format!("{answered} answered, {by_grpc} records by gRPC, {by_etcd} straight on etcd");
    assert!(answered > 2_000 && by_grpc > 500 && by_etcd > 100, "{what}: too little to tell");
    assert!(shown.reads_checked > 100);
}
