//! The operator's commands against a running cluster: a coordinator, writer pods and etcd.
#![allow(clippy::unwrap_used)]

mod writers;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::time::Duration;

use segue_coordination::store::{EtcdOptions, EtcdStore, Store as _};
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{Op, Txn};
use segue_tests::certificates::Authority;
use segue_tests::http::get;
use segue_tests::ports::free_address;
use segue_tests::process::until;
use serde_json::Value;
use writers::{PARTITIONS, WriterCluster};

/// A cluster whose operator knows its etcd.
struct Operated(WriterCluster);

impl Operated {
    fn start(pods: &[&str]) -> Self {
        let mut cluster = WriterCluster::start();
        cluster.coordinator("c-0");
        for pod in pods {
            cluster.writer(pod);
        }
        cluster.settles(pods);
        Operated(cluster)
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
        command.args(words).args(["--etcd", &self.0.etcd().endpoint()]).env("USER", "ann").env_remove("SUDO_USER");
        let output = command.output().unwrap();
        eprintln!(
            "$ segue {}\n{}{}[{}]",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr),
            String::from_utf8_lossy(&output.stdout),
            output.status
        );
        output
    }

    /// Returns the exit code of a command, and what it printed.
    fn says(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = self.run(words);
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    }

    /// Returns what a command that has to succeed printed.
    #[track_caller]
    fn does(&self, words: &[&str]) -> String {
        let (code, said) = self.says(words);
        assert_eq!(code, Some(0), "{words:?}: {said}");
        said
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat());
        assert!(output.status.success(), "{words:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns a pod's line of the status; null if it is not registered.
    fn pod(&self, name: &str) -> Value {
        let status = self.json(&["status"]);
        let pods = status["pods"].as_array().unwrap();
        pods.iter().find(|pod| pod["name"] == name).cloned().unwrap_or_default()
    }

    fn owns(&self, pod: &str) -> u64 {
        self.pod(pod)["partitions"].as_u64().unwrap_or(0)
    }

    fn life(&self, pod: &str) -> Value {
        self.pod(pod)["incarnation"].clone()
    }

    fn owner(&self, partition: u32) -> String {
        self.json(&["explain", &partition.to_string()])["owner"].as_str().unwrap().to_owned()
    }

    /// Puts a key by hand; with a lease if it is a registration.
    fn put(&self, key: impl FnOnce(&Keyspace) -> String, value: &str, leased: bool) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let store = EtcdStore::connect(EtcdOptions::new([self.0.etcd().endpoint()])).unwrap();
            let lease = if leased { Some(store.grant(Duration::from_secs(120)).await.unwrap()) } else { None };
            let then = vec![Op::Put { key: key(&Keyspace::new("/segue/", "default")), value: value.into(), lease }];
            store.commit(Txn { then, ..Txn::default() }).await.unwrap();
        });
    }
}

#[test]
fn a_drained_pod_is_empty_when_the_command_ends_and_stays_so_through_restarts_until_it_is_undrained() {
    let mut cluster = Operated::start(&["w-0", "w-1", "w-2"]);
    let (code, said) = cluster.says(&["drain", "w-9"]);
    assert!(code == Some(1) && said.contains("no pod w-9") && said.contains("w-0, w-1, w-2"), "{said}");
    assert_eq!(cluster.says(&["drain"]).0, Some(2));

    let planned = cluster.json(&["plan", "--without", "w-1"]);
    let moves = planned["moves"].as_array().unwrap().len() as u64;
    assert_eq!(moves, cluster.owns("w-1"), "{planned}");

    let said = cluster.does(&["drain", "w-1", "--why", "kernel update"]);
    assert!(said.contains("pod w-1 is empty"), "{said}");
    assert_eq!(cluster.owns("w-1"), 0);
    let said = cluster.does(&["status"]);
    assert!(said.contains("drained     w-1, by ann@") && said.contains("(kernel update)"), "{said}");
    let said = cluster.does(&["explain", "w-1"]);
    assert!(said.contains("it is drained by ann@") && said.contains("segue undrain w-1"), "{said}");
    assert!(cluster.does(&["drain", "w-1"]).contains("is drained already"));

    let life = cluster.life("w-1");
    cluster.0.take("w-1").kill();
    cluster.0.writer("w-1");
    until("the next life of w-1", || !cluster.life("w-1").is_null() && cluster.life("w-1") != life);
    cluster.does(&["wait", "settled"]);
    let (code, _) = cluster.says(&["wait", "moved", "0", "--timeout", "5s"]);
    assert_eq!((code, cluster.owns("w-1")), (Some(0), 0));

    assert!(cluster.does(&["undrain", "w-1"]).contains("may be given partitions again"));
    until("partitions on w-1", || cluster.owns("w-1") > 0);
    assert!(cluster.does(&["undrain", "w-1"]).contains("was not drained"));
}

