//! Fuzzes the router's real server with the bytes of an HTTP/1.1 client. The pod gets no more requests than a strict
//! reader finds in the bytes. Each has one unambiguous framing and the router's own stamps. The client gets a response,
//! or its connection is closed.
//!
//! A client whose bytes are whole requests sends one more, which shows that both sides agree where the others ended.
//! Any other client closes its side. What the router reads in an input, hyper reads in the same way.

use segue_proxy::fuzzing::compare_with_hyper;
use segue_proxy::settings::UpstreamProtocol;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

use crate::Outcome;
use crate::support::pieces;
use crate::support::router::{Ending, Router, Served};
use crate::support::wire::{self, Manner, Message, Stop};

const LAST: &[u8] = b"GET /last HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nconnection: close\r\n\r\n";

thread_local! {
    static ROUTER: (LocalRuntime, Router) = {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
        let router = runtime.block_on(Router::new(UpstreamProtocol::Http1));
        (runtime, router)
    };
}

pub fn run(data: &[u8]) -> Outcome {
    let Some((_, pieces)) = pieces::cut(data) else { return Outcome::NoInput };
    compare_with_hyper(&pieces);
    ROUTER.with(|(runtime, router)| runtime.block_on(check(router, &data[1..], &pieces)));
    Outcome::Checked
}

async fn check(router: &Router, bytes: &[u8], pieces: &[&[u8]]) {
    let (sent, agreed) = read(bytes);
    let ending = if agreed { Ending::Last(LAST) } else { Ending::Close { turns: 0 } };
    let Served { answers, seen, late } = router.serve(pieces, ending).await;
    let last_seen = check_requests(&sent, agreed, &seen);
    check_answers(&answers, &sent, agreed, last_seen);
    for client in late {
        let (sent, agreed) = read(&client.sent);
        check_requests(&sent, agreed, &client.seen);
    }
}

/// Returns the requests in these bytes, and whether both sides must agree where they end.
fn read(bytes: &[u8]) -> (Vec<Message>, bool) {
    let (sent, rest, stop) = wire::requests(bytes, Manner::Tolerant);
    let agreed = stop == Stop::Incomplete && rest.is_empty() && sent.iter().all(goes_on);
    (sent, agreed)
}

/// Checks that the client has sent what the pod has got, in this order. Returns whether the last request is there.
fn check_requests(sent: &[Message], agreed: bool, seen: &[Message]) -> bool {
    let mut left = sent.iter();
    let mut last_seen = false;
    for request in seen {
        if request.start == b"GET /last HTTP/1.1" && agreed {
            last_seen = true;
        } else {
            assert!(!last_seen, "something came after the last request");
            let same = |sent: &&Message| sent.method() == request.method() && sent.body == request.body;
            assert!(left.by_ref().any(|sent| same(&sent)), "the client did not send {request:?}");
        }
    }
    last_seen
}

fn check_answers(mut bytes: &[u8], sent: &[Message], agreed: bool, last_seen: bool) {
    let methods: Vec<&[u8]> = sent.iter().map(Message::method).chain([&b"GET"[..]]).collect();
    let (mut count, mut last) = (0, None);
    while !bytes.is_empty() {
        let method = methods.get(count).copied().unwrap_or(b"GET");
        let (answer, length) = match unread(bytes).map_or_else(|| wire::answer(bytes, method), Ok) {
            Ok(read) => read,
            // A client that has disconnected may miss part of a response.
            Err(Stop::Incomplete) if !agreed => return,
            Err(stop) => panic!("{stop:?} in an answer: {}", String::from_utf8_lossy(bytes)),
        };
        bytes = &bytes[length..];
        if answer.status() != Some(100) {
            count += 1;
            last = Some(answer);
        }
    }
    assert!(count <= methods.len(), "{count} answers to {} requests", methods.len());
    if last_seen {
        let last = last.expect("an answer");
        assert_eq!((last.status(), last.body.as_slice(), count), (Some(200), &b"ok"[..], methods.len()));
    } else if agreed {
        // A request that is not served gets an error response, and the connection is closed.
        let status = last.and_then(|answer| answer.status());
        assert!(matches!(status, Some(400..=499)), "the last answer is {status:?}");
    }
}

/// Returns a response to a request that the router could not read, so that it does not know its method either.
fn unread(bytes: &[u8]) -> Option<(Message, usize)> {
    let (answer, length) = wire::answer(bytes, b"GET").ok()?;
    answer.all("segue-reason").eq([b"malformed"]).then_some((answer, length))
}

/// Returns whether the connection stays open after this request, whatever the response.
fn goes_on(request: &Message) -> bool {
    let special = ["connection", "expect", "upgrade"].iter().any(|name| request.has(name));
    !special && !request.ambiguous && request.start.ends_with(b"HTTP/1.1") && request.method() != b"CONNECT"
}
