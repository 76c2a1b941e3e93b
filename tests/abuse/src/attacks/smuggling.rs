//! Request smuggling: a request inside another one, which the router and the pod may read differently.
//!
//! Each shape tries to make the pod see a request to `/smuggled`. `proxy/tests/edge` checks the bytes of each shape;
//! here the whole router is attacked while its other clients continue.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Attack, Got, Target, attack};
use crate::wire::{DATA, END_HEADERS, END_STREAM, H, HEADERS, Raw, block, code, frame, preface, request, said};

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n";
const PATIENCE: Duration = Duration::from_millis(300);

fn post(fields: &str, body: &str) -> String {
    format!("POST /echo HTTP/1.1\r\n{H}{fields}\r\n\r\n{body}")
}

pub(super) fn all() -> Vec<Attack> {
    let chunked_end = format!("0\r\n\r\n{SMUGGLED}");
    let inner = SMUGGLED.len();
    let in_chunk = format!("{inner:x}\r\n{SMUGGLED}\r\n0\r\n\r\n");
    let http1: [(&'static str, String); 21] = [
        ("smuggle-cl-te", post("content-length: 6\r\ntransfer-encoding: chunked", &chunked_end)),
        ("smuggle-te-cl", post("transfer-encoding: chunked\r\ncontent-length: 4", &in_chunk)),
        ("smuggle-te-te", post("transfer-encoding: chunked\r\ntransfer-encoding: x", &chunked_end)),
        ("smuggle-te-case-tab", post("Transfer-Encoding:\t xchunked\r\ncontent-length: 5", &chunked_end)),
        ("smuggle-te-space-colon", post("transfer-encoding : chunked\r\ncontent-length: 5", &chunked_end)),
        ("smuggle-te-vertical-tab", post("transfer-encoding: \x0bchunked\r\ncontent-length: 5", &chunked_end)),
        ("smuggle-obs-fold", post("x: y\r\n transfer-encoding: chunked\r\ncontent-length: 5", &chunked_end)),
        ("smuggle-bare-lf", post("x: y\ntransfer-encoding: chunked\r\ncontent-length: 5", &chunked_end)),
        ("smuggle-bare-lf-length", post(&format!("x: y\ncontent-length: {inner}\r\ncontent-length: 0"), SMUGGLED)),
        ("smuggle-bare-cr", post("x: a\rtransfer-encoding: chunked\r\ncontent-length: 5", &chunked_end)),
        ("smuggle-chunk-overflow", post("transfer-encoding: chunked", &format!("10000000000000000\r\n{SMUGGLED}"))),
        ("smuggle-chunk-sign", post("transfer-encoding: chunked", &format!("+5\r\nhello\r\n0\r\n\r\n{SMUGGLED}"))),
        ("smuggle-chunk-hex", post("transfer-encoding: chunked", &format!("0x5\r\nhello\r\n0\r\n\r\n{SMUGGLED}"))),
        ("smuggle-chunk-lf", post("transfer-encoding: chunked", &format!("5\nhello\n0\n\n{SMUGGLED}"))),
        ("smuggle-chunk-ext-lf", post("transfer-encoding: chunked", &format!("5;\nhello\r\n0\r\n\r\n{SMUGGLED}"))),
        ("smuggle-two-lengths", post(&format!("content-length: 0\r\ncontent-length: {inner}"), SMUGGLED)),
        ("smuggle-signed-length", post("content-length: +5", &format!("hello{SMUGGLED}"))),
        ("smuggle-length-list", post(&format!("content-length: 0, {inner}"), SMUGGLED)),
        ("smuggle-nul", post("x: a\0b\r\ncontent-length: 5", &format!("hello{SMUGGLED}"))),
        ("smuggle-line-in-target", format!("GET /\r\nx-smuggled:1 HTTP/1.1\r\n{H}\r\n{SMUGGLED}")),
        (
            "smuggle-h2c",
            format!(
                "GET /echo HTTP/1.1\r\n{H}connection: upgrade, http2-settings\r\nupgrade: h2c\r\n\
             http2-settings: AAMAAABkAAQAAP__\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            ),
        ),
    ];
    let http1 = http1.into_iter().map(|(name, bytes)| {
        attack(name, move |target| {
            let bytes = bytes.clone();
            async move { over_http1(&target, &bytes).await }
        })
    });
    type Fields = &'static [(&'static str, &'static str)];
    let http2: [(&'static str, &'static str, &'static str, Fields); 12] = [
        ("h2-smuggle-crlf-value", "POST", "/echo", &[("x-a", "b\r\nx-smuggled: 1")]),
        ("h2-smuggle-lf-value", "POST", "/echo", &[("x-a", "b\nx-smuggled: 1")]),
        ("h2-smuggle-nul-value", "POST", "/echo", &[("x-a", "b\0c")]),
        ("h2-smuggle-crlf-name", "POST", "/echo", &[("x-a: b\r\nx-smuggled", "1")]),
        ("h2-smuggle-colon-name", "POST", "/echo", &[("x-smuggled: 1\r\nx", "1")]),
        ("h2-smuggle-upper-name", "POST", "/echo", &[("X-Smuggled", "1")]),
        ("h2-smuggle-te", "POST", "/echo", &[("transfer-encoding", "chunked")]),
        ("h2-smuggle-connection", "POST", "/echo", &[("connection", "x-partition")]),
        ("h2-smuggle-path-crlf", "POST", "/ HTTP/1.1\r\nx-smuggled: 1\r\nx: ", &[]),
        ("h2-smuggle-method-space", "GET /smuggled HTTP/1.1\r\nx:", "/echo", &[]),
        ("h2-smuggle-two-paths", "POST", "/echo", &[(":path", "/smuggled")]),
        ("h2-smuggle-late-pseudo", "POST", "/echo", &[("x-a", "b"), (":authority", "other")]),
    ];
    let http2 = http2.into_iter().map(|(name, method, path, more)| {
        attack(name, move |target| async move {
            let fields = request(method, path, more);
            over_http2(&target, &fields, &format!("0\r\n\r\n{SMUGGLED}")).await
        })
    });
    let lengths =
        [("h2-smuggle-short-length", "0"), ("h2-smuggle-long-length", "9999"), ("h2-smuggle-bad-length", "+5")];
    let lengths = lengths.into_iter().map(|(name, length)| {
        attack(name, move |target| async move {
            let fields = request("POST", "/echo", &[("content-length", length)]);
            over_http2(&target, &fields, SMUGGLED).await
        })
    });
    http1.chain(http2).chain(lengths).collect()
}

async fn over_http1(target: &Target, bytes: &str) -> anyhow::Result<Got> {
    let before = target.seen.smuggled.load(Relaxed);
    let mut raw = Raw::connect(target.router).await?;
    let came = raw.ask(bytes, PATIENCE).await;
    // On a pod's connection that the router uses again, a request left over would meet the next client's.
    let mut next = Raw::connect(target.router).await?;
    let after = next.ask(format!("GET /echo HTTP/1.1\r\n{H}\r\n"), PATIENCE).await;
    Ok(judged(
        target,
        before,
        &after.statuses(),
        format!("{:?}{}", came.statuses(), if came.closed { ", closed" } else { "" }),
    ))
}

async fn over_http2(target: &Target, fields: &[(&str, &str)], body: &str) -> anyhow::Result<Got> {
    let before = target.seen.smuggled.load(Relaxed);
    let mut raw = Raw::connect(target.router).await?;
    raw.send(preface(&[]), PATIENCE).await;
    raw.send(frame(HEADERS, END_HEADERS, 1, &block(fields)), PATIENCE).await;
    raw.send(frame(DATA, END_STREAM, 1, body.as_bytes()), PATIENCE).await;
    let said = said(&raw.read(PATIENCE, 1 << 16).await.bytes);
    let mut next = Raw::connect(target.router).await?;
    let after = next.ask(format!("GET /echo HTTP/1.1\r\n{H}\r\n"), PATIENCE).await;
    let what = match (said.ok, said.answers) {
        (0, 0) => format!("reset {}, GOAWAY {}", code(said.reset), code(said.goaway)),
        (0, _) => "refused".to_owned(),
        _ => "200, for itself alone".to_owned(),
    };
    Ok(judged(target, before, &after.statuses(), what))
}

fn judged(target: &Target, before: usize, next: &[u16], what: String) -> Got {
    let reached = target.seen.smuggled.load(Relaxed) - before;
    if reached > 0 {
        return Got::new(false, format!("{what}; a smuggled request REACHED a pod"));
    }
    Got::new(next == [200], format!("{what}; the next client got {next:?}"))
}