#[test]
fn a_command_that_cannot_be_fulfilled_yet_exits_4_and_without_a_store_3() {
    let cluster = Operated::start(&["w-0"]);
    let (code, said) = cluster.says(&["drain", "w-0", "--timeout", "1s"]);
    assert!(code == Some(4) && said.contains("no other pod accepts partitions"), "{said}");
    assert_eq!(cluster.owns("w-0"), u64::from(PARTITIONS));
    let nowhere = format!("http://{}", free_address());
    let commands = [&["drain", "w-0"][..], &["pause"], &["move", "0", "--to", "w-0"], &["plan"], &["wait", "settled"]];
    for words in commands.into_iter().chain([&["status"][..], &["status", "--routers"]]) {
        let output = Command::new(env!("CARGO_BIN_EXE_segue")).args(words).args(["--etcd", &nowhere]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn an_unreadable_drain_is_obeyed_named_and_can_be_removed() {
    let cluster = Operated::start(&["w-0", "w-1"]);
    cluster.put(|keys| keys.drain("w-1"), "{", false);
    cluster.does(&["wait", "drained", "w-1"]);
    let said = cluster.does(&["status"]);
    assert!(said.contains("operator/drains/w-1") && said.contains("to remove it:  segue undrain w-1"), "{said}");
    cluster.does(&["undrain", "w-1"]);
    assert!(cluster.0.status().is_well_formed());
}

#[test]
fn while_paused_only_dead_owners_move_and_the_store_ends_a_pause() {
    let mut cluster = Operated::start(&["w-0", "w-1"]);
    let said = cluster.does(&["pause", "--why", "incident"]);
    assert!(said.contains("paused until segue resume"), "{said}");
    assert!(cluster.does(&["status"]).contains("paused      planned moves, by ann@"));
    cluster.0.writer("w-2");
    until("w-2", || cluster.0.status().pods() == ["w-0", "w-1", "w-2"]);
    let (code, said) = cluster.says(&["drain", "w-0", "--timeout", "2s"]);
    assert!(code == Some(4) && said.contains("planned moves are paused by ann@"), "{said}");
    cluster.does(&["undrain", "w-0"]);
    assert_eq!((cluster.owns("w-0"), cluster.owns("w-2")), (8, 0));

    cluster.0.take("w-1").kill();
    until("the failover of w-1", || cluster.owns("w-0") + cluster.owns("w-2") == 16);
    cluster.does(&["pause", "--for", "1s"]);
    until("the end of the pause", || cluster.json(&["status"])["paused"].is_null());
    cluster.does(&["wait", "settled"]);
    assert!(cluster.does(&["resume"]).contains("were not paused"));
}

#[test]
fn a_moved_partition_stays_and_a_pinned_one_comes_back() {
    let mut cluster = Operated::start(&["w-0", "w-1"]);
    let from = cluster.owner(3);
    let to = if from == "w-0" { "w-1" } else { "w-0" };
    let said = cluster.does(&["move", "3", "--to", to, "--id", "first", "--why", "hot"]);
    assert!(said.contains(&format!("partition 3 is on {to}")), "{said}");
    let said = cluster.does(&["explain", "3"]);
    assert!(said.contains(&format!("to {to} until that pod goes, by ann@")), "{said}");
    assert!(cluster.does(&["move", "3", "--to", to, "--id", "first"]).contains("is on"), "a repeated id");
    let (code, said) = cluster.says(&["move", "4", "--to", to, "--id", "first"]);
    assert!(code == Some(1) && said.contains("choose another id"), "{said}");
    let (code, said) = cluster.says(&["pause", "--for", "0s"]);
    assert!(code == Some(2) && said.contains("expected a time above zero"), "{said}");
    for (words, why) in [
        (&["move", "3", "--to", "w-7"][..], "no pod w-7 is registered"),
        (&["move", "99", "--to", "w-0"], "there is no partition 99"),
        (&["pin", "99"], "there is no partition 99"),
        (&["unpin", "99"], "there is no partition 99"),
        (&["cancel", "3"], "does not move"),
        (&["explain", "99"], "there is no partition 99"),
        (&["explain", "w-7"], "no pod w-7"),
    ] {
        let (code, said) = cluster.says(words);
        assert!(code == Some(1) && said.contains(why), "{words:?}: {said}");
    }

    assert!(cluster.does(&["pin", "3"]).contains(&format!("pinned to {to}")));
    cluster.0.take(to).kill();
    until("another owner", || cluster.owner(3) == from);
    until("the end of the dead owner's lease", || cluster.life(to).is_null());
    cluster.0.writer(to);
    until("the pinned partition's return", || cluster.owner(3) == to);
    assert!(cluster.does(&["unpin", "3"]).contains("was pinned"));
    cluster.does(&["wait", "settled"]);
}

#[test]
fn a_move_is_cancelled_before_the_point_of_no_return() {
    let cluster = Operated::start(&["w-0"]);
    // A pod that never gets warm, and whose share is no partition, so that the move does not wait for others to warm.
    cluster.put(|keys| keys.pod("w-9"), r#"{"pod_name":"w-9","address":"127.0.0.1:1","weight":0.001}"#, true);
    cluster.does(&["pause"]);
    cluster.does(&["resume"]);
    let (code, said) = cluster.says(&["move", "3", "--to", "w-9", "--timeout", "3s"]);
    assert!(code == Some(4) && said.contains("moves to w-9: Warming"), "{said}");
    let explained = cluster.json(&["explain", "3"]);
    assert_eq!(explained["handoff"]["may_be_cancelled"], true, "{explained}");
    let wait = |handoff: &Value| {
        let wait = handoff["waits"][0].clone();
        (wait["name"].clone(), wait["since"].as_u64().unwrap())
    };
    let known = wait(&explained["handoff"]);
    assert_eq!(wait(&cluster.json(&["status"])["handoffs"][0]), known, "every reader is told the same");
    let said = cluster.does(&["cancel", "3", "--why", "never mind"]);
    assert!(said.contains("partition 3 stays with w-0"), "{said}");
    assert!(!cluster.json(&["status"])["pins"].to_string().contains("w-9"));
    let ended = cluster.json(&["history", "3", "--limit", "1"])["handoffs"][0].clone();
    assert_eq!((&known.0, known.1), (&Value::from("w-9"), ended["begun_at"].as_u64().unwrap()), "{ended}");
    let back_off = &ended["back_offs"][0];
    assert_eq!((&back_off["of"], &back_off["failures"]), (&Value::from("partition"), &Value::from(1)), "{ended}");
    let rests = back_off["until"].as_u64().unwrap() - ended["ended_at"].as_u64().unwrap();
    assert!(rests > 0 && rests <= 5_000, "{ended}");
}

#[test]
fn every_process_tells_how_handoffs_ended() {
    let mut cluster = Operated::start(&["w-0", "w-1"]);
    let admin = free_address();
    cluster.0.router("r-0", free_address(), admin);
    let from = cluster.owner(3);
    let to = if from == "w-0" { "w-1" } else { "w-0" };
    cluster.does(&["move", "3", "--to", to]);
    until("the end of the handoff", || cluster.json(&["history", "3"])["handoffs"].as_array().unwrap().len() == 2);
    let last = cluster.json(&["history", "3", "--limit", "1"])["handoffs"][0].clone();
    assert_eq!((&last["from"], &last["to"]), (&Value::from(from.as_str()), &Value::from(to)));
    assert_eq!((&last["result"], &last["cause"]), (&Value::from("completed"), &Value::from("operator")), "{last}");
    let phases = last["phases"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["Warming", "Ready", "Syncing", "Switching", "Complete"]);
    let whole: u64 = phases.iter().map(|phase| phase["ms"].as_u64().unwrap()).sum();
    assert_eq!(whole, last["ended_at"].as_u64().unwrap() - last["begun_at"].as_u64().unwrap(), "{last}");
    assert!(phases[0]["ms"].as_u64().unwrap() >= 30, "the writer takes that long to warm: {last}");
    assert!(last["routers"][0]["router"] == "r-0" && last["routers"][0]["pause_us"].is_u64(), "{last}");

    let said = cluster.does(&["history"]);
    assert!(said.contains(&format!("{from} → {to}")) && said.contains(" ms on r-0"), "{said}");
    let said = cluster.does(&["explain", "3"]);
    assert!(said.contains("earlier ") && said.contains(&format!("{from} → {to} completed in ")), "{said}");
    let (status, body) = get(admin, "/v1/history?partition=3&limit=1").unwrap();
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["handoffs"]), (200, &serde_json::json!([last])));
    assert_eq!(get(admin, "/v1/history?partition=x").unwrap().0, 400);

    // A pod that never gets warm.
    cluster.put(|keys| keys.pod("w-9"), r#"{"pod_name":"w-9","address":"127.0.0.1:1"}"#, true);
    cluster.says(&["move", "3", "--to", "w-9", "--timeout", "1s"]);
    cluster.does(&["cancel", "3", "--why", "never mind"]);
    let last = cluster.json(&["history", "3", "--limit", "1"])["handoffs"][0].clone();
    assert_eq!((&last["result"], &last["end_cause"]), (&Value::from("cancelled"), &Value::from("operator")), "{last}");
    assert!(last["end_reason"].as_str().unwrap().ends_with("(never mind)"), "{last}");
}

#[test]
fn the_tables_of_routers_are_compared_with_the_store() {
    let mut cluster = Operated::start(&["w-0", "w-1"]);
    let (code, said) = cluster.says(&["status", "--routers"]);
    assert!(code == Some(0) && said == "no router is registered\n", "{said}");
    let admin = free_address();
    cluster.0.router("r-0", free_address(), admin);
    assert_eq!(cluster.does(&["status", "--routers"]), format!("same     r-0 at {admin}\n"));

    // Routers that are not what they should be: one has an old table, one is silent, one cannot be asked.
    let (stale, silent) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    for (name, admin) in [("r-1", Some(&stale)), ("r-2", Some(&silent)), ("r-3", None)] {
        let admin = admin.map(|listener| listener.local_addr().unwrap().to_string());
        let record = serde_json::json!({ "router_name": name, "admin": admin }).to_string();
        cluster.put(|keys| keys.router(name), &record, true);
    }
    std::thread::spawn(move || {
        let table: Vec<Value> = (0..PARTITIONS)
            .map(|partition| serde_json::json!({ "partition": partition, "stage": "open", "pod": "w-7", "epoch": 1 }))
            .collect();
        let body = serde_json::json!({ "router": { "name": "r-1", "partitions": table } }).to_string();
        for stream in stale.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    let (code, said) = cluster.says(&["status", "--routers"]);
    assert_eq!(code, Some(1));
    assert!(said.contains(&format!("same     r-0 at {admin}")), "{said}");
    assert!(said.contains("DIFFERS  r-1 at ") && said.contains(": 16 partitions"), "{said}");
    assert!(said.contains(" at epoch ") && said.contains("; router: w-7 at epoch 1, open"), "{said}");
    assert!(said.contains("UNKNOWN  r-2 at ") && said.contains("no response within 5s"), "{said}");
    assert!(said.contains("UNKNOWN  r-3 at no address: ") && said.contains("[admin] advertise"), "{said}");
    drop(silent);
}

#[test]
fn the_tables_of_routers_are_compared_by_tls_too() {
    let mut cluster = Operated::start(&["w-0"]);
    let authority = Authority::new(cluster.0.path(), "ours");
    let (served, admin) = (authority.issue("served"), free_address());
    let tls = format!("cert = \"{}\"\nkey = \"{}\"", served.cert.display(), served.key.display());
    let config = cluster.0.router_config("r-0", free_address(), admin).with("admin.tls", &tls);
    let router = cluster.0.run("r-0", &config);
    cluster.0.processes.insert("r-0".to_owned(), router);
    until("the router", || cluster.json(&["status"])["routers"] == serde_json::json!(["r-0"]));
    let (code, said) = cluster.says(&["status", "--routers"]);
    assert!(code == Some(1) && said.contains("UNKNOWN  r-0 at ") && said.contains("--admin-ca"), "{said}");
    let ca = authority.file.to_str().unwrap();
    let said = cluster.does(&["status", "--routers", "--admin-ca", ca]);
    assert_eq!(said, format!("same     r-0 at {admin}\n"));
}
