//! Broken answers of pods.

use tokio::io::AsyncReadExt;

use crate::support::pod::Connection;
use crate::support::wire::{self, Stop};
use crate::support::{Fixture, GET, P0, soon};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gets {
    /// A whole answer with this status and body.
    Whole(u16, &'static str),
    /// An answer with this status that is visibly cut off, or no answer and a close.
    CutOff(u16),
}
use Gets::{CutOff, Whole};

/// What becomes of the connection to the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Reused,
    Dropped,
}
use Then::{Dropped, Reused};

struct Case {
    what: &'static str,
    answers: String,
    /// The pod closes the connection behind the answer.
    closes: bool,
    gets: Gets,
    then: Then,
}

fn case(what: &'static str, answers: impl Into<String>, gets: Gets, then: Then) -> Case {
    Case { what, answers: answers.into(), closes: false, gets, then }
}

fn closing(what: &'static str, answers: impl Into<String>, gets: Gets) -> Case {
    Case { closes: true, ..case(what, answers, gets, Dropped) }
}

fn cases() -> Vec<Case> {
    let answer = |fields: &str, body: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n{body}");
    let chunked = |body: &str| answer("transfer-encoding: chunked", body);
    const FAILED: Gets = Whole(502, "");
    vec![
        case("an ordinary answer", answer("content-length: 5", "hello"), Whole(200, "hello"), Reused),
        case("chunks", chunked("5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n"), Whole(200, "hello"), Reused),
        // Framing.
        case(
            "a length and a coding",
            answer("content-length: 1\r\ntransfer-encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
            Whole(200, "hello"),
            Dropped,
        ),
        case("two lengths", answer("content-length: 5\r\ncontent-length: 6", "hello!"), FAILED, Dropped),
        case("equal lengths", answer("content-length: 5\r\ncontent-length: 5", "hello"), Whole(200, "hello"), Reused),
        case("two lengths in a line", answer("content-length: 5, 5", "hello"), FAILED, Dropped),
        case("a signed length", answer("content-length: +5", "hello"), FAILED, Dropped),
        case("a length beyond 64 bits", answer("content-length: 18446744073709551621", "hello"), FAILED, Dropped),
        case("another coding", answer("transfer-encoding: gzip, chunked", "0\r\n\r\n"), FAILED, Dropped),
        case("two codings", answer("transfer-encoding: x\r\ntransfer-encoding: chunked", "0\r\n\r\n"), FAILED, Dropped),
        case("a coding in HTTP/1.0", chunked("0\r\n\r\n").replace("HTTP/1.1", "HTTP/1.0"), FAILED, Dropped),
        // Heads.
        case("a folded line", answer("x: a\r\n b\r\ncontent-length: 0", ""), FAILED, Dropped),
        case("a space before the colon", answer("content-length : 0", ""), FAILED, Dropped),
        case("a NUL in a value", answer("x: a\0b\r\ncontent-length: 0", ""), FAILED, Dropped),
        case("a bare CR in a value", answer("x: a\rb\r\ncontent-length: 0", ""), FAILED, Dropped),
        case("a status of two digits", "HTTP/1.1 20 OK\r\n\r\n", FAILED, Dropped),
        case("HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", FAILED, Dropped),
        case("no HTTP at all", "SSH-2.0-OpenSSH\r\n", FAILED, Dropped),
        case("a head without end", format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(300 << 10)), FAILED, Dropped),
        case("a thousand headers", answer(&"x: y\r\n".repeat(1000), ""), FAILED, Dropped),
        case("a switch that nobody asked for", "HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n", FAILED, Dropped),
        case(
            "a flood of 1xx",
            format!(
                "{}{}",
                "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".repeat(10_000),
                answer("content-length: 0", "")
            ),
            Whole(200, ""),
            Reused,
        ),
        // What follows.
        case("garbage behind the body", answer("content-length: 5", "hello, world"), Whole(200, "hello"), Dropped),
        case("garbage behind chunks", chunked("5\r\nhello\r\n0\r\n\r\nx"), Whole(200, "hello"), Dropped),
        case("a second answer", format!("{0}{0}", answer("content-length: 2", "ok")), Whole(200, "ok"), Dropped),
        case(
            "a body where there is none",
            "HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\nhello",
            Whole(204, ""),
            Dropped,
        ),
        case(
            "a body that is announced for later",
            "HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\n",
            Whole(204, ""),
            Dropped,
        ),
        case(
            "a 304 with the length of what is not sent",
            "HTTP/1.1 304 Not\r\ncontent-length: 5\r\n\r\n",
            Whole(304, ""),
            Reused,
        ),
        case(
            "a close that is announced",
            answer("connection: close\r\ncontent-length: 0", ""),
            Whole(200, ""),
            Dropped,
        ),
        // Ends.
        closing("nothing", "", FAILED),
        closing("half a head", "HTTP/1.1 200 OK\r\ncontent-le", FAILED),
        closing("half a body", answer("content-length: 9", "hello"), CutOff(200)),
        closing("half a chunk", chunked("9\r\nhello"), CutOff(200)),
        closing("no last chunk", chunked("5\r\nhello\r\n"), CutOff(200)),
        closing("no end of the trailers", chunked("5\r\nhello\r\n0\r\nx: y\r\n"), CutOff(200)),
        closing("a body up to the close", answer("x: y", "hello"), Whole(200, "hello")),
        // Chunks that are none.
        case("a size without digits", chunked("5\r\nhello\r\n\r\n\r\n"), CutOff(200), Dropped),
        case("a size beyond 64 bits", chunked("5\r\nhello\r\n10000000000000000\r\n"), CutOff(200), Dropped),
        case("a negative size", chunked("5\r\nhello\r\n-1\r\n"), CutOff(200), Dropped),
        case("more data than its size", chunked("5\r\nhello!\r\n0\r\n\r\n"), CutOff(200), Dropped),
        case("a bare LF behind the size", chunked("5\r\nhello\r\n0\n\r\n"), CutOff(200), Dropped),
        case(
            "an extension without end",
            chunked(&format!("5\r\nhello\r\n1;{}", "x".repeat(100 << 10))),
            CutOff(200),
            Dropped,
        ),
        case(
            "trailers without end",
            chunked(&format!("5\r\nhello\r\n0\r\nx: {}", "x".repeat(100 << 10))),
            CutOff(200),
            Dropped,
        ),
    ]
}

