//! Request heads without an end.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{Got, LASTS, Target};
use crate::cluster::{CONNECTIONS, HEAD_TIMEOUT};
use crate::wire::{CONTINUATION, Came, H, HEADERS, Raw, block, frame, preface, request};

/// A byte now and then, from many connections.
pub(super) async fn slow(target: Target) -> anyhow::Result<Got> {
    const CLIENTS: usize = 200;
    let one = async || {
        let mut raw = Raw::connect(target.router).await?;
        let began = Instant::now();
        for byte in format!("GET / HTTP/1.1\r\n{H}x-slow: {}", "x".repeat(1000)).into_bytes() {
            if !raw.send([byte], LASTS).await {
                break;
            }
            let came = raw.read(Duration::from_millis(100), 1).await;
            if came.closed || !came.bytes.is_empty() {
                let rest = raw.read(Duration::from_millis(200), 1 << 16).await;
                let bytes = [came.bytes, rest.bytes].concat();
                return anyhow::Ok((Came { bytes, closed: true }, began.elapsed()));
            }
            if began.elapsed() > 3 * HEAD_TIMEOUT {
                break;
            }
        }
        Ok((Came::default(), began.elapsed()))
    };
    let ended: Vec<_> = join_all((0..CLIENTS).map(|_| one())).await.into_iter().filter_map(Result::ok).collect();
    let told = ended.iter().filter(|(came, _)| came.statuses() == [408] && came.says("segue-reason: limit")).count();
    let longest = ended.iter().map(|(_, lasted)| *lasted).max().unwrap_or_default();
    let expected = told == CLIENTS && longest < 2 * HEAD_TIMEOUT;
    Ok(Got::new(expected, format!("{told}/{CLIENTS} got 408 limit, the last after {:.1} s", longest.as_secs_f32())))
}

/// What an attacker gets that sends `begin` and then `more` for ever.
async fn flood(target: &Target, begin: &str, more: &str) -> anyhow::Result<(Came, usize)> {
    let mut raw = Raw::connect(target.router).await?;
    raw.send(begin, LASTS).await;
    let (until, mut sent) = (Instant::now() + LASTS, begin.len());
    while Instant::now() < until && raw.send(more, LASTS).await {
        sent += more.len();
        // A client that reads the response before the connection is reset.
        let came = raw.read(Duration::from_millis(1), 1).await;
        if came.closed || !came.bytes.is_empty() {
            let rest = raw.read(Duration::from_millis(200), 1 << 16).await;
            return Ok((Came { bytes: [came.bytes, rest.bytes].concat(), closed: true }, sent));
        }
    }
    Ok((raw.read(Duration::from_millis(200), 1 << 16).await, sent))
}

async fn floods(target: Target, begin: &str, more: &str) -> anyhow::Result<Got> {
    let (mut told, mut rounds, mut most) = (0, 0, 0);
    let until = Instant::now() + LASTS;
    while Instant::now() < until {
        let (came, sent) = flood(&target, begin, more).await?;
        rounds += 1;
        most = most.max(sent);
        told += usize::from(matches!(came.statuses()[..], [431]));
        if !came.closed {
            return Ok(Got::new(false, format!("sent {sent} bytes of a head, and could go on")));
        }
    }
    Ok(Got::new(told > 0, format!("{told}/{rounds} got 431, the others a close; {} KiB taken at most", most >> 10)))
}

pub(super) async fn endless(target: Target) -> anyhow::Result<Got> {
    floods(target, &format!("GET / HTTP/1.1\r\n{H}"), &"x-a: b\r\n".repeat(128)).await
}

pub(super) async fn huge(target: Target) -> anyhow::Result<Got> {
    floods(target, &format!("GET / HTTP/1.1\r\n{H}x-huge: "), &"x".repeat(4096)).await
}

/// As many headers as fit, again and again: whole requests, refused or served, not kept.
pub(super) async fn many(target: Target) -> anyhow::Result<Got> {
    let head = format!("GET / HTTP/1.1\r\n{H}{}\r\n", "a: b\r\n".repeat(9_000));
    let until = Instant::now() + LASTS;
    let (mut refused, mut rounds) = (0, 0);
    while Instant::now() < until {
        let mut raw = Raw::connect(target.router).await?;
        let came = raw.ask(&head, Duration::from_millis(500)).await;
        rounds += 1;
        refused += usize::from(matches!(came.statuses()[..], [] | [400 | 431]) && came.closed);
    }
    Ok(Got::new(refused == rounds, format!("{refused}/{rounds} heads of 9,000 headers refused")))
}

/// As many options of `Connection` as fit, beside as many headers as a request may have, from sixteen connections.
pub(super) async fn options(target: Target) -> anyhow::Result<Got> {
    let headers: String = (0..90).map(|number| format!("x-{number:02}: a\r\n")).collect();
    let head = format!("GET / HTTP/1.1\r\n{H}{headers}connection: {}\r\n\r\n", "a,".repeat(28_000));
    let until = Instant::now() + LASTS;
    let one = async || {
        let (mut refused, mut rounds) = (0, 0);
        while Instant::now() < until {
            let mut raw = Raw::connect(target.router).await?;
            raw.send(&head, LASTS).await;
            let came = raw.read(LASTS, 1).await;
            rounds += 1;
            refused += usize::from(came.statuses() == [400] && came.says("segue-reason: malformed"));
        }
        anyhow::Ok((refused, rounds))
    };
    let ended: Vec<_> = join_all((0..16).map(|_| one())).await.into_iter().filter_map(Result::ok).collect();
    let (refused, rounds) = ended.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let what = format!("{refused}/{rounds} heads of 28,000 options got 400 malformed");
    Ok(Got::new(rounds > 0 && refused == rounds && ended.len() == 16, what))
}

/// Leaves places for others: it is about the memory.
const UNFINISHED: usize = CONNECTIONS - 100;

/// Sends heads that do not end on nearly as many connections as the router accepts. Returns how many it ended, and how many of
/// them with a 408.
async fn unfinished_heads(target: &Target, head: &[u8]) -> (usize, usize) {
    let one = async || {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(head, LASTS).await;
        let came = raw.read(HEAD_TIMEOUT / 2, 1 << 16).await;
        anyhow::Ok((came.closed, came.statuses() == [408]))
    };
    let ended: Vec<_> = join_all((0..UNFINISHED).map(|_| one())).await.into_iter().filter_map(Result::ok).collect();
    (ended.iter().filter(|(closed, _)| *closed).count(), ended.iter().filter(|(_, told)| *told).count())
}

pub(super) async fn unfinished(target: Target) -> anyhow::Result<Got> {
    let head = format!("GET / HTTP/1.1\r\n{H}x: {}", "a".repeat(60_000));
    let (_, told) = unfinished_heads(&target, head.as_bytes()).await;
    Ok(Got::new(told > 0, format!("{told}/{UNFINISHED} heads of 60 KB got 408 before their time")))
}

pub(super) async fn unfinished_by_http2(target: Target) -> anyhow::Result<Got> {
    // A byte of HPACK for each header.
    let many = [0x90; 1_000];
    let begin = frame(HEADERS, 0, 1, &block(&request("GET", "/smuggled", &[])));
    let head = [preface(&[]), begin, frame(CONTINUATION, 0, 1, &many)].concat();
    let (closed, _) = unfinished_heads(&target, &head).await;
    Ok(Got::new(closed > 0, format!("{closed}/{UNFINISHED} heads of 1,000 headers got a close before their time")))
}
