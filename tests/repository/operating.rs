//! Compares the pages of docs/reference with the code: they list exactly the metrics, the reasons and the log events
//! that exist, and have an example of each command.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use clap::CommandFactory as _;
use segue::commands::Cli;
use segue_coordination::store::{EtcdOptions, EtcdStore, Store as _};
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{Op, Txn};
use segue_proxy::message::local_reply::LocalReply;
use segue_tests::certificates::Authority;
use segue_tests::cluster::TestCluster;
use segue_tests::http::get;
use segue_tests::ports::free_address;

const COMMANDS: &str = include_str!("../../docs/reference/commands.md");
const EVENTS: &str = include_str!("../../docs/reference/events.md");
const HTTP: &str = include_str!("../../docs/reference/http.md");
const METRICS: &str = include_str!("../../docs/reference/metrics.md");

/// Returns the rows, cell by cell, of the tables on a page whose first column has this title.
fn rows(page: &'static str, first_column: &str) -> Vec<Vec<&'static str>> {
    let mut rows = Vec::new();
    let mut is_in_table = false;
    for line in page.lines() {
        let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            is_in_table = false;
            continue;
        };
        let cells: Vec<&str> = cells.split(" | ").collect();
        if cells[0] == first_column {
            is_in_table = true;
        } else if is_in_table && cells[0] != "---" {
            rows.push(cells);
        }
    }
    assert!(!rows.is_empty(), "no table of {first_column}");
    rows
}

#[track_caller]
fn assert_same<T: Ord + Debug>(listed: impl IntoIterator<Item = T>, real: impl IntoIterator<Item = T>) {
    let (listed, real): (BTreeSet<T>, BTreeSet<T>) = (listed.into_iter().collect(), real.into_iter().collect());
    let (missing, extra): (Vec<_>, Vec<_>) = (real.difference(&listed).collect(), listed.difference(&real).collect());
    assert!(missing.is_empty() && extra.is_empty(), "docs/reference lacks {missing:?}; only there: {extra:?}");
}

/// Splits a series into its name and the names of its labels.
fn series(text: &str) -> (&str, BTreeSet<&str>) {
    let (name, labels) = text.split_once('{').unwrap_or((text, ""));
    let labels = labels.trim_end_matches('}').split(',').map(|label| label.split('=').next().unwrap());
    (name, labels.filter(|label| !label.is_empty() && *label != "le").collect())
}

/// A metric whose labels are names is served only while there is something to name: a certificate, a pod that a handoff waits
/// for, a key that cannot be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_lists_every_metric_with_its_labels_and_no_other() {
    let (cluster, admin) = (TestCluster::start(env!("CARGO_BIN_EXE_segue")), free_address());
    let served = Authority::new(cluster.path(), "ours").issue("router");
    let tls = format!("cert = {:?}\nkey = {:?}", served.cert, served.key);
    let pods = free_address().to_string();
    let config =
        cluster.config().coordinator("c", 8).set("coordinator.listen", pods).router("r", free_address()).admin(admin);
    let config = config.pod("p", free_address(), free_address()).set("pod.shutdown_timeout", "1s");
    let config = config.with("router.tls", &tls).quick();
    let store = EtcdStore::connect(EtcdOptions::new([cluster.etcd().endpoint()])).unwrap();
    let keys = Keyspace::new("/segue/", "default");
    let lease = Some(store.grant(Duration::from_secs(60)).await.unwrap());
    let never_warm = br#"{"pod_name":"w","address":"127.0.0.1:1"}"#.to_vec();
    let then = vec![
        Op::Put { key: keys.pod("w"), value: never_warm, lease },
        Op::Put { key: keys.router("unreadable"), value: b"no JSON".to_vec(), lease },
    ];
    store.commit(Txn { then, ..Txn::default() }).await.unwrap();
    let mut process = cluster.run("segue", &config);
    let metrics = || get(admin, "/metrics").map(|(_, text)| text).unwrap_or_default();
    process.until("a handoff that waits", || metrics().contains("segue_handoff_waits{"));
    let metrics = metrics();

    let listed = rows(METRICS, "metric");
    let listed: BTreeMap<&str, (&str, BTreeSet<&str>)> = listed
        .iter()
        .map(|row| {
            let (name, labels) = series(row[0].trim_matches('`'));
            (name, (row[1], labels))
        })
        .collect();
    let served = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    assert_same(listed.iter().map(|(name, (kind, _))| (*name, *kind)), served);

    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = series(line.rsplit_once(' ').unwrap().0);
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        let (_, expected) = listed.get(name).or_else(|| listed.get(of_histogram?)).unwrap();
        assert_eq!(labels, *expected, "{line}");
    }
    assert!(process.terminate().0.success());
}

