//! Requests by HTTP/1.1 and HTTP/1.0: which of a client's bytes are a request, and what its client gets.

use segue_protocol::handoff::router::HoldCause;
use tokio::io::AsyncWriteExt as _;

use crate::support::client::{Body, full};
use crate::support::pod::{Speaks, echo_body};
use crate::support::{Fixture, GET, OK, P0, POST_THAT_EXPECTS, Settings, get_at, post};

#[tokio::test]
async fn requests_that_are_plain_and_others_are_served_in_order_on_one_connection() {
    let chunked = post("transfer-encoding: chunked", "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n");
    let others = [
        ("expect: 100-continue\r\n", vec![100, 200]),
        ("connection: upgrade\r\nupgrade: h2c\r\n", vec![200]),
        ("x-a: b\r\n", vec![200]),
    ];
    let fixture = Fixture::new();
    let _pod = fixture.pod(Speaks::Http1, echo_body).await;
    for (fields, statuses) in &others {
        let mut client = fixture.client().await;
        // Everything is there at once, so each request stands behind the bytes of another.
        let other = post(&format!("{fields}content-length: 3"), "abc");
        client
            .write([&post("content-length: 5", "first"), &chunked, &other, &chunked].map(String::as_str).concat())
            .await;
        assert_eq!(client.answer().await.text(), "first");
        assert_eq!(client.answer().await.text(), "hello world");
        for status in statuses {
            let answer = client.answer().await;
            assert_eq!(answer.status, *status, "{fields}");
            assert!(*status == 100 || answer.text() == "abc");
        }
        assert_eq!(client.answer().await.text(), "hello world");
    }
}

#[tokio::test]
async fn bytes_that_are_no_request_are_refused_behind_a_request() {
    for (bytes, refused) in [
        ("NO REQUEST\r\n\r\n".to_owned(), (400, "malformed")),
        ("GET / HTTP/1.1\r\nhost : h\r\n\r\n".to_owned(), (400, "malformed")),
        (post("content-length: 5\r\ncontent-length: 6", "hello"), (400, "malformed")),
        (post("content-length: 5\r\ntransfer-encoding: gzip", "hello"), (400, "malformed")),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), (400, "malformed")),
        (format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n", "x".repeat(65 << 10)), (431, "limit")),
        (format!("GET / HTTP/1.1\r\nhost: h\r\n{}\r\n", "x: y\r\n".repeat(100)), (431, "limit")),
    ] {
        let fixture = Fixture::new();
        let _pod = fixture.quick_pod().await;
        let mut client = fixture.client().await;
        assert_eq!(client.ask(GET).await.status, 200);
        client.write(&bytes).await;
        let answer = client.answer().await;
        assert_eq!(answer.reason(), refused, "{:?}", &bytes[..bytes.len().min(100)]);
        assert_eq!((answer.header("connection"), client.rest().await.as_str()), ("close", ""));
    }
}

#[tokio::test]
async fn large_heads_and_many_headers_are_served_up_to_the_limit() {
    let fixture = Fixture::new();
    let _pod = fixture.pod(Speaks::Http1, echo_body).await;
    let mut client = fixture.client().await;
    for fields in [
        format!("x: {}\r\n", "x".repeat(60 << 10)),
        "x: y\r\n".repeat(85),
        "content-length: 00000000000000000000000000000005\r\n".to_owned(),
    ] {
        let padding = if fields.starts_with("content") { "" } else { "content-length: 5\r\n" };
        let request = format!("POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n{padding}{fields}\r\nhello");
        assert_eq!(client.ask(request).await.text(), "hello", "{:?}", &fields[..20]);
    }
    let target = format!("GET /{} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n", "x".repeat(20 << 10));
    assert_eq!(client.ask(target).await.status, 200);
}