#[tokio::test]
async fn a_broken_answer_fails_alone_and_its_connection_is_not_used_again() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut kept: Option<Connection> = None;
    for Case { what, answers, closes, gets, then } in cases() {
        let client = fixture.send(GET.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")).await;
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => pod.accept().await,
        };
        connection.head().await;
        // In one piece, so that what is behind an answer is there with it; the router may hang up in the middle of it.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut connection.stream, answers.as_bytes()).await;
        if closes {
            drop(connection);
            check(what, &client.rest().await, gets);
            continue;
        }
        check(what, &client.rest().await, gets);
        fixture.in_flight(P0, 0).await;
        match then {
            Reused => kept = Some(connection),
            Dropped => {
                let left = soon(connection.stream.read(&mut [0; 16])).await;
                assert!(matches!(left, Ok(0) | Err(_)), "{what}: the connection is used again");
            }
        }
    }
}

/// Checks the last answer in `text` behind any informational ones.
fn check(what: &str, mut text: &str, gets: Gets) {
    while let Some((_, behind)) = text.starts_with("HTTP/1.1 1").then(|| text.split_once("\r\n\r\n")).flatten() {
        text = behind;
    }
    let read = wire::answer(text.as_bytes(), b"GET");
    match gets {
        Whole(status, body) => {
            let (answer, length) = read.unwrap_or_else(|stop| panic!("{what}: {stop:?}: {text:?}"));
            assert_eq!((answer.status(), length), (Some(status), text.len()), "{what}: {text:?}");
            if status != 502 {
                assert_eq!(String::from_utf8_lossy(&answer.body), body, "{what}");
            }
        }
        CutOff(status) => {
            // What broke at once may have taken a head along that was not on its way yet.
            assert!(text.is_empty() || text.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {text:?}");
            assert_eq!(read.err(), Some(Stop::Incomplete), "{what}: looks whole: {text:?}");
        }
    }
}
