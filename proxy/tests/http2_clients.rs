//! HTTP/2 connections of clients on which much goes wrong: a router that stops, bodies that nobody reads, exchanges that
//! are severed. No request may be left without an answer, and none may use up what others on its connection need.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use segue_protocol::handoff::router::HoldCause;
use segue_proxy::settings::UpstreamProtocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::support::client::{Body, Http2Client, data, empty, full, stream};
use crate::support::pod::Speaks;
use crate::support::{BOTH_VERSIONS, Fixture, P0, P1, Settings, TEST_TIMEOUT, soon};

/// Returns how often to repeat what needs luck to go wrong. `SEGUE_TEST_ROUNDS` names another number.
fn rounds(usual: usize) -> usize {
    std::env::var("SEGUE_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}

const LARGE_BYTES: usize = 200 << 10;

/// More than fits into a connection's window, if connections have one stream.
fn large() -> Body {
    full(vec![b'x'; LARGE_BYTES])
}

/// A frame that takes up much of a stream's window.
fn part() -> Option<Frame<Bytes>> {
    Some(Frame::data(vec![b'x'; 40 << 10].into()))
}

/// Returns whether the whole response has arrived, with success.
async fn heard(client: Http2Client, request: Request<Body>) -> bool {
    match client.begin(request).await {
        Ok(response) if response.status().is_success() => soon(response.into_body().collect()).await.is_ok(),
        Ok(_) | Err(_) => false,
    }
}

/// The least window that a connection can have.
fn settings(protocol: UpstreamProtocol) -> Settings {
    let mut settings = Settings::with_protocol(protocol);
    settings.forward.limits.max_streams_per_connection = 1;
    settings
}

async fn echo(request: Request<Incoming>) -> Response<Body> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    Response::new(full(body))
}

#[tokio::test]
async fn bodies_that_nobody_reads_use_up_no_window() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let mut settings = settings(protocol);
        settings.forward.limits.max_body_bytes = Some(300 << 10);
        settings.stash.max_bytes = 1 << 10;
        let fixture = Fixture::with(settings);
        let _pod = fixture.pod(speaks, echo).await;
        fixture.hold(P1, HoldCause::NoOwner);
        let mut client = fixture.http2_client().await;
        for round in 0..rounds(100) {
            // Another connection before this one is closed for its unread uploads.
            if round % 40 == 39 {
                client = fixture.http2_client().await;
            }
            let (begun, body) = stream();
            begun.send(data("begun")).unwrap();
            let too_large = client.request("POST", "/").header("content-length", 1 << 20).body(body).unwrap();
            let nowhere = client.request("POST", "/").header("x-partition", "none").body(large()).unwrap();
            let mut too_much = client.request("POST", "/").body(large()).unwrap();
            too_much.headers_mut().insert("x-partition", "1".parse().unwrap());
            for (request, status) in [(nowhere, 400), (too_much, 503), (too_large, 413)] {
                assert_eq!(client.begin(request).await.unwrap().status(), status, "round {round}");
            }
        }
        assert_eq!(client.post("/", large()).await.body.len(), LARGE_BYTES);
    }
}

/// As Python's `h2` sends them: the end of a stream is a frame of its own, behind the last byte.
#[tokio::test]
async fn uploads_whose_last_byte_has_arrived_are_not_unread() {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1));
    let _pod = fixture.pod(Speaks::Http1, echo).await;
    let client = fixture.http2_client().await;
    for round in 0..300 {
        let (sender, body) = stream();
        sender.send(data("hello")).unwrap();
        let request = client.request("POST", "/").header("content-length", 5).body(body).unwrap();
        let response = soon(client.begin(request)).await.unwrap();
        assert!(response.status() == 200 && !client.is_closed(), "round {round}");
        sender.send(None).unwrap_or_default();
    }
}

