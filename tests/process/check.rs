//! `segue check`: what it says of configuration files, of several together, and of the stores that they name.
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use segue_tests::etcd::Etcd;
use segue_tests::ports::free_address;
use tempfile::TempDir;

use crate::cli::{file, segue, stderr, with_files};
use crate::site::{put_by_hand, segue as run};

fn check(text: &str) -> Output {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, text);
    run(&["check", "--config", path.to_str().unwrap()])
}

#[test]
fn check_says_nothing_about_a_good_file() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/config/segue.example.toml");
    let mut check = segue();
    let output = check.args(["check", "--config", example]).env("SEGUE__POD__WORK_ENDS_WITHIN", "5s").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
}

#[test]
fn files_are_named_with_or_without_the_option() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "keyspace = \"k\"\n[coordinatr]\n");
    let path = path.to_str().unwrap();
    let said = [&["check", path][..], &["check", "--config", path]].map(|words| stderr(&run(words)));
    assert!(said[0].contains("coordinatr") && said[0] == said[1], "{said:?}");
    assert_eq!(run(&["check"]).status.code(), Some(2));
}

#[test]
fn check_warns_of_a_router_whose_clients_choose_the_partition_without_a_word_in_the_file() {
    let router = "keyspace = \"k\"\n[router]\nlimits.max_connections = 100\n";
    let said = stderr(&check(router));
    assert!(
        said.contains("warning: ") && said.contains("router.partition: not written, so the header x-partition"),
        "{said}"
    );
    for written in ["partition.header = \"x-partition\"\n", "partition.key = { path = \"/keys/{key}\" }\n"] {
        assert_eq!(stderr(&check(&format!("{router}{written}"))), "", "{written}");
    }
}

#[test]
fn check_warns_of_a_store_in_memory_in_which_nobody_places_partitions() {
    let router =
        "[store]\nkind = \"memory\"\n[router]\nlimits.max_connections = 100\npartition.header = \"x-partition\"\n";
    let said = stderr(&check(router));
    assert!(said.contains(":2:8: store.kind: ") && said.contains("no [coordinator]"), "{said}");
    assert_eq!(stderr(&check(&format!("{router}[coordinator]\n"))), "");
}

#[test]
fn check_warns_of_a_keyspace_without_a_name_in_a_store_that_others_may_share() {
    let shared = check("[router]\nlimits.max_connections = 100\n");
    assert!(shared.status.success(), "{shared:?}");
    let said = stderr(&shared);
    assert!(said.starts_with("warning: ") && said.contains("keyspace: not written"), "{said}");
    for text in ["keyspace = \"k\"\n[coordinator]\n", "[store]\nkind = \"memory\"\n[coordinator]\n"] {
        assert_eq!(stderr(&check(text)), "", "{text}");
    }
}

#[test]
fn a_keyspace_belongs_to_one_service_in_all_files() {
    let file = |name: &str, service: &str| format!("keyspace = \"k\"\n{service}[coordinator]\nname = \"{name}\"\n");
    let (orders, persons) = ("service = \"orders\"\n", "service = \"persons\"\n");
    let one = file("a", orders);
    assert_eq!(check_together(&[&one, &file("b", orders)]).0, Some(0));
    for other in [persons, ""] {
        let (code, _, said) = check_together(&[&one, &file("b", other)]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("service: "), "{said}");
    }
}

#[test]
fn check_warns_of_a_sidecar_without_fence_alone_and_beside_others() {
    let pod = "[pod]\nname = \"w-0\"\n";
    let alone = check(&format!("keyspace = \"k\"\n{pod}"));
    assert!(alone.status.success(), "{alone:?}");
    for said in [stderr(&alone), check_together(&[ROUTER, pod]).2] {
        assert!(said.contains("warning: ") && said.contains("pod: without fence: "), "{said}");
    }
    for way in
        ["work_ends_within = \"5s\"", "exec = [\"/bin/true\"]", "hooks.lease = { url = \"http://127.0.0.1:1/\" }"]
    {
        assert_eq!(stderr(&check(&format!("keyspace = \"k\"\n{pod}{way}\n"))), "", "{way}");
    }
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
fn a_token_file_that_cannot_be_used_is_a_mistake_with_its_place() {
    let folder = TempDir::new().unwrap();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "\n").unwrap();
    let text = format!(
        "[coordinator]\npartitions = 4\nlisten = \"127.0.0.1:0\"\ntoken_file = {empty:?}\n[admin]\nwrite = \"token\"\n\
         token_file = \"/nowhere/token\"\n"
    );
    let path = file(&folder, &text);
    let checked = run(&["check", "--config", path.to_str().unwrap()]);
    let started = run(&["run", "--config", path.to_str().unwrap()]);
    for output in [checked, started] {
        assert_eq!(output.status.code(), Some(2));
        let said = stderr(&output);
        assert!(
            said.contains("segue.toml:4:14: coordinator.token_file") && said.contains("the file is empty"),
            "{said}"
        );
        assert!(said.contains("segue.toml:7:14: admin.token_file") && said.contains("/nowhere/token"), "{said}");
    }
}

