//! The example of a router with layers of its own, in front of real writer pods.

use std::process::Command;

use segue_tests::examples::example;
use segue_tests::http::{Request, Response};
use segue_tests::ports::free_address;
use segue_tests::process::Process;

use crate::writers::WriterCluster;

#[test]
fn a_router_with_layers_routes_and_limits_and_hands_its_place_back() {
    let mut cluster = WriterCluster::start();
    cluster.coordinator("c-0");
    cluster.writer("w-0");
    cluster.settles(&["w-0"]);
    let listen = free_address();
    let mut command = Command::new(example("layered_router"));
    command.args(["--etcd", &cluster.etcd().endpoint(), "--name", "r-0", "--listen", &listen.to_string()]);
    let mut router = Process::start("r-0", cluster.path(), command.args(["--requests-per-second", "3"]));
    let ask = || Request::get("/keys/a").header("x-partition", 0).send(listen);
    router.until("a response of the pod", || ask().is_some_and(|response| response.head.contains("x-epoch: ")));
    // As fast as it goes, more than three fall into one second.
    let mut refusal: Option<Response> = None;
    router.until("a refusal", || {
        refusal = ask().filter(|response| response.status == 429);
        refusal.is_some()
    });
    assert!(refusal.unwrap().head.contains("x-served-by: r-0"));
    let (status, output) = router.terminate();
    assert!(status.success(), "{output}");
    let status = cluster.status();
    assert!(status.routers().is_empty(), "{status}");
}