#[tokio::test]
async fn a_client_is_told_to_go_on_once_the_body_is_wanted_and_never_behind_the_response() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, POST_THAT_EXPECTS).await;
    connection.continue_and_answer(&mut client).await;
    // The pod responds without the body, which nobody reads.
    client.write(POST_THAT_EXPECTS).await;
    connection.head().await;
    connection.write("HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (417, "close"));
    assert_eq!(client.rest().await, "");
    // Nobody is told to send to a partition that does not exist.
    let mut client = fixture.send(POST_THAT_EXPECTS.replace("x-partition: 0", "x-partition: 99")).await;
    assert_eq!(client.answer().await.reason(), (400, "bad-partition"));
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn what_a_client_sends_ahead_of_a_switch_belongs_to_the_other_protocol() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    let mut client = fixture.send(get_at(P0, upgrade) + "early").await;
    let mut connection = pod.accept_request().await;
    connection.write(format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\n")).await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("connection"), head.header("content-length")), (101, "upgrade", ""));
    assert_eq!(connection.exactly(5).await, "early");
    fixture.in_flight(P0, 1).await;
    drop((client, connection));
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_body_that_is_broken_is_refused() {
    for body in [
        "zz\r\n".to_owned(),
        "5\r\nhelloX\r\n0\r\n\r\n".to_owned(),
        "-5\r\nhello\r\n0\r\n\r\n".to_owned(),
        "fffffffffffffffff\r\nhello".to_owned(),
        format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(20 << 10)),
        format!("0\r\nx: {}\r\n\r\n", "x".repeat(80 << 10)),
    ] {
        let fixture = Fixture::new();
        let _pod = fixture.pod(Speaks::Http1, whole_or_not).await;
        let mut client = fixture.client().await;
        assert_eq!(client.ask(post("content-length: 2", "ok")).await.text(), "whole");
        // The router may have ended the connection before all of it is written.
        let _ = client.stream.write_all(post("transfer-encoding: chunked", &body).as_bytes()).await;
        let said = client.rest().await;
        assert!(said.starts_with("HTTP/1.1 400 ") && said.contains("segue-reason: malformed\r\n"), "{said:?}");
    }
}

async fn whole_or_not(request: http::Request<hyper::body::Incoming>) -> http::Response<Body> {
    let read = http_body_util::BodyExt::collect(request.into_body()).await;
    http::Response::new(full(if read.is_ok() { "whole" } else { "broken" }))
}

#[tokio::test]
async fn a_websocket_opens_behind_a_plain_request() {
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    // The upgrade has arrived before the response to the first request.
    client.write(get_at(P0, upgrade)).await;
    connection.write(OK).await;
    assert_eq!(client.answer().await.status, 200);
    assert!(connection.head().await.contains("upgrade: websocket"));
    connection.write(format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\nhello")).await;
    assert_eq!(client.head().await.status, 101);
    assert_eq!(client.exactly(5).await, b"hello");
    client.write("ping").await;
    assert_eq!(connection.exactly(4).await, "ping");
}

#[tokio::test]
async fn a_head_that_arrives_in_pieces_is_one_request() {
    for (padding, piece) in [(10, 1), (9 << 10, 100)] {
        let request = post(&format!("content-length: 5\r\nx-a: {}", "a".repeat(padding)), "hello");
        let fixture = Fixture::new();
        let _pod = fixture.pod(Speaks::Http1, echo_body).await;
        let mut client = fixture.client().await;
        client.stream.set_nodelay(true).unwrap();
        for _ in 0..2 {
            for piece in request.as_bytes().chunks(piece) {
                client.write(piece).await;
            }
            assert_eq!(client.answer().await.text(), "hello", "{padding}");
        }
    }
}

#[tokio::test]
async fn a_chunked_upload_that_its_client_cuts_off_does_not_end_as_a_whole_one() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let upload = post("transfer-encoding: chunked", "5\r\nhello\r\n");
    let (client, mut connection) = fixture.exchange(&pod, upload).await;
    drop(client);
    let rest = connection.rest().await;
    assert!(!rest.contains("0\r\n"), "{rest:?}");
}

#[tokio::test]
async fn trailers_that_arrive_while_a_request_is_held_count_in_the_stash() {
    let settings = Settings::with(|settings| {
        settings.stash.max_bytes = 100_000;
    });
    let fixture = Fixture::with(settings);
    fixture.hold(P0, HoldCause::Handoff);
    let upload = post("transfer-encoding: chunked", "5\r\nhello\r\n0\r\n") + &format!("x: {}", "x".repeat(60_000));
    let _first = fixture.send(&upload).await;
    fixture.held(P0, 1).await;
    let mut second = fixture.send(&upload).await;
    assert_eq!(second.answer().await.reason(), (503, "stash-full"));
}
