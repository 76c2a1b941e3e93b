//! Requests whose key a pod could read differently from the router.

use http::Response;
use segue_protocol::ids::PartitionId;
use segue_proxy::routing::key_hash::KeyHash;
use segue_proxy::routing::partition_key::{KeySource, PartitionSource};

use super::recorder::Recorder;
use crate::support::client::{Answer, empty};
use crate::support::pod::Speaks;
use crate::support::{Fixture, Settings, until};

fn by(source: KeySource) -> Settings {
    let mut settings = Settings::default();
    settings.forward.partition = PartitionSource::Key { source, hash: KeyHash::Murmur2 };
    settings
}

async fn led(settings: Settings) -> (Fixture, Recorder) {
    let fixture = Fixture::with(settings);
    let pod = Recorder::start().await;
    for partition in PartitionId::all(8) {
        fixture.route(partition, pod.address, 1);
    }
    (fixture, pod)
}

/// Sends this head. Returns the status and the reason of the answer.
async fn ask(fixture: &Fixture, head: &str) -> (u16, String) {
    let answer = answer(fixture, head).await;
    let reason = answer.header("segue-reason").to_owned();
    (answer.status, reason)
}

async fn answer(fixture: &Fixture, head: &str) -> Answer {
    let head = head.replace('\n', "\r\n");
    fixture.ask(format!("{head}\r\n\r\n")).await
}

fn refused() -> (u16, String) {
    (400, "bad-partition".to_owned())
}

fn served() -> (u16, String) {
    (200, String::new())
}

/// Paths that pods may resolve to other paths than the router does.
const AMBIGUOUS: [&str; 20] = [
    "/persons/anna/../bert",
    "/persons/anna/x/../../bert",
    "/persons/../persons/bert",
    "/persons/anna/..",
    "/persons/./bert",
    "/./persons/bert",
    "/persons/anna/%2e%2e/bert",
    "/persons/anna/.%2E/bert",
    "/persons/anna/..;/bert",
    "/persons/anna/..;x=1/bert",
    "/persons/anna/x%2f..%2f..%2fbert",
    "/persons/anna/x\\..\\..\\bert",
    "/persons/anna%2Fbert",
    "/persons/anna%2F..%2Fbert",
    "/persons/anna\\bert",
    "/persons/anna%5cbert",
    "/persons/anna;v=1",
    "/persons;v=1/anna",
    "/persons/anna%00",
    "/persons//anna",
];

#[tokio::test]
async fn a_path_that_pods_may_read_differently_is_refused() {
    let (fixture, pod) = led(by(KeySource::Path("/persons/{key}".parse().unwrap()))).await;
    for target in AMBIGUOUS {
        for target in [target.to_owned(), format!("http://h{target}"), format!("{target}?a=b")] {
            let got = ask(&fixture, &format!("GET {target} HTTP/1.1\nhost: h")).await;
            assert_eq!(got, refused(), "{target}");
        }
    }
    let client = fixture.http2_client().await;
    for target in AMBIGUOUS {
        let answer = client.ask(client.request("GET", target).body(empty()).unwrap()).await;
        assert_eq!(answer.reason(), (400, "bad-partition"), "{target}");
    }
    assert!(pod.requests().await.is_empty());
}

