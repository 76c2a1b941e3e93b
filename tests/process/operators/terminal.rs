//! What commands print at a terminal: texts of others without escapes, to a reader that may go, and names at the key Tab.

use std::io::pipe;
use std::process::{Command, Stdio};

use segue_protocol::ids::{HandoffId, PartitionId, Revision};
use segue_tests::ports::free_address;
use serde_json::{Value, json};

use super::operated::Operated;
use crate::cli::promised_fields;
use crate::site::{SEGUE, said};

/// A text that clears a screen, begins a line of `segue status`, and turns the direction of a line.
const HOSTILE: &str = "\u{1b}[2J\nleader      evil\u{9b}2J\r\u{202e}";

#[track_caller]
fn is_harmless(words: &[&str], said: &str) {
    assert!(!said.is_empty(), "{words:?}");
    let control = said.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
    assert_eq!(control, None, "{words:?}: {said:?}");
    assert!(said.lines().all(|line| !line.starts_with("leader      evil")), "{words:?}: {said}");
}

#[test]
fn texts_of_others_neither_control_a_terminal_nor_begin_lines() {
    let cluster = Operated::start(&["w-0", "w-1"]);
    cluster.does(&["pin", "3", "--why", HOSTILE]);
    cluster.does(&["drain", "w-1", "--why", HOSTILE]);
    let entry = json!({
        "handoff": 9, "partition": 3, "from": HOSTILE, "to": HOSTILE, "epoch": 2, "result": "cancelled", "reason": HOSTILE,
        "end_cause": "new_owner_failed", "end_reason": HOSTILE, "begun_at": 1, "ended_at": 2,
        "routers": [{ "router": HOSTILE, "pause_us": 5 }],
    });
    let handoff = HandoffId::created_at(Revision::new(9));
    cluster.put(|keys| keys.history_entry(PartitionId::new(3), handoff), &entry.to_string(), false);
    let router = json!({ "router_name": HOSTILE, "admin": HOSTILE });
    cluster.put(|keys| keys.router(HOSTILE), &router.to_string(), true);
    let pod = json!({ "pod_name": HOSTILE, "address": HOSTILE });
    cluster.put(|keys| keys.pod(HOSTILE), &pod.to_string(), false);
    for words in [
        &["status"][..],
        &["status", "--routers"],
        &["explain", "3"],
        &["explain", "w-1"],
        &["explain", HOSTILE],
        &["history"],
        &["history", "3"],
        &["plan"],
        &["plan", "--without", HOSTILE],
        &["wait", "settled", "--timeout", "300ms"],
        &["wait", "drained", HOSTILE, "--timeout", "300ms"],
        &["move", "4", "--to", HOSTILE, "--timeout", "300ms"],
        &["drain", HOSTILE, "--timeout", "300ms"],
        &["config", "get"],
    ] {
        is_harmless(words, &cluster.says(words).1);
        let json = [words, &["--json"]].concat();
        let output = cluster.run(&json);
        if output.status.success() {
            let value: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(!value.is_null());
        }
        is_harmless(&json, &said(output).1);
    }
    let status = cluster.json(&["status"]);
    assert!(status.to_string().contains("\\u001b[2J"), "the values are those of the store: {status}");
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure_and_a_partition_that_does_not_exist_is_one() {
    let cluster = Operated::start(&["w-0"]);
    for words in [&["status"][..], &["status", "--json"], &["status", "--watch"], &["history"], &["explain", "3"]] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let run = cluster.command(words).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = run.wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr)), (Some(0), "".into()), "{words:?}");
    }
    for words in [&["history", "99999"][..], &["move", "99999", "--to", "w-0"], &["explain", "99999"]] {
        let (code, said) = cluster.says(words);
        assert!(code == Some(1) && said.contains("there is no partition 99999"), "{words:?}: {said}");
    }
    assert_eq!(cluster.says(&["history", "3"]).0, Some(0));
}

#[test]
fn json_has_the_fields_that_its_page_promises() {
    let cluster = Operated::start(&["w-0"]);
    let commands = [
        ("`explain PARTITION`", &["explain", "3"][..]),
        ("`explain POD`", &["explain", "w-0"]),
        ("`plan`", &["plan", "--without", "w-0"]),
    ];
    for (command, words) in commands {
        let (printed, promised) = (cluster.json(words), promised_fields(command));
        assert!(promised.len() > 5, "{promised:?}");
        let missing: Vec<_> = promised.into_iter().filter(|field| printed.get(field).is_none()).collect();
        assert_eq!(missing, [""; 0], "{printed}");
    }
}

/// Returns what bash gets when Tab is pressed behind these words, which it has split.
fn offered(words: &[&str]) -> Vec<String> {
    let index = (words.len() - 1).to_string();
    let output = Command::new(SEGUE)
        .arg("--")
        .args(words)
        .env("SEGUE_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", index)
        .env("_CLAP_IFS", "|")
        .output()
        .unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr)), (Some(0), "".into()), "{words:?}");
    let names = String::from_utf8(output.stdout).unwrap();
    names.split('|').filter(|name| !name.is_empty() && !name.starts_with('-')).map(str::to_owned).collect()
}

#[test]
fn pods_and_partitions_are_offered_at_the_key_tab_unless_nobody_can_be_asked() {
    let cluster = Operated::start(&["w-0", "w-1"]);
    cluster.put(|keys| keys.pod("w-$(reboot)"), r#"{"pod_name":"w-$(reboot)","address":"127.0.0.1:1"}"#, true);
    let endpoint = cluster.0.etcd().endpoint();
    let port = endpoint.rsplit(':').next().unwrap();
    let etcd = ["--etcd", "http", ":", "//127.0.0.1", ":", port];
    let at = |words: &[&str]| {
        let (command, rest) = words.split_at(2);
        offered(&[command, &etcd, rest].concat())
    };
    assert_eq!(at(&["segue", "drain", "w-"]), ["w-0", "w-1"], "and no name that the shell would run");
    assert_eq!(at(&["segue", "move", "4", "--to", "w-1"]), ["w-1"]);
    assert_eq!(at(&["segue", "explain", "1"]), ["1", "10", "11", "12", "13", "14", "15"]);
    assert_eq!(at(&["segue", "history", "15"]), ["15"]);
    let nowhere = format!("http://{}", free_address());
    assert_eq!(offered(&["segue", "drain", "--etcd", &nowhere, "w"]), [""; 0]);
    assert_eq!(offered(&["segue", "drain", "--server", &nowhere, "w"]), [""; 0]);
}
