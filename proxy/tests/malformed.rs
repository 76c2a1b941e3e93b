//! Bytes that are no request by the rules of HTTP: their clients are told why, and the metrics count them, whichever part of
//! the router finds them.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::Response;
use segue_proxy::message::local_reply::LocalReply;
use segue_proxy::settings::UpstreamProtocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::support::client::empty;
use crate::support::pod::Speaks;
use crate::support::{Fixture, GET, OK, P0, Settings, post, soon, until};

fn fixture() -> Fixture {
    Fixture::with(Settings::with_limits(|limits| limits.header_read_timeout = Duration::from_millis(200)))
}

#[tokio::test]
async fn a_head_that_is_no_request_is_refused_with_its_reason_and_counted() {
    let fixture = fixture();
    let _pod = fixture.quick_pod().await;
    let to = |target: &[u8]| [b"GET ", target, b" HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n"].concat();
    for accepted in ["/\"{}|^\u{e9}", "/?`{}|^\u{e9}", "/%3C%3E"] {
        assert_eq!(fixture.ask(to(accepted.as_bytes())).await.status, 200, "{accepted}");
    }
    let heads = [
        to(b"/a<b>"),
        to(b"/a`b"),
        to(b"/a b"),
        to(b"/a\x7f"),
        to(b"/\xe9"),
        to(b"/?\""),
        to(b"/?<"),
        to(b"/?>"),
        to(b"/?\xe9"),
        b"GET / HTTP/1.1\r\nhost: h\r\nno colon\r\n\r\n".to_vec(),
        b"nonsense\r\n\r\n".to_vec(),
    ];
    let mut expected = 0;
    for head in &heads {
        for behind_a_request in [false, true] {
            let mut client = fixture.client().await;
            if behind_a_request {
                assert_eq!(client.ask(GET).await.status, 200);
            }
            let answer = client.ask(head).await;
            assert_eq!(answer.reason(), (400, "malformed"), "{}", head.escape_ascii());
            assert_eq!(client.rest().await, "");
            expected += 1;
            let counted = || fixture.metrics.own_answers(LocalReply::Malformed) == expected;
            until(counted, "the refusal to be counted").await;
        }
    }
}

#[tokio::test]
async fn heads_that_are_too_large_or_too_slow_are_counted_as_well() {
    let fixture = fixture();
    let target = format!("GET /{} HTTP/1.1\r\nhost: h\r\n\r\n", "a".repeat(65_535));
    let headers = format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n", "a".repeat(200 << 10));
    for (count, head) in [target, headers].iter().enumerate() {
        let mut client = fixture.client().await;
        // The router closes before it has read all of it.
        let _ = client.stream.write_all(head.as_bytes()).await;
        assert_eq!(client.answer().await.reason(), (431, "limit"));
        let counted = || fixture.metrics.own_answers(LocalReply::HeadTooLarge) == count as u64 + 1;
        until(counted, "the refusal to be counted").await;
    }
    for (count, begun) in ["GET / HTTP", "GET / HTTP/1.1\r\nupgrade: x\r\n"].iter().enumerate() {
        let mut client = fixture.send(begun).await;
        assert_eq!(client.answer().await.reason(), (408, "limit"));
        let counted = || fixture.metrics.own_answers(LocalReply::TooSlow) == count as u64 + 1;
        until(counted, "the refusal to be counted").await;
    }
}

