//! Clients by HTTP/1.1 and HTTP/1.0: which of their bytes are a request, what they get, and when their connection ends.

use segue_protocol::handoff::router::HoldCause;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::support::client::{Body, full};
use crate::support::pod::{Speaks, echo_body};
use crate::support::{Fixture, GET, OK, P0, P1, POST_THAT_EXPECTS, Settings, TEST_TIMEOUT, get_at, post, soon};

/// Returns the lines of a response in alphabetical order, without the date and with the body.
fn lines(response: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = response.split("\r\n").filter(|line| !line.starts_with("date: ")).collect();
    lines.sort_unstable();
    lines
}

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
async fn http10_closes_behind_a_response_unless_the_client_keeps_the_connection() {
    let get = |fields: &str| format!("GET / HTTP/1.0\r\nx-partition: 0\r\n{fields}\r\n");
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (client, mut connection) = fixture.exchange(&pod, get("")).await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(lines(&client.rest().await), ["", "HTTP/1.0 200 OK", "content-length: 2", "ok"]);

    let (mut client, mut connection) = {
        let mut client = fixture.send(get("connection: keep-alive\r\n")).await;
        connection.head().await;
        connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        let answer = client.answer().await;
        assert_eq!((answer.text(), answer.header("connection")), ("ok", "keep-alive"));
        (client, connection)
    };
    // HTTP/1.0 knows no chunks, so the body ends with the connection.
    client.write(get("connection: keep-alive\r\nte: trailers\r\n")).await;
    connection.head().await;
    connection
        .write(
            "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n",
        )
        .await;
    assert_eq!(lines(&client.rest().await), ["", "HTTP/1.0 200 OK", "connection: close", "ok"]);
}

/// Its client could not tell it from a whole one otherwise.
#[tokio::test]
async fn a_response_without_length_to_http10_that_breaks_off_ends_with_a_reset() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, "GET / HTTP/1.0\r\nx-partition: 0\r\n\r\n").await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
    client.head().await;
    assert_eq!(client.exactly(5).await, b"hello");
    drop(connection);
    let end = soon(client.stream.read_to_end(&mut Vec::new())).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
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
async fn a_response_is_passed_on_with_its_length_its_chunks_or_its_trailers() {
    const CHUNKS: &str = "5\r\nhello\r\n0\r\n\r\n";
    const TRAILED: &str = "5\r\nhello\r\n0\r\nx-sum: 7\r\nx-other: 8\r\n\r\n";
    const DECLARED: &str = "5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n";
    for (response, on_head, fields, body, trailed) in [
        (
            "200 OK\r\ncontent-length: 5\r\nX-A: 1\r\nx-a: 2",
            "hello",
            &["content-length: 5", "x-a: 1", "x-a: 2"][..],
            "hello",
            "hello",
        ),
        ("200 Fine\r\ndate: then\r\ncontent-length: 0", "", &["content-length: 0"], "", ""),
        ("200 OK\r\ntransfer-encoding: chunked", CHUNKS, &["transfer-encoding: chunked"], CHUNKS, CHUNKS),
        (
            "200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked",
            TRAILED,
            &["trailer: x-sum", "transfer-encoding: chunked"],
            CHUNKS,
            DECLARED,
        ),
        ("204 No Content", "", &[], "", ""),
        ("304 Not Modified\r\ncontent-length: 5", "", &[], "", ""),
        ("599 Odd\r\ncontent-length: 2", "hi", &["content-length: 2"], "hi", "hi"),
    ] {
        for (method, end, body) in [
            ("GET", "connection: close\r\n", body),
            ("POST", "te: trailers\r\nconnection: te, close\r\n", trailed),
            ("HEAD", "te: trailers\r\nconnection: te, close\r\n", ""),
        ] {
            let fixture = Fixture::new();
            let pod = fixture.scripted_pod().await;
            let request = format!("{method} / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n{end}\r\n");
            let (client, mut connection) = fixture.exchange(&pod, request).await;
            connection.write(format!("HTTP/1.1 {response}\r\n\r\n")).await;
            if method != "HEAD" {
                connection.write(on_head).await;
            }
            let said = client.rest().await;
            let (head, found) = said.split_once("\r\n\r\n").unwrap();
            let status = format!("HTTP/1.1 {}", response.split("\r\n").next().unwrap());
            let mut expected: Vec<&str> = [status.as_str(), "connection: close"].to_vec();
            // What frames a body does not stand on a response to HEAD, unless the pod has said its length.
            expected.extend(fields.iter().filter(|field| method != "HEAD" || !field.starts_with("tra")));
            if method == "HEAD" && response.starts_with("304") {
                expected.push("content-length: 5");
            }
            expected.sort_unstable();
            assert_eq!((lines(head), found), (expected, body), "{method} {end:?} {response:?}");
        }
    }
}

