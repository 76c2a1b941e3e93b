//! The example of a router with layers of its own, in front of real writer pods.
#![allow(clippy::unwrap_used)]

mod site;

use std::process::Command;

use segue_tests::ports::free_address;
use segue_tests::process::Process;
use site::{Site, example, http};

#[test]
fn a_router_with_layers_routes_and_limits_and_hands_its_place_back() {
    let mut site = Site::start();
    site.coordinator("c-0");
    site.writer("w-0");
    site.settles(&["w-0"]);
    let listen = free_address();
    let mut command = Command::new(example("layered_router"));
    command.args(["--etcd", &site.etcd.endpoint(), "--name", "r-0", "--listen", &listen.to_string()]);
    let mut router = Process::start("r-0", site.path(), command.args(["--requests-per-second", "3"]));
    router.until("an answer of the pod", || http(listen, "/keys/a").is_some_and(|answer| answer.contains("x-epoch: ")));
    // As fast as it goes, more than three fall into one second.
    router.until("a refusal", || http(listen, "/keys/a").is_some_and(|answer| answer.starts_with("HTTP/1.1 429 ")));
    let refused = http(listen, "/keys/a").unwrap();
    assert!(refused.contains("x-served-by: r-0\r\n"), "{refused}");
    let (status, output) = router.terminate();
    assert!(status.success(), "{output}");
    let status = site.status();
    assert_eq!(status["routers"].as_array().map(Vec::len), Some(0), "{status}");
}
