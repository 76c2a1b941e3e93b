//! `segue bench` against a site, with the logs of its writers.

use std::process::Command;

use segue_tests::http::is_ready;
use segue_tests::ports::free_address;

use crate::writers::{PARTITIONS, WriterCluster};

#[test]
fn a_load_whose_keys_the_routers_map_is_held_against_the_writers_logs() {
    let mut cluster = WriterCluster::start();
    let (listen, admin) = (free_address(), free_address());
    cluster.coordinator("c");
    cluster.writer("w-0");
    cluster.writer("w-1");
    let config = cluster.router_config_by(r#"key = { path = "/keys/{key}" }"#, "r", listen, admin);
    let mut router = cluster.run("r", &config);
    router.until("/ready", || is_ready(admin));
    cluster.settles(&["w-0", "w-1"]);
    let bench = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
        command.args(["bench", &format!("http://{listen}"), "--duration", "2s", "--clients", "8", "--seed", "7"]);
        command.args(["--partitions", &PARTITIONS.to_string(), "--log-dir"]).arg(cluster.logs()).args(more);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text.into_owned())
    };
    let (code, text) = bench(&["--partition-header", ""]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = bench(&["--partition-header", "", "--bursts", "1"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--bursts needs --partition-header"), "{text}");
    // The routers do not read it, so the partitions that the load names are not those of the logs.
    let (code, text) = bench(&["--partition-header", "x-partition"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("misrouted"), "{text}");
}