#[test]
fn the_page_lists_every_reason_with_its_status_and_no_other() {
    let rows = rows(HTTP, "reason");
    let listed =
        rows.iter().flat_map(|row| row[1].split(", ").map(|status| (row[0].trim_matches('`'), status.to_owned())));
    let given = LocalReply::ALL.map(|own| (own.reason(), own.status().as_str().to_owned()));
    // A pod gives this one, and its router passes it on.
    assert_same(listed, given.into_iter().chain([("lease-lost", "500".to_owned())]));
}

/// Returns the production code of the processes, file by file, with each string on one line.
fn sources() -> Vec<String> {
    fn read(folder: &Path, sources: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.file_name().unwrap().to_str().unwrap() {
                // The demo says what it finds on standard output.
                "demo" | "tests" | "tests.rs" => {}
                _ if path.is_dir() => read(&path, sources),
                name if name.ends_with(".rs") => {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
                    sources.push(text.split("\\\n").map(str::trim_start).collect::<String>().replace('`', ""));
                }
                _ => {}
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    ["src", "proxy/src", "coordination/src", "coordination/grpc/src", "coordination/protocol/src"]
        .iter()
        .for_each(|folder| read(&root.join(folder), &mut sources));
    sources
}

/// Returns the message of a macro call: the last string among its arguments, with `{…}` for each value.
fn message(arguments: &str) -> String {
    let (mut depth, mut last, mut rest) = (1, "", arguments);
    while depth > 0 {
        let at = rest.find(['(', ')', '"']).unwrap();
        let (found, after) = (&rest[at..=at], &rest[at + 1..]);
        rest = after;
        match found {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => (last, rest) = after.split_once('"').unwrap(),
        }
    }
    let mut parts = last.split('{');
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |message, part| message + "{…}" + part.split_once('}').unwrap().1)
}

#[test]
fn the_page_lists_every_event_at_warn_and_error_and_no_other() {
    let listed = rows(EVENTS, "event");
    let listed: BTreeSet<String> = listed.iter().map(|row| row[0].replace('`', "")).collect();
    let sources = sources();
    let mut logged = BTreeSet::new();
    for source in &sources {
        for call in ["warn!(", "error!("] {
            logged.extend(source.split(call).skip(1).map(message));
        }
    }
    // What a notice or a reason says is written elsewhere.
    logged.remove("{…}");
    let missing: Vec<_> = logged.difference(&listed).collect();
    assert!(missing.is_empty(), "missing in docs/reference/events.md: {missing:#?}");
    for event in listed.difference(&logged) {
        let is_written = |part: &str| sources.iter().any(|source| source.contains(part));
        assert!(event.split("{…}").all(is_written), "docs/reference/events.md lists what nothing logs: {event}");
    }
}

/// The names of types are no words for operators, and change with the code.
#[test]
fn no_event_above_debug_has_the_debug_output_of_a_type() {
    let mut wrong = Vec::new();
    for source in &sources() {
        for call in ["info!(", "warn!(", "error!("] {
            for arguments in source.split(call).skip(1) {
                let end = arguments.find(");").unwrap_or(arguments.len());
                let arguments = &arguments[..end];
                let is_debug = |field: &str| {
                    let field = field.trim();
                    field.starts_with('?') || field.contains("= ?") || field.contains(":?}")
                };
                if arguments.split(',').any(is_debug) {
                    wrong.push(format!("{call}{arguments})"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_page_shows_every_command_and_no_other() {
    let shown = COMMANDS.lines().filter_map(|line| line.strip_prefix("$ segue ")?.split(' ').next());
    let line = Cli::command();
    assert_same(
        shown,
        line.get_subcommands().filter(|command| !command.is_hide_set()).map(|command| command.get_name()),
    );
}
