//! HTTP/2 frames that cost the receiver more than the sender.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{Got, LASTS, Target};
use crate::cluster::{HEAD_TIMEOUT, IN_FLIGHT, PER_CLIENT};
use crate::wire::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM, Raw, SETTINGS, Said,
    WINDOW_UPDATE, block, code, frame, get, integer, preface, request, said,
};

/// What came of frames sent without end.
struct Flood {
    frames: usize,
    said: Said,
    closed: bool,
}

/// Sends what `burst` makes for each round, until the time is up or the router takes no more. Reads nothing meanwhile.
async fn flood(target: &Target, begin: Vec<u8>, each: usize, burst: impl Fn(u32) -> Vec<u8>) -> anyhow::Result<Flood> {
    let mut raw = Raw::connect(target.router).await?;
    raw.send(preface(&[]), LASTS).await;
    raw.send(begin, LASTS).await;
    let (until, mut round) = (Instant::now() + LASTS, 0);
    while Instant::now() < until && raw.send(burst(round), Duration::from_millis(500)).await {
        round += 1;
        tokio::task::yield_now().await;
    }
    let came = raw.read(Duration::from_millis(300), 8 << 20).await;
    Ok(Flood { frames: round as usize * each, said: said(&came.bytes), closed: came.closed })
}

fn told(flood: &Flood) -> String {
    let end = if flood.closed { "closed" } else { "open" };
    format!("{} frames, then {end}, GOAWAY {}", flood.frames, code(flood.said.goaway))
}

/// CVE-2023-44487: streams opened and reset in one breath.
pub(super) async fn rapid_reset(target: Target) -> anyhow::Result<Got> {
    let (mut streams, mut connections, mut calm) = (0, 0, 0);
    let before = target.seen.requests.load(Relaxed);
    let until = Instant::now() + LASTS;
    while Instant::now() < until {
        let flood = flood(&target, Vec::new(), 100, |round| {
            let pair = |number: u32| {
                let stream = 2 * (100 * round + number) + 1;
                [get(stream, "/slow"), frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
            };
            (0..100).flat_map(pair).collect()
        });
        let flood = flood.await?;
        streams += flood.frames;
        connections += 1;
        calm += usize::from(flood.closed);
    }
    let reached = target.seen.requests.load(Relaxed) - before;
    let what = format!(
        "{connections} connections closed after {} streams each, {reached} requests reached pods",
        streams / connections.max(1)
    );
    Ok(Got::new(calm == connections && reached < streams, what))
}

/// Streams that are reset once the pod has the request. The pod continues, and the client's stream is free again.
pub(super) async fn reset_in_flight(target: Target) -> anyhow::Result<Got> {
    target.seen.take_most_in_flight();
    let (mut connections, mut streams, mut closed) = (0, 0, 0);
    let until = Instant::now() + LASTS;
    while Instant::now() < until {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(preface(&[]), LASTS).await;
        connections += 1;
        let mut next = 1;
        while Instant::now() < until {
            let opened: Vec<u32> = (0..50).map(|number| next + 2 * number).collect();
            next += 100;
            let begin: Vec<u8> = opened.iter().flat_map(|stream| get(*stream, "/slow")).collect();
            let reset = opened.iter().flat_map(|stream| frame(RST_STREAM, 0, *stream, &8u32.to_be_bytes()));
            let reset: Vec<u8> = reset.collect();
            if !raw.send(begin, LASTS).await {
                break;
            }
            let came = raw.read(Duration::from_millis(5), 1 << 16).await;
            if came.closed || !raw.send(reset, LASTS).await {
                closed += 1;
                break;
            }
            streams += opened.len();
        }
    }
    let most = target.seen.take_most_in_flight();
    let what = format!("{streams} streams on {connections} connections ({closed} closed), at most {most} in a pod");
    // They are requests like others: what bounds them is what a pod may have at a time.
    Ok(Got::new(most <= IN_FLIGHT && streams > 0, what))
}

/// Most bytes of a head that a router takes: a head, and the 8 MiB that it reads and discards behind its GOAWAY.
const MOST_BYTES: usize = 9 << 20;

/// A head in endless CONTINUATION frames.
pub(super) async fn continuation(target: Target) -> anyhow::Result<Got> {
    let begin = frame(HEADERS, 0, 1, &block(&request("GET", "/", &[])));
    let more = frame(CONTINUATION, 0, 1, &block(&[("x-a", "b")]));
    let flood = flood(&target, begin, 16, |_| more.repeat(16)).await?;
    let is_told = flood.said.goaway.is_some();
    Ok(Got::new(flood.closed && is_told && flood.frames * more.len() < MOST_BYTES, told(&flood)))
}

/// A table's entry of 4 KB, said 16,000 times by one byte each: 64 MB of headers in one small frame.
pub(super) async fn hpack_bomb(target: Target) -> anyhow::Result<Got> {
    let mut bomb = block(&request("GET", "/smuggled", &[]));
    bomb.push(0x40);
    integer(&mut bomb, 0, 7, 3);
    bomb.extend(b"x-a");
    integer(&mut bomb, 0, 7, 3900);
    bomb.extend(vec![b'x'; 3900]);
    // The first entry of the dynamic table.
    bomb.resize(bomb.len() + 10_000, 0x80 | 62);
    let until = Instant::now() + LASTS;
    let (mut bombs, mut answers, mut ended) = (0, 0, 0);
    while Instant::now() < until {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(preface(&[]), LASTS).await;
        for stream in 0..20 {
            let sent = frame(HEADERS, END_HEADERS | 1, 2 * stream + 1, &bomb);
            bombs += usize::from(raw.send(sent, LASTS).await);
        }
        let came = raw.read(Duration::from_millis(200), 1 << 20).await;
        let said = said(&came.bytes);
        answers += said.answers + said.resets;
        ended += usize::from(came.closed);
        if said.ok > 0 {
            return Ok(Got::new(false, "a bomb was served"));
        }
    }
    Ok(Got::new(answers + ended > 0, format!("{bombs} bombs: {answers} refused, {ended} connections closed")))
}

pub(super) async fn pings(target: Target) -> anyhow::Result<Got> {
    let flood = flood(&target, Vec::new(), 500, |_| frame(PING, 0, 0, &[7; 8]).repeat(500)).await?;
    // The responses are not read, so nothing more is accepted once the kernel's buffers are full.
    Ok(Got::new(flood.closed || flood.frames < 3_000_000, told(&flood)))
}

pub(super) async fn settings(target: Target) -> anyhow::Result<Got> {
    let one = frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
    let flood = flood(&target, Vec::new(), 500, |_| one.repeat(500)).await?;
    Ok(Got::new(flood.closed || flood.frames < 3_000_000, told(&flood)))
}

pub(super) async fn priorities(target: Target) -> anyhow::Result<Got> {
    let flood = flood(&target, Vec::new(), 500, |round| {
        (0..500).flat_map(|number| frame(PRIORITY, 0, 2 * (500 * round + number) + 1, &[0, 0, 0, 0, 9])).collect()
    });
    let flood = flood.await?;
    Ok(Got::new(true, format!("{}; nothing is kept of them", told(&flood))))
}

pub(super) async fn window_updates(target: Target) -> anyhow::Result<Got> {
    let one = frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes());
    let flood = flood(&target, Vec::new(), 500, |_| one.repeat(500)).await?;
    Ok(Got::new(true, format!("{}; nothing is kept of them", told(&flood))))
}

