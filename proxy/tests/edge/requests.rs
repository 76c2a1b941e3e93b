//! Broken requests of clients.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::recorder::Recorder;
use crate::support::wire::{self, Message};
use crate::support::{Fixture, P0, soon};

/// The first fields of every head.
const H: &str = "host: h\r\nx-partition: 0\r\n";
const NEXT: &str = "GET /next HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nconnection: close\r\n\r\n";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The router closes the connection.
    Closed,
    /// The connection serves the next request.
    Goes,
}
use Then::{Closed, Goes};

struct Case {
    what: &'static str,
    sends: String,
    /// The statuses of the answers that the client gets.
    gets: &'static [u16],
    then: Then,
    /// The request lines that reach the pod.
    reach: &'static [&'static str],
}

fn case(
    what: &'static str,
    sends: impl Into<String>,
    gets: &'static [u16],
    then: Then,
    reach: &'static [&'static str],
) -> Case {
    Case { what, sends: sends.into(), gets, then, reach }
}

fn framing() -> Vec<Case> {
    const P: &[&str] = &["POST / HTTP/1.1"];
    let post = |fields: &str, body: &str| format!("POST / HTTP/1.1\r\n{H}{fields}\r\n\r\n{body}");
    let inner = format!("GET /inner HTTP/1.1\r\n{H}\r\n");
    let coded = |coding: &str| post(coding, "0\r\n\r\n");
    let length = |value: &str| post(&format!("content-length: {value}"), "hello");
    vec![
        // A length and a coding: the coding counts, and the connection is not read on.
        case(
            "CL.TE",
            post("content-length: 6\r\ntransfer-encoding: chunked", &format!("0\r\n\r\n{inner}")),
            &[200],
            Closed,
            P,
        ),
        case(
            "TE.CL",
            post("transfer-encoding: chunked\r\ncontent-length: 4", &format!("0\r\n\r\n{inner}")),
            &[200],
            Closed,
            P,
        ),
        // Codings spelt so that one side reads them and the other does not.
        case("a coding of another name", coded("transfer-encoding: xchunked"), &[400], Closed, &[]),
        case("a space before the colon", coded("transfer-encoding : chunked"), &[400], Closed, &[]),
        case("a vertical tab before the coding", coded("transfer-encoding: \x0bchunked"), &[400], Closed, &[]),
        case("a coding in quotes", coded("transfer-encoding: \"chunked\""), &[400], Closed, &[]),
        case("chunked is not the last", coded("transfer-encoding: chunked, identity"), &[400], Closed, &[]),
        case(
            "chunked behind another line",
            coded("transfer-encoding: x\r\ntransfer-encoding: chunked"),
            &[400],
            Goes,
            &[],
        ),
        case(
            "chunked in front of another",
            coded("transfer-encoding: chunked\r\ntransfer-encoding: x"),
            &[400],
            Closed,
            &[],
        ),
        case("chunked behind another coding", coded("transfer-encoding: gzip, chunked"), &[400], Goes, &[]),
        case("chunked twice", coded("transfer-encoding: chunked, chunked"), &[400], Goes, &[]),
        case("chunked in capitals behind a tab", coded("Transfer-Encoding:\tCHUNKED"), &[200], Goes, P),
        case("a coding on a folded line", coded("transfer-encoding:\r\n chunked"), &[400], Closed, &[]),
        case("the coding's name on a folded line", coded("x: y\r\n transfer-encoding: chunked"), &[400], Closed, &[]),
        case(
            "a coding in HTTP/1.0",
            coded("transfer-encoding: chunked").replace("HTTP/1.1", "HTTP/1.0"),
            &[400],
            Closed,
            &[],
        ),
        // Lengths.
        case("equal lengths", post("content-length: 5\r\ncontent-length: 5", "hello"), &[200], Goes, P),
        case("two lengths", post("content-length: 5\r\ncontent-length: 6", "hello"), &[400], Closed, &[]),
        case("two lengths in a line", length("5, 5"), &[400], Closed, &[]),
        case("a signed length", length("+5"), &[400], Closed, &[]),
        case("a negative length", length("-5"), &[400], Closed, &[]),
        case("a length in hexadecimal", length("0x5"), &[400], Closed, &[]),
        case("a length with a space", length("5 5"), &[400], Closed, &[]),
        case("no length", length(""), &[400], Closed, &[]),
        case("a length beyond 64 bits", length("18446744073709551621"), &[400], Closed, &[]),
        // A GET's body is a body.
        case(
            "a GET with a body",
            format!("GET / HTTP/1.1\r\n{H}content-length: {}\r\n\r\n{inner}", inner.len()),
            &[200],
            Goes,
            &["GET / HTTP/1.1"],
        ),
    ]
}