#[tokio::test]
async fn a_path_that_all_read_alike_reaches_its_pod_unchanged() {
    let (fixture, pod) = led(by(KeySource::Path("/persons/{key}".parse().unwrap()))).await;
    let targets = [
        "/persons/anna",
        "/persons/a.b..c/v1.2",
        "/persons/.hidden",
        "/persons/...",
        "/persons/a%20b%25c",
        "/persons/%C3%A9",
        // Behind the key nothing can change it any more.
        "/persons/anna/files/a%2Fb",
        "/persons/anna/x;v=1/y",
        "/persons/anna//x",
        "/persons/anna?next=/../x;y",
    ];
    for target in targets {
        assert_eq!(ask(&fixture, &format!("GET {target} HTTP/1.1\nhost: h")).await, served(), "{target}");
    }
    let mut lines: Vec<_> = pod.requests().await.into_iter().map(|request| request.start).collect();
    let mut expected: Vec<_> = targets.iter().map(|target| format!("GET {target} HTTP/1.1").into_bytes()).collect();
    lines.sort();
    expected.sort();
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_query_that_names_its_key_in_two_ways_is_refused() {
    let (fixture, pod) = led(by(KeySource::Query("id".to_owned()))).await;
    let ambiguous = [
        "/?id=1&id=2",
        "/?id=1&id=1",
        "/?id=1&ID=2",
        "/?ID=2&id=1",
        "/?id=1;id=2",
        "/?id=1;x",
        "/?x;id=1",
        "/?id=1&id[]=2",
        "/?id=1&i%64=2",
        "/?id=%ff",
        "/?id=a%00b",
        "/?id=%4",
    ];
    for target in ambiguous {
        assert_eq!(ask(&fixture, &format!("GET {target} HTTP/1.1\nhost: h")).await, refused(), "{target}");
    }
    assert!(pod.requests().await.is_empty());
    for target in ["/?id=1", "/?a;b&id=1&ids=2", "http://h?id=1"] {
        assert_eq!(ask(&fixture, &format!("GET {target} HTTP/1.1\nhost: h")).await, served(), "{target}");
    }
}

#[tokio::test]
async fn a_cookie_that_names_its_key_in_two_ways_is_refused() {
    let (fixture, pod) = led(by(KeySource::Cookie("sid".to_owned()))).await;
    let ambiguous = [
        "sid=\"42\"",
        "sid=1; sid=2",
        "sid=1; SID=2",
        "SID=2; sid=1",
        "sid=1; sid =2",
        "a=\"; sid=1; b=\"",
        "a=\"\\\"; sid=1; b=\"",
        "sid=1\ncookie: sid=2",
        "sid=%ff",
        "sid=a%00b",
    ];
    for cookie in ambiguous {
        assert_eq!(ask(&fixture, &format!("GET / HTTP/1.1\nhost: h\ncookie: {cookie}")).await, refused(), "{cookie}");
    }
    assert!(pod.requests().await.is_empty());
    for cookie in ["sid=1", "a=\"b c\"; sid=1; d=e", "sid=1; sid=1", "a=1\ncookie: sid=1"] {
        assert_eq!(ask(&fixture, &format!("GET / HTTP/1.1\nhost: h\ncookie: {cookie}")).await, served(), "{cookie}");
    }
}

#[tokio::test]
async fn a_key_or_an_order_that_is_given_twice_is_refused() {
    let (fixture, pod) = led(Settings::default()).await;
    for order in ["x-key: a\nx-key: b", "x-key: a\nx-key: a"] {
        assert_eq!(ask(&fixture, &format!("GET / HTTP/1.1\nhost: h\nx-partition: 0\n{order}")).await, refused());
    }
    assert_eq!(ask(&fixture, "GET / HTTP/1.1\nhost: h\nx-partition: 0\nx-key: a").await, served());
    assert_eq!(pod.requests().await.len(), 1);
    let (fixture, pod) = led(by(KeySource::Header("x-key".parse().unwrap()))).await;
    for key in ["x-key: a\nx-key: b", "x-key: a\nx-key: a"] {
        assert_eq!(ask(&fixture, &format!("GET / HTTP/1.1\nhost: h\n{key}")).await, refused());
    }
    // By HTTP/2 spaces around a value arrive, and a pod by HTTP/1.1 would not see them.
    let client = fixture.http2_client().await;
    for key in [" a", "a "] {
        let answer = client.ask(client.request("GET", "/").header("x-key", key).body(empty()).unwrap()).await;
        assert_eq!(answer.reason(), (400, "bad-partition"), "{key:?}");
    }
    assert!(pod.requests().await.is_empty());
}

#[tokio::test]
async fn a_target_without_a_path_reaches_the_pod_as_one_with_a_path() {
    let (fixture, pod) = led(Settings::default()).await;
    assert_eq!(ask(&fixture, "GET http://h?id=7 HTTP/1.1\nhost: h\nx-partition: 0").await, served());
    assert_eq!(ask(&fixture, "GET http://h HTTP/1.1\nhost: h\nx-partition: 0").await, served());
    let lines: Vec<_> = pod.requests().await.into_iter().map(|request| request.start).collect();
    assert_eq!(lines, [b"GET /?id=7 HTTP/1.1".to_vec(), b"GET / HTTP/1.1".to_vec()]);

    let fixture = Fixture::of_http2_pods();
    let _pod = fixture
        .pod(Speaks::Http2, |request| async move {
            let target = request.uri().path_and_query().map_or(String::new(), |target| target.to_string());
            Response::builder().header("got", target).body(empty()).unwrap()
        })
        .await;
    let client = fixture.http2_client().await;
    let request = http::Request::get(format!("http://{}?id=7", fixture.address)).header("x-partition", "0");
    assert_eq!(client.ask(request.body(empty()).unwrap()).await.header("got"), "/?id=7");
}

#[tokio::test]
async fn a_host_is_the_key_by_both_versions() {
    let fixture = Fixture::with(by(KeySource::Host));
    let http2 = fixture.http2_client().await;
    let held = |number| PartitionId::all(8).find(|partition| fixture.table.stashed(*partition).0 == number);
    for host in ["a.example", "b.example", "c.example"] {
        let of_http1 = fixture.send(format!("GET / HTTP/1.1\r\nhost: {host}:8080\r\n\r\n")).await;
        until(|| held(1).is_some(), "the request by HTTP/1.1").await;
        let mut request = http2.request("GET", "/").body(empty()).unwrap();
        *request.uri_mut() = format!("http://{host}/").parse().unwrap();
        let of_http2 = http2.spawn_ask(request);
        until(|| held(2).is_some(), "both in one partition").await;
        drop(of_http1);
        of_http2.abort();
        until(|| held(1).is_none() && held(2).is_none(), "their end").await;
    }
}