/// A body of frames with nothing in them.
pub(super) async fn empty_data(target: Target) -> anyhow::Result<Got> {
    let begin = frame(HEADERS, END_HEADERS, 1, &block(&request("POST", "/echo", &[])));
    let flood = flood(&target, begin, 500, |_| frame(DATA, 0, 1, &[]).repeat(500)).await?;
    Ok(Got::new(true, format!("{}; nothing is kept of them", told(&flood))))
}

/// Half a head, and nothing more.
pub(super) async fn header_stall(target: Target) -> anyhow::Result<Got> {
    let mut connections = Vec::new();
    for _ in 0..200 {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(preface(&[]), LASTS).await;
        raw.send(frame(HEADERS, 0, 1, &block(&request("GET", "/", &[]))), LASTS).await;
        connections.push(raw);
    }
    tokio::time::sleep(HEAD_TIMEOUT + Duration::from_secs(1)).await;
    let mut closed = 0;
    for raw in &mut connections {
        closed += usize::from(raw.read(Duration::from_millis(1), 1 << 16).await.closed);
    }
    let what = format!("{closed}/200 closed within the time for a head, the others give way when places are needed");
    Ok(Got::new(true, what))
}

/// More streams than there may be at once, held open.
pub(super) async fn too_many_streams(target: Target) -> anyhow::Result<Got> {
    let mut raw = Raw::connect(target.router).await?;
    raw.send(preface(&[]), LASTS).await;
    for number in 0..3_000 {
        let open = frame(HEADERS, END_HEADERS, 2 * number + 1, &block(&request("POST", "/echo", &[])));
        if !raw.send(open, Duration::from_millis(500)).await {
            break;
        }
    }
    let came = raw.read(Duration::from_millis(500), 1 << 20).await;
    let said = said(&came.bytes);
    let what = format!("{} of 3,000 refused with {}, GOAWAY {}", said.resets, code(said.reset), code(said.goaway));
    Ok(Got::new(came.closed || said.resets >= 1_900, what))
}

