//! HTTP/2 flow control: responses that are requested and never read.

use std::time::{Duration, Instant};

use super::{Got, LASTS, Target};
use crate::cluster::IDLE_TIMEOUT;
use crate::wire::{
    ACK, DATA, END_HEADERS, HEADERS, INITIAL_WINDOW_SIZE, Raw, SETTINGS, WINDOW_UPDATE, block, code, frame, get,
    integer, preface, request, said,
};

/// Streams that ask for a lot on each of some connections.
async fn ask(target: &Target, window: u32, connections: usize, streams: u32) -> anyhow::Result<Vec<Raw>> {
    let mut open = Vec::new();
    for _ in 0..connections {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(preface(&[(INITIAL_WINDOW_SIZE, window)]), LASTS).await;
        raw.send(frame(WINDOW_UPDATE, 0, 0, &0x3fff_ffffu32.to_be_bytes()), LASTS).await;
        for number in 0..streams {
            raw.send(get(2 * number + 1, "/big"), LASTS).await;
        }
        open.push(raw);
    }
    Ok(open)
}

/// How the streams ended of clients that read nothing before.
async fn ends(open: Vec<Raw>) -> (usize, usize, usize) {
    let (mut resets, mut data, mut closed) = (0, 0, 0);
    for mut raw in open {
        let came = raw.read(Duration::from_millis(500), 64 << 20).await;
        let said = said(&came.bytes);
        resets += said.resets;
        data += said.data;
        closed += usize::from(came.closed);
    }
    (resets, data, closed)
}

/// No window at all.
pub(super) async fn zero(target: Target) -> anyhow::Result<Got> {
    let open = ask(&target, 0, 4, 100).await?;
    tokio::time::sleep(IDLE_TIMEOUT + Duration::from_secs(3)).await;
    let left = target.in_flight().await;
    let (_, data, _) = ends(open).await;
    let what = format!("{data} bytes; {left:.0} of 400 exchanges with pods were left after the idle time");
    Ok(Got::new(left < 20.0 && data == 0, what))
}

/// The largest window, and a client that does not read.
pub(super) async fn unread(target: Target) -> anyhow::Result<Got> {
    let open = ask(&target, 0x7fff_ffff, 4, 100).await?;
    tokio::time::sleep(IDLE_TIMEOUT + Duration::from_secs(3)).await;
    let left = target.in_flight().await;
    let (resets, data, closed) = ends(open).await;
    let what = format!(
        "{closed}/4 connections closed, {resets}/400 streams reset, {left:.0} exchanges left, {} KiB were on the way",
        data >> 10
    );
    Ok(Got::new((closed == 4 || resets == 400) && left < 20.0, what))
}

/// A byte of window at a time.
pub(super) async fn drip(target: Target) -> anyhow::Result<Got> {
    let mut open = ask(&target, 0, 1, 100).await?;
    let (until, mut updates) = (Instant::now() + LASTS, 0);
    while Instant::now() < until {
        for stream in 0..100u32 {
            let update = frame(WINDOW_UPDATE, 0, 2 * stream + 1, &1u32.to_be_bytes());
            updates += usize::from(open[0].send(update, LASTS).await);
        }
        open[0].read(Duration::from_millis(1), 1 << 20).await;
    }
    Ok(Got::new(true, format!("{updates} bytes in as many frames")))
}

/// More than the router's own window allows.
pub(super) async fn overrun(target: Target) -> anyhow::Result<Got> {
    let mut raw = Raw::connect(target.router).await?;
    raw.send(preface(&[]), LASTS).await;
    raw.send(frame(HEADERS, END_HEADERS, 1, &block(&request("POST", "/big", &[]))), LASTS).await;
    let (until, mut sent) = (Instant::now() + LASTS, 0);
    let data = frame(DATA, 0, 1, &[0; 16_384]).repeat(64);
    while Instant::now() < until && raw.send(&data, Duration::from_millis(500)).await {
        sent += 1;
    }
    let came = raw.read(Duration::from_millis(500), 1 << 20).await;
    let said = said(&came.bytes);
    let what = format!("{sent} MiB sent; reset {}, GOAWAY {}", code(said.reset), code(said.goaway));
    Ok(Got::new(said.goaway.is_some() || said.reset.is_some() || came.closed, what))
}

const CLIENTS: usize = 10;
const STREAMS: u32 = 100;
/// What [`full`] may take: 224 KiB for each exchange. docs/limits.md says of what.
pub(super) const FULL_KIB: u64 = CLIENTS as u64 * STREAMS as u64 * 224;

/// Everything that a stream can make the router keep, on all streams that one address may have: a head that costs a few
/// bytes on the wire, a body as long as its window, and a response that is not read.
pub(super) async fn full(target: Target) -> anyhow::Result<Got> {
    const VALUE: usize = 3_900;
    let body = vec![b'x'; 60 << 10];
    let data: Vec<&[u8]> = body.chunks(16 << 10).collect();
    let mut open = Vec::new();
    for _ in 0..CLIENTS {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(preface(&[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]), LASTS).await;
        raw.send(frame(WINDOW_UPDATE, 0, 0, &0x3fff_ffffu32.to_be_bytes()), LASTS).await;
        // The router's windows hold from the moment that it has said them.
        raw.read(Duration::from_millis(200), 1 << 10).await;
        raw.send(frame(SETTINGS, ACK, 0, &[]), LASTS).await;
        for number in 0..STREAMS {
            let stream = 2 * number + 1;
            let mut head = block(&request("POST", "/big", &[]));
            if number == 0 {
                // An entry of the table that all heads of the connection refer to.
                head.push(0x40);
                integer(&mut head, 0, 7, 3);
                head.extend(b"x-a");
                integer(&mut head, 0, 7, VALUE);
                head.extend(vec![b'x'; VALUE]);
            }
            head.extend([0x80 | 62; 2]);
            let mut bytes = frame(HEADERS, END_HEADERS, stream, &head);
            for (at, piece) in data.iter().enumerate() {
                bytes.extend(frame(DATA, u8::from(at + 1 == data.len()), stream, piece));
            }
            raw.send(bytes, LASTS).await;
        }
        open.push(raw);
    }
    tokio::time::sleep(LASTS).await;
    let (resets, data, closed) = ends(open).await;
    let what = format!(
        "{} requests; {closed}/{CLIENTS} connections closed, {resets} streams reset, {} KiB were on the way",
        CLIENTS as u32 * STREAMS,
        data >> 10
    );
    Ok(Got::new(data > 0, what))
}
