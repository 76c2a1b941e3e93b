//! Keys in the bodies of requests: which partition gets them, and what becomes of the bytes that were read for it.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;
use segue_proxy::routing::key_hash::KeyHash;
use segue_proxy::routing::key_limit::{KeyLimiter, KeyLimits};
use segue_proxy::routing::keyspace_choice::PathPrefix;
use segue_proxy::routing::partition_key::{BodyKey, KeySource, PartitionSource, WithoutKey};
use segue_proxy::routing::route_rules::{Destination, PathMatch, RouteRule, RouteRules};
use segue_proxy::settings::UpstreamProtocol;

use crate::support::client::{Answer, Body, Http2Client, data, full, stream};
use crate::support::pod::{Pod, ScriptedPod, Speaks};
use crate::support::{BOTH_VERSIONS, Fixture, OK, Settings, soon, until};

/// The bound of what is read ahead.
const BOUND: usize = 64 << 10;

fn by(key: Result<BodyKey, segue_proxy::routing::partition_key::OverlappingPaths>) -> Settings {
    Settings::with(|settings| {
        let source = KeySource::Body(key.unwrap());
        settings.forward.partition = PartitionSource::Key { source, hash: KeyHash::Murmur2 };
    })
}

fn by_json() -> Settings {
    by(BodyKey::json(vec!["person.id".parse().unwrap()], ""))
}

fn by_grpc() -> Settings {
    let mut settings = by(BodyKey::grpc(["1", "2"].map(|field| field.parse().unwrap()).to_vec(), ":"));
    settings.forward.upstream.protocol = UpstreamProtocol::Http2;
    settings
}

fn partition_of(key: &str) -> PartitionId {
    KeyHash::Murmur2.partition(key.as_bytes(), 8)
}

/// Answers with the partition that a request is stamped with, and its body.
async fn told(request: Request<Incoming>) -> Response<Body> {
    let partition = request.headers()["segue-partition"].clone();
    let expects = request.headers().contains_key("expect").to_string();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let response = Response::builder().header("told", partition).header("expects", expects);
    response.header("grpc-status", "0").body(full(body)).unwrap()
}

/// Routes all partitions to a pod.
async fn led(settings: Settings, speaks: Speaks) -> (Fixture, Pod) {
    let fixture = Fixture::with(settings);
    let pod = Pod::start(speaks, told).await;
    PartitionId::all(8).for_each(|partition| fixture.route(partition, pod.address, 1));
    (fixture, pod)
}

fn post(head: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n{head}\r\n{body}")
}

fn sized(body: &str) -> String {
    post(&format!("content-length: {}\r\n", body.len()), body)
}

fn chunked(pieces: &[&str]) -> String {
    let chunks: String = pieces.iter().map(|piece| format!("{:x}\r\n{piece}\r\n", piece.len())).collect();
    post("transfer-encoding: chunked\r\n", &format!("{chunks}0\r\n\r\n"))
}

fn person(id: &str) -> String {
    format!("{{\"a\":[1,2],\"person\":{{\"id\":{id}}}}}")
}

/// Returns an object of this length with the key 7.
fn of_length(length: usize) -> String {
    let (begin, end) = ("{\"person\":{\"id\":7},\"x\":\"", "\"}");
    format!("{begin}{}{end}", "x".repeat(length - begin.len() - end.len()))
}

/// Asserts that the pod was told the partition of this key, and got this body.
#[track_caller]
fn reached(answer: &Answer, key: &str, body: &[u8]) {
    assert_eq!((answer.status, answer.header("told")), (200, &*partition_of(key).to_string()), "{key}: {answer:?}");
    assert!(answer.body == body, "{key}: another body of {} bytes, not {}", answer.body.len(), body.len());
}

/// Asserts that a request was refused for its key, and that this word says why.
#[track_caller]
fn refused(answer: &Answer, word: &str) {
    assert_eq!(answer.reason(), (400, "bad-partition"), "{word}");
    assert!(answer.text().contains(word), "{word}: {}", answer.text());
}

fn json_post(client: &Http2Client, body: Body) -> Request<Body> {
    client.request("POST", "/").header("content-type", "application/json").body(body).unwrap()
}

fn call(client: &Http2Client, body: Body) -> Request<Body> {
    let request = client.request("POST", "/acme.Persons/Set").header("content-type", "application/grpc");
    request.header("te", "trailers").body(body).unwrap()
}