/// `segue check` of several files: its exit code, what it prints, and what it says is wrong.
fn check_together(texts: &[&str]) -> (Option<i32>, String, String) {
    let folder = TempDir::new().unwrap();
    let paths = texts.iter().zip(["a", "b", "c"]).map(|(text, name)| {
        let path = folder.path().join(format!("{name}.toml"));
        std::fs::write(&path, text).unwrap();
        path.into_os_string()
    });
    let mut command = segue();
    // Without a name of the keyspace there would be a warning.
    if !texts.iter().any(|text| text.starts_with("keyspace = ")) {
        command.env("SEGUE__KEYSPACE", "k");
    }
    let output = command.args(["check", "--config"]).args(paths).output().unwrap();
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    (output.status.code(), stdout, stderr(&output))
}

#[test]
fn check_warns_of_a_secret_that_every_user_can_read() {
    let folder = TempDir::new().unwrap();
    let set_mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    set_mode(folder.path(), 0o755);
    let token = folder.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let text = format!(
        "keyspace = \"k\"\n[coordinator]\n[admin]\nlisten = \"127.0.0.1:1\"\nwrite = \"token\"\ntoken_file = {token:?}\n"
    );
    for (mode, warns) in [(0o644, true), (0o640, false)] {
        set_mode(&token, mode);
        let output = check(&text);
        assert!(output.status.success(), "{}", stderr(&output));
        let warning = format!("every user of this machine can read {}", token.display());
        assert_eq!(stderr(&output).contains(&warning), warns, "{mode:o}: {}", stderr(&output));
    }
}

/// Takes few files, so that no machine has too few.
const ROUTER: &str = "[router]\nname = \"r-0\"\nlimits.max_connections = 100\npartition.header = \"x-partition\"\n";

