//! What rests after failed moves, as a live keyspace shows it.

use segue_protocol::records::BackOffSubject;
use segue_tests::process::until;
use serde_json::Value;

use super::site::{Site, says};

#[test]
fn a_pod_that_never_gets_warm_is_shown_to_rest_by_everybody_who_is_asked() {
    // Each further failure doubles the rest, so one is long enough to be seen, however busy the machine is.
    let site = Site::start(&["w-0"], |_, config| config.set("coordinator.warm_timeout", "500ms"));
    site.register(|keys| keys.pod("w-9"), &serde_json::json!({ "pod_name": "w-9", "address": "127.0.0.1:1" }));
    let (server, etcd) = (format!("http://{}", site.admin), site.cluster.etcd().endpoint());
    let history = || site.read("/v1/history?limit=1")["resting"].clone();
    let status = |reach: [&str; 2]| -> Value {
        let (code, said) = says(&[&["status", "--json"][..], &reach].concat());
        assert_eq!(code, Some(0), "{said}");
        serde_json::from_str::<Value>(&said).unwrap()["resting"].clone()
    };
    let mut rest = Value::Null;
    until("a rest of the pod that everybody shows", || {
        let shown = [history(), status(["--server", &server]), status(["--etcd", &etcd])];
        let is_of_pod = |rest: &&Value| rest["of"] == serde_json::json!(BackOffSubject::Pod);
        rest = shown[0].as_array().unwrap().iter().find(is_of_pod).cloned().unwrap_or_default();
        rest.is_object() && shown.iter().all(|one| *one == shown[0])
    });
    assert_eq!((&rest["pod"], &rest["what"]), (&"w-9".into(), &"pod w-9 gets no more partitions".into()), "{rest}");
    let why = rest["why"].as_str().unwrap();
    assert!(why.contains(" to w-9: the new owner did not get warm in time"), "{rest}");

    let says_so = |words: &[&str]| {
        says(&[words, &["--server", &server]].concat()).1.contains("\nresting     pod w-9 gets no more partitions for ")
    };
    until("a line of segue status", || says_so(&["status"]));
    until("a line of segue explain", || says_so(&["explain", "w-9"]));
}