fn chunks() -> Vec<Case> {
    const P: &[&str] = &["PUT / HTTP/1.1"];
    let put = |body: &str| format!("PUT / HTTP/1.1\r\n{H}transfer-encoding: chunked\r\n\r\n{body}");
    vec![
        case("an extension", put("5;a=\"b\"\r\nhello\r\n0\r\n\r\n"), &[200], Goes, P),
        case("a space behind the size", put("5 \r\nhello\r\n0\r\n\r\n"), &[200], Goes, P),
        case("leading zeros", put("00000005\r\nhello\r\n0\r\n\r\n"), &[200], Goes, P),
        case("trailers", put("5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n"), &[200], Goes, P),
        case("more zeros than digits fit", put(&format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(40))), &[200], Goes, P),
        // What the pod has begun to get is broken off.
        case("a size beyond 64 bits", put("10000000000000005\r\nhello\r\n0\r\n\r\n"), &[400], Closed, &[]),
        case("a size without digits", put("\r\nhello\r\n0\r\n\r\n"), &[400], Closed, &[]),
        case("a negative size", put("-5\r\nhello\r\n0\r\n\r\n"), &[400], Closed, &[]),
        case("a size in C's hexadecimal", put("0x5\r\nhello\r\n0\r\n\r\n"), &[400], Closed, &[]),
        case("a size behind a space", put(" 5\r\nhello\r\n0\r\n\r\n"), &[400], Closed, &[]),
        case("a bare LF behind the size", put("5\nhello\r\n0\r\n\r\n"), &[400], Closed, &[]),
        case("a bare LF in an extension", put("5;a\nb\r\nhello\r\n0\r\n\r\n"), &[400], Closed, &[]),
        case("a bare CR in an extension", put("5;a\rb\r\nhello\r\n0\r\n\r\n"), &[400], Closed, &[]),
        case("more data than its size", put("5\r\nhello!\r\n0\r\n\r\n"), &[400], Closed, &[]),
        case("less data than its size", put("6\r\nhello\r\n0\r\n\r\n"), &[400], Closed, &[]),
        case("no line end behind the data", put("5\r\nhello0\r\n\r\n"), &[400], Closed, &[]),
        case("an extension without end", put(&format!("5;{}", "x".repeat(1 << 20))), &[400], Closed, &[]),
        case("trailers without end", put(&format!("0\r\nx: {}", "x".repeat(1 << 20))), &[400], Closed, &[]),
    ]
}