#[test]
fn several_files_are_checked_against_each_other_and_the_promise_is_told() {
    let pod = "[pod]\nname = \"w-0\"\nwork_ends_within = \"5s\"\n";
    let (code, stdout, said) = check_together(&[ROUTER, "[coordinator]\nname = \"c-0\"\n", pod]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(stdout.contains("single writer"), "{stdout}");

    let coordinator = "[coordinator]\nname = \"c-0\"\nphase_timeout = \"30s\"\n";
    let (code, _, said) = check_together(&[ROUTER, coordinator, pod]);
    assert_eq!(code, Some(0), "it works");
    for part in
        ["warning: ", "b.toml:3:17: coordinator.phase_timeout", "30s is not below router.stash.max_wait of router r-0"]
    {
        assert!(said.contains(part), "{part:?} is missing in: {said}");
    }

    let coordinator = "[coordinator]\nname = \"c-0\"\nphase_timeout = \"20s\"\n";
    let (code, _, said) = check_together(&[ROUTER, coordinator]);
    assert_eq!(code, Some(2));
    assert!(said.contains("together 23s, which is not below coordinator.phase_timeout, which is 20s ("), "{said}");

    let (code, _, said) = check_together(&[ROUTER, "[pod]\nname = \"w-0\"\nlease_ttl = \"30s\"\n"]);
    assert!(
        code == Some(0) && said.contains("warning: ") && said.contains("pod.lease_ttl: 30s is not below"),
        "{said}"
    );

    let bounded = |work: &str| format!("[pod]\nname = \"w-0\"\nlease_ttl = \"10s\"\nwork_ends_within = \"{work}\"\n");
    let (code, _, said) = check_together(&[ROUTER, &bounded("20s")]);
    assert!(
        code == Some(0) && said.contains("pod.work_ends_within: 20s and pod.lease_ttl, which is 10s"),
        "its partitions wait for both: {said}"
    );
    assert!(!check_together(&[ROUTER, &bounded("19s")]).2.contains("work_ends_within"));

    let rounds = |coordination: &str, heartbeat: &str| {
        let times = format!("phase_timeout = \"25s\"\nheartbeat = \"{heartbeat}\"\nsettle = \"1s\"\n");
        check_together(&[ROUTER, &format!("[coordinator]\nname = \"c-0\"\ncoordination = \"{coordination}\"\n{times}")])
    };
    let (code, _, said) = rounds("rounds", "29s");
    assert!(
        code == Some(0) && said.contains("coordinator.heartbeat: 29s and coordinator.settle, which is 1s"),
        "{said}"
    );
    for (coordination, heartbeat) in [("rounds", "28s"), ("leader", "29s")] {
        assert!(!rounds(coordination, heartbeat).2.contains("coordinator.heartbeat"), "{coordination}");
    }
    let (code, _, said) = check_together(&[ROUTER, "[coordinator]\nname = \"c-0\"\ncoordination = \"rounds\"\n"]);
    assert_eq!((code, said.as_str()), (Some(0), ""), "nothing is wrong with the defaults");
}

#[test]
fn files_of_one_keyspace_have_names_of_their_own_and_one_mapping_of_requests() {
    let (code, _, said) = check_together(&[ROUTER, ROUTER]);
    assert!(code == Some(2) && said.contains("router.name: \"r-0\" is router.name of another file, too"), "{said}");
    let keyed =
        "[router]\nname = \"r-1\"\nlimits.max_connections = 100\n[router.partition]\nkey = { query = \"id\" }\n";
    let (code, _, said) = check_together(&[ROUTER, keyed]);
    assert!(code == Some(2) && said.contains("router.partition: another mapping"), "{said}");
    let (code, _, said) =
        check_together(&[&format!("keyspace = \"one\"\n{ROUTER}"), &format!("keyspace = \"other\"\n{keyed}")]);
    assert_eq!((code, said.as_str()), (Some(0), ""), "that is another keyspace");
    let (code, _, said) = check_together(&[ROUTER, "[router]\nnam = 1\n", "[pod]\nnam = 1\n"]);
    assert!(code == Some(2) && said.contains("b.toml:2:1") && said.contains("c.toml:2:1"), "{said}");
}

#[test]
fn pods_of_one_keyspace_have_addresses_of_their_own() {
    let pod = |name: &str, address: &str| format!("[pod]\nname = \"{name}\"\nadvertise = \"{address}\"\n");
    for spelling in ["127.0.0.1:8181", "localhost:8181", "[::ffff:127.0.0.1]:8181"] {
        let (code, _, said) = check_together(&[&pod("a", "127.0.0.1:8181"), &pod("b", spelling)]);
        let fact = format!("b.toml:3:13: pod.advertise: {spelling:?} is the address of another pod, too");
        assert!(code == Some(2) && said.contains(&fact), "{said}");
    }
    let (code, _, said) = check_together(&[&pod("a", "127.0.0.1:8181"), &pod("b", "127.0.0.1:8182")]);
    assert!(code == Some(0) && !said.contains("pod.advertise"), "{said}");
}

#[test]
fn check_warns_of_connections_that_may_take_more_files_than_there_are() {
    let folder = TempDir::new().unwrap();
    let text = "keyspace = \"k\"\n[router]\nlimits.max_connections = 600\npartition.header = \"x-partition\"\n";
    let path = file(&folder, text);
    let check = |hard: u32| with_files(64, hard).args(["check", "--config"]).arg(&path).output().unwrap();
    let enough = check(1200);
    assert!(enough.status.success() && enough.stderr.is_empty(), "{}", stderr(&enough));
    let short = check(1199);
    // The machine that will run the file may be another one.
    assert!(short.status.success() && short.stdout.is_empty());
    let said = stderr(&short);
    for part in ["warning: ", "segue.toml:3:26: router.limits.max_connections", "1200 open files", "1199"] {
        assert!(said.contains(part), "{part:?} is missing in: {said}");
    }
}

#[test]
fn check_measures_the_store_of_the_files() {
    let etcd = Etcd::start();
    let folder = TempDir::new().unwrap();
    let text = |endpoint: &str| {
        format!("keyspace = \"k\"\n[store]\nendpoints = [\"{endpoint}\"]\n[coordinator]\nlease_ttl = \"1h\"\n")
    };
    let measure = |path: &Path| run(&["check", "--store", "--config", path.to_str().unwrap()]);
    let output = measure(&file(&folder, &text(&etcd.endpoint())));
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(said.starts_with(&format!("store {}: a write takes ", etcd.endpoint())), "{said}");
    let output = measure(&file(&folder, "[store]\nkind = \"memory\"\n[coordinator]\n"));
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("exists only within its process"),
        "{output:?}"
    );
    let output = measure(&file(&folder, &text(&format!("http://{}", free_address()))));
    assert!(output.status.code() == Some(3) && stderr(&output).contains("unavailable"), "{output:?}");
}

