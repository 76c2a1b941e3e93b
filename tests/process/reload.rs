//! What SIGHUP takes over in a running process, and what it names.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use segue_tests::http::{Request, get, is_ready, metric};
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use tempfile::TempDir;

fn file(folder: &TempDir, text: &str) -> PathBuf {
    let path = folder.path().join("segue.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn start(folder: &Path, config: &Path) -> Process {
    Process::start("segue", folder, Command::new(env!("CARGO_BIN_EXE_segue")).args(["run", "--config"]).arg(config))
}

#[test]
fn a_hang_up_takes_the_log_level_over_and_names_what_needs_a_restart() {
    let folder = TempDir::new().unwrap();
    let text = |level: &str| format!("[store]\nkind = \"memory\"\n[coordinator]\n[log]\nlevel = \"{level}\"\n");
    let path = file(&folder, &text("info"));
    let log = folder.path().join("segue.log");
    let printed = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    let mut process = start(folder.path(), &path);
    process.until("its start", || printed("running"));
    std::fs::write(&path, text("loud")).unwrap();
    process.signal("HUP");
    process.until("a refusal", || printed("configuration reload rejected"));
    std::fs::write(&path, text("debug")).unwrap();
    process.signal("HUP");
    process.until("the new level", || printed("configuration reloaded"));
    std::fs::write(&path, text("debug") + "[admin]\nlisten = \"127.0.0.1:0\"\n").unwrap();
    process.signal("HUP");
    process.until("the name of the other setting", || {
        printed("settings that have changed take effect with a restart keys=\"admin.listen\"")
    });
    let logged = std::fs::read_to_string(&log).unwrap();
    assert_eq!(logged.matches("take effect with a restart").count(), 1, "the level alone needs none: {logged}");
    assert!(process.terminate().0.success());
}

#[test]
fn a_hang_up_takes_the_limits_of_the_stash_over_unless_they_do_not_go_with_what_stays() {
    let folder = TempDir::new().unwrap();
    let (router, admin) = (free_address(), free_address());
    let text = |requests: u32, max_wait: &str, drain: &str| {
        format!(
            "[store]\nkind = \"memory\"\n[router]\nlisten = \"{router}\"\nstash = {{ max_requests = {requests}, \
             max_wait = \"{max_wait}\" }}\ndrain = {{ timeout = \"{drain}\" }}\n[coordinator]\n[admin]\nlisten = \"{admin}\"\n"
        )
    };
    let path = file(&folder, &text(10, "10m", "5s"));
    let log = || std::fs::read_to_string(folder.path().join("segue.log")).unwrap();
    let mut process = start(folder.path(), &path);
    process.until("/ready", || is_ready(admin));
    let to_one_partition = || Request::get("/").header("x-partition", 0).timeout(Duration::from_secs(600));
    let hold = || {
        let request = to_one_partition();
        std::thread::spawn(move || request.send(router))
    };
    let holds = |process: &mut Process, count: f64| {
        let held = || metric(&get(admin, "/metrics").unwrap_or_default().1, "segue_stash_requests");
        process.until("the requests that are held", || held() == Some(count));
    };
    let reload = |process: &mut Process, text: String, outcome: &str| {
        let before = log().matches(outcome).count();
        std::fs::write(&path, text).unwrap();
        process.signal("HUP");
        process.until(outcome, || log().matches(outcome).count() > before);
    };
    let mut held = vec![hold()];
    holds(&mut process, 1.0);
    reload(&mut process, text(1, "10m", "5s"), "configuration reloaded");
    let refused = to_one_partition().send(router).unwrap();
    assert!(refused.status == 503 && refused.body.contains("stash-full"), "{refused:?}");

    // The file is right by itself, but the drain of this process takes as long as before.
    reload(&mut process, text(5, "4s", "1s"), "configuration reload rejected");
    assert!(log().contains("is not above the router.drain.timeout of this process, 5s"), "{}", log());
    let refused = to_one_partition().send(router).unwrap();
    assert!(refused.status == 503 && refused.body.contains("stash-full"), "nothing of it has changed: {refused:?}");

    reload(&mut process, text(2, "9m", "5s"), "configuration reloaded");
    held.push(hold());
    holds(&mut process, 2.0);
    assert!(!log().contains("take effect with a restart"), "{}", log());
    reload(&mut process, text(2, "9m", "6s"), "take effect with a restart keys=\"router.drain.timeout\"");
    let (status, _) = process.terminate();
    assert!(status.success());
    for request in held {
        assert!(request.join().unwrap().unwrap().body.contains("\"shutdown\""), "it was held to the end");
    }
}

#[test]
fn a_hang_up_takes_the_numbers_of_the_limits_of_keys_over_and_names_the_rest() {
    let folder = TempDir::new().unwrap();
    let (router, admin) = (free_address(), free_address());
    let text = |limits: &str| {
        format!(
            "[store]\nkind = \"memory\"\n[router]\nlisten = \"{router}\"\nstash = {{ max_wait = \"10m\" }}\n\
             drain = {{ timeout = \"5s\" }}\npartition = {{ key = {{ header = \"x-key\" }} }}\n{limits}\n\
             [coordinator]\n[admin]\nlisten = \"{admin}\"\n"
        )
    };
    let path = file(&folder, &text("limits.key = { max_in_flight = 1 }"));
    let log = || std::fs::read_to_string(folder.path().join("segue.log")).unwrap();
    let mut process = start(folder.path(), &path);
    process.until("/ready", || is_ready(admin));
    let of_key = || Request::get("/").header("x-key", "a").timeout(Duration::from_secs(600));
    let mut held = Vec::new();
    let mut hold = |process: &mut Process, count: f64| {
        let request = of_key();
        held.push(std::thread::spawn(move || request.send(router)));
        let counted = || metric(&get(admin, "/metrics").unwrap_or_default().1, "segue_stash_requests");
        process.until("the requests that are held", || counted() == Some(count));
        let refused = of_key().send(router).unwrap();
        assert!(refused.status == 429 && refused.body.contains("\"rate\""), "{refused:?}");
    };
    let reload = |process: &mut Process, limits: &str, outcome: &str| {
        let before = log().matches(outcome).count();
        std::fs::write(&path, text(limits)).unwrap();
        process.signal("HUP");
        process.until(outcome, || log().matches(outcome).count() > before);
    };
    hold(&mut process, 1.0);
    reload(&mut process, "limits.key = { max_in_flight = 2 }", "configuration reloaded");
    hold(&mut process, 2.0);
    assert!(!log().contains("take effect with a restart"), "{}", log());
    let waiting = |key: &str| format!("take effect with a restart keys=\"{key}\"");
    let by = "limits.key = { max_in_flight = 3, by = { header = \"x-tenant\" } }";
    reload(&mut process, by, &waiting("router.limits.key.by.header"));
    hold(&mut process, 3.0);
    reload(&mut process, "", &waiting("router.limits.key.max_in_flight"));
    assert_eq!(of_key().send(router).unwrap().status, 429, "they stay");
    assert!(process.terminate().0.success());
    for request in held {
        assert!(request.join().unwrap().unwrap().body.contains("\"shutdown\""), "it was held to the end");
    }
}

#[test]
fn a_hang_up_names_a_default_that_follows_from_a_setting_and_waits_for_a_restart() {
    let folder = TempDir::new().unwrap();
    let (router, admin) = (free_address(), free_address());
    let text = |max_wait: &str| {
        format!(
            "[store]\nkind = \"memory\"\n[router]\nlisten = \"{router}\"\nstash = {{ max_wait = \"{max_wait}\" }}\n\
             [coordinator]\n[admin]\nlisten = \"{admin}\"\n"
        )
    };
    let path = file(&folder, &text("12s"));
    let printed = |what: &str| std::fs::read_to_string(folder.path().join("segue.log")).unwrap().contains(what);
    let mut process = start(folder.path(), &path);
    process.until("/ready", || is_ready(admin));
    std::fs::write(&path, text("30s")).unwrap();
    process.signal("HUP");
    process.until("the name of the default", || printed("take effect with a restart keys=\"router.drain.timeout\""));
    assert!(process.terminate().0.success());
}

#[test]
fn a_hang_up_takes_the_stash_of_one_of_several_keyspaces_over_and_names_the_rest_by_its_number() {
    let folder = TempDir::new().unwrap();
    let (router, admin) = (free_address(), free_address());
    let text = |orders: &str, persons: &str| {
        let keyspace = |name: &str, more: &str| {
            format!(
                "[[keyspaces]]\nname = \"{name}\"\nmatch = {{ path_prefix = \"/{name}\" }}\n\
                 partition = {{ header = \"x-partition\" }}\npartitions = 2\n{more}\n"
            )
        };
        format!(
            "[store]\nkind = \"memory\"\n[router]\nlisten = \"{router}\"\ndrain = {{ timeout = \"5s\" }}\n\
             [coordinator]\n[admin]\nlisten = \"{admin}\"\n{}{}",
            keyspace("orders", orders),
            keyspace("persons", persons)
        )
    };
    let stash = |requests: u32| format!("stash = {{ max_requests = {requests}, max_wait = \"10m\" }}");
    let path = file(&folder, &text(&stash(1), &stash(1)));
    let log = || std::fs::read_to_string(folder.path().join("segue.log")).unwrap();
    let mut process = start(folder.path(), &path);
    process.until("/ready", || is_ready(admin));
    let to = |keyspace: &str| {
        Request::get(&format!("/{keyspace}/x")).header("x-partition", 0).timeout(Duration::from_secs(600))
    };
    let held = |keyspace: &str| {
        let series = format!("segue_stash_requests{{keyspace=\"{keyspace}\"}}");
        metric(&get(admin, "/metrics").unwrap_or_default().1, &series)
    };
    let mut waiting = Vec::new();
    let mut hold = |process: &mut Process, keyspace: &'static str, count: f64| {
        let request = to(keyspace);
        waiting.push(std::thread::spawn(move || request.send(router)));
        process.until("the requests that are held", || held(keyspace) == Some(count));
    };
    let is_full = |keyspace: &str| {
        let refused = to(keyspace).send(router).unwrap();
        assert!(refused.status == 503 && refused.body.contains("stash-full"), "{keyspace}: {refused:?}");
    };
    let reload = |process: &mut Process, text: String, outcome: &str| {
        let before = log().matches(outcome).count();
        std::fs::write(&path, text).unwrap();
        process.signal("HUP");
        process.until(outcome, || log().matches(outcome).count() > before);
    };
    for keyspace in ["orders", "persons"] {
        hold(&mut process, keyspace, 1.0);
        is_full(keyspace);
    }

    reload(&mut process, text(&stash(2), &stash(1)), "configuration reloaded");
    hold(&mut process, "orders", 2.0);
    is_full("persons");
    is_full("orders");
    assert!(!log().contains("take effect with a restart"), "{}", log());

    let too_short = "stash = { max_wait = \"4s\" }";
    reload(&mut process, text(&stash(9), too_short), "configuration reload rejected");
    is_full("orders");

    let waits = "take effect with a restart keys=\"keyspaces.1.strategy\"";
    reload(&mut process, text(&stash(2), &(stash(1) + "\nstrategy = \"jump\"")), waits);
    is_full("persons");
    let waits =
        "take effect with a restart keys=\"keyspaces.0.max_warming_per_pod, keyspaces.1.max_concurrent_handoffs\"";
    let limits = ["max_warming_per_pod = 2", "max_concurrent_handoffs = 3"];
    let [orders, persons] = [2, 1].map(stash);
    let changed = text(&format!("{orders}\n{}", limits[0]), &format!("{persons}\n{}", limits[1]));
    reload(&mut process, changed, waits);
    assert!(process.terminate().0.success());
    for request in waiting {
        assert!(request.join().unwrap().unwrap().body.contains("\"shutdown\""), "it was held to the end");
    }
}
