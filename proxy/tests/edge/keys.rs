//! Requests whose key a pod could read differently from the router.

use http::Response;
use segue_protocol::ids::PartitionId;
use segue_proxy::routing::key_hash::KeyHash;
use segue_proxy::routing::partition_key::{
    AmbiguousPaths, JoinedHeaders, KeySource, PartitionSource, PathTemplate, PathTemplates,
};
use segue_proxy::settings::UpstreamProtocol;

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

/// Returns the partition that a pod was told, with the status, of requests by HTTP/1.1, HTTP/2 and gRPC.
async fn told_by_all_versions(source: KeySource, target: &str, lines: &[(&str, &str)]) -> [(u16, String); 3] {
    let mut settings = by(source);
    settings.forward.upstream.protocol = UpstreamProtocol::Http2;
    let fixture = Fixture::with(settings);
    let pod = fixture.pod(Speaks::Http2, |request| async move {
        let partition = request.headers().get("segue-partition").cloned().unwrap();
        Response::builder().header("told", partition).header("grpc-status", "0").body(empty()).unwrap()
    });
    let pod = pod.await;
    PartitionId::all(8).for_each(|partition| fixture.route(partition, pod.address, 1));
    let told = |answer: Answer| (answer.status, answer.header("told").to_owned() + answer.header("segue-reason"));
    let head: String = lines.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let of_http1 = fixture.ask(format!("GET {target} HTTP/1.1\r\nhost: h\r\n{head}\r\n")).await;
    let http2 = fixture.http2_client().await;
    let request =
        |method| lines.iter().fold(http2.request(method, target), |request, line| request.header(line.0, line.1));
    let of_http2 = http2.ask(request("GET").body(empty()).unwrap()).await;
    let call = request("POST").header("content-type", "application/grpc").body(empty()).unwrap();
    let of_grpc = http2.ask(call).await;
    [of_http1, of_http2, of_grpc].map(told)
}

fn murmur2(key: &str) -> [(u16, String); 3] {
    [(); 3].map(|()| (200, KeyHash::Murmur2.partition(key.as_bytes(), 8).to_string()))
}

#[tokio::test]
async fn segments_of_a_path_are_one_key_by_all_versions() {
    let source = || {
        let parse = |text| PathTemplate::new(text, &["team", "person"], AmbiguousPaths::Reject).unwrap();
        let templates = ["/teams/{team}/persons/{person}", "/p/{person}", "/acme.Persons/{person}"].map(parse);
        KeySource::Path(PathTemplates::new(templates.to_vec(), 2, ":", AmbiguousPaths::Reject).unwrap())
    };
    for (target, key) in [("/teams/2/persons/7/events?x=1", "2:7"), ("/p/7", "7"), ("/acme.Persons/Get", "Get")] {
        assert_eq!(told_by_all_versions(source(), target, &[]).await, murmur2(key), "{target}");
    }
    for (target, reason) in
        [("/teams/2", "no-partition"), ("/teams/2//persons/7", "bad-partition"), ("/%70/7", "bad-partition")]
    {
        let [of_http1, of_http2, of_grpc] = told_by_all_versions(source(), target, &[]).await;
        assert_eq!([of_http1, of_http2], [(); 2].map(|()| (400, reason.to_owned())), "{target}");
        assert_eq!(of_grpc, (200, reason.to_owned()), "{target}");
    }
}

#[tokio::test]
async fn several_headers_are_one_key_by_all_versions() {
    let names = ["x-team", "x-person"].map(|name| name.parse().unwrap()).to_vec();
    let source = || KeySource::Headers(JoinedHeaders { names: names.clone(), join: "/".to_owned() });
    let told = told_by_all_versions(source(), "/acme.Persons/Get", &[("x-person", "7"), ("x-team", "2")]).await;
    assert_eq!(told, murmur2("2/7"));
    for lines in [&[("x-team", "2")][..], &[("x-team", "2"), ("x-person", "")]] {
        let [of_http1, of_http2, of_grpc] = told_by_all_versions(source(), "/", lines).await;
        assert_eq!([of_http1, of_http2], [(); 2].map(|()| (400, "no-partition".to_owned())), "{lines:?}");
        assert_eq!(of_grpc, (200, "no-partition".to_owned()), "{lines:?}");
    }
}

#[tokio::test]
async fn no_header_of_a_key_can_be_disguised_or_declared_away() {
    let names = ["x-team", "x-person"].map(|name| name.parse().unwrap()).to_vec();
    let (fixture, pod) = led(by(KeySource::Headers(JoinedHeaders { names, join: ":".to_owned() }))).await;
    let key = "x-team: 2\nx-person: 7";
    let away = ask(&fixture, &format!("GET / HTTP/1.1\nhost: h\n{key}\nconnection: x-person")).await;
    assert_eq!(away, (400, "ambiguous".to_owned()));
    assert_eq!(ask(&fixture, &format!("GET / HTTP/1.1\nhost: h\n{key}\nx_team: 3")).await, served());
    let requests = pod.requests().await;
    assert_eq!(requests.len(), 1);
    assert!(!requests[0].fields.iter().any(|(name, _)| name == "x_team"));
}