/// A response that is framed in another way than its client reads it would be taken for the next one.
#[tokio::test]
async fn a_connection_goes_on_behind_every_response() {
    let first = |method| format!("{method} / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n");
    for (method, response) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n"),
        ("GET", "HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\n"),
        ("GET", "HTTP/1.1 299 Odd\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let fixture = Fixture::new();
        let pod = fixture.scripted_pod().await;
        // The second request has arrived with the first one.
        let (mut client, mut connection) = fixture.exchange(&pod, first(method)).await;
        client.write(get_at(P0, "connection: close\r\n")).await;
        // The router sends nothing more on this connection to the pod.
        connection.write(response.replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1)).await;
        let mut connection = pod.accept_request().await;
        connection.write("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecond").await;
        let said = client.rest().await;
        assert!(said.ends_with("\r\n\r\nsecond"), "{method} {response:?}: {said:?}");
    }
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
async fn a_response_that_its_client_reads_slowly_arrives_whole() {
    const BYTES: usize = 3 << 20;
    for framing in [format!("content-length: {BYTES}"), "transfer-encoding: chunked".to_owned()] {
        let fixture = Fixture::new();
        let pod = fixture.scripted_pod().await;
        let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
        let chunked = framing.starts_with("transfer");
        let writes = tokio::spawn(async move {
            connection.write(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n")).await;
            for start in (0..BYTES).step_by(1 << 16) {
                let piece: Vec<u8> = (start..start + (1 << 16)).map(|index| (index / 255) as u8).collect();
                if chunked {
                    connection.write("10000\r\n").await;
                }
                connection.write(&piece).await;
                if chunked {
                    connection.write("\r\n").await;
                }
            }
            if chunked {
                connection.write("0\r\n\r\n").await;
            }
            connection
        });
        // The router has filled every buffer before this client begins to read.
        soon(client.stream.readable()).await.unwrap();
        let answer = client.answer().await;
        assert_eq!(answer.body.len(), BYTES);
        assert!(answer.body.iter().enumerate().all(|(index, byte)| *byte == (index / 255) as u8));
        let mut connection = writes.await.unwrap();
        client.write(GET).await;
        assert!(connection.head().await.starts_with("GET / "), "the connection is used again");
    }
}

#[tokio::test]
async fn a_response_that_breaks_off_does_not_end_as_a_whole_one() {
    for framing in ["content-length: 10", "transfer-encoding: chunked"] {
        let fixture = Fixture::new();
        let pod = fixture.scripted_pod().await;
        let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
        connection.write(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n5\r\nhello")).await;
        client.head().await;
        drop(connection);
        let mut rest = Vec::new();
        // The end of the connection, or a reset.
        let _ = soon(client.stream.read_to_end(&mut rest)).await;
        assert!(!rest.ends_with(b"0\r\n\r\n") && rest.len() < 10 + 8, "{rest:?}");
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
async fn an_idle_connection_is_closed_when_its_server_stops() {
    let mut fixture = Fixture::new();
    let _pod = fixture.quick_pod().await;
    let mut client = fixture.client().await;
    assert_eq!(client.ask(GET).await.status, 200);
    let begun = Instant::now();
    let stopping = fixture.shut_down();
    assert_eq!(client.rest().await, "");
    soon(stopping).await.unwrap();
    assert!(begun.elapsed() < TEST_TIMEOUT / 2, "it waits for its deadline");
}

/// A server that closes an idle connection loses the request that its client has just sent there.
#[tokio::test]
async fn a_request_on_its_way_to_a_server_that_stops_is_served_and_is_the_last() {
    let mut fixture = Fixture::new();
    let _pod = fixture.quick_pod().await;
    let mut idle = fixture.client().await;
    assert_eq!(idle.ask(GET).await.status, 200);
    let mut fresh = fixture.client().await;
    let stopping = fixture.shut_down();
    fixture.refuses_connections().await;
    for client in [&mut idle, &mut fresh] {
        let answer = client.ask(GET).await;
        assert_eq!((answer.status, answer.header("connection")), (200, "close"));
    }
    assert_eq!((idle.rest().await, fresh.rest().await), (String::new(), String::new()));
    soon(stopping).await.unwrap();
}

/// The head of its response has promised that the connection stays open.
#[tokio::test]
async fn a_connection_that_was_busy_when_its_server_stopped_may_carry_one_more_request() {
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let idle = fixture.client().await;
    let (mut busy, mut connection) = fixture.exchange(&pod, GET).await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no").await;
    assert_eq!(busy.head().await.header("connection"), "");
    let stopping = fixture.shut_down();
    assert_eq!(idle.rest().await, "");
    connection.write("k").await;
    assert_eq!(busy.exactly(2).await, b"ok");
    busy.write(GET).await;
    connection.head().await;
    connection.write(OK).await;
    let answer = busy.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (200, "close"));
    soon(stopping).await.unwrap();
}

#[tokio::test]
async fn a_request_that_has_begun_before_its_server_stops_is_served_and_is_the_last() {
    for rest in ["expect: 100-continue\r\ncontent-length: 3\r\n\r\nabc", "content-length: 3\r\n\r\nabc"] {
        let mut fixture = Fixture::new();
        let _pod = fixture.pod(Speaks::Http1, echo_body).await;
        let mut client = fixture.send("POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n").await;
        // What came before another client's request has been read once that is answered.
        assert_eq!(fixture.ask(GET).await.status, 200);
        let stopping = fixture.shut_down();
        fixture.refuses_connections().await;
        client.write(rest).await;
        let mut answer = client.answer().await;
        if answer.status == 100 {
            answer = client.answer().await;
        }
        assert_eq!((answer.status, answer.text()), (200, "abc"), "{rest:?}");
        assert_eq!(answer.header("connection"), "close", "{rest:?}");
        assert_eq!(client.rest().await, "");
        soon(stopping).await.unwrap();
    }
}

#[tokio::test]
async fn an_upload_that_goes_on_behind_its_response_is_delivered_by_a_server_that_stops() {
    const LENGTH: usize = 1 << 20;
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.send(post(&format!("content-length: {LENGTH}"), &"x".repeat(1000))).await;
    let mut connection = pod.accept_request().await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nn").await;
    assert_eq!(client.head().await.header("connection"), "close");
    let stopping = fixture.shut_down();
    fixture.refuses_connections().await;
    connection.write("o").await;
    client.write(vec![b'x'; LENGTH - 1000]).await;
    let received = connection.exactly_bytes(LENGTH).await;
    assert!(received.iter().all(|byte| *byte == b'x'));
    assert_eq!(client.rest().await, "no");
    soon(stopping).await.unwrap();
}

#[tokio::test]
async fn a_request_behind_one_whose_response_promised_to_keep_the_connection_is_served_by_a_server_that_stops() {
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.send([GET, GET].concat()).await;
    let mut connection = pod.accept_request().await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nn").await;
    assert_eq!(client.head().await.header("connection"), "");
    let stopping = fixture.shut_down();
    fixture.refuses_connections().await;
    connection.write("o").await;
    connection.head().await;
    connection.write(OK).await;
    let both = client.rest().await;
    assert!(both.starts_with("noHTTP/1.1 200 OK\r\n") && both.contains("connection: close\r\n"), "{both}");
    soon(stopping).await.unwrap();
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

#[tokio::test]
async fn informational_responses_that_a_client_does_not_read_are_dropped() {
    const HEADS: usize = 1000;
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    let head = format!("HTTP/1.1 103 Early Hints\r\nx: {}\r\n\r\n", "x".repeat(60 << 10));
    for _ in 0..HEADS {
        connection.write(&head).await;
    }
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let mut heads = 0;
    while client.head().await.status == 103 {
        heads += 1;
    }
    // The kernel takes some megabytes of them.
    assert!((1..HEADS / 2).contains(&heads), "{heads} have been passed on");
}

/// No stash counts the memory of buffers.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_request_that_waits_has_no_buffer_for_its_response() {
    const NAME: &str = "http1_clients::a_request_that_waits_has_no_buffer_for_its_response";
    const WAITING: usize = 600;
    const HEAD: usize = 60 << 10;
    // The memory is that of a process, and other tests run in this one.
    if std::env::var_os("SEGUE_TEST_ALONE").is_none() {
        let mut alone = tokio::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args([NAME, "--exact"]).env("SEGUE_TEST_ALONE", "1").output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let settings = Settings::with(|settings| {
        settings.stash.max_requests = 2 * WAITING;
    });
    let fixture = Fixture::with(settings);
    let pod = fixture.scripted_pod().await;
    fixture.hold(P1, HoldCause::Handoff);
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: {}\r\n\r\n", "x".repeat(HEAD));
    connection.write(&response).await;
    assert_eq!(client.answer().await.status, 200);
    let (mut waiting, before) = (Vec::new(), resident_bytes());
    for number in 1..=WAITING {
        waiting.push(fixture.send(get_at(P1, "")).await);
        fixture.held(P1, number).await;
        // A response leaves a large buffer for the next one to use.
        client.write(GET).await;
        connection.head().await;
        connection.write(&response).await;
        assert_eq!(client.answer().await.status, 200);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < WAITING * HEAD / 2, "{grown} bytes more for {WAITING} requests");
}

#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[tokio::test]
async fn a_response_to_a_get_with_bytes_behind_it_ends_with_its_client() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    client.write("G").await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    client.head().await;
    drop(client);
    fixture.in_flight(P0, 0).await;
    assert_eq!(soon(connection.stream.read(&mut [0; 1])).await.unwrap_or(0), 0);
}
