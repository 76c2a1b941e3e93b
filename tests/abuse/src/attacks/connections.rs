//! More connections than the router accepts.

use std::time::{Duration, Instant};

use anyhow::ensure;
use futures_util::future::join_all;

use super::{Got, LASTS, Target};
use crate::cluster::{CONNECTIONS, HEAD_TIMEOUT};
use crate::wire::{ATTACKER, H, Raw};

/// Clients that have been served once, and their address.
const SERVED: usize = 40;
const SERVED_BEFORE: u8 = 50;
/// An address of its own: it leaves thousands of ports behind that rest for a minute.
const COMES_AND_GOES: u8 = 51;

/// From so many addresses.
async fn open(target: &Target, how_many: usize, addresses: u8) -> Vec<Raw> {
    let mut open = Vec::new();
    while open.len() < how_many {
        let some =
            join_all((0..100).map(|number: u8| Raw::connect_from(ATTACKER + number % addresses, target.router))).await;
        let made = open.len();
        open.extend(some.into_iter().flatten());
        if open.len() == made {
            break;
        }
    }
    open
}

/// Whether a newcomer is served, and after how long. One that is sent away comes again.
async fn newcomer(target: &Target) -> anyhow::Result<(Option<Duration>, usize)> {
    let (began, mut sent_away) = (Instant::now(), 0);
    while began.elapsed() < 5 * LASTS {
        let mut raw = Raw::connect(target.router).await?;
        let request = format!("GET /echo HTTP/1.1\r\n{H}connection: close\r\n\r\n");
        if raw.ask(request, Duration::from_secs(2)).await.statuses() == [200] {
            return Ok((Some(began.elapsed()), sent_away));
        }
        sent_away += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok((None, sent_away))
}

/// Three times as many silent connections as the limit. A client that has been served before keeps its connection.
pub(super) async fn silent(target: Target) -> anyhow::Result<Got> {
    let get = format!("GET /echo HTTP/1.1\r\n{H}\r\n");
    let mut before = Vec::new();
    for _ in 0..SERVED {
        let mut raw = Raw::connect_from(SERVED_BEFORE, target.router).await?;
        raw.send(&get, LASTS).await;
        ensure!(raw.read(Duration::from_secs(2), 1).await.statuses() == [200], "not served in the first place");
        before.push(raw);
    }
    // Longer than a client has to be idle to be taken for it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let connections = open(&target, 3 * CONNECTIONS, 1).await;
    let mut kept = 0;
    for raw in &mut before {
        raw.read(Duration::from_millis(1), 1 << 12).await;
        raw.send(&get, LASTS).await;
        kept += usize::from(raw.read(Duration::from_secs(2), 1).await.statuses() == [200]);
    }
    let (served, sent_away) = newcomer(&target).await?;
    let mut left = 0;
    for mut raw in connections {
        left += usize::from(!raw.read(Duration::from_millis(1), 1 << 12).await.closed);
    }
    let what = match served {
        Some(after) => format!("a newcomer was served after {} ms ({sent_away} × 503)", after.as_millis()),
        None => "no newcomer was served".to_owned(),
    };
    let expected = served.is_some_and(|after| after < LASTS) && left <= CONNECTIONS && kept == SERVED;
    let silent = 3 * CONNECTIONS;
    Ok(Got::new(expected, format!("{left} of {silent} kept their places, {kept}/{SERVED} of those served; {what}")))
}

/// More connections than the limit, each with a long request: none can be closed.
pub(super) async fn busy(target: Target) -> anyhow::Result<Got> {
    let mut connections = open(&target, CONNECTIONS + 200, 8).await;
    let request = format!("POST /echo HTTP/1.1\r\n{H}content-length: 9\r\n\r\nx");
    for raw in &mut connections {
        raw.send(&request, LASTS).await;
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let mut told = 0;
    for _ in 0..50 {
        let mut raw = Raw::connect(target.router).await?;
        let began = Instant::now();
        let came = raw.ask(format!("GET / HTTP/1.1\r\n{H}\r\n"), Duration::from_secs(2)).await;
        let at_once = began.elapsed() < Duration::from_secs(1);
        told += usize::from(came.statuses() == [503] && came.says("segue-reason: overload") && at_once);
    }
    drop(connections);
    let (served, _) = newcomer(&target).await?;
    let after = served.map_or("never".to_owned(), |after| format!("{} ms after they left", after.as_millis()));
    let what = format!("{told}/50 newcomers got 503 overload at once; served again {after}");
    Ok(Got::new(told >= 45 && served.is_some(), what))
}

/// Connect and go, as fast as it goes.
pub(super) async fn connect_and_go(target: Target) -> anyhow::Result<Got> {
    let until = Instant::now() + LASTS;
    let one = async || {
        let mut made = 0;
        while Instant::now() < until {
            made += usize::from(Raw::connect_from(COMES_AND_GOES, target.router).await.is_ok());
        }
        made
    };
    let made: usize = join_all((0..8).map(|_| one())).await.into_iter().sum();
    Ok(Got::new(true, format!("{made} connections made and left")))
}

/// A part of a handshake, or none.
pub(super) async fn handshakes(target: Target) -> anyhow::Result<Got> {
    const CLIENTS: usize = 300;
    let one = async |number: usize| {
        let mut raw = Raw::connect(target.secure).await?;
        let began = Instant::now();
        if number.is_multiple_of(2) {
            // The head of a record with a ClientHello, and a little of it.
            raw.send([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3], LASTS).await;
        }
        let came = raw.read(3 * HEAD_TIMEOUT, 1 << 10).await;
        anyhow::Ok((came.closed, began.elapsed()))
    };
    let ended: Vec<_> = join_all((0..CLIENTS).map(one)).await.into_iter().flatten().collect();
    let closed = ended.iter().filter(|(closed, _)| *closed).count();
    let longest = ended.iter().map(|(_, lasted)| *lasted).max().unwrap_or_default();
    let what = format!("{closed}/{CLIENTS} closed, the last after {:.1} s", longest.as_secs_f32());
    Ok(Got::new(closed == CLIENTS && longest < 2 * HEAD_TIMEOUT, what))
}