#[tokio::test]
async fn uploads_that_are_refused_cost_no_other_request_its_answer() {
    let (speaks, protocol) = BOTH_VERSIONS[0];
    let fixture = Fixture::with(Settings::with_protocol(protocol));
    let (begun, mut others) = mpsc::unbounded_channel();
    let _pod = fixture
        .pod(speaks, move |_| {
            let (answer, answered) = oneshot::channel();
            begun.send(answer).unwrap();
            async move { answered.await.unwrap() }
        })
        .await;
    let mut client = fixture.http2_client().await;
    let mut refused = 0;
    while refused < 2_000 {
        // A connection has another request in flight for as long as it lasts.
        let other = client.spawn_ask(client.request("GET", "/").body(empty()).unwrap());
        let answer = soon(others.recv()).await.unwrap();
        loop {
            let nowhere = client.request("POST", "/").header("x-partition", "none").body(large()).unwrap();
            match client.begin(nowhere).await {
                Ok(response) => assert_eq!(response.status(), 400),
                Err(error) => break assert!(client.is_closed(), "{error:?} after {refused} refusals"),
            }
            refused += 1;
            if client.is_closed() || refused == 2_000 {
                break;
            }
        }
        answer.send(Response::new(full("other"))).unwrap();
        assert_eq!(soon(other).await.unwrap().body, b"other", "after {refused} refusals");
        client = fixture.http2_client().await;
    }
}

/// Breaks the rules of the connection, and sends `bytes` more behind that. Returns whether the connection took them all.
async fn send_behind_a_mistake(client: &mut TcpStream, bytes: usize) -> bool {
    const DATA: u8 = 0;
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    let frame = |kind: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 0], payload].concat()
    };
    let more = frame(DATA, &[b'x'; 16 << 10]);
    let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    all.extend(frame(SETTINGS, b""));
    // A window may not grow by nothing.
    all.extend(frame(WINDOW_UPDATE, &[0; 4]));
    all.extend(more.repeat(bytes / more.len()));
    soon(client.write_all(&all)).await.is_ok()
}

/// Returns the error codes of the GOAWAY frames.
fn goaways(mut bytes: &[u8]) -> Vec<u32> {
    let mut codes = Vec::new();
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = bytes {
        let (payload, next) = rest.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
        if *kind == 7 {
            codes.push(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        bytes = next;
    }
    codes
}

#[tokio::test]
async fn a_client_that_sends_on_behind_its_mistake_is_told_of_it() {
    const PROTOCOL_ERROR: u32 = 1;
    let fixture = Fixture::new();
    let mut client = TcpStream::connect(fixture.address).await.unwrap();
    assert!(send_behind_a_mistake(&mut client, 4 << 20).await, "the connection was reset");
    let mut said = Vec::new();
    soon(client.read_to_end(&mut said)).await.expect("an end");
    assert_eq!(goaways(&said), [PROTOCOL_ERROR]);
}

#[tokio::test]
async fn a_client_that_stays_behind_its_mistake_does_not_keep_a_router_that_stops() {
    let mut fixture = Fixture::new();
    let mut client = TcpStream::connect(fixture.address).await.unwrap();
    assert!(send_behind_a_mistake(&mut client, 1 << 20).await, "the connection was reset");
    soon(client.read_to_end(&mut Vec::new())).await.expect("an end");
    let ended = fixture.shut_down();
    tokio::time::timeout(TEST_TIMEOUT / 2, ended).await.expect("it waits for its deadline").unwrap();
}

#[tokio::test]
async fn a_client_that_never_stops_sending_behind_its_mistake_is_closed() {
    let fixture = Fixture::new();
    let mut client = TcpStream::connect(fixture.address).await.unwrap();
    let all_was_read = send_behind_a_mistake(&mut client, 64 << 20).await;
    let mut said = vec![0; 1 << 10];
    let count = client.try_read(&mut said).unwrap_or(0);
    assert!(!all_was_read, "the router read all, and said {}", said[..count].escape_ascii());
}

#[tokio::test]
async fn severed_exchanges_use_up_no_window() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(settings(protocol));
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        let pod = fixture
            .pod(speaks, move |request| {
                let arrived = arrived.clone();
                async move {
                    if request.uri().path() == "/echo" {
                        return echo(request).await;
                    }
                    let (sender, body) = stream();
                    let _ = sender.send(part());
                    let answers = request.uri().path() == "/answered";
                    arrived.send((request, sender)).unwrap();
                    if !answers {
                        std::future::pending::<()>().await;
                    }
                    Response::new(body)
                }
            })
            .await;
        let mut client = fixture.http2_client().await;
        for epoch in (2..).take(rounds(4)) {
            if epoch % 100 == 0 {
                client = fixture.http2_client().await;
            }
            let path = if epoch % 2 == 0 { "/unanswered" } else { "/answered" };
            let (sender, body) = stream();
            sender.send(part()).unwrap();
            let request = client.request("POST", path).body(body).unwrap();
            let asked = tokio::spawn(heard(client.clone(), request));
            let _arrived = soon(arrivals.recv()).await.unwrap();
            fixture.hold_and_sever(P0);
            assert!(!soon(asked).await.unwrap(), "{path}, {protocol:?}, epoch {epoch}");
            fixture.in_flight(P0, 0).await;
            fixture.route(P0, pod.address, epoch);
            assert_eq!(client.post("/echo", large()).await.body.len(), LARGE_BYTES, "{protocol:?}, epoch {epoch}");
        }
    }
}

