//! What operators read of statuses that processes send.

use segue_protocol::ids::PartitionId;
use serde_json::json;

use super::super::explain::AskedParticipant;
use super::ProcessStatus;

fn says(kind: &str, status: serde_json::Value) -> String {
    says_by(kind, false, status)
}

fn says_by(kind: &str, by_stream: bool, status: serde_json::Value) -> String {
    let status: ProcessStatus = serde_json::from_value(status).unwrap();
    let (kind, name) = (kind.to_owned(), "a".to_owned());
    let one = AskedParticipant { kind, name, admin: None, by_stream, says: None };
    status.of_partition(&one, PartitionId::new(3)).unwrap_or_else(|error| error.to_string())
}

#[test]
fn a_router_says_what_it_does_with_the_partition() {
    let line = |partition| json!({ "partition": partition, "stage": "draining", "in_flight": 4, "stashed": 12 });
    let router = json!({ "router": { "not_ready": null, "partitions": [line(3)] } });
    assert_eq!(says("router", router), "the partition is draining, 4 in flight, 12 held");
    let lasting =
        json!({ "partition": 3, "stage": "draining", "in_flight": 4, "streams": 1, "oldest_ms": 12340, "stashed": 0 });
    let router = json!({ "router": { "not_ready": null, "partitions": [lasting] } });
    let expected = "the partition is draining, 4 in flight (1 is a stream, the oldest for 12.3 s), 0 held";
    assert_eq!(says("router", router), expected);
    let known = json!({ "partition": 3, "stage": "draining", "in_flight": 4, "streams": 1, "oldest_ms": 12340,
        "oldest": { "method": "GET", "path": "/feed/7", "client": "203.0.113.7" }, "severs_streams_in_ms": 1200,
        "severs_in_ms": 19_000, "gives_up_in_ms": null, "stashed": 0 });
    let router = json!({ "router": { "not_ready": null, "partitions": [known] } });
    let expected = "the partition is draining, 4 in flight (1 is a stream, the oldest for 12.3 s: GET /feed/7 of \
                    203.0.113.7; streams are severed in 1.2 s, whatever is left is severed in 19.0 s), 0 held";
    assert_eq!(says("router", router), expected);
    let given_up = json!({ "partition": 3, "stage": "draining", "in_flight": 4, "streams": 1, "oldest_ms": null,
        "oldest": null, "severs_streams_in_ms": null, "severs_in_ms": null, "gives_up_in_ms": 500, "stashed": 0 });
    let router = json!({ "router": { "not_ready": null, "partitions": [given_up] } });
    let expected = "the partition is draining, 4 in flight (1 is a stream; the router gives the move up in 500 ms), \
                    0 held";
    assert_eq!(says("router", router), expected);
    let router = json!({ "router": { "not_ready": "no store", "partitions": [line(2)] } });
    assert_eq!(says("router", router), "not ready: no store; it does not know the partition");
}

#[test]
fn a_sidecar_says_how_far_its_hook_is_and_why_it_failed() {
    let hook = |more: serde_json::Value| {
        let mut hook = json!({ "partition": 3, "hook": "warm", "running": true, "for_ms": 1500, "progress": null,
            "detail": null, "failures": 0, "failure": null });
        hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let requests = json!([{ "partition": 4, "in_flight": 2 }]);
        json!({ "pod": { "not_ready": null, "service_up": true, "in_flight": 7, "requests": requests, "hooks": [hook] } })
    };
    let running = hook(json!({ "progress": 0.4, "detail": "7 of 20 files" }));
    assert_eq!(says("pod", running), "hook warm runs, for 1.5 s, 40 % done (7 of 20 files)");
    let failed = hook(json!({ "running": false, "failures": 3, "failure": "503" }));
    let expected = "hook warm waits for its next attempt, for 1.5 s; it has failed 3 times in a row, with: 503";
    assert_eq!(says("pod", failed), expected);
    assert_eq!(
        says("pod", hook(json!({ "partition": 2 }))),
        "no hook runs for the partition, 7 requests in flight in all"
    );
    let requests = json!([{ "partition": 4, "in_flight": 5 }, { "partition": 3, "in_flight": 2 }]);
    let pod = json!({ "not_ready": null, "service_up": true, "in_flight": 7, "requests": requests, "hooks": [] });
    let expected = "no hook runs for the partition, 2 of 7 requests in flight are its own";
    assert_eq!(says("pod", json!({ "pod": pod })), expected);
    let oldest = json!({ "method": "POST", "path": "/w/7", "client": "203.0.113.7" });
    let requests = json!([{ "partition": 3, "in_flight": 2, "oldest_ms": 12340, "oldest": oldest }]);
    let pod = json!({ "not_ready": null, "service_up": true, "in_flight": 7, "requests": requests, "hooks": [] });
    let expected = "no hook runs for the partition, 2 of 7 requests in flight are its own (the oldest for 12.3 s: \
                    POST /w/7 of 203.0.113.7)";
    assert_eq!(says("pod", json!({ "pod": pod })), expected);
}