fn heads() -> Vec<Case> {
    const G: &[&str] = &["GET / HTTP/1.1"];
    let get = |fields: &str| format!("GET / HTTP/1.1\r\n{H}{fields}\r\n");
    let line = |line: &str| format!("{line}\r\n{H}\r\n");
    vec![
        case("a folded line", get("x: a\r\n b\r\n"), &[400], Closed, &[]),
        case("a folded first line", "GET / HTTP/1.1\r\n host: h\r\nx-partition: 0\r\n\r\n", &[400], Closed, &[]),
        case("bare LFs", "GET / HTTP/1.1\nhost: h\nx-partition: 0\n\n", &[200], Goes, G),
        case("a bare CR in a value", get("x: a\rb\r\n"), &[400], Closed, &[]),
        case("a NUL in a value", get("x: a\0b\r\n"), &[400], Closed, &[]),
        case("a control character in a value", get("x: a\x01b\r\n"), &[400], Closed, &[]),
        case("DEL in a value", get("x: a\x7fb\r\n"), &[400], Closed, &[]),
        case("a NUL in a name", get("x\0: a\r\n"), &[400], Closed, &[]),
        case("a space before the colon", get("x : a\r\n"), &[400], Closed, &[]),
        case("no colon", get("x\r\n"), &[400], Closed, &[]),
        case("no name", get(": x\r\n"), &[400], Closed, &[]),
        case("empty lines in front", format!("\r\n\r\n{}", get("")), &[200], Goes, G),
        case("two hosts", get("host: other\r\n"), &[400], Goes, &[]),
        case("two equal hosts", get("host: h\r\n"), &[400], Goes, &[]),
        case("another host in the target", line("GET http://other/ HTTP/1.1"), &[200], Goes, G),
        case("no version", line("GET /"), &[400], Closed, &[]),
        case("HTTP/1.2", line("GET / HTTP/1.2"), &[400], Closed, &[]),
        case("HTTP/2.0", line("GET / HTTP/2.0"), &[400], Closed, &[]),
        case("a version in small letters", line("GET / http/1.1"), &[400], Closed, &[]),
        case("two spaces", line("GET  / HTTP/1.1"), &[400], Closed, &[]),
        case("a space in the target", line("GET /a b HTTP/1.1"), &[400], Closed, &[]),
        case("a tab instead of a space", line("GET\t/ HTTP/1.1"), &[400], Closed, &[]),
        case("a control character in the target", line("GET /\x01 HTTP/1.1"), &[400], Closed, &[]),
        case("a NUL in the method", line("GE\0T / HTTP/1.1"), &[400], Closed, &[]),
        case("a method of its own", line("BREW / HTTP/1.1"), &[200], Goes, &["BREW / HTTP/1.1"]),
        case("a fragment", line("GET /a#b HTTP/1.1"), &[200], Goes, &["GET /a HTTP/1.1"]),
        case("the host as a whole", line("OPTIONS * HTTP/1.1"), &[200], Goes, &["OPTIONS * HTTP/1.1"]),
        case("a tunnel", line("CONNECT h:80 HTTP/1.1"), &[400], Goes, &[]),
        case("a trace", line("TRACE / HTTP/1.1"), &[405], Goes, &[]),
        case("the last hop", get("max-forwards: 0\r\n").replace("GET", "OPTIONS"), &[200], Goes, &[]),
        case("a GET that may go no further", get("max-forwards: 0\r\n"), &[200], Goes, G),
        case("HTTP/1.0", line("GET / HTTP/1.0"), &[200], Closed, G),
        case("nonsense", "\x16\x03\x01\x02\0\x01\0\x01\x7c\x03\x03\r\n\r\n", &[400], Closed, &[]),
        case("almost the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", &[400], Closed, &[]),
        case(
            "h2c",
            get("connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"),
            &[200],
            Goes,
            G,
        ),
    ]
}

#[tokio::test]
async fn framing_that_could_be_read_in_two_ways_never_reaches_a_pod() {
    run(framing()).await;
}

#[tokio::test]
async fn broken_chunks_never_reach_a_pod_as_a_whole_request() {
    run(chunks()).await;
}

#[tokio::test]
async fn broken_heads_never_reach_a_pod() {
    run(heads()).await;
}

async fn run(cases: Vec<Case>) {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    let mut reached = 0;
    for Case { what, sends, gets, then, reach } in cases {
        let mut bytes = sends.into_bytes();
        if then == Goes {
            bytes.extend_from_slice(NEXT.as_bytes());
        }
        let answers = talk(fixture.address, &bytes).await;
        let statuses: Vec<u16> = answers.iter().filter_map(Message::status).collect();
        let expected: Vec<u16> = gets.iter().copied().chain((then == Goes).then_some(200)).collect();
        assert_eq!(statuses, expected, "{what}");
        // The next client is served.
        let after = talk(fixture.address, NEXT.as_bytes()).await;
        assert_eq!(after.iter().filter_map(Message::status).collect::<Vec<_>>(), [200], "after {what}");
        fixture.in_flight(P0, 0).await;
        // Connections to pods are used again, so their requests are told apart by what they are.
        let all = pod.requests().await;
        let next = all.iter().filter(|request| request.start == b"GET /next HTTP/1.1").count();
        let others: Vec<&Message> = all.iter().filter(|request| request.start != b"GET /next HTTP/1.1").collect();
        let lines: Vec<_> = others[reached..].iter().map(|request| String::from_utf8_lossy(&request.start)).collect();
        assert_eq!(lines, reach, "{what}");
        assert!(next > 0);
        reached = others.len();
        for request in others {
            assert!(!request.has("upgrade") && !request.has("te"), "{what}: {request:?}");
        }
    }
}

