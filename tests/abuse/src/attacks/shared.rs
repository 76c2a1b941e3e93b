//! Attacks on what exchanges share behind the router: the connections to pods.

use std::time::{Duration, Instant};

use super::{Attack, Got, LASTS, Target, attack};
use crate::wire::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, H, HEADERS, RST_STREAM, Raw, block, code, frame, get, preface,
    request, said,
};

/// What a frame holds at most unless its receiver says otherwise.
const FRAME: usize = 16 << 10;
/// Exchanges of well-behaved clients, and what ends just then.
const A_FEW: f64 = 20.0;

pub(super) fn all() -> Vec<Attack> {
    vec![
        attack("h2-large-heads", large_heads),
        attack("h2-large-trailers", large_trailers),
        attack("h2-abandoned-uploads", abandoned_uploads),
        attack("h2-abandoned-downloads", abandoned_downloads),
        attack("abandoned-downloads", reconnects),
    ]
}

/// Lines that come to so many bytes, as HTTP/2 counts.
fn lines(bytes: usize) -> Vec<(String, String)> {
    const EACH: usize = 340;
    (0..bytes / EACH).map(|number| (format!("x-{number:05}"), "v".repeat(EACH - 32 - 7))).collect()
}

fn block_of<'a>(begin: Vec<(&'a str, &'a str)>, lines: &'a [(String, String)]) -> Vec<u8> {
    let lines = lines.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    block(&begin.into_iter().chain(lines).collect::<Vec<_>>())
}

/// A block in as many frames as it takes.
fn frames(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let last = block.len().div_ceil(FRAME) - 1;
    for (index, piece) in block.chunks(FRAME).enumerate() {
        let kind = if index == 0 { HEADERS } else { CONTINUATION };
        let first = if index == 0 { flags } else { 0 };
        bytes.extend(frame(kind, first | if index == last { END_HEADERS } else { 0 }, stream, piece));
    }
    bytes
}

/// Heads that the router takes and pods may end the connection for.
async fn large_heads(target: Target) -> anyhow::Result<Got> {
    let (mut sent, mut refused, mut served) = (0, 0, 0);
    let until = Instant::now() + LASTS;
    while Instant::now() < until {
        for bytes in [17_000, 34 << 10, 40 << 10, 62_000, 65_000] {
            let mut raw = Raw::connect(target.router).await?;
            raw.send(preface(&[]), LASTS).await;
            let lines = lines(bytes);
            raw.send(frames(1, END_STREAM, &block_of(request("GET", "/", &[]), &lines)), LASTS).await;
            let said = raw.read_answer(LASTS).await;
            sent += 1;
            served += said.ok;
            refused += said.answers - said.ok;
        }
    }
    Ok(Got::new(served == 0 && refused == sent, format!("{refused} of {sent} refused, {served} served")))
}

/// The same behind a body.
async fn large_trailers(target: Target) -> anyhow::Result<Got> {
    let (mut sent, mut ended, mut served) = (0, 0, 0);
    let until = Instant::now() + LASTS;
    while Instant::now() < until {
        for bytes in [17_000, 34 << 10, 40 << 10, 62_000] {
            let mut raw = Raw::connect(target.router).await?;
            raw.send(preface(&[]), LASTS).await;
            raw.send(frame(HEADERS, END_HEADERS, 1, &block(&request("POST", "/echo", &[]))), LASTS).await;
            raw.send(frame(DATA, 0, 1, b"body"), LASTS).await;
            raw.send(frames(1, END_STREAM, &block_of(Vec::new(), &lines(bytes))), LASTS).await;
            let said = raw.read_answer(LASTS).await;
            sent += 1;
            served += said.ok;
            ended += usize::from(said.answers - said.ok + said.resets > 0);
        }
    }
    Ok(Got::new(served == 0 && ended == sent, format!("{ended} of {sent} refused or reset, {served} served")))
}

/// Uploads begun and reset, so that the router has to reset them towards the pod.
async fn abandoned_uploads(target: Target) -> anyhow::Result<Got> {
    let (mut streams, mut connections, mut goaway) = (0, 0, None);
    let until = Instant::now() + LASTS;
    while Instant::now() < until || streams < 1_000 {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(preface(&[]), LASTS).await;
        connections += 1;
        for round in 0..10 {
            let opened: Vec<u32> = (0..50).map(|number| 2 * (50 * round + number) + 1).collect();
            let begin = opened.iter().flat_map(|stream| {
                let head = frame(HEADERS, END_HEADERS, *stream, &block(&request("POST", "/echo", &[])));
                [head, frame(DATA, 0, *stream, b"x")].concat()
            });
            let begin: Vec<u8> = begin.collect();
            if !raw.send(begin, LASTS).await {
                break;
            }
            let came = raw.read(Duration::from_millis(5), 1 << 16).await;
            goaway = said(&came.bytes).goaway.or(goaway);
            let reset = opened.iter().flat_map(|stream| frame(RST_STREAM, 0, *stream, &8u32.to_be_bytes()));
            let reset: Vec<u8> = reset.collect();
            if came.closed || !raw.send(reset, LASTS).await {
                break;
            }
            streams += opened.len();
        }
    }
    let what = format!("{streams} uploads reset on {connections} connections, GOAWAY {}", code(goaway));
    Ok(Got::new(streams >= 1_000, what))
}

/// Large answers asked for and reset once they have begun.
async fn abandoned_downloads(target: Target) -> anyhow::Result<Got> {
    let mut streams = 0;
    let until = Instant::now() + LASTS;
    while Instant::now() < until {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(preface(&[]), LASTS).await;
        for number in 0..50 {
            let stream = 2 * number + 1;
            if !raw.send(get(stream, "/big"), LASTS).await {
                break;
            }
            let came = raw.read(Duration::from_millis(200), 1).await;
            if came.closed || !raw.send(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()), LASTS).await {
                break;
            }
            streams += 1;
        }
    }
    left(&target, format!("{streams} answers reset")).await
}

/// Browsers that reload a page whose response does not end.
async fn reconnects(target: Target) -> anyhow::Result<Got> {
    let mut clients = 0;
    let until = Instant::now() + LASTS;
    while Instant::now() < until {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(format!("GET /big HTTP/1.1\r\n{H}\r\n"), LASTS).await;
        raw.read(Duration::from_secs(1), 1).await;
        clients += 1;
    }
    left(&target, format!("{clients} clients left")).await
}

/// Judges how much an attack has left in flight half a second after its end.
async fn left(target: &Target, what: String) -> anyhow::Result<Got> {
    tokio::time::sleep(Duration::from_millis(500)).await;
    let left = target.in_flight().await;
    Ok(Got::new(left <= A_FEW, format!("{what}, {left} exchanges in flight half a second later")))
}