#[test]
fn check_compares_the_files_with_their_keyspaces() {
    let (etcd, folder) = (Etcd::start(), TempDir::new().unwrap());
    let check = |sections: &str| {
        let text = format!("keyspace = \"k\"\n[store]\nendpoints = [\"{}\"]\n{sections}", etcd.endpoint());
        let output = run(&["check", "--store", "--config", file(&folder, &text).to_str().unwrap()]);
        (output.status.code(), stderr(&output))
    };
    let put = |value: &str| put_by_hand(&etcd, "/segue/k/config".to_owned(), value, false);
    let router = |partition: &str| {
        format!("[router]\nlisten = \"127.0.0.1:0\"\nlease_ttl = \"1h\"\n[router.partition]\n{partition}\n")
    };
    let coordinator = |keys: &str| format!("[coordinator]\nlease_ttl = \"1h\"\n{keys}\n");
    let (murmur2, crc32) = (router("key = { header = \"a\" }"), router("key = { header = \"a\" }\nhash = \"crc32\""));
    assert_eq!(check(&crc32), (Some(0), String::new()), "a keyspace without settings takes them from its files");

    put(r#"{"partitions":64,"partitioner":{"key":"header:a","hash":"murmur2"},"planning":{"strategy":"sticky"}}"#);
    assert_eq!(check(&murmur2), (Some(0), String::new()));
    let (code, said) = check(&crc32);
    let mapping = "it maps requests by the crc32 hash of header:a, and keyspace k by the murmur2 hash of header:a";
    assert!(code == Some(2) && said.contains(mapping) && said.contains("segue remap"), "{said}");
    let (code, said) = check(&coordinator("partitions = 128\nstrategy = \"ring\""));
    let both = said.contains("128") && said.contains("strategy is \"ring\" in this coordinator's file and \"sticky\"");
    assert!(code == Some(0) && both, "{said}");
    assert_eq!(check(&coordinator("partitions = 64")), (Some(0), String::new()));
    put(r#"{"partitions":64,"partitioner":{"number":true}}"#);
    let (code, said) = check(&coordinator("partitions = 128"));
    assert!(code == Some(0) && said.contains("the next leader with this file raises that to 128"), "{said}");
    put(r#"{"partitions":64,"protocol":2}"#);
    let (code, said) = check(&coordinator("partitions = 64"));
    assert!(code == Some(2) && said.contains("speaks version 2 of the protocol, and this process version 3"), "{said}");
    put("{");
    let (code, said) = check(&coordinator(""));
    assert!(code == Some(2) && said.contains("cannot be read"), "{said}");
}

#[test]
fn check_asks_every_endpoint_for_its_cluster() {
    let (one, other, folder) = (Etcd::start(), Etcd::start(), TempDir::new().unwrap());
    let learner = one.start_learner();
    let check = |endpoints: [String; 2]| {
        let text = format!("[store]\nendpoints = {endpoints:?}\n[coordinator]\nlease_ttl = \"1h\"\n");
        run(&["check", "--store", "--config", file(&folder, &text).to_str().unwrap()])
    };
    let output = check([one.endpoint(), other.endpoint()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("different etcd clusters"), "{said}");
    assert!(said.contains(&format!("{} to ", one.endpoint())), "{said}");
    assert!(said.contains(&format!("{} to ", other.endpoint())), "{said}");
    let output = check([learner.endpoint(), one.endpoint()]);
    assert!(output.status.success(), "{output:?}");
    assert!(stderr(&output).contains(&format!("{} is a learner", learner.endpoint())), "{}", stderr(&output));
    let output = check([format!("http://{}", free_address()), one.endpoint()]);
    assert!(output.status.success() && stderr(&output).contains("refused"), "{output:?}");
}

#[test]
fn check_compares_kubernetes_manifests_with_their_configurations() {
    let without_fence = include_str!("../../src/checks/kubernetes/good.yaml");
    let good = without_fence.replace("    upstream =", "    work_ends_within = \"5s\"\n    upstream =");
    let run = |text: &str| {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("all.yaml");
        std::fs::write(&path, text).unwrap();
        let output = segue().args(["check", "--kubernetes"]).arg(path).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output))
    };
    let (code, promise, said) = run(&good);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(promise.contains("single writer"), "{promise}");
    let (code, _, said) = run(without_fence);
    assert!(code == Some(0) && said.contains("warning: ") && said.contains("pod: without fence"), "{said}");

    let (code, _, said) = run(&good.replace("terminationGracePeriodSeconds: 90", "terminationGracePeriodSeconds: 30"));
    assert_eq!(code, Some(2));
    assert!(said.contains("all.yaml:37:38: StatefulSet writer, container segue: the grace period is 30s"), "{said}");

    let (code, _, said) = run(&good.replace("[pod]\n", "[pod]\n    lease_ttl = \"30s\"\n"));
    assert!(
        code == Some(0) && said.contains("warning: ConfigMap writer: segue.toml:2:13: pod.lease_ttl: 30s is not"),
        "{said}"
    );
}