#[test]
fn a_sidecar_with_a_stream_says_which_task_is_due_and_how_far_it_is() {
    let pod = |stream: serde_json::Value| {
        let pod = json!({ "not_ready": null, "service_up": true, "in_flight": 7, "hooks": [], "stream": stream });
        json!({ "pod": pod })
    };
    let task =
        |partition, progress| json!({ "partition": partition, "handoff": 9, "task": "warm", "progress": progress });
    let stream = |tasks| pod(json!({ "pod": "a", "behind": 0, "is_stuck": false, "tasks": tasks, "load": null }));
    let half = json!({ "fraction": 0.5, "detail": "7 of 14 files" });
    let two = stream(vec![task(2, json!(null)), task(3, half)]);
    assert_eq!(says("pod", two), "task warm is due, 50 % done (7 of 14 files)");
    let silent = stream(vec![task(3, json!(null))]);
    assert_eq!(says("pod", silent), "task warm is due, no progress reported");
    let none = stream(vec![task(2, json!(null))]);
    assert_eq!(says("pod", none), "no task is due for the partition, 7 requests in flight in all");
    let unopened = pod(json!(null));
    assert_eq!(says("pod", unopened), "no hook runs for the partition, 7 requests in flight in all");
}

#[test]
fn the_coordinator_that_serves_a_pod_says_which_task_is_due_and_how_far_it_is() {
    let stream = |pod, is_stuck, partition| {
        let progress = json!({ "fraction": 0.5, "detail": "7 of 14 files" });
        let task = json!({ "partition": partition, "handoff": 9, "task": "warm", "progress": progress });
        json!({ "pod": pod, "behind": 0, "is_stuck": is_stuck, "tasks": [task], "load": null })
    };
    let status = |streams: serde_json::Value| json!({ "coordinator": { "leads": true, "pod_streams": streams } });
    let served = |is_stuck, partition| {
        says_by("pod", true, status(json!([stream("b", false, 3), stream("a", is_stuck, partition)])))
    };
    assert_eq!(served(false, 3), "task warm is due, 50 % done (7 of 14 files)");
    assert_eq!(served(true, 2), "it applies no events, so its lease is not renewed; no task is due for the partition");
    for gone in [json!([stream("b", false, 3)]), json!(null)] {
        let expected = "the coordinator that served it last does not serve it now";
        assert_eq!(says_by("pod", true, status(gone)), expected);
    }
    let other = json!({ "router": null, "pod": null });
    assert_eq!(says_by("pod", true, other), "the process that served it runs no coordinator now");
}

#[test]
fn a_pod_says_all_that_it_works_on_and_what_is_wrong_with_it() {
    let all = |status: serde_json::Value, by_stream| {
        let status: ProcessStatus = serde_json::from_value(status).unwrap();
        let (kind, name) = ("pod".to_owned(), "a".to_owned());
        let (says, work) = status.of_pod(&AskedParticipant { kind, name, admin: None, by_stream, says: None }).unwrap();
        (says, work.into_iter().map(|work| (work.partition.get(), work.says)).collect::<Vec<_>>())
    };
    let tasks = json!([
        { "partition": 2, "task": "sync", "progress": null },
        { "partition": 3, "task": "warm", "progress": { "fraction": 0.25, "detail": "" } },
    ]);
    let due =
        vec![(2, "task sync is due, no progress reported".to_owned()), (3, "task warm is due, 25 % done".to_owned())];
    let stream = json!({ "pod": "a", "is_stuck": true, "tasks": tasks });
    let served = json!({ "coordinator": { "pod_streams": [stream] } });
    assert_eq!(all(served, true), ("it applies no events, so its lease is not renewed".to_owned(), due.clone()));
    let sidecar = |hooks: serde_json::Value, stream: serde_json::Value| {
        let pod = json!({ "not_ready": null, "service_up": false, "in_flight": 7, "hooks": hooks, "stream": stream });
        json!({ "pod": pod })
    };
    let stuck = "its service is down; it applies no events, so its lease is not renewed; 7 requests in flight";
    assert_eq!(all(sidecar(json!([]), stream), false), (stuck.to_owned(), due));
    let idle = "its service is down; no hook runs; 7 requests in flight";
    assert_eq!(all(sidecar(json!([]), json!(null)), false), (idle.to_owned(), vec![]));
}

#[test]
fn a_process_says_in_which_words_the_store_refuses_its_writes() {
    let refusal = |keyspace: serde_json::Value| {
        let status: ProcessStatus = serde_json::from_value(json!({ "pod": null, "keyspace": keyspace })).unwrap();
        status.refusal().map(str::to_owned)
    };
    assert_eq!(refusal(json!({ "store_refuses_writes": "permission denied" })).as_deref(), Some("permission denied"));
    assert_eq!((refusal(json!({ "store_refuses_writes": null })), refusal(json!({}))), (None, None));
}

#[test]
fn a_process_with_several_keyspaces_is_not_taken_for_one_without_a_router() {
    let several = json!({ "keyspaces": ["a", "b"], "by_keyspace": { "a": {}, "b": {} } });
    let expected = "its process has several keyspaces; expected --keyspace, one of a, b";
    assert_eq!(says("router", several), expected);
    let other = json!({ "keyspace": {}, "pod": null });
    assert_eq!(says("router", other), "the process at its admin address runs no router");
}
