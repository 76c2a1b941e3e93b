//! `segue top`: pods, partitions and keys by what goes through the routers.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;

use segue_protocol::keys::Keyspace;
use segue_tests::http::Request;
use segue_tests::process::until;
use serde_json::Value;

use crate::site::load::Load;
use crate::site::service::serve;
use crate::site::{Site, put_by_hand, says, segue};

const PARTITIONS: u32 = 16;
/// The most columns of a table.
const COLUMNS: usize = 80;

/// Returns what a key's service sees as its partition.
fn ask(router: SocketAddr, key: &str) -> Option<String> {
    let response = Request::get(&format!("/persons/{key}")).send(router)?;
    (response.status == 200).then_some(response.body)
}

/// Starts clients of whom most ask for the key `hot`, each of the others for another key each time.
fn hot_load(router: SocketAddr) -> Load<String> {
    Load::start(4, 0, |client| {
        move |number| ask(router, &if client < 3 { "hot".to_owned() } else { format!("cold-{number}") })
    })
}

/// Returns the measurement that is printed as JSON.
fn measured(words: &[&str]) -> Value {
    serde_json::from_slice(&segue(&[&["top", "--once", "--json"], words].concat()).stdout).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_is_named_with_its_partition_and_its_pod() {
    let service = serve(|call| async move { (200, call.text("segue-partition")) }).await;
    tokio::task::spawn_blocking(move || {
        let site = Site::with(|_, config| {
            let config = config.coordinator("c-0", PARTITIONS);
            config.with("router.partition", "key = { path = \"/persons/{key}\" }")
        });
        let (server, etcd) = (format!("http://{}", site.admin), site.etcd().endpoint());
        let _pods = ["w-0", "w-1"].map(|name| site.pod(name, service));
        let half = u64::from(PARTITIONS / 2);
        site.settles_on("default", &[("w-0", half), ("w-1", half)]);
        let partition = ask(site.router, "hot").unwrap();
        let owner = says(&["explain", "--key", "hot", "--server", &server]).1;
        assert!(owner.contains(&format!("\npartition   {partition}\n")), "{owner}");
        let owner = owner.lines().find_map(|line| line.strip_prefix("owner       ")?.split(' ').next()).unwrap();
        let load = hot_load(site.router);
        load.goes_on(50);

        // By the process of the router, and by the command itself.
        for way in [["--server", &server], ["--etcd", &etcd]] {
            until("the hot key", || measured(&[&["--keys"], &way[..]].concat())["keys"][0]["key"] == "hot");
            let traffic = measured(&[&["--keys"], &way[..]].concat());
            let key = &traffic["keys"][0];
            assert_eq!((key["partition"].to_string(), &key["owner"]), (partition.clone(), &owner.into()), "{traffic}");
            assert!(key["share"].as_f64() <= Some(1.0) && key["requests_per_s"].as_f64() > Some(0.0), "{traffic}");
            assert_eq!(traffic["partitions"][0]["partition"].to_string(), partition, "{traffic}");
            assert_eq!((&traffic["pods"][0]["pod"], &traffic["pods"][0]["errors_per_s"]), (&owner.into(), &0.0.into()));
            assert!(traffic["pods"][0]["p99_ms"].as_f64() >= traffic["pods"][0]["p50_ms"].as_f64(), "{traffic}");
            assert_eq!(traffic["routers"][0]["error"], Value::Null, "{traffic}");
        }
        assert_eq!(measured(&["--server", &server])["keys"], Value::Null, "nobody has asked for keys");

        for (table, head, name) in
            [("--pods", "POD", owner), ("--partitions", "PARTITION", &partition), ("--keys", "KEY", "hot")]
        {
            let (code, said) = says(&["top", "--once", table, "--server", &server]);
            assert_eq!(code, Some(0), "{said}");
            let mut lines = said.lines();
            assert!(lines.next().unwrap().contains(" requests/s at 1 of 1 router, measured for "), "{said}");
            assert!(lines.next().unwrap().trim_start().starts_with(head), "{said}");
            assert_eq!(lines.next().unwrap().split_whitespace().next(), Some(name), "{said}");
            assert!(said.lines().all(|line| line.chars().count() <= COLUMNS), "{said}");
        }

        // Without --once it goes on.
        let mut command = crate::cli::segue();
        let mut top = command.args(["top", "--json", "--server", &server]).stdout(Stdio::piped()).spawn().unwrap();
        let lines: Vec<String> =
            BufReader::new(top.stdout.take().unwrap()).lines().take(2).map(Result::unwrap).collect();
        assert!(lines.iter().all(|line| line.starts_with('{') && line.contains("\"requests_per_s\":")), "{lines:?}");
        top.kill().unwrap();
        top.wait().unwrap();

        let silent = Keyspace::new("/segue/", "default").router("r-9");
        put_by_hand(site.etcd(), silent, r#"{"router_name":"r-9"}"#, true);
        let (code, said) = says(&["top", "--once", "--server", &server]);
        assert!(code == Some(1) && said.contains(" requests/s at 1 of 2 routers, "), "{said}");
        assert!(said.contains("UNKNOWN  r-9 at no address: its registration has no admin address"), "{said}");
        load.end();
    })
    .await
    .unwrap();
}