#[tokio::test]
async fn every_request_is_answered_or_given_back_while_the_router_stops() {
    for round in 0..rounds(20) {
        let micros = |factor: usize, below: usize| Duration::from_micros((round * factor % below) as u64);
        let (speaks, protocol) = BOTH_VERSIONS[round % 2];
        let mut fixture = Fixture::with(Settings::with_protocol(protocol));
        let answers_after = micros(37, 3000);
        let pod = fixture
            .pod(speaks, move |request| async move {
                tokio::time::sleep(answers_after).await;
                echo(request).await
            })
            .await;
        fixture.hold(P1, HoldCause::Handoff);
        let mut clients = JoinSet::new();
        for number in 0..6 {
            clients.spawn(ask_on(fixture.http2_client().await, number));
        }
        tokio::time::sleep(micros(211, 5000)).await;
        let ended = fixture.shut_down();
        tokio::time::sleep(micros(97, 4000)).await;
        fixture.route(P1, pod.address, 2);
        soon(clients.join_all()).await;
        soon(ended).await.unwrap();
    }
}

/// Sends up to four requests at a time until the connection takes no more.
async fn ask_on(client: Http2Client, number: usize) {
    for count in number.. {
        let mut all = JoinSet::new();
        for each in count..=count + count % 4 {
            let body = [empty(), full("some"), large()].into_iter().nth(each % 3).unwrap();
            let mut request = client.request("POST", "/").body(body).unwrap();
            let partition = if each % 7 == 6 { "1" } else { "0" };
            request.headers_mut().insert("x-partition", partition.parse().unwrap());
            all.spawn(heard(client.clone(), request));
        }
        if all.join_all().await.contains(&false) {
            return;
        }
    }
}

#[tokio::test]
async fn headers_by_http2_are_counted_as_by_http1_and_the_pieces_of_cookies_as_one() {
    let fixture = Fixture::of_http2_pods();
    let _pod = fixture.pod(Speaks::Http2, |_| async { Response::new(empty()) }).await;
    let client = fixture.http2_client().await;
    let with = |lines: usize, cookies: usize| {
        let mut request = client.request("GET", "/").body(empty()).unwrap();
        for number in request.headers().len()..lines {
            request
                .headers_mut()
                .insert(http::HeaderName::try_from(format!("x-{number}")).unwrap(), "a".parse().unwrap());
        }
        for _ in 0..cookies {
            request.headers_mut().append("cookie", "a=1".parse().unwrap());
        }
        client.ask(request)
    };
    assert_eq!(with(100, 0).await.status, 200);
    assert_eq!(with(99, 150).await.status, 200);
    assert_eq!(with(101, 0).await.reason(), (431, "limit"));
    assert_eq!(with(100, 2).await.reason(), (431, "limit"));
}