/// Sends these bytes and reads the answers until the router closes.
async fn talk(address: std::net::SocketAddr, bytes: &[u8]) -> Vec<Message> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (mut read, mut write) = stream.split();
    let mut text = Vec::new();
    let writing = async {
        // A router that has hung up takes no more.
        let _ = write.write_all(bytes).await;
    };
    let reading = async {
        let _ = soon(read.read_to_end(&mut text)).await;
    };
    tokio::join!(writing, reading);
    let mut rest = &text[..];
    let mut answers = Vec::new();
    while !rest.is_empty() {
        let (answer, length) = wire::answer(rest, b"GET").unwrap_or_else(|stop| {
            panic!("{stop:?} in the answer {:?}", String::from_utf8_lossy(rest));
        });
        rest = &rest[length..];
        answers.push(answer);
    }
    answers
}

#[tokio::test]
async fn the_target_decides_about_the_host() {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    talk(fixture.address, NEXT.replace("/next", "http://other:81/a?b").as_bytes()).await;
    let [request] = &pod.requests().await[..] else { panic!("one request") };
    assert_eq!(request.start, b"GET /a?b HTTP/1.1");
    assert_eq!(request.all("host").collect::<Vec<_>>(), [b"other:81"]);
}

#[tokio::test]
async fn an_options_is_counted_down_and_answered_here_at_its_last_hop() {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    let options = |left: &str| {
        NEXT.replace("GET", "OPTIONS").replace("connection", &format!("max-forwards: {left}\r\nconnection"))
    };
    talk(fixture.address, options("7").as_bytes()).await;
    let [request] = &pod.requests().await[..] else { panic!("one request") };
    assert_eq!(request.all("max-forwards").collect::<Vec<_>>(), [b"6"]);
    let [answer] = &talk(fixture.address, options("0").as_bytes()).await[..] else { panic!("one answer") };
    assert_eq!((answer.status(), answer.all("segue-reason").next()), (Some(200), Some(&b"max-forwards"[..])));
    assert!(answer.has("allow"));
}

#[tokio::test]
async fn what_a_client_says_of_the_routers_business_is_not_passed_on() {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 7);
    let forged = format!(
        "PUT / HTTP/1.1\r\n{H}segue-epoch: 99\r\nSegue-Router: me\r\nconnection: close, segue-epoch, segue-router\r\n\
         transfer-encoding: chunked\r\n\r\n0\r\nsegue-epoch: 99\r\nsegue-partition: 3\r\ncontent-length: 5\r\n\
         transfer-encoding: chunked\r\nhost: other\r\nx-forwarded-for: 1.2.3.4\r\nx-sum: 7\r\n\r\n"
    );
    assert_eq!(talk(fixture.address, forged.as_bytes()).await[0].status(), Some(200));
    let [request] = &pod.requests().await[..] else { panic!("one request") };
    assert_eq!(request.all("segue-epoch").collect::<Vec<_>>(), [b"7"]);
    assert_eq!(request.all("segue-router").collect::<Vec<_>>(), [b"router-0"]);
    assert_eq!(request.trailers, [("x-sum".to_owned(), b"7".to_vec())]);
}

#[tokio::test]
async fn heads_beyond_all_bounds_are_refused_and_reach_nobody() {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    for (what, head) in [
        ("a header of a megabyte", format!("GET / HTTP/1.1\r\n{H}x: {}\r\n\r\n", "x".repeat(1 << 20))),
        ("ten thousand headers", format!("GET / HTTP/1.1\r\n{H}{}\r\n", "x: y\r\n".repeat(10_000))),
        ("101 headers", format!("GET / HTTP/1.1\r\n{H}{}\r\n", "x: y\r\n".repeat(99))),
        ("a request line without end", format!("GET /{}", "x".repeat(1 << 20))),
        ("a method without end", "G".repeat(1 << 20)),
    ] {
        // Closed with bytes unread, which may reset the connection before the client has read the answer.
        let statuses: Vec<_> =
            talk(fixture.address, head.as_bytes()).await.iter().filter_map(Message::status).collect();
        assert!(matches!(statuses[..], [] | [400 | 414 | 431]), "{what}: {statuses:?}");
        assert_eq!(talk(fixture.address, NEXT.as_bytes()).await.len(), 1, "after {what}");
    }
    assert_eq!(pod.requests().await.len(), 5);
}