/// All streams of ten connections, each with an upload that does not end: one address gets no more than its share.
pub(super) async fn slow_uploads(target: Target) -> anyhow::Result<Got> {
    const CLIENTS: usize = 10;
    const STREAMS: u32 = 128;
    let mut open = Vec::new();
    for _ in 0..CLIENTS {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(preface(&[]), LASTS).await;
        for number in 0..STREAMS {
            let stream = 2 * number + 1;
            let begin = frame(HEADERS, END_HEADERS, stream, &block(&request("POST", "/echo", &[])));
            raw.send([begin, frame(DATA, 0, stream, b"x")].concat(), LASTS).await;
        }
        open.push(raw);
    }
    let (until, mut most) = (Instant::now() + LASTS, 0.0);
    while Instant::now() < until {
        most = f64::max(most, target.in_flight().await);
        for raw in &mut open {
            raw.send(frame(DATA, 0, 1, b"x"), LASTS).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let mut refused = 0;
    for raw in &mut open {
        refused += said(&raw.read(Duration::from_millis(20), 1 << 20).await.bytes).answers;
    }
    // Well-behaved clients have some in flight as well.
    let fair = most <= (PER_CLIENT + 20) as f64 && refused >= CLIENTS * STREAMS as usize - PER_CLIENT;
    let what =
        format!("of {} uploads at most {most:.0} were in flight, {refused} were refused", CLIENTS * STREAMS as usize);
    Ok(Got::new(fair, what))
}

/// Uploads of one connection that wait for their end.
const BEGUN: u32 = 20;

/// Begins uploads, and sends these heads behind them.
async fn beside_uploads(target: &Target, heads: &[u8]) -> anyhow::Result<Raw> {
    let mut raw = Raw::connect(target.router).await?;
    raw.send(preface(&[]), LASTS).await;
    for number in 0..BEGUN {
        let head = frame(HEADERS, END_HEADERS, 2 * number + 1, &block(&request("POST", "/echo", &[])));
        raw.send(head, LASTS).await;
    }
    raw.send(heads, LASTS).await;
    Ok(raw)
}

/// More heads that HTTP/2 refuses than one connection may have: its other streams are served all the same.
pub(super) async fn refused_heads(target: Target) -> anyhow::Result<Got> {
    let refused = [(":method", "GET"), (":scheme", "http"), (":authority", "h:80:90"), (":path", "/smuggled")];
    let refused = block(&refused);
    let heads: Vec<u8> = (BEGUN..BEGUN + 1_100)
        .flat_map(|number| frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &refused))
        .collect();
    let (until, mut rounds, mut served) = (Instant::now() + LASTS, 0, 0);
    while Instant::now() < until {
        let mut raw = beside_uploads(&target, &heads).await?;
        let ends: Vec<u8> = (0..BEGUN).flat_map(|number| frame(DATA, END_STREAM, 2 * number + 1, b"x")).collect();
        raw.send(ends, LASTS).await;
        let came = raw.read(Duration::from_millis(500), 1 << 20).await;
        rounds += 1;
        served += said(&came.bytes).ok;
    }
    let begun = rounds * BEGUN as usize;
    Ok(Got::new(served == begun, format!("{served}/{begun} requests beside 1,100 refused heads each were served")))
}

/// A byte that no field may have: the HTTP/2 library ends the connection, and with it the client's other streams.
pub(super) async fn odd_fields(target: Target) -> anyhow::Result<Got> {
    let odd =
        frame(HEADERS, END_HEADERS | END_STREAM, 2 * BEGUN + 1, &block(&request("GET", "/smuggled", &[("x", "\x01")])));
    let (until, mut rounds, mut ended) = (Instant::now() + LASTS, 0, 0);
    while Instant::now() < until {
        let mut raw = beside_uploads(&target, &odd).await?;
        let came = raw.read(LASTS, 1 << 20).await;
        rounds += 1;
        ended += usize::from(came.closed && code(said(&came.bytes).goaway) == "PROTOCOL_ERROR");
    }
    Ok(Got::new(ended == rounds, format!("{ended}/{rounds} connections ended with PROTOCOL_ERROR, each its sender's")))
}
