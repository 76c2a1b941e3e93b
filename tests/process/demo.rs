//! `segue demo` as a user meets it: what it refuses, what it reports, and what it shows meanwhile.
use std::collections::HashSet;
use std::process::Command;

use segue_coordination::store::{EtcdOptions, EtcdStore, Store as _};
use segue_protocol::txn::Keys;
use segue_tests::etcd::Etcd;
use segue_tests::http::get;
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use tempfile::TempDir;

use crate::cli::promised_fields;

fn segue() -> Command {
    Command::new(env!("CARGO_BIN_EXE_segue"))
}

#[test]
fn a_demo_in_two_keyspaces_without_a_leader_tells_what_it_has_checked() {
    let load = ["--partitions", "16", "--clients", "4", "--rate", "100", "--duration", "1s", "--scenario", "scale-up"];
    let kind = ["--keyspaces", "2", "--coordination", "rounds", "--strategy", "ring"];
    let output = segue().args(["demo", "--json"]).args(load).args(kind).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    for field in promised_fields("`demo`, `bench`") {
        assert!(report.get(field).is_some(), "{field} is missing in {report}");
    }
    assert_eq!(report["cluster"]["keyspaces"], 2);
    assert_eq!(report["cluster"]["coordination"], "rounds");
    assert_eq!(report["cluster"]["strategy"], "ring");
}

#[test]
fn a_demo_tells_where_its_page_is_and_keeps_it_after_the_report() {
    let (folder, admin) = (TempDir::new().unwrap(), free_address());
    let load = ["--partitions", "8", "--clients", "4", "--rate", "100", "--duration", "1s", "--scenario", "scale-up"];
    let mut command = segue();
    let demo = command.arg("demo").args(load).args(["--admin", &admin.to_string(), "--hold"]);
    let mut demo = Process::start("demo", folder.path(), demo);
    let log = folder.path().join("demo.log");
    demo.until("a report", || std::fs::read_to_string(&log).unwrap().contains("✔ nothing lost"));
    assert!(get(admin, "/").is_some_and(|(status, _)| status == 200));
    demo.signal("INT");
    assert_eq!(demo.wait().code(), Some(0), "{}", demo.output());
    assert!(demo.output().contains(&format!("live page: http://{admin}")), "{}", demo.output());
}

#[test]
fn a_demo_refuses_a_strategy_that_needs_an_operator_and_a_number_of_keyspaces_that_is_none() {
    for (option, value, expected) in [("--strategy", "external", "sticky, jump, ring"), ("--keyspaces", "0", "1..=16")]
    {
        let output = segue().args(["demo", option, value]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_demo_with_an_admin_endpoint_counts_its_routers_and_shows_its_steps() {
    let (folder, admin) = (TempDir::new().unwrap(), free_address());
    let arguments = ["demo", "--json", "--partitions", "8", "--clients", "4", "--rate", "100", "--duration", "60s"];
    let mut command = segue();
    let process = command.args(arguments).args(["--admin", &admin.to_string()]);
    let mut process = Process::start("demo", folder.path(), process);
    let page = |path: &str| get(admin, path).map_or(String::new(), |(_, page)| page);
    let answered = |page: &str, router: u32| {
        let of_router = format!("segue_requests_total{{router=\"router-{router}\"");
        page.lines().any(|line| line.starts_with(&of_router) && !line.ends_with(" 0"))
    };
    process.until("requests of both routers", || {
        let metrics = page("/metrics");
        answered(&metrics, 0) && answered(&metrics, 1) && metrics.contains("segue_leader 1")
    });
    let metrics = page("/metrics");
    assert!(metrics.contains("segue_cutovers_total{result=\"switched\"}"));
    let described: Vec<&str> = metrics.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let once: HashSet<&&str> = described.iter().collect();
    assert_eq!(described.len(), once.len(), "a family is described once for both routers");
    assert!(page("/").contains("<title>Segue</title>"));
    let status: serde_json::Value = serde_json::from_str(&page("/status")).unwrap();
    assert_eq!(status["keyspace"]["partitions"], 8);
    assert_eq!(status["keyspace"]["routers"], serde_json::json!(["router-0", "router-1"]));
    assert_eq!(status["demo"]["steps"][0]["scenario"], "start");
    assert_eq!(status["demo"]["leader"], status["keyspace"]["leader"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_on_an_etcd_leaves_nothing_in_it() {
    let etcd = Etcd::start();
    let load = ["--partitions", "8", "--clients", "4", "--rate", "100", "--duration", "1s", "--scenario", "scale-up"];
    let output = segue().args(["demo", "--json", "--etcd", &etcd.endpoint()]).args(load).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["cluster"]["store"], etcd.endpoint());
    let store = EtcdStore::connect(EtcdOptions::new([etcd.endpoint()])).unwrap();
    let left = store.snapshot(&Keys::Prefix("/segue/".to_owned())).await.unwrap();
    // The keyspaces' writes came before the revision that deletes them.
    assert!(left.revision.get() > 10 && left.entries.is_empty(), "{left:?}");
}