/// Returns a gRPC message with this flag.
fn message(flag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[flag][..], &u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

fn frame(bytes: &[u8]) -> Option<Frame<Bytes>> {
    Some(Frame::data(Bytes::copy_from_slice(bytes)))
}

#[tokio::test]
async fn a_member_of_a_json_body_is_the_key_by_both_versions() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let mut settings = by_json();
        settings.forward.upstream.protocol = protocol;
        let (fixture, _pod) = led(settings, speaks).await;
        let http2 = fixture.http2_client().await;
        for (id, key) in
            [("\"anna\"", "anna"), ("7", "7"), ("\"7\"", "7"), ("-12", "-12"), ("\"j\\u00f6rg\"", "j\u{f6}rg")]
        {
            let body = person(id);
            reached(&fixture.ask(sized(&body)).await, key, body.as_bytes());
            let (one, other) = body.split_at(9);
            reached(&fixture.ask(chunked(&[one, other])).await, key, body.as_bytes());
            reached(&http2.ask(json_post(&http2, full(body.clone()))).await, key, body.as_bytes());
            let (sender, frames) = stream();
            let answer = http2.spawn_ask(json_post(&http2, frames));
            for byte in body.as_bytes().chunks(5) {
                sender.send(frame(byte)).unwrap();
                tokio::task::yield_now().await;
            }
            sender.send(None).unwrap();
            reached(&answer.await.unwrap(), key, body.as_bytes());
        }
    }
}

