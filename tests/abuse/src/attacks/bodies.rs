//! Bodies without an end, in both directions, and clients that do not read.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{Got, LASTS, Target};
use crate::cluster::IDLE_TIMEOUT;
use crate::service::BIG;
use crate::wire::{H, Raw};

const CLIENTS: usize = 200;
/// Kernels keep some megabytes for each, on both sides of the router.
const READERS: usize = 50;

/// Uploads that are answered before their end: the answer arrives, and says whether the connection can be used again.
pub(super) async fn answered_early(target: Target) -> anyhow::Result<Got> {
    let (mut answered, mut again, mut lost, mut kept) = (0, 0, 0, None);
    let until = Instant::now() + LASTS;
    while Instant::now() < until {
        let reused = kept.is_some();
        let mut raw = match kept.take() {
            Some(raw) => raw,
            None => Raw::connect(target.router).await?,
        };
        let head = post("content-length: 1048576").replace("x-partition: 0", "x-partition: none");
        raw.send(head + &"x".repeat(1 << 20), LASTS).await;
        let came = raw.read(LASTS, 1).await;
        match came.statuses()[..] {
            [400] => answered += 1,
            _ => lost += 1,
        }
        again += usize::from(reused);
        if !came.closed && !came.says("connection: close") {
            kept = Some(raw);
        }
    }
    let what = format!("{answered} uploads of 1 MiB got 400, {again} of them on a connection used before; {lost} lost");
    Ok(Got::new(lost == 0 && answered > 0, what))
}

fn post(fields: &str) -> String {
    format!("POST /echo HTTP/1.1\r\n{H}{fields}\r\n\r\n")
}

/// A byte now and then: no silence, so nothing ends it but its own end. Each costs a connection and a request in flight.
pub(super) async fn slow(target: Target) -> anyhow::Result<Got> {
    let one = async || {
        let mut raw = Raw::connect(target.router).await?;
        raw.send(post("content-length: 30"), LASTS).await;
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if !raw.send("x", LASTS).await {
                break;
            }
        }
        anyhow::Ok(raw.read(Duration::from_secs(1), 64).await)
    };
    let ended = join_all((0..CLIENTS).map(|_| one())).await;
    let served = ended.into_iter().flatten().filter(|came| came.statuses() == [200]).count();
    Ok(Got::new(served == CLIENTS, format!("{served}/{CLIENTS} were served at their own pace")))
}

/// A part of a body, and then nothing.
pub(super) async fn stalled(target: Target) -> anyhow::Result<Got> {
    let one = async |number: usize| {
        let mut raw = Raw::connect(target.router).await?;
        let begun = Instant::now();
        let part = if number.is_multiple_of(2) {
            post("content-length: 1000") + "hello"
        } else {
            post("transfer-encoding: chunked") + "5\r\nhello\r\n"
        };
        let came = raw.ask(part, 3 * IDLE_TIMEOUT).await;
        anyhow::Ok((came, begun.elapsed()))
    };
    let ended: Vec<_> = join_all((0..CLIENTS).map(one)).await.into_iter().flatten().collect();
    let told = ended.iter().filter(|(came, _)| came.statuses() == [408] && came.closed).count();
    let longest = ended.iter().map(|(_, lasted)| *lasted).max().unwrap_or_default();
    Ok(Got::new(told == CLIENTS, format!("{told}/{CLIENTS} got 408 limit, after {:.1} s", longest.as_secs_f32())))
}

/// Beyond `max_body_bytes`, said or not.
pub(super) async fn endless(target: Target) -> anyhow::Result<Got> {
    let mut said = Raw::connect(target.router).await?;
    let said = said.ask(post("content-length: 99999999999"), Duration::from_secs(1)).await;
    let mut raw = Raw::connect(target.router).await?;
    raw.send(post("transfer-encoding: chunked"), LASTS).await;
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let (until, mut sent) = (Instant::now() + LASTS, 0);
    while Instant::now() < until && raw.send(&chunk, Duration::from_secs(1)).await {
        sent += 0x10000;
    }
    let came = raw.read(Duration::from_secs(1), 1 << 16).await;
    // What the kernels on both sides have in their buffers was taken as well, and what is read of an upload that has been
    // answered.
    let bounded = sent < (8 << 20) + (8 << 20) + (16 << 20);
    let told = matches!(came.statuses()[..], [413] | []);
    let what = format!("said: {:?}; not said: {:?} after {} MiB", said.statuses(), came.statuses(), sent >> 20);
    Ok(Got::new(said.statuses() == [413] && told && came.closed && bounded, what))
}

/// Ask for a lot and read none of it.
pub(super) async fn slow_readers(target: Target) -> anyhow::Result<Got> {
    let one = async || {
        let mut raw = Raw::connect_narrow(target.router).await?;
        raw.send(format!("GET /big HTTP/1.1\r\n{H}\r\n"), LASTS).await;
        tokio::time::sleep(IDLE_TIMEOUT + Duration::from_secs(5)).await;
        let left = target.in_flight().await;
        let came = raw.read(2 * IDLE_TIMEOUT, BIG).await;
        anyhow::Ok((came.closed, came.bytes.len(), left))
    };
    let ended: Vec<_> = join_all((0..READERS).map(|_| one())).await.into_iter().flatten().collect();
    let cut = ended.iter().filter(|(closed, bytes, _)| *closed && *bytes < BIG).count();
    let whole = ended.iter().filter(|(_, bytes, _)| *bytes >= BIG).count();
    let left = ended.iter().map(|(_, _, left)| *left).fold(0.0, f64::max);
    let what = format!(
        "{cut}/{READERS} cut off after the idle time, {whole} got all; {left:.0} exchanges with pods were left"
    );
    Ok(Got::new(cut == READERS, what))
}

/// Endless requests on each connection, and no client reads the responses.
pub(super) async fn pipelining(target: Target) -> anyhow::Result<Got> {
    let requests = format!("GET /echo HTTP/1.1\r\n{H}\r\n").repeat(200);
    let one = async || {
        let mut raw = Raw::connect(target.router).await?;
        let (until, mut sent) = (Instant::now() + LASTS, 0);
        while Instant::now() < until && raw.send(&requests, Duration::from_millis(500)).await {
            sent += requests.len();
        }
        anyhow::Ok(sent)
    };
    let sent: usize = join_all((0..8).map(|_| one())).await.into_iter().flatten().sum();
    Ok(Got::new(true, format!("{} MiB of requests taken, one at a time per connection", sent >> 20)))
}
