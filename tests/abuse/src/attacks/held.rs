//! Held requests that are awkward to send once their turn comes: their client is slow, their pod is slow, they are
//! invalid, or their client is gone. No request of another key may wait for them.

use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{Attack, Got, LASTS, Target, attack};
use crate::wire::{DATA, END_HEADERS, H, HEADERS, Raw, block, frame, preface, request};

/// More than a flush tries at a time.
const STREAMS: u32 = 70;
/// How long the pod refuses everything, so that requests are held.
const HELD: Duration = Duration::from_millis(60);
/// What another key's request may take. Much less than an upload that dribbles, a long poll and the longest wait.
const PROMPT: Duration = Duration::from_millis(1500);

pub(super) fn all() -> Vec<Attack> {
    vec![
        attack("held-dribbled-uploads", uploads),
        attack("held-long-polls", polls),
        attack("held-clients-gone", gone),
        attack("refused-for-ever", refused),
    ]
}

/// Has the pod refuse everything while these are sent, then take everything, and asks for something else. How long that
/// took.
async fn flushed_behind(target: &Target, held: impl Future<Output = ()>) -> anyhow::Result<Option<Duration>> {
    target.seen.refuse(true);
    held.await;
    tokio::time::sleep(HELD).await;
    let mut other = Raw::connect(target.router).await?;
    other.send(format!("GET /echo HTTP/1.1\r\n{H}x-key: other\r\n\r\n"), LASTS).await;
    target.seen.refuse(false);
    let begun = Instant::now();
    let came = other.read(PROMPT, 1).await;
    Ok((came.statuses() == [200]).then(|| begun.elapsed()))
}

fn told(answered: Option<Duration>, what: &str) -> Got {
    match answered {
        Some(took) => Got::new(true, format!("another key went by {what} after {} ms", took.as_millis())),
        None => Got::new(false, format!("another key waits for {what}")),
    }
}

/// A byte of each of many uploads on one connection, and then nothing.
async fn uploads(target: Target) -> anyhow::Result<Got> {
    let mut raw = Raw::connect(target.router).await?;
    let mut bytes = preface(&[]);
    for number in 0..STREAMS {
        let (stream, key) = (2 * number + 1, format!("upload-{number}"));
        bytes.extend(frame(HEADERS, END_HEADERS, stream, &block(&request("POST", "/echo", &[("x-key", &key)]))));
        bytes.extend(frame(DATA, 0, stream, b"x"));
    }
    let answered = flushed_behind(&target, async {
        raw.send(bytes, LASTS).await;
    })
    .await?;
    tokio::time::sleep(LASTS).await;
    Ok(told(answered, &format!("{STREAMS} uploads that wait for their client")))
}

/// Requests that take their time at the pod.
async fn polls(target: Target) -> anyhow::Result<Got> {
    let mut clients = Vec::new();
    for _ in 0..STREAMS {
        clients.push(Raw::connect(target.router).await?);
    }
    let ask = async {
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(format!("GET /poll HTTP/1.1\r\n{H}x-key: poll-{number}\r\n\r\n"), LASTS).await;
        }
    };
    let answered = flushed_behind(&target, ask).await?;
    let ended = join_all(clients.iter_mut().map(|client| client.read(2 * LASTS, 1))).await;
    let served = ended.iter().filter(|came| came.statuses() == [200]).count();
    let mut got = told(answered, &format!("{STREAMS} long polls, {served} of which were answered"));
    got.expected &= served == STREAMS as usize;
    Ok(got)
}

/// Clients that hang up while held, in ways that are not noticed by reading.
async fn gone(target: Target) -> anyhow::Result<Got> {
    let before = target.seen.gone();
    let heads = [
        format!("POST /gone HTTP/1.1\r\n{H}content-length: 1\r\n\r\nyG"),
        format!("POST /gone HTTP/1.1\r\n{H}expect: 100-continue\r\ncontent-length: 5\r\n\r\n"),
        format!(
            "POST /gone HTTP/1.1\r\n{H}expect: 100-continue\r\ncontent-length: 30000\r\n\r\n{}",
            "x".repeat(30_000)
        ),
    ];
    let mut clients = Vec::new();
    for number in 0..STREAMS {
        // The first one closes the gate.
        let key = format!("x-key: gone-{number}\r\ncontent-length");
        let head = heads[number as usize % heads.len()].replace("content-length", &key);
        clients.push((Raw::connect(target.router).await?, head));
    }
    let ask = async {
        let mut first = Raw::connect(target.router).await;
        if let Ok(first) = &mut first {
            first.send(format!("GET /echo HTTP/1.1\r\n{H}\r\n"), LASTS).await;
            tokio::time::sleep(HELD).await;
        }
        for (mut client, head) in clients {
            client.send(head, Duration::from_millis(50)).await;
        }
    };
    let answered = flushed_behind(&target, ask).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let sent = target.seen.gone() - before;
    let mut got = told(answered, &format!("{STREAMS} requests whose clients are gone, {sent} of which were sent"));
    got.expected &= sent == 0;
    Ok(got)
}

/// Requests that the pod refuses although it owns their partition, one after the other and in all partitions.
async fn refused(target: Target) -> anyhow::Result<Got> {
    let one = async |number: u32| {
        let head = H.replace("x-partition: 0", &format!("x-partition: {number}"));
        let (until, mut longest, mut told, mut asked) = (Instant::now() + LASTS, Duration::ZERO, 0, 0);
        let mut client = Raw::connect(target.router).await?;
        while Instant::now() < until {
            let begun = Instant::now();
            client.send(format!("GET /poison HTTP/1.1\r\n{head}x-key: poison\r\n\r\n"), LASTS).await;
            let came = client.read(2 * LASTS, 1).await;
            asked += 1;
            told += u32::from(came.statuses() == [503] && came.says("no-owner"));
            longest = longest.max(begun.elapsed());
        }
        anyhow::Ok((asked, told, longest))
    };
    let all = join_all((0..crate::cluster::PARTITIONS).map(one)).await;
    let all = all.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let (asked, told) = all.iter().fold((0, 0), |(asked, told), one| (asked + one.0, told + one.1));
    let longest = all.iter().map(|one| one.2).max().unwrap_or_default();
    let what = format!("{told}/{asked} got 503 no-owner, after {} ms at most", longest.as_millis());
    Ok(Got::new(told == asked && asked > 0 && longest < PROMPT, what))
}
