//! An etcd whose database is full while nothing moves, one that refuses a single pod, and one that is silent: what operators
//! and clients are shown.

use std::net::{SocketAddr, TcpListener};

use segue_tests::cluster::TestCluster;
use segue_tests::etcd_admin;
use segue_tests::http::{Request, get, is_ready, metric};
use segue_tests::ports::free_address;

use crate::site::SEGUE;

const WORDS: &str = "database space exceeded";

fn says(words: &[&str]) -> String {
    crate::site::says(words).1
}

#[test]
fn a_full_store_is_shown_by_status_explain_log_and_metrics_though_nothing_moves() {
    let cluster = TestCluster::start(SEGUE);
    let (leader, other) = (free_address(), free_address());
    let mut coordinator = cluster.run("c-0", &cluster.config().coordinator("c-0", 2).admin(leader).quick());
    let router = cluster.config().router("r-0", free_address()).admin(other).quick();
    let mut router = cluster.run("r-0", &router);
    let value = |name: &str| metric(&get(leader, "/metrics")?.1, name);
    coordinator.until("a leader", || value("segue_leader") == Some(1.0));
    router.until("/ready", || is_ready(other));
    let refused = r#"segue_store_errors_total{op="commit",kind="no_space"}"#;
    assert_eq!((value(refused), value("segue_store_refuses_writes")), (Some(0.0), Some(0.0)));

    cluster.etcd().set_full(true);
    let ways = [["--server", &format!("http://{other}")], ["--etcd", &cluster.etcd().endpoint()]];
    for way in &ways {
        let status = says(&[&["status"][..], way].concat());
        assert!(status.contains("store       refuses writes: ") && status.contains(WORDS), "{status}");
        let explained = says(&[&["explain", "0"][..], way].concat());
        let first = explained.lines().find(|line| line.starts_with("next step")).unwrap();
        assert!(first.contains("mend the store, which refuses writes") && first.contains(WORDS), "{explained}");
    }
    coordinator.until("the leader's gauge", || value("segue_store_refuses_writes") == Some(1.0));
    assert!(value(refused) >= Some(1.0) && value("segue_store_up") == Some(0.0));
    coordinator
        .until("the notice", || get(leader, "/status").is_some_and(|(_, status)| status.contains("refuses writes")));
    let (code, ready) = get(leader, "/ready").unwrap();
    let note = ready.strip_prefix("ready\nthe store refuses writes: ");
    assert!(code == 200 && note.is_some_and(|words| words.contains(WORDS)), "requests flow: {ready}");
    let log = cluster.output("c-0");
    let line = log.lines().find(|line| line.contains("the store refuses writes; no move begins")).expect(&log);
    assert!(line.contains(WORDS), "{line}");
    let told = log.lines().filter(|line| line.contains("WARN") && line.contains(WORDS)).count();
    assert_eq!(told, 1, "{log}");
    let status = says(&["status", "--server", &format!("http://{leader}")]);
    assert!(status.contains(WORDS), "{status}");

    cluster.etcd().set_full(false);
    coordinator.until("the end", || value("segue_store_refuses_writes") == Some(0.0));
    for way in &ways {
        assert!(!says(&[&["status"][..], way].concat()).contains("refuses writes"));
    }
}

#[test]
fn a_pod_whose_writes_alone_the_store_refuses_is_named_with_the_words_of_the_store() {
    let cluster = TestCluster::start(SEGUE);
    let etcd: SocketAddr = cluster.etcd().endpoint().trim_start_matches("http://").parse().unwrap();
    etcd_admin::enable_users(etcd, "one").unwrap();
    etcd_admin::add_registrant(etcd, "registrant", "other").unwrap();
    let config = |user: &str, password: &str| {
        let file = cluster.path().join(user);
        std::fs::write(&file, password).unwrap();
        cluster.config().set("store.username", user).set("store.password_file", file.to_str().unwrap())
    };
    let (leader, admin, service) = (free_address(), free_address(), TcpListener::bind("127.0.0.1:0").unwrap());
    // One partition, so a report goes alone: this etcd does not check transactions within a transaction (GHSA-rfx7-8w68-q57q).
    let coordinator = config(etcd_admin::USER, "one").coordinator("c-0", 1).admin(leader).quick();
    let mut coordinator = cluster.run("c-0", &coordinator);
    let pod = |user: &str, password: &str, name: &str, admin: SocketAddr| {
        let config = config(user, password).pod(name, free_address(), service.local_addr().unwrap());
        cluster.run(name, &config.admin(admin).quick())
    };
    let server = ["--server", &format!("http://{leader}")];
    let explained = |what: &str| says(&[&["explain", what][..], &server].concat());
    let mut owner = pod(etcd_admin::USER, "one", "w-1", free_address());
    owner.until("it owns the partition", || explained("0").contains("w-1"));
    let mut refused = pod("registrant", "other", "w-0", admin);
    refused.until("/ready", || is_ready(admin));
    let file = cluster.path().join("c-0.toml");
    says(&["move", "0", "--to", "w-0", "--no-wait", "--config", file.to_str().unwrap()]);
    let step = "next step   let the store accept the writes of pod w-0, which it refuses: ";
    for what in ["0", "w-0"] {
        coordinator.until("who is refused", || explained(what).contains(step));
        let text = explained(what);
        let first = text.lines().find(|line| line.starts_with("next step")).unwrap();
        assert!(first.starts_with(step) && first.contains("permission denied"), "{text}");
    }
    let status = says(&[&["status"][..], &server].concat());
    assert!(!status.contains("refuses writes"), "it refuses one pod alone: {status}");
}

#[test]
fn an_outage_of_the_store_is_told_once() {
    let cluster = TestCluster::start(SEGUE);
    let (router, admin) = (free_address(), free_address());
    let config = cluster.config().coordinator("c-0", 2).router("r-0", router).admin(admin).lease("router", "3s");
    let config = config.set("router.stash.max_wait", "4s").set("router.drain.timeout", "3s").quick();
    let mut process = cluster.run("segue", &config);
    process.until("/ready", || is_ready(admin));
    let ask = || Request::get("/").header("x-partition", 0).timeout(std::time::Duration::from_secs(60)).send(router);
    assert!(ask().is_some_and(|answer| answer.head.contains("segue-reason: no-owner")));
    let begun = std::time::Instant::now();
    cluster.etcd().pause();
    process.until("a line about it", || cluster.output("segue").contains("the store has not answered for"));
    process.until("the router's fence", || !is_ready(admin));
    let ready = get(admin, "/ready").map(|(_, text)| text).unwrap_or_default();
    assert!(ready.lines().any(|line| line.starts_with("the store has not answered for ")), "{ready}");
    assert!(ask().is_some_and(|answer| answer.head.contains("segue-reason: fenced")));
    let log = cluster.output("segue");
    let half_minutes = usize::try_from(begun.elapsed().as_secs()).unwrap() / 30;
    let lines = |words: &str| log.lines().filter(|line| line.contains("WARN") && line.contains(words)).count();
    assert!(lines("the store has not answered for") <= 1 + half_minutes, "{log}");
    assert_eq!(lines("control loop makes no progress"), 0, "{log}");
    assert!(lines("store watch lost; resyncing") <= 2, "one for each role: {log}");
    cluster.etcd().resume();
    process.until("its end", || cluster.output("segue").contains("the store answers again"));
}
