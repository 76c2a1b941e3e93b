//! What a handoff waits for, as everybody who is asked says it, and requests that wait themselves.

use std::net::TcpStream;

use segue_coordination::session::unix_millis;
use segue_tests::http::Request;
use segue_tests::process::until;
use serde_json::{Value, json};

use super::site::{Site, says, text};

/// Most that `/status` lists of what a handoff waits for.
const LISTED: usize = 16;
/// Most requests that wait at a time.
const MOST_WAITS: usize = 32;

/// Returns what a handoff waits for, without the ages, which depend on who says it and when.
fn ageless(handoff: &Value) -> Vec<Value> {
    let mut waits = handoff["waits"].as_array().unwrap().clone();
    waits.iter_mut().for_each(|wait| drop(wait.as_object_mut().unwrap().remove("age_ms")));
    waits
}

#[test]
fn everybody_says_the_same_of_what_a_handoff_waits_for_and_since_when() {
    // Nothing ends by its time before the test has looked at it.
    let site = Site::with_token_and(&["w-0", "w-1"], |config| config.set("coordinator.phase_timeout", "10m"));
    let register = |name: &str, at: u64| {
        site.register(|keys| keys.router(name), &json!({ "router_name": name, "registered_at": at }));
    };
    // More routers than are listed, which never acknowledge. One of them registers later.
    let early: Vec<String> = (0..LISTED).map(|router| format!("r-{router:02}")).collect();
    early.iter().for_each(|name| register(name, 7));
    let to = if site.owner(3) == "w-0" { "w-1" } else { "w-0" };
    site.does("POST", "/v1/moves", &format!(r#"{{"partition":3,"to":"{to}"}}"#));
    let handoff = || site.read("/status")["keyspace"]["handoffs"][0].clone();
    until("a handoff that waits for routers", || handoff()["phase"] == "Ready");
    let registered = unix_millis() + 1_000_000;
    register("late", registered);
    until("the late router", || handoff()["waits"][0]["name"] == "late");

    let shown = handoff();
    let (waits, began) = (shown["waits"].as_array().unwrap(), shown["waits"][1]["since"].as_u64().unwrap());
    assert_eq!(waits.len(), LISTED, "{shown}");
    let line = |name: &str, since: u64| json!({ "kind": "router", "name": name, "what": format!("router {name} to drain"), "since": since });
    let early = early.iter().map(|name| line(name, began));
    let expected: Vec<Value> = [line("late", registered)].into_iter().chain(early).collect();
    assert_eq!(ageless(&shown), expected[..LISTED]);
    let age = waits[1]["age_ms"].as_u64().unwrap();
    assert!(age < unix_millis() - began + 1 && waits[0]["age_ms"] == 0, "{shown}");
    let last = expected[LISTED]["what"].as_str().unwrap();
    assert!(shown["waiting_for"].as_str().unwrap().ends_with(last), "{shown}");

    // The explanation lists all of them, and another process reads the same times in the store.
    assert_eq!(ageless(&site.read("/v1/partitions/3")["handoff"]), expected);
    let (code, said) = says(&["status", "--json", "--etcd", &site.cluster.etcd().endpoint()]);
    assert_eq!(code, Some(0), "{said}");
    let other: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(ageless(&other["handoffs"][0]), expected[..LISTED]);
}

#[test]
fn those_who_wait_keep_nobody_from_asking_and_acting() {
    let site = Site::with_token(&["w-0"]);
    // It never holds: there is no other pod.
    let path = |time: &str| format!("/v1/wait/drained/w-0?wait={time}");
    let brief = || Request::get(&path("1ms")).send(site.admin).unwrap();
    let first = brief();
    assert_eq!((first.status, text(&first, "reason").as_str()), (202, "waiting"), "{}", first.body);
    assert!(text(&first, "error").starts_with("pod w-0 owns 16 partitions, 0 on the move"), "{}", first.body);

    let waiting: Vec<TcpStream> = (0..MOST_WAITS).map(|_| site.ask(&path("50s"))).collect();
    let mut refused = first;
    until("a wait without a place", || {
        refused = brief();
        refused.status == 503
    });
    assert_eq!(text(&refused, "reason"), "busy", "{}", refused.body);
    assert!(text(&refused, "error").contains("try again, or ask another process"), "{}", refused.body);
    assert!(refused.head.contains("\r\nretry-after: 1"), "{}", refused.head);
    assert_eq!(site.owner(3), "w-0");
    assert!(site.does("POST", "/v1/planner", r#"{"paused":true}"#).contains("paused until"));

    drop(waiting);
    until("a place of one who has gone", || brief().status == 202);
}
