//! What each command does, and what it says.

use std::process::Command;

use segue_tests::http::get;
use segue_tests::ports::free_address;
use segue_tests::process::until;
use serde_json::Value;

use super::operated::Operated;
use crate::writers::{LeaseTtls, PARTITIONS};

#[test]
fn a_drained_pod_is_empty_when_the_command_ends_and_stays_so_through_restarts_until_it_is_undrained() {
    let mut cluster = Operated::with_leases(LeaseTtls { writer: 2, ..LeaseTtls::LONG }, &["w-0", "w-1", "w-2"]);
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
    let said = cluster.does(&["status", "--keyspace", "defualt"]);
    assert!(
        said.starts_with("leader      none, and none has led here yet (") && said.contains("name right?"),
        "{said}"
    );
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
fn settings_change_by_a_command_and_a_raised_floor_of_epochs_ends_every_life() {
    let cluster = Operated::start(&["w-0"]);
    assert_eq!(cluster.json(&["config", "get"])["partitions"], PARTITIONS);
    let said = cluster.does(&["config", "set", "settle", "250ms", "--why", "try"]);
    assert!(said.contains("settle is 250ms in place of"), "{said}");
    assert_eq!(cluster.does(&["config", "get", "settle"]), "250ms\n");
    assert!(cluster.does(&["config", "set", "settle", "250ms"]).contains("already"));
    for (words, code, part) in [
        (["set", "settle", "soon"], 2, "expected a duration"),
        (["set", "size", "7"], 2, "expected one of partitions, epoch_floor"),
        (["set", "partitions", "1"], 1, "never decreases"),
        (["set", "partitioner", "{}"], 1, "segue remap"),
    ] {
        let (exit, said) = cluster.says(&[&["config"][..], &words].concat());
        assert!(exit == Some(code) && said.contains(part), "{words:?}: {exit:?} {said}");
    }
    assert_eq!(cluster.says(&["config", "get", "size"]).0, Some(1));

    let life = cluster.life("w-0");
    cluster.does(&["config", "set", "epoch_floor", "1000000", "--why", "restored from last night"]);
    until("a new life", || !cluster.life("w-0").is_null() && cluster.life("w-0") != life);
    cluster.does(&["wait", "settled"]);
    let said = cluster.does(&["status"]);
    assert!(said.contains("epochs      above 1000000"), "{said}");
    assert!(cluster.json(&["explain", "3"])["epoch"].as_u64() > Some(1_000_000));
    let (code, said) = cluster.says(&["config", "set", "epoch_floor", "999999"]);
    assert!(code == Some(1) && said.contains("never falls"), "{said}");
}

#[test]
fn a_mapping_is_replaced_by_a_command_alone() {
    let cluster = Operated::start(&["w-0"]);
    let file = |name: &str, header: &str| {
        let path = cluster.0.path().join(name);
        let text =
            format!("[store]\nkind = \"memory\"\n[router]\n[router.partition]\nkey = {{ header = \"{header}\" }}\n");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (first, second) = (file("a.toml", "x-a"), file("b.toml", "x-b"));
    cluster.does(&["remap", "--to", &first, "--yes"]);
    let (code, said) = cluster.says(&["remap", "--to", &second]);
    let owned = format!("{PARTITIONS} partitions with an owner");
    assert!(code == Some(1) && said.contains("--yes") && said.contains(&owned), "{said}");
    assert_eq!(cluster.json(&["config", "get", "partitioner"])["key"], "header:x-a");

    cluster.put(|keys| keys.router("r-9"), "{}", true);
    let (code, said) = cluster.says(&["remap", "--to", &second, "--yes"]);
    assert!(code == Some(1) && said.contains("stop r-9 and try again"), "{said}");
    cluster.does(&["forget", "router", "r-9", "--force", "--yes"]);
    let said = cluster.does(&["remap", "--to", &second, "--yes", "--why", "the key was renamed"]);
    assert!(said.contains("header:x-b in place of the murmur2 hash of header:x-a") && said.contains(&owned), "{said}");
    assert_eq!(cluster.json(&["config", "get", "partitioner"])["key"], "header:x-b");
    assert!(cluster.does(&["remap", "--to", &second]).contains("already"));

    let pod = cluster.0.path().join("pod.toml");
    std::fs::write(&pod, "[store]\nkind = \"memory\"\n[coordinator]\n").unwrap();
    for (path, part) in [(pod.to_str().unwrap(), "section [router]"), ("/nowhere.toml", "cannot")] {
        let (code, said) = cluster.says(&["remap", "--to", path]);
        assert!(code == Some(2) && said.contains(part), "{path}: {code:?} {said}");
    }
}

#[test]
fn while_paused_only_dead_owners_move_and_the_store_ends_a_pause() {
    let mut cluster = Operated::with_leases(LeaseTtls { writer: 2, ..LeaseTtls::LONG }, &["w-0", "w-1"]);
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
    let (code, said) = cluster.says(&["move", "three", "--to", to]);
    assert!(code == Some(2) && said.contains("expected the number of a partition, such as 7"), "{said}");
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
    cluster.0.take(to).terminate();
    until("another owner", || cluster.owner(3) == from);
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
    assert!(said.contains(&format!("{from} → {to}")) && said.contains(" on r-0"), "{said}");
    let said = cluster.does(&["explain", "3"]);
    assert!(said.contains("earlier ") && said.contains(&format!("{from} → {to} completed in ")), "{said}");
    let (status, body) = get(admin, "/v1/history?partition=3&limit=1").unwrap();
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["handoffs"]), (200, &serde_json::json!([last])));
    assert_eq!(get(admin, "/v1/history?partition=x").unwrap().0, 400);
    assert_eq!(get(admin, "/v1/history?partition=99999").unwrap().0, 404);

    // A pod that never gets warm.
    cluster.put(|keys| keys.pod("w-9"), r#"{"pod_name":"w-9","address":"127.0.0.1:1"}"#, true);
    cluster.says(&["move", "3", "--to", "w-9", "--timeout", "1s"]);
    cluster.does(&["cancel", "3", "--why", "never mind"]);
    let last = cluster.json(&["history", "3", "--limit", "1"])["handoffs"][0].clone();
    assert_eq!((&last["result"], &last["end_cause"]), (&Value::from("cancelled"), &Value::from("operator")), "{last}");
    assert!(last["end_reason"].as_str().unwrap().ends_with("(never mind)"), "{last}");
}
