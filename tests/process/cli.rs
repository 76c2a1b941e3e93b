//! The `segue` command as a user meets it: real processes, bad input, signals.
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use segue_protocol::keys::Keyspace;
use segue_tests::cluster::TestCluster;
use segue_tests::config::Config;
use segue_tests::etcd::Etcd;
use segue_tests::http::{get, is_ready};
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use tempfile::TempDir;

use crate::site::{SEGUE, keys_below, put_by_hand, segue as run};

/// The command, without the variables of whoever runs the tests.
pub(crate) fn segue() -> Command {
    let mut command = Command::new(SEGUE);
    for name in ["SEGUE_CONFIG", "SEGUE_SERVER", "SEGUE_KEYSPACE", "SEGUE_TOKEN_FILE"] {
        command.env_remove(name);
    }
    command
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub(crate) fn file(folder: &TempDir, text: &str) -> PathBuf {
    let path = folder.path().join("segue.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// Returns the fields of a command's JSON that its page promises.
pub(crate) fn promised_fields(command: &str) -> Vec<&'static str> {
    let page = include_str!("../../docs/reference/commands.md").split("\n## JSON\n").nth(1).unwrap();
    let row = page.lines().find(|line| line.starts_with(&format!("| {command} |"))).unwrap();
    let fields = row.rsplit_once(" | ").unwrap().1;
    // Those of an inner object stand in brackets.
    let outer = fields.split('(').map(|part| part.split_once(')').map_or(part, |(_, after)| after));
    outer.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

fn start(folder: &Path, config: &Path) -> Process {
    Process::start("segue", folder, segue().args(["run", "--config"]).arg(config))
}

/// Returns the file of a router whose etcd is not there.
fn lone_router(store: SocketAddr, admin: SocketAddr) -> Config {
    Config::new([format!("http://{store}")]).set("router.listen", "127.0.0.1:0").admin(admin)
}

#[test]
fn a_registration_that_never_ends_is_named_and_can_be_forgotten() {
    let etcd = Etcd::start();
    let endpoint = etcd.endpoint();
    let keys = Keyspace::new("/segue/", "default");
    let pod = r#"{"pod_name":"w","address":"127.0.0.1:1"}"#;
    put_by_hand(&etcd, keys.pod("leased"), pod, true);
    put_by_hand(&etcd, keys.pod("leaseless"), pod, false);
    put_by_hand(&etcd, keys.router("unreadable"), "no JSON", true);

    let status = run(&["status", "--etcd", &endpoint]);
    let said = String::from_utf8(status.stdout).unwrap();
    for command in ["segue forget pod leaseless", "segue forget router unreadable"] {
        assert!(said.contains(command), "{command:?} is missing in:\n{said}");
    }
    assert!(!said.contains("forget pod leased"), "{said}");

    let forget = |words: &[&str]| {
        let output = segue().arg("forget").args(words).args(["--etcd", &endpoint]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout.clone()).unwrap() + &stderr(&output))
    };
    let (code, said) = forget(&["pod", "leased"]);
    assert!(code == Some(1) && said.contains("ends with the lease"), "{said}");
    let (code, said) = forget(&["pod", "nobody"]);
    assert!(code == Some(1) && said.contains("nothing to forget"), "{said}");
    let (code, said) = forget(&["pod", "leaseless"]);
    assert!(code == Some(1) && said.contains("nothing was deleted") && said.contains("--yes"), "{said}");
    let (code, said) = forget(&["pod", "leaseless", "--yes"]);
    assert!(code == Some(0) && said.contains("pod leaseless is forgotten"), "{said}");
    let (code, said) = forget(&["router", "unreadable", "--yes", "--json"]);
    assert!(code == Some(0) && said.contains(r#""kind":"router""#), "{said}");
    let (code, said) = forget(&["pod", "leased", "--force", "--yes"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(keys_below(&etcd, "/segue/"), [""; 0]);

    assert_eq!(forget(&["pod"]).0, Some(2));
    let nowhere = run(&["forget", "pod", "w", "--etcd", &format!("http://{}", free_address())]);
    assert_eq!(nowhere.status.code(), Some(3), "{}", stderr(&nowhere));
}

/// The command, started with these soft and hard limits of open files.
pub(crate) fn with_files(soft: u32, hard: u32) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -Sn \"$1\" && ulimit -Hn \"$2\" && shift 2 && exec \"$@\"", "sh"]);
    command.args([soft.to_string(), hard.to_string()]).arg(SEGUE);
    command
}

#[test]
fn run_raises_its_soft_limit_of_open_files_and_takes_fewer_clients_if_the_hard_one_is_low() {
    let (folder, admin, store) = (TempDir::new().unwrap(), free_address(), free_address());
    let path = lone_router(store, admin).write(folder.path(), "segue");
    let mut router = Process::start("segue", folder.path(), with_files(200, 1000).args(["run", "--config"]).arg(&path));
    router.until("/health", || get(admin, "/health").is_some());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", router.id())).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().take(2).collect::<Vec<_>>(), ["1000", "1000"]);
    let (status, output) = router.terminate();
    assert!(status.success(), "{output}");
    assert!(output.contains("router.limits.max_connections is 10000"), "{output}");
    // Without a file for a single client it does not even begin.
    let none = with_files(100, 100).args(["run", "--config"]).arg(&path).output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("ulimit -Hn"), "{}", stderr(&none));
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
fn several_endpoints_of_a_command_may_be_separated_by_commas() {
    let output = run(&["status", "--keyspace", "k", "--etcd", "http://127.0.0.1:1,http://127.0.0.1:2"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn a_command_that_needs_a_store_is_not_content_with_a_keyspace() {
    let output = run(&["conformance", "--pod", "http://a:1", "--keyspace", "orders"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("expected --config FILE, --etcd URL"), "{}", stderr(&output));
    for command in [vec!["status"], vec!["forget", "pod", "writer-0"], vec!["conformance", "--pod", "http://a:1"]] {
        // The file says where its keyspaces are.
        let output = run(&[&command[..], &["--config", "segue.toml", "--prefix", "/segue/"]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("cannot be used with"), "{}", stderr(&output));
    }
}

#[test]
fn an_etcd_that_cannot_be_reached_is_named_by_commands_that_need_it() {
    let nowhere = free_address();
    let output = run(&["status", "--etcd", &format!("http://{nowhere}")]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains(&nowhere.to_string()), "{}", stderr(&output));
}

#[test]
fn a_role_waits_for_its_etcd_and_says_so_meanwhile() {
    let (folder, admin, store) = (TempDir::new().unwrap(), free_address(), free_address());
    let mut router = start(folder.path(), &lone_router(store, admin).write(folder.path(), "segue"));
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
    let (cluster, admin, listen) = (TestCluster::start(SEGUE), free_address(), free_address());
    let endpoint = cluster.etcd().endpoint();
    let config = cluster.config().router("r-0", listen).coordinator("c-0", 8).admin(admin).quick();
    let mut process = cluster.run("all", &config);
    process.until("/ready", || is_ready(admin));

    let (_, metrics) = get(admin, "/metrics").unwrap();
    for series in [
        "segue_requests_total",
        "segue_request_duration_seconds",
        "segue_requests_in_flight",
        "segue_stash_requests",
        "segue_stash_bytes",
        "segue_stash_wait_seconds",
        "segue_stash_rejected_total",
        "segue_requests_bounced_total",
        "segue_cutovers_total",
        "segue_cutover_pause_seconds",
        "segue_cutover_drain_seconds",
        "segue_cutover_flush_seconds",
        "segue_exchanges_severed_total",
        "segue_handoffs_total",
        "segue_handoff_phase_seconds",
        "segue_handoffs_in_flight",
        "segue_handoff_oldest_started_timestamp_seconds",
        "segue_planning_rounds_total",
        "segue_lease_trusted_until_timestamp_seconds",
        "segue_partitions_unowned",
        "segue_store_resyncs_total",
        "segue_build_info{version=",
        "segue_upstream_duration_seconds",
        "segue_store_up 1",
        "segue_store_request_duration_seconds",
        "process_open_fds",
        "segue_leader 1",
    ] {
        assert!(metrics.contains(series), "{series} is missing in:\n{metrics}");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    for role in ["router", "coordinator"] {
        let series = format!("segue_lease_trusted_until_timestamp_seconds{{role=\"{role}\"}} ");
        let until = metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok());
        assert!(until.is_some_and(|until| until > now), "{series}{until:?} at {now}");
    }

    let (_, status) = get(admin, "/status").unwrap();
    assert!(status.contains("\"leader\":\"c-0\"") && status.contains("\"stage\":\"held\""), "{status}");

    // A request that names no partition, and one out of range.
    assert_eq!(get(listen, "/").unwrap().0, 400);
    let output = run(&["status", "--server", &format!("http://{listen}")]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("serves requests of clients; use its admin.listen"), "{}", stderr(&output));

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
fn a_load_that_is_told_to_end_is_reported_and_fails_if_no_request_succeeded() {
    let folder = TempDir::new().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", server.local_addr().unwrap());
    let mut command = segue();
    let load = Process::start("bench", folder.path(), command.args(["bench", &url, "--duration", "1h", "--json"]));
    // The load has begun, and no request of it gets a response.
    drop((server.accept().unwrap(), server));
    let (status, said) = load.terminate();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("segue: no request succeeded"), "{said}");
    let report = said.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    assert!(report["requests"].as_u64() > Some(0), "{report}");
}