#[tokio::test]
async fn fields_of_a_grpc_message_are_the_key() {
    let (fixture, _pod) = led(by_grpc(), Speaks::Http2).await;
    let http2 = fixture.http2_client().await;
    for (bytes, key) in [
        (&b"\x08\x02\x10\x07"[..], "2:7"),
        (b"\x10\x07\x08\x02", "2:7"),
        (b"\x08\x09\x08\x02\x10\x07\x18\x01", "2:7"),
        (b"\x0a\x04acme\x12\x01x", "acme:x"),
        (b"\x08\x02\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "2:-1"),
    ] {
        let body = message(0, bytes);
        reached(&http2.ask(call(&http2, full(body.clone()))).await, key, &body);
        // The end of the stream in a frame of its own, and a second message that has another key.
        let both = [body.clone(), message(0, b"\x08\x09\x10\x09")].concat();
        let (sender, frames) = stream();
        let answer = http2.spawn_ask(call(&http2, frames));
        for byte in both.chunks(3) {
            sender.send(frame(byte)).unwrap();
            tokio::task::yield_now().await;
        }
        sender.send(None).unwrap();
        reached(&answer.await.unwrap(), key, &both);
    }
}

#[tokio::test]
async fn a_stream_reaches_its_pod_with_its_first_message() {
    let fixture = Fixture::with(by_grpc());
    let pod = fixture.pod(Speaks::Http2, |request| async move {
        let partition = request.headers()["segue-partition"].clone();
        Response::builder()
            .header("told", partition)
            .body(request.into_body().map_err(std::io::Error::other).boxed())
            .unwrap()
    });
    let pod = pod.await;
    PartitionId::all(8).for_each(|partition| fixture.route(partition, pod.address, 1));
    let http2 = fixture.http2_client().await;
    let (sender, frames) = stream();
    let first = message(0, b"\x08\x02\x10\x07");
    sender.send(frame(&first)).unwrap();
    let response = http2.begin(call(&http2, frames)).await.unwrap();
    assert_eq!(response.headers()["told"], partition_of("2:7").to_string());
    let mut echoed = response.into_body();
    let mut next = async || echoed.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(next().await, first);
    sender.send(data("more")).unwrap();
    assert_eq!(next().await, "more");
}

#[tokio::test]
async fn a_body_whose_key_cannot_be_read_is_refused_with_the_reason() {
    let (fixture, _pod) = led(by_json(), Speaks::Http1).await;
    for (body, word) in [
        ("[]", "no JSON object"),
        ("{\"person\":", "no JSON object"),
        ("{\"person\":{\"id\":1.0}}", "whole number"),
        ("{\"person\":{\"id\":true}}", "whole number"),
        ("{\"person\":{\"id\":7,\"id\":8}}", "twice"),
        ("{\"person\":{\"id\":7,\"ID\":8}}", "similar name"),
    ] {
        refused(&fixture.ask(sized(body)).await, word);
        refused(&fixture.ask(chunked(&[body])).await, word);
    }
    let body = person("7");
    for (head, word) in [("content-encoding: gzip\r\n", "compressed"), ("content-type: text/plain\r\n", "two")] {
        refused(&fixture.ask(post(&format!("{head}content-length: {}\r\n", body.len()), &body)).await, word);
    }
    let hidden = post(&format!("connection: content-type\r\ncontent-length: {}\r\n", body.len()), &body);
    assert_eq!(fixture.ask(hidden).await.reason(), (400, "ambiguous"));
    assert!(fixture.metrics_page().contains("segue_requests_total{code=\"400\",reason=\"bad-partition\"} 14"));

    let (fixture, _pod) = led(by_grpc(), Speaks::Http2).await;
    let http2 = fixture.http2_client().await;
    for (body, word) in [
        (message(1, b"\x08\x02\x10\x07"), "compressed"),
        (message(0, b"\x08\x02\x10"), "no gRPC message"),
        (message(0, b"\x08\x02\x10\x07")[..8].to_vec(), "no gRPC message"),
        (message(0, b"\x08\x02\x0a\x01a\x10\x07"), "twice"),
        (message(0, &vec![0; BOUND]), "64 KiB"),
    ] {
        let answer = http2.ask(call(&http2, full(body))).await;
        assert_eq!((answer.status, answer.header("grpc-status")), (200, "3"), "{word}");
        assert_eq!(answer.header("segue-reason"), "bad-partition");
        assert!(
            answer.header("grpc-message").contains(&word.replace(' ', "%20"))
                || answer.header("grpc-message").contains(word),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn as_much_is_read_for_a_key_as_for_another_attempt_and_no_more() {
    let (fixture, _pod) = led(by_json(), Speaks::Http1).await;
    let http2 = fixture.http2_client().await;
    let (fits, too_long) = (of_length(BOUND), of_length(BOUND + 1));
    for request in [sized(&fits), chunked(&[&fits[..10], &fits[10..]])] {
        reached(&fixture.ask(request).await, "7", fits.as_bytes());
    }
    reached(&http2.ask(json_post(&http2, full(fits.clone()))).await, "7", fits.as_bytes());
    for request in [sized(&too_long), chunked(&[&too_long[..10], &too_long[10..]])] {
        refused(&fixture.ask(request).await, "64 KiB");
    }
    refused(&http2.ask(json_post(&http2, full(too_long))).await, "64 KiB");
    // What is too long by its head alone is not waited for.
    refused(&fixture.ask(post("content-length: 1000000\r\n", "")).await, "64 KiB");

    // A long message behind a short one is no matter.
    let (fixture, _pod) = led(by_grpc(), Speaks::Http2).await;
    let http2 = fixture.http2_client().await;
    let long = [message(0, b"\x08\x02\x10\x07"), message(0, &vec![0; 2 * BOUND])].concat();
    reached(&http2.ask(call(&http2, full(long.clone()))).await, "2:7", &long);
}

#[tokio::test]
async fn a_client_that_expects_to_be_told_to_go_on_is_told_so_by_the_router() {
    let (fixture, _pod) = led(by_json(), Speaks::Http1).await;
    let body = person("7");
    let head = post(&format!("expect: 100-continue\r\ncontent-length: {}\r\n", body.len()), "");
    let mut client = fixture.send(&head).await;
    assert_eq!(client.head().await.status, 100);
    let answer = client.ask(&body).await;
    reached(&answer, "7", body.as_bytes());
    assert_eq!(answer.header("expects"), "false", "nobody waits any more");
    // The next request of the connection, whose client does not wait.
    client.write(format!("{head}{body}")).await;
    assert_eq!(client.head().await.status, 100);
    reached(&client.answer().await, "7", body.as_bytes());
    refused(&fixture.ask(post("expect: 100-continue\r\ncontent-length: 100000\r\n", "")).await, "64 KiB");
    // The pod is asked where the router does not read.
    let other = "POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    assert_eq!(fixture.ask(other).await.reason(), (400, "no-partition"));
}

#[tokio::test]
async fn a_request_counts_in_no_partition_and_delays_nobody_until_its_key_is_known() {
    let fixture = Fixture::with(by_json());
    let (old, new) = (Pod::start(Speaks::Http1, told).await, ScriptedPod::new().await);
    let partition = partition_of("7");
    fixture.route(partition, old.address, 1);
    let body = person("7");
    let mut slow = fixture.client().await;
    slow.write(&sized(&body)[..sized(&body).len() - 3]).await;
    let http2 = fixture.http2_client().await;
    let (sender, frames) = stream();
    let slow_by_http2 = http2.spawn_ask(json_post(&http2, frames));
    sender.send(frame(&body.as_bytes()[..9])).unwrap();
    // Others of the same key and of the same connection pass.
    reached(&fixture.ask(sized(&body)).await, "7", body.as_bytes());
    reached(&http2.ask(json_post(&http2, full(body.clone()))).await, "7", body.as_bytes());
    fixture.in_flight(partition, 0).await;
    // The partition moves without them, and they follow.
    fixture.hold(partition, HoldCause::Handoff);
    slow.write(&sized(&body)[sized(&body).len() - 3..]).await;
    fixture.held(partition, 1).await;
    fixture.route(partition, new.address, 2);
    let mut connection = new.accept().await;
    let head = connection.head().await;
    assert!(head.contains("segue-epoch: 2\r\n"), "{head}");
    assert_eq!(connection.exactly(body.len()).await, body);
    // "Not mine": the body goes along to whoever is next.
    fixture.hold(partition, HoldCause::Handoff);
    connection.write("HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n").await;
    fixture.held(partition, 1).await;
    fixture.route(partition, old.address, 3);
    reached(&slow.answer().await, "7", body.as_bytes());
    sender.send(frame(&body.as_bytes()[9..])).unwrap();
    sender.send(None).unwrap();
    reached(&slow_by_http2.await.unwrap(), "7", body.as_bytes());
}

#[tokio::test]
async fn requests_behind_each_other_on_a_connection_stay_in_their_order() {
    let fixture = Fixture::with(by_json());
    let pod = ScriptedPod::new().await;
    PartitionId::all(8).for_each(|partition| fixture.route(partition, pod.address, 1));
    let bodies = ["7", "\"anna\"", "7"].map(person);
    let all: String = bodies.iter().map(|body| sized(body)).collect();
    let mut client = fixture.send(all).await;
    let mut connection = pod.accept().await;
    for (body, key) in bodies.iter().zip(["7", "anna", "7"]) {
        let head = connection.head().await;
        assert!(head.contains(&format!("segue-partition: {}\r\n", partition_of(key))), "{head}");
        assert_eq!(connection.exactly(body.len()).await, *body);
        connection.write(OK).await;
        assert_eq!(client.answer().await.status, 200);
    }
}

#[tokio::test]
async fn a_client_that_does_not_send_its_body_is_waited_for_no_longer_than_for_an_upload() {
    let fixture = Fixture::with(by_json().limit_upload_rate(Duration::from_millis(50)));
    let begun = post("content-length: 100\r\n", "{");
    assert_eq!(fixture.ask(&begun).await.reason(), (408, "limit"));

    let mut settings = by_grpc();
    settings.forward.upstream.idle_timeout = Duration::from_millis(50);
    let fixture = Fixture::with(settings);
    let http2 = fixture.http2_client().await;
    let (sender, frames) = stream();
    sender.send(frame(&[0, 0])).unwrap();
    let answer = http2.ask(call(&http2, frames)).await;
    assert_eq!((answer.header("grpc-status"), answer.header("segue-reason")), ("4", "limit"));

    let fixture = Fixture::with(by_grpc());
    let http2 = fixture.http2_client().await;
    let (_sender, frames) = stream();
    let mut request = call(&http2, frames);
    request.headers_mut().insert("grpc-timeout", "50m".parse().unwrap());
    let answer = http2.ask(request).await;
    assert_eq!((answer.header("grpc-status"), answer.header("segue-reason")), ("4", "deadline"));
}

#[tokio::test]
async fn a_client_that_leaves_before_its_key_is_known_leaves_nothing_behind() {
    let mut settings = by_json();
    settings.forward.limits.max_in_flight_per_client = 2;
    let (fixture, _pod) = led(settings, Speaks::Http1).await;
    let begun = post("content-length: 100\r\n", "{");
    let slow = [fixture.send(&begun).await, fixture.send(&begun).await];
    // Who waits for the rest of a body counts towards the limit of its client.
    let mut third = fixture.client().await;
    let refused = soon(async {
        loop {
            let answer = third.ask(sized(&person("7"))).await;
            if answer.status != 200 {
                return answer;
            }
        }
    })
    .await;
    assert_eq!(refused.reason(), (503, "overload"));
    drop(slow);
    let aborted = "segue_requests_aborted_total 2";
    until(|| fixture.metrics_page().contains(aborted), "both to be noticed").await;
}

#[tokio::test]
async fn a_body_without_the_field_is_a_request_without_a_key() {
    let mut settings = by_json();
    settings.forward.exceptions.without_key = WithoutKey::Any;
    let fixture = Fixture::with(settings);
    let pod = Pod::start(Speaks::Http1, told).await;
    fixture.ready(&[pod.address]);
    let http2 = fixture.http2_client().await;
    for body in ["{}", "{\"person\":null}", "{\"person\":{\"id\":\"\"}}", "{\"id\":7}"] {
        for answer in [fixture.ask(sized(body)).await, http2.ask(json_post(&http2, full(body))).await] {
            assert_eq!((answer.status, answer.header("told"), answer.text()), (200, "none", body));
        }
    }
    // A body of another type, and none.
    let form =
        "POST / HTTP/1.1\r\nhost: h\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: 3\r\n\r\na=b";
    assert_eq!(fixture.ask(form).await.header("told"), "none");
    assert_eq!(fixture.ask("GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.header("told"), "none");
    refused(&fixture.ask(sized(&person("true"))).await, "whole number");

    let fixture = Fixture::with(by_grpc());
    let http2 = fixture.http2_client().await;
    for body in [message(0, b""), message(0, b"\x08\x02"), Vec::new()] {
        let answer = http2.ask(call(&http2, full(body))).await;
        assert_eq!(answer.header("segue-reason"), "no-partition");
    }
}

#[tokio::test]
async fn a_request_that_a_route_sends_elsewhere_is_not_read_for_its_key() {
    let mut settings = by_json();
    let path = Some(PathMatch::Beginning(PathPrefix::new("/files").unwrap()));
    let rule = RouteRule { path, methods: Vec::new(), header: None, to: Destination::Any };
    settings.forward.exceptions.routes = RouteRules::new(vec![rule]);
    let fixture = Fixture::with(settings);
    let pod = ScriptedPod::new().await;
    fixture.ready(&[pod.address]);
    let mut client = fixture.client().await;
    client.write(post("content-length: 100000\r\n", "{").replace("POST /", "PUT /files")).await;
    let mut connection = pod.accept().await;
    assert!(connection.head().await.contains("segue-partition: none\r\n"));
    connection.write(OK).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn a_key_of_the_body_has_the_limits_of_a_key() {
    let mut settings = by_json();
    let limits = KeyLimits { max_in_flight: 1, ..KeyLimits::default() };
    settings.forward.key_limit = Some(KeyLimiter::new(&limits));
    let fixture = Fixture::with(settings);
    let pod = ScriptedPod::new().await;
    PartitionId::all(8).for_each(|partition| fixture.route(partition, pod.address, 1));
    let (_client, _connection) = fixture.exchange(&pod, sized(&person("7"))).await;
    assert_eq!(fixture.ask(sized(&person("\"7\""))).await.reason(), (429, "rate"));
    let _other = fixture.exchange(&pod, sized(&person("8"))).await;
}

#[tokio::test]
async fn trailers_and_all_other_headers_pass_as_they_would_without_a_key() {
    let fixture = Fixture::with(by_json());
    let pod = ScriptedPod::new().await;
    PartitionId::all(8).for_each(|partition| fixture.route(partition, pod.address, 1));
    let body = person("7");
    let chunks = format!("{:x}\r\n{body}\r\n0\r\nx-sum: 1\r\ncontent-type: text/plain\r\n\r\n", body.len());
    let mut client = fixture
        .send(post("trailer: x-sum\r\ncontent_type: text/plain\r\ntransfer-encoding: chunked\r\n", &chunks))
        .await;
    let mut connection = pod.accept().await;
    let head = connection.head().await;
    assert!(head.contains("content-type: application/json\r\n") && !head.contains("content_type"), "{head}");
    let expected = format!("{:x}\r\n{body}\r\n0\r\nx-sum: 1\r\n\r\n", body.len());
    assert_eq!(connection.exactly(expected.len()).await, expected);
    connection.write(OK).await;
    assert_eq!(client.answer().await.status, 200);
}