#[tokio::test]
async fn a_pods_own_bare_refusal_stays_the_pods() {
    let fixture = fixture();
    let pod = fixture.scripted_pod().await;
    let upload = "POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ncontent-length: 10\r\n\r\nhello";
    for status in ["400 Bad Request", "431 Request Header Fields Too Large", "414 URI Too Long"] {
        let (mut client, mut connection) = fixture.exchange(&pod, upload).await;
        connection.write(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")).await;
        drop(connection);
        let answer = client.head().await;
        assert!(status.starts_with(&answer.status.to_string()));
        assert_eq!((answer.header("segue-reason"), answer.header("connection")), ("", "close"));
    }
    for own in [LocalReply::Malformed, LocalReply::HeadTooLarge] {
        assert_eq!(fixture.metrics.own_answers(own), 0, "{own:?}");
    }
}

/// A client by HTTP/2 that writes frames as it likes.
struct FramesClient {
    stream: TcpStream,
    read: Vec<u8>,
}

/// Returns a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns a literal header without an index.
fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// Returns a whole `GET` to partition 0 with this authority.
fn request(stream: u32, authority: &str) -> Vec<u8> {
    let pseudo = [&[0x82, 0x86, 0x84, 0x01, authority.len() as u8], authority.as_bytes()].concat();
    frame(1, 0x5, stream, &[pseudo, literal("x-partition", "0")].concat())
}

impl FramesClient {
    async fn connect(fixture: &Fixture) -> Self {
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        stream.write_all(&frame(4, 0, 0, b"")).await.unwrap();
        FramesClient { stream, read: Vec::new() }
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Returns kind, flags, stream and payload of the next frame; `None` at the end.
    async fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        loop {
            if let [a, b, c, kind, flags, s, t, u, v, ..] = self.read[..] {
                let end = 9 + u32::from_be_bytes([0, a, b, c]) as usize;
                if self.read.len() >= end {
                    let frame: Vec<u8> = self.read.drain(..end).collect();
                    return Some((kind, flags, u32::from_be_bytes([s, t, u, v]), frame[9..].to_vec()));
                }
            }
            if soon(self.stream.read_buf(&mut self.read)).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }
}

const SLOW: u32 = 20;

/// Returns how many of some slow requests are answered with success behind so many heads that `h2` refuses, and the code of
/// the connection's GOAWAY.
async fn behind_refused_heads(refused: u32) -> (u32, Option<u32>) {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1));
    let (release, released) = watch::channel(false);
    let _pod = fixture
        .pod(Speaks::Http1, move |_| {
            let mut released = released.clone();
            async move {
                released.wait_for(|released| *released).await.unwrap();
                Response::new(empty())
            }
        })
        .await;
    let mut client = FramesClient::connect(&fixture).await;
    for number in 0..SLOW {
        client.write(&request(2 * number + 1, "h")).await;
    }
    fixture.in_flight(P0, SLOW).await;
    for number in SLOW..SLOW + refused {
        client.write(&request(2 * number + 1, "h:80:90")).await;
    }
    let (mut resets, mut malformed, mut answered, mut goaway) = (0, 0, 0, None);
    while answered < SLOW {
        if resets == refused {
            release.send_replace(true);
        }
        match client.next().await {
            None => break,
            Some((1, _, _, head)) => answered += u32::from(head[0] == 0x88),
            Some((3, _, stream, code)) => {
                assert!(stream > 2 * SLOW - 1);
                resets += 1;
                // Some are refused because too many others have not been reset yet.
                malformed += u64::from(code == [0, 0, 0, 1]);
            }
            Some((7, _, _, payload)) => goaway = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap())),
            // A ping that is not acknowledged: the client has not heard of the first GOAWAY yet.
            Some(_) => {}
        }
    }
    let counted = || fixture.metrics.own_answers(LocalReply::Malformed) == malformed;
    until(counted, "the refusals to be counted").await;
    (answered, goaway)
}

#[tokio::test]
async fn heads_that_are_refused_by_http2_are_counted_and_end_nobody_elses_requests() {
    assert_eq!(behind_refused_heads(10).await, (SLOW, None));
    // Its connection is closed properly.
    assert_eq!(behind_refused_heads(1_100).await, (SLOW, Some(0)));
}

/// h2 ends the connection for such a byte, with all that is in flight there.
#[tokio::test]
async fn a_head_that_ends_its_connection_by_http2_is_counted() {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1));
    let pod = fixture.scripted_pod().await;
    let mut client = FramesClient::connect(&fixture).await;
    client.write(&request(1, "h")).await;
    fixture.in_flight(P0, 1).await;
    let pseudo = [&[0x82, 0x86, 0x84][..], &literal("x", "a\x01b")[..]].concat();
    client.write(&frame(1, 0x5, 3, &pseudo)).await;
    while client.next().await.is_some() {}
    until(|| fixture.metrics.own_answers(LocalReply::Malformed) == 1, "the head to be counted").await;
    until(|| fixture.metrics_page().contains("segue_requests_aborted_total 1\n"), "the other's end").await;
    pod.accept_request().await.write(OK).await;
    fixture.in_flight(P0, 0).await;
}

const MIB: usize = 1 << 20;

/// A router that gives heads more time than the tests have.
fn patient() -> Fixture {
    Fixture::with(Settings::with(|settings| {
        settings.forward.limits.max_header_bytes = 512 << 10;
        settings.forward.limits.header_read_timeout = Duration::from_secs(600);
    }))
}

#[tokio::test]
async fn unfinished_heads_are_bounded_over_all_clients() {
    let fixture = patient();
    let _pod = fixture.quick_pod().await;
    let mut small = fixture.send("GET / HTTP/1.1\r\nhost: h\r\n").await;
    let head = format!("GET / HTTP/1.1\r\nx: {}", "a".repeat(500 << 10));
    let clients = 32 * MIB / head.len();
    let mut answers: FuturesUnordered<_> = (0..clients)
        .map(|_| async {
            let mut client = fixture.client().await;
            // The router may have closed before it has read all of it.
            let _ = client.stream.write_all(head.as_bytes()).await;
            client.answer().await
        })
        .collect();
    // What is left fits into 16 MiB.
    for _ in 0..clients / 2 {
        assert_eq!(soon(answers.next()).await.unwrap().reason(), (408, "limit"));
    }
    small.write("x-partition: 0\r\n\r\n").await;
    assert_eq!(small.answer().await.status, 200);
}

