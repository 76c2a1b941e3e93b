//! The `segue` command as a user meets it: real processes, bad input, signals.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use segue_tests::etcd::Etcd;
use segue_tests::process::{Process, free_address, get};
use tempfile::TempDir;

fn segue() -> Command {
    Command::new(env!("CARGO_BIN_EXE_segue"))
}

fn run(args: &[&str]) -> Output {
    segue().args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn file(folder: &TempDir, text: &str) -> PathBuf {
    let path = folder.path().join("segue.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn check(text: &str) -> Output {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, text);
    run(&["check", "--config", path.to_str().unwrap()])
}

fn start(folder: &Path, config: &Path) -> Process {
    Process::start("segue", folder, segue().args(["run", "--config"]).arg(config))
}

#[test]
fn check_says_nothing_about_a_good_file() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/config/segue.example.toml");
    let output = run(&["check", "--config", example]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
}

#[test]
fn check_reports_every_mistake_with_its_place_and_exits_2() {
    let output = check(
        "[router]\nlease-ttl = \"15s\"\nworkers = \"two\"\n[router.partition]\nheader = \"p\"\nkey = { query = \"k\" }\n",
    );
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    for part in
        ["segue.toml:2:1: router.lease-ttl", "did you mean lease_ttl", "segue.toml:3:", "router.workers", "partition"]
    {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let output = run(&["run", "--config", "/nonexistent/segue.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/nonexistent/segue.toml"), "{}", stderr(&output));
}

#[test]
fn a_listen_address_in_use_is_an_error_that_names_it_and_its_key() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let folder = TempDir::new().unwrap();
    for (text, key) in [
        (format!("[router]\nlisten = \"{address}\"\n"), "listen"),
        (format!("[coordinator]\n[admin]\nlisten = \"{address}\"\n"), "admin.listen"),
        (format!("[pod]\nlisten = \"{address}\"\nupstream = \"127.0.0.1:1\"\n"), "pod.listen"),
    ] {
        let text = format!("{text}\n[store]\nkind = \"memory\"\n");
        // [store] may stand anywhere; the roles come first only to keep the cases short.
        let path = file(&folder, &text);
        let output = run(&["run", "--config", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains(&address.to_string()) && said.contains(key), "{said}");
    }
}

#[test]
fn an_etcd_that_cannot_be_reached_is_named_by_commands_that_need_it() {
    let nowhere = free_address();
    let output = run(&["status", "--etcd", &format!("http://{nowhere}")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&nowhere.to_string()), "{}", stderr(&output));
}

#[test]
fn a_role_waits_for_its_etcd_and_says_so_meanwhile() {
    let (folder, admin, store) = (TempDir::new().unwrap(), free_address(), free_address());
    let text = format!(
        "[store]\nendpoints = [\"http://{store}\"]\n[router]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"{admin}\"\n"
    );
    let mut router = start(folder.path(), &file(&folder, &text));
    router.until("/ready", || get(admin, "/ready").is_some_and(|(status, _)| status == 503));
    assert_eq!(get(admin, "/health").unwrap().0, 200);
    let log = folder.path().join("segue.log");
    router
        .until("a word of the store's address", || std::fs::read_to_string(&log).unwrap().contains(&store.to_string()));
    let (status, output) = router.terminate();
    assert!(status.success(), "{output}");
}

#[test]
fn a_process_with_all_roles_gets_ready_shows_itself_and_ends_gracefully() {
    let (folder, admin, listen, etcd) = (TempDir::new().unwrap(), free_address(), free_address(), Etcd::start());
    let endpoint = etcd.endpoint();
    let text = format!(
        "[store]\nendpoints = [\"{endpoint}\"]\n[router]\nname = \"r-0\"\nlisten = \"{listen}\"\nlease_ttl = \"2s\"\n\
         [coordinator]\nname = \"c-0\"\npartitions = 8\nlease_ttl = \"2s\"\nsettle = \"10ms\"\n[admin]\nlisten = \"{admin}\"\n"
    );
    let mut process = start(folder.path(), &file(&folder, &text));
    process.until("/ready", || get(admin, "/ready").is_some_and(|(status, _)| status == 200));

    let (_, metrics) = get(admin, "/metrics").unwrap();
    for series in [
        "segue_requests_total",
        "segue_request_duration_seconds",
        "segue_in_flight",
        "segue_stash_depth",
        "segue_stash_bytes",
        "segue_stash_wait_seconds",
        "segue_stash_rejected_total",
        "segue_bounced_total",
        "segue_cutovers_total",
        "segue_cutover_pause_seconds",
        "segue_cutover_drain_seconds",
        "segue_cutover_flush_seconds",
        "segue_severed_total",
        "segue_handoffs_total",
        "segue_handoff_phase_seconds",
        "segue_handoffs_in_flight",
        "segue_rounds_total",
        "segue_lease_remaining_seconds",
        "segue_store_resyncs_total",
        "segue_leader 1",
    ] {
        assert!(metrics.contains(series), "{series} is missing in:\n{metrics}");
    }

    let (_, status) = get(admin, "/status").unwrap();
    assert!(status.contains("\"leader\":\"c-0\"") && status.contains("\"stage\":\"held\""), "{status}");

    // A request that names no partition, and one out of range.
    assert_eq!(get(listen, "/").unwrap().0, 400);

    let output = run(&["status", "--etcd", &endpoint, "--json"]);
    let overview: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&overview["leader"], &overview["unowned"]), (&"c-0".into(), &8.into()));
    assert_eq!(overview["routers"], serde_json::json!(["r-0"]));
    let output = run(&["status", "--etcd", &endpoint]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("leader      c-0"));

    let (status, log) = process.terminate();
    assert!(status.success(), "{log}");
    let output = run(&["status", "--etcd", &endpoint, "--json"]);
    let overview: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(overview["routers"], serde_json::json!([]), "it has deregistered");
    assert_eq!(overview["leader"], serde_json::Value::Null, "it has resigned");
}

#[test]
fn a_hang_up_takes_the_log_level_over_and_a_bad_file_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let text = |level: &str| format!("[store]\nkind = \"memory\"\n[coordinator]\n[log]\nlevel = \"{level}\"\n");
    let path = file(&folder, &text("info"));
    let log = folder.path().join("segue.log");
    let printed = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    let mut process = start(folder.path(), &path);
    process.until("its start", || printed("running"));
    std::fs::write(&path, text("loud")).unwrap();
    process.signal("HUP");
    process.until("a refusal", || printed("the file was not taken over"));
    std::fs::write(&path, text("debug")).unwrap();
    process.signal("HUP");
    process.until("the new level", || printed("file read again"));
    assert!(process.terminate().0.success());
}
