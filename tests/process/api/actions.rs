//! What the actions of an operator do over HTTP.

use segue_tests::http::Request;
use segue_tests::process::until;

use super::site::{Site, TOKEN, text};
use crate::writers::PARTITIONS;

#[test]
fn every_action_of_an_operator_is_carried_out_over_http() {
    let mut site = Site::with_token(&["w-0", "w-1"]);
    let from = site.owner(3);
    let to = if from == "w-0" { "w-1" } else { "w-0" };
    assert!(site.does("POST", "/v1/moves", &format!(r#"{{"partition":3,"to":"{to}"}}"#)).contains("moves to"));
    assert!(site.does("GET", &format!("/v1/wait/moved/3?to={to}"), "").contains(&format!("partition 3 is on {to}")));
    assert_eq!(site.owner(3), to);
    assert!(site.does("PUT", "/v1/partitions/3/pin", r#"{"why":"hot","who":"bea"}"#).contains("is pinned to"));
    let explained = site.read("/v1/partitions/3");
    assert!(explained["pinned"].as_str().unwrap().contains("bea from 127.0.0.1 (hot)"), "{explained}");
    let stale = site.send("PUT", "/v1/partitions/3/pin", &format!(r#"{{"to":"{from}"}}"#));
    assert_eq!((stale.status, text(&stale, "reason").as_str()), (409, "refused"));
    assert!(text(&stale, "error").contains(&format!("would be pinned to {to} and not to {from}")), "{}", stale.body);
    assert!(site.does("DELETE", "/v1/partitions/3/pin", "").contains("was pinned"));

    assert!(site.does("POST", "/v1/pods/w-1/drain", r#"{"why":"kernel"}"#).contains("gives up its partitions"));
    assert!(site.does("GET", "/v1/wait/drained/w-1?by_operator=true", "").contains("pod w-1 is empty"));
    assert!(
        site.read("/v1/pods/w-1")["state"].as_str().unwrap().contains("drained by somebody from 127.0.0.1 (kernel)")
    );
    let refused = site.send("POST", "/v1/moves", r#"{"partition":3,"to":"w-1"}"#);
    assert_eq!((refused.status, text(&refused, "reason").as_str()), (409, "refused"));
    assert!(text(&refused, "error").contains("pod w-1 is drained"), "{}", refused.body);
    assert!(site.does("DELETE", "/v1/pods/w-1/drain", "").contains("may be given partitions again"));
    site.does("GET", "/v1/wait/settled", "");

    assert!(site.does("POST", "/v1/planner", r#"{"paused":true,"for":"1h"}"#).contains("paused for 1h"));
    let planned = site.read("/v1/plan?without=w-0");
    assert_eq!(planned["moves"], serde_json::json!([]), "while paused: {planned}");
    assert!(site.does("POST", "/v1/planner", r#"{"paused":false}"#).contains("planned moves go on"));
    let planned = site.read("/v1/plan?without=w-0");
    assert!(!planned["moves"].as_array().unwrap().is_empty() && planned["policy_is_known"] == true, "{planned}");
    assert_eq!(site.send("POST", "/v1/handoffs/3/cancel", "{}").status, 409, "nothing moves");
    for path in ["/v1/pods/w-9", "/v1/partitions/99", "/v1/nothing"] {
        assert_eq!(site.send("GET", path, "").status, 404, "{path}");
    }

    let asked = site.send("DELETE", "/v1/pods/w-1", r#"{"force":true}"#);
    assert!(asked.status == 409 && text(&asked, "error").contains("nothing was deleted"), "{}", asked.body);
    site.cluster.take("w-1").kill();
    assert!(site.does("DELETE", "/v1/pods/w-1", r#"{"force":true,"yes":true}"#).contains("pod w-1 is forgotten"));
    until("the failover", || site.read("/v1/pods/w-0")["owns"].as_array().unwrap().len() == PARTITIONS as usize);
    assert_eq!(site.send("GET", "/settled", "").status, 404, "no pod here");
}

#[test]
fn a_repeated_id_has_no_second_effect() {
    let site = Site::with_token(&["w-0", "w-1"]);
    let to = if site.owner(3) == "w-0" { "w-1" } else { "w-0" };
    let body = format!(r#"{{"partition":3,"to":"{to}","id":"m-1"}}"#);
    let first = site.does("POST", "/v1/moves", &body);
    site.does("GET", &format!("/v1/wait/moved/3?to={to}"), "");
    site.does("DELETE", "/v1/partitions/3/pin", "");
    assert_eq!(site.does("POST", "/v1/moves", &body), first, "the first answer");
    assert!(site.read("/v1/partitions/3")["pinned"].is_null(), "no second move");

    let pause = |id: &str, body: &str| {
        let request = Request::json("POST", "/v1/planner", body).header("idempotency-key", id);
        request.header("authorization", format!("Bearer {TOKEN}")).send(site.admin).unwrap()
    };
    let first = pause("p-1", r#"{"paused":true}"#);
    assert_eq!(first.status, 200, "{}", first.body);
    site.does("POST", "/v1/planner", r#"{"paused":false}"#);
    let again = pause("p-1", r#"{"paused":true}"#);
    assert_eq!((again.status, text(&again, "text")), (200, text(&first, "text")));
    // From the store: the status follows it a moment later.
    let paused = |key: &String| key.ends_with("/operator/pause");
    assert!(!site.intentions().iter().any(paused), "no second pause");
    for (id, body) in
        [("p-1", r#"{"paused":false}"#), ("m-1", r#"{"paused":true}"#), ("p-2", r#"{"paused":true,"id":"x"}"#)]
    {
        let other = pause(id, body);
        assert!(other.status == 409 || other.status == 400, "{id} {body}: {} {}", other.status, other.body);
    }
    let operations = site.intentions();
    assert!(operations.iter().any(|key| key.ends_with("/operations/p-1")), "{operations:?}");

    let want = |owner: &str| format!(r#"{{"generation":41,"owners":{{"0":"{owner}"}},"id":"w-41"}}"#);
    let first = site.does("PUT", "/v1/wanted", &want("w-0"));
    assert_eq!(site.does("PUT", "/v1/wanted", &want("w-0")), first);
    let other = site.send("PUT", "/v1/wanted", &want("w-1"));
    assert_eq!(other.status, 409, "other owners: {}", other.body);
}

#[test]
fn misspelt_owners_are_refused_and_replace_none() {
    let site = Site::with_token(&["w-0"]);
    for (body, named) in [
        (r#"{"generation":42,"owner":{"0":"w-0"}}"#, "unknown field `owner`"),
        (r#"{"generation":42}"#, "missing field `owners`"),
    ] {
        let refused = site.send("PUT", "/v1/wanted", body);
        assert!(refused.status == 400 && text(&refused, "error").contains(named), "{}", refused.body);
    }
    assert!(!site.intentions().iter().any(|key| key.ends_with("/wanted")), "{:?}", site.intentions());
}