#[tokio::test]
async fn unfinished_heads_by_http2_are_bounded_over_all_clients() {
    let fixture = patient();
    let _pod = fixture.quick_pod().await;
    let mut small = FramesClient::connect(&fixture).await;
    small.write(&frame(1, 0x1, 1, &[0x82, 0x86, 0x84, 0x01, 1, b'h'])).await;
    // An index of the static table for each byte, none of which a request may have twice; `h2` finds that at the end.
    let head = frame(1, 0x1, 1, &[0x90; 16 << 10]);
    let mut ends: FuturesUnordered<_> = (0..64)
        .map(|_| async {
            let mut client = FramesClient::connect(&fixture).await;
            let _ = client.stream.write_all(&head).await;
            while client.next().await.is_some() {}
        })
        .collect();
    for _ in 0..64 - 16 {
        soon(ends.next()).await.unwrap();
    }
    small.write(&frame(9, 0x4, 1, &literal("x-partition", "0"))).await;
    let status = loop {
        if let (1, _, _, head) = small.next().await.unwrap() {
            break head[0];
        }
    };
    assert_eq!(status, 0x88);
}

/// The beginning of a body, and what is no chunk.
const CHUNK: &str = "5\r\nhello\r\n";
const NO_CHUNK: &str = "zz\r\n";

#[tokio::test]
async fn a_body_that_is_not_framed_as_its_head_says_is_answered_and_counted() {
    let fixture = fixture();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, post("transfer-encoding: chunked", CHUNK)).await;
    client.write(NO_CHUNK).await;
    let answer = client.answer().await;
    assert_eq!(answer.reason(), (400, "malformed"));
    assert_eq!(answer.header("connection"), "close");
    assert_eq!(client.rest().await, "");
    assert_eq!(connection.rest().await, "", "the pod does not take it for a whole request");
    assert_eq!(fixture.metrics.own_answers(LocalReply::Malformed), 1);
}

#[tokio::test]
async fn a_held_body_that_is_not_framed_as_its_head_says_is_answered() {
    let fixture = fixture();
    let mut client = fixture.send(post("transfer-encoding: chunked", CHUNK)).await;
    fixture.held(P0, 1).await;
    client.write(NO_CHUNK).await;
    assert_eq!(client.answer().await.reason(), (400, "malformed"));
    fixture.held(P0, 0).await;
}

#[tokio::test]
async fn an_empty_scheme_and_a_host_that_is_two_reach_no_pod_by_http2() {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1));
    let _pod = fixture.pod(Speaks::Http1, |_| async { panic!("a request has reached the pod") }).await;
    let mut client = FramesClient::connect(&fixture).await;
    // As `request`, with a literal `:scheme`.
    let pseudo = [0x82, 0x06, 0, 0x84, 0x01, 1, b'h'];
    let empty = frame(1, 0x5, 1, &[&pseudo[..], &literal("x-partition", "0")].concat());
    for (count, head) in [empty, request(3, "h,g"), request(5, "user@h")].into_iter().enumerate() {
        client.write(&head).await;
        let head = loop {
            match client.next().await.expect("an answer") {
                (1, _, _, head) => break head,
                (3 | 7, ..) => panic!("the library has refused it"),
                _ => {}
            }
        };
        assert!(head.contains(&0x8c), "`:status: 400` in HPACK's static table");
        assert_eq!(fixture.metrics.own_answers(LocalReply::Ambiguous), count as u64 + 1);
    }
}

/// curl ends its upload once it has such an answer.
#[tokio::test]
async fn an_upload_by_http2_that_ends_short_behind_its_answer_is_not_counted_as_malformed() {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1));
    let pod = fixture.scripted_pod().await;
    let mut client = FramesClient::connect(&fixture).await;
    let pseudo = [0x83, 0x86, 0x84, 0x01, 1, b'h'];
    let fields = [&pseudo[..], &literal("x-partition", "0"), &literal("content-length", "100000")].concat();
    client.write(&[frame(1, 0x4, 1, &fields), frame(0, 0, 1, b"begin")].concat()).await;
    let mut connection = pod.accept_request().await;
    connection.write("HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nn").await;
    loop {
        if let (1, _, 1, _) = client.next().await.unwrap() {
            break;
        }
    }
    client.write(&frame(0, 0x1, 1, b"end")).await;
    let code = loop {
        if let (3, _, 1, code) = client.next().await.unwrap() {
            break code;
        }
    };
    assert_eq!(code, [0, 0, 0, 1]);
    // What has been written before the answer to a ping has been counted.
    client.write(&frame(6, 0, 0, b"and now?")).await;
    while client.next().await.unwrap().0 != 6 {}
    assert_eq!(fixture.metrics.own_answers(LocalReply::Malformed), 0);
}
