//! What commands print at a terminal: texts of others without escapes, to a reader that may go.

use std::io::pipe;
use std::process::Stdio;

use segue_protocol::ids::{HandoffId, PartitionId, Revision};
use serde_json::{Value, json};

use super::operated::Operated;
use crate::site::said;

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
