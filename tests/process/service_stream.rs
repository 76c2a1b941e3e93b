//! Services that open a stream to their sidecars, as processes under load. The services are `examples/python-grpc-pod`,
//! which knows nothing of sidecars.
//!
//! Sidecars and services join, leave, are killed and stopped. Then clients' records are compared with the services' logs.

use std::path::Path;
use std::process::Command;

use segue_tests::config::Config;
use segue_tests::http::is_ready;
use segue_tests::ports::free_address;
use segue_tests::process::Process;

use crate::writers::WriterCluster;
use crate::writers::load::CheckedLoad;

/// Starts a service, which opens its stream there.
fn service(cluster: &mut WriterCluster, name: &str, listen: &str, stream: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".tools/pods/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/setup python-pods", python.display());
    let mut command = Command::new(python);
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(root.join("examples/python-grpc-pod/pod.py"));
    command.args(["--coordinator", stream, "--name", name, "--listen", listen, "--lease-ttl", "3"]);
    command.args(["--warm-time", "0.03", "--service-time", "0.002", "--log-dir"]).arg(cluster.logs());
    let process = Process::start(&format!("service-{name}"), cluster.path(), &mut command);
    cluster.processes.insert(format!("service-{name}"), process);
}

/// Starts a service with its sidecar, which it reaches there.
fn pod(cluster: &mut WriterCluster, name: &str, stream: &str) -> (String, String) {
    let upstream = free_address();
    let config = Config::new([cluster.etcd().endpoint()]);
    let config = config.pod(name, free_address(), upstream).set("pod.stream", stream).lease("pod", "6s");
    let process = cluster.run(name, &config.set("pod.shutdown_timeout", "20s"));
    cluster.processes.insert(name.to_owned(), process);
    service(cluster, name, &upstream.to_string(), stream);
    (upstream.to_string(), stream.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_services_with_streams_and_their_sidecars_come_and_go() {
    let mut cluster = WriterCluster::start();
    let (router, admin) = (free_address(), free_address());
    cluster.coordinator("c-0");
    let config = cluster.router_config("r-0", router, admin);
    let mut process = cluster.run("r-0", &config);
    process.until("/ready", || is_ready(admin));
    cluster.processes.insert("r-0".to_owned(), process);
    let socket = format!("unix:{}", cluster.path().join("pod.sock").display());
    let loopback = free_address().to_string();
    let (upstream, stream) = pod(&mut cluster, "s-0", &socket);
    pod(&mut cluster, "s-1", &loopback);
    cluster.settles(&["s-0", "s-1"]);

    let load = CheckedLoad::start(&[router], 8, 1, 12);
    let flows = |what: &str| load.flows(what);

    tokio::task::block_in_place(|| {
        flows("at rest");
        cluster.writer("w-0");
        cluster.settles(&["s-0", "s-1", "w-0"]);
        flows("after a pod has joined");

        cluster.take("service-s-0").kill();
        service(&mut cluster, "s-0", &upstream, &stream);
        flows("after a service was killed and has come back");
        cluster.settles(&["s-0", "s-1", "w-0"]);

        cluster.take("service-s-0").kill();
        cluster.settles(&["s-1", "w-0"]);
        flows("after a service was killed for good");
        service(&mut cluster, "s-0", &upstream, &stream);
        cluster.settles(&["s-0", "s-1", "w-0"]);

        cluster.take("s-1").kill();
        cluster.settles(&["s-0", "w-0"]);
        flows("after a sidecar was killed");

        let (status, output) = cluster.take("service-s-0").terminate();
        assert!(status.success(), "the service of s-0 did not leave gracefully:\n{output}");
        cluster.settles(&["w-0"]);
        flows("after a service has left");
    });

    let shown = load.finish(&cluster.logs()).await;
    let (answered, by_stream) = (shown.answered, shown.records_by("s-"));
    let what = format!("{answered} answered, {by_stream} records by services with a stream");
    assert!(answered > 1_000 && by_stream > 200, "{what}: too little to tell");
    assert!(shown.reads_checked > 100);
}
