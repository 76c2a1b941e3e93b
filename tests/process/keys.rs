//! `segue explain --key`: the partition of a key, as routers map it.

use std::net::SocketAddr;

use segue_tests::http::{Request, get};
use segue_tests::process::until;
use serde_json::Value;

use crate::site::curl::Protocol;
use crate::site::service::{serve, serve_both_versions};
use crate::site::{Site, json, says};

const PARTITIONS: u32 = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_several_parts_is_explained_as_its_parts_with_their_joiner() {
    let service = serve(|call| async move { (200, call.text("segue-partition")) }).await;
    tokio::task::spawn_blocking(move || {
        let site = Site::with(|_, config| {
            let key = "paths = [\"/teams/{team}/persons/{person}\", \"/p/{person}\"], of = [\"team\", \"person\"], join = \":\"";
            config.coordinator("c-0", PARTITIONS).with("router.partition", &format!("key = {{ {key} }}"))
        });
        let server = format!("http://{}", site.admin);
        until("a mapping", || says(&["explain", "--key", "a", "--server", &server]).0 == Some(0));
        let _pod = site.pod("w-0", service);
        site.settles_on("default", &[("w-0", u64::from(PARTITIONS))]);
        for (key, path) in [("2:7", "/teams/2/persons/7"), ("7", "/p/7"), ("a b:\u{e9}", "/teams/a%20b/persons/%C3%A9/x")] {
            let served = Request::get(path).send(site.router).unwrap();
            assert_eq!(served.status, 200, "{served:?}");
            let (_, said) = says(&["explain", "--key", key, "--server", &server]);
            let taken_from = "the path /teams/{1}/persons/{2} /p/{2} joined by :, by its murmur2 hash";
            let expected = format!("key         {key}\ntaken from  {taken_from}\npartition   {}\n", served.body);
            assert!(said.starts_with(&expected), "{said}\n{expected}");
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_partition_of_a_key_is_the_one_that_its_service_sees() {
    let service = serve(|call| async move { (200, call.text("segue-partition")) }).await;
    tokio::task::spawn_blocking(move || {
        let site = Site::with(|_, config| {
            let config = config.coordinator("c-0", PARTITIONS);
            config.with("router.partition", "key = { path = \"/persons/{key}\" }\nhash = \"crc32\"")
        });
        let server = format!("http://{}", site.admin);
        until("a mapping", || says(&["explain", "--key", "a", "--server", &server]).0 == Some(0));
        let _pod = site.pod("w-0", service);
        site.settles_on("default", &[("w-0", u64::from(PARTITIONS))]);
        let mut seen = Vec::new();
        for (key, path) in [("4711", "4711"), ("jörg", "j%C3%B6rg"), ("a b", "a%20b"), ("-1", "-1")] {
            let served = Request::get(&format!("/persons/{path}/orders?x=1")).send(site.router).unwrap();
            assert_eq!(served.status, 200, "{served:?}");
            let (code, said) = says(&["explain", "--key", key, "--server", &server]);
            assert_eq!(code, Some(0), "{said}");
            let head = format!("key         {key}\ntaken from  the path /persons/{{key}}, by its crc32 hash\n");
            let owned = format!("{head}partition   {}\nowner       w-0 at epoch ", served.body);
            assert!(said.starts_with(&owned), "{said}\n{owned}");
            assert!(said.contains("router      r-0: the partition is open"), "{said}");
            let by_store = says(&["explain", "--key", key, "--etcd", &site.etcd().endpoint()]).1;
            assert!(by_store.starts_with(&owned), "{by_store}");
            seen.push(served.body);
        }
        assert!(seen.iter().any(|partition| *partition != seen[0]), "one partition for all: {seen:?}");

        let explained = json(site.admin, "/v1/keys?key=a%20b");
        assert_eq!((&explained["key"], &explained["hash"]), (&"a b".into(), &"crc32".into()));
        assert_eq!(explained["partition"], seen[2].parse::<Value>().unwrap());
        assert_eq!(get(site.admin, "/v1/keys").map(|(status, _)| status), Some(400));
        let (code, said) = says(&["explain", "--key", "a/b", "--server", &server]);
        assert!(code == Some(1) && said.contains("no request has this key: routers refuse it in the path"), "{said}");
        let refused = Request::get("/persons/a%2Fb").send(site.router).unwrap();
        assert!(refused.status == 400 && refused.body.contains("bad-partition"), "{refused:?}");
        assert_eq!(says(&["explain", "--key", "a", "7"]).0, Some(2), "one subject");
        assert_eq!(says(&["explain"]).0, Some(2), "no subject");
    })
    .await
    .unwrap();
}

/// Starts a service that speaks both versions and responds with the partition that it is told and the bytes of the body.
async fn echo() -> SocketAddr {
    let respond = async |request: axum::extract::Request| {
        let (head, body) = request.into_parts();
        let partition = head.headers["segue-partition"].to_str().unwrap().to_owned();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        ([("grpc-status", "0"), ("content-type", "application/grpc")], format!("{partition} {body:?}"))
    };
    serve_both_versions(axum::Router::new().fallback(respond)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_in_the_body_is_explained_and_reaches_its_service_through_router_and_sidecar() {
    let service = echo().await;
    tokio::task::spawn_blocking(move || {
        let message = |bytes: &[u8]| [&[0, 0, 0, 0, bytes.len() as u8][..], bytes].concat();
        for (key, taken_from, requests) in [
            (
                "json = [\"team\", \"person.id\"], join = \":\"",
                "json:team,person.id joined by :",
                vec![
                    (Protocol::Http1, "2:7", br#"{"team":2,"person":{"id":7}}"#.to_vec()),
                    (Protocol::Http2, "2:anna", br#"{"person":{"id":"anna"},"team":"2"}"#.to_vec()),
                ],
            ),
            (
                "grpc = [1, 2]",
                "grpc:1,2 joined by :",
                vec![
                    (Protocol::Grpc, "2:7", message(b"\x08\x02\x10\x07")),
                    (Protocol::Grpc, "2:anna", message(b"\x12\x04anna\x08\x02")),
                ],
            ),
        ] {
            let site = Site::with(|_, config| {
                config.coordinator("c-0", PARTITIONS).with("router.partition", &format!("key = {{ {key} }}"))
            });
            let server = format!("http://{}", site.admin);
            until("a mapping", || says(&["explain", "--key", "a:b", "--server", &server]).0 == Some(0));
            let _pod = site.pod("w-0", service);
            site.settles_on("default", &[("w-0", u64::from(PARTITIONS))]);
            let url = format!("http://{}/acme.Persons/Set", site.router);
            let json = ["--header", "content-type: application/json"];
            for (protocol, key, body) in requests {
                let served = protocol.post(&url, if protocol == Protocol::Grpc { &[] } else { &json }, &body);
                let (partition, got) = served.body().split_once(' ').unwrap_or_else(|| panic!("{key}: {served:?}"));
                assert_eq!(got, format!("{:?}", bytes::Bytes::from(body)), "{key}");
                let (_, said) = says(&["explain", "--key", key, "--server", &server]);
                let expected =
                    format!("key         {key}\ntaken from  the body, {taken_from}, by its murmur2 hash\npartition   {partition}\n");
                assert!(said.starts_with(&expected), "{said}\n{expected}");
            }
            let refused = Protocol::Http1.post(&url, &json, b"[]");
            assert!(refused.text.contains(if key.starts_with("json") { "no JSON object" } else { "no-partition" }), "{refused:?}");
        }
    })
    .await
    .unwrap();
}
