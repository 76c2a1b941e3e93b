//! The router's memory per connection and per held request, measured with 8,000 of each. A limit of 20,000 open files
//! has room for them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::stream::{self, StreamExt as _};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::cluster::{Cluster, Router};
use crate::gauge::{FileLimits, rss_kib};
use crate::good::answer;
use crate::judge::Verdict;

const MANY: usize = 8_000;
/// What one idle connection that has been served may cost: what was measured, and some.
const CONNECTION_BYTES: u64 = 14 << 10;
/// What one small held request may cost on top. The aim is 2 KiB, of which a quarter more is noise.
const HELD_BYTES: u64 = 5 << 9;
/// Clients that send their bodies in chunks of one byte.
const CRUMBLING: usize = 200;
const CRUMBS: usize = 60_000;
/// What one of them may cost: its bytes, as much again because buffers grow by doubling, and hyper's buffer, which grows
/// as large as a client keeps it full. A frame kept for each byte would be 2 MiB.
const CRUMBLING_BYTES: u64 = 384 << 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// `files`: enough for all clients, and for as many connections to pods.
pub(crate) async fn run(cluster: &mut Cluster, files: FileLimits) -> anyhow::Result<Vec<Verdict>> {
    let keys = format!(
        "stash = {{ max_wait = \"60s\", max_requests = {MANY} }}\nupstream.max_in_flight_per_pod = 12000\n\
         limits = {{ max_connections = 8900, max_in_flight_per_client = 0 }}"
    );
    let router = cluster.router_with(files, "r-memory", &keys).await?;
    let before = rss_kib(router.pid());
    let mut clients = connect(router.address, MANY).await?;
    // Each has been served once: what a connection keeps, it has by then.
    let served = ask(&mut clients, "GET", true).await;
    ensure!(served == MANY, "only {served} of {MANY} were served");
    let idle = rss_kib(router.pid());
    let each = per(idle, before);
    let fits = each <= CONNECTION_BYTES;
    let mut lines = vec![line(
        fits,
        "memory-connections",
        format!("{MANY} keep-alive connections: {before} → {idle} KiB, {each} bytes each (bound {CONNECTION_BYTES})"),
    )];
    if let Some(pod) = cluster.pod.take() {
        pod.shut_down(Duration::from_secs(5)).await;
    }
    ask(&mut clients, "POST", false).await;
    until("all are held", || depth(&router) >= MANY as f64).await?;
    let held = rss_kib(router.pid());
    let each = per(held, idle);
    let refused = one_more(router.address).await?;
    cluster.pod = Some(cluster.pods.start("p-0").await?);
    let answered = answers(&mut clients).await;
    let after = rss_kib(router.pid());
    let fits = each <= HELD_BYTES && refused == 503 && answered == MANY;
    lines.push(line(
        fits,
        "memory-full-stash",
        format!(
            "{MANY} small requests held: {idle} → {held} KiB, {each} bytes each (bound {HELD_BYTES}); one more got \
             {refused}; {answered} answered with 200 once there was an owner; then {after} KiB"
        ),
    ));
    Ok(lines)
}

/// Held requests whose bodies arrive byte by byte must not cost more than their size.
pub(crate) async fn crumbs(cluster: &mut Cluster) -> anyhow::Result<Verdict> {
    let router = cluster.router("r-crumbs", "stash.max_wait = \"60s\"").await?;
    if let Some(pod) = cluster.pod.take() {
        pod.shut_down(Duration::from_secs(5)).await;
    }
    let head = "POST /echo HTTP/1.1\r\nhost: h\r\nx-partition: 3\r\ntransfer-encoding: chunked\r\n\r\n";
    let (crumbs, end) = (bytes::Bytes::from("1\r\nx\r\n".repeat(CRUMBS)), "0\r\n\r\n");
    let mut clients = Vec::new();
    for _ in 0..CRUMBLING {
        let mut client = TcpStream::connect(router.address).await?;
        client.write_all(head.as_bytes()).await?;
        clients.push(client);
    }
    until("all are held", || depth(&router) >= CRUMBLING as f64).await?;
    let before = rss_kib(router.pid());
    let written = clients.iter_mut().map(async |client| client.write_all(&crumbs).await.is_ok());
    let written = stream::iter(written).buffer_unordered(CRUMBLING).filter(|ok| std::future::ready(*ok)).count().await;
    until("all has been read", || router.metric("segue_stash_bytes") >= (CRUMBLING * CRUMBS) as f64).await?;
    let held = rss_kib(router.pid());
    let each = (held.saturating_sub(before) << 10) / CRUMBLING as u64;
    cluster.pod = Some(cluster.pods.start("p-0").await?);
    let mut answered = 0;
    for client in &mut clients {
        client.write_all(end.as_bytes()).await?;
        let (status, body) = tokio::time::timeout(PATIENCE, answer(client)).await.context("no answer")??;
        answered += usize::from(status == 200 && body.len() == CRUMBS);
    }
    let fits = each <= CRUMBLING_BYTES && written == CRUMBLING && answered == CRUMBLING;
    let what = format!(
        "{CRUMBLING} held bodies of {CRUMBS} chunks of a byte: {before} → {held} KiB, {each} bytes each (bound \
         {CRUMBLING_BYTES}); {answered} answered whole"
    );
    Ok(line(fits, "memory-crumbs", what))
}

/// Requests whose key is in bodies that arrive byte by byte must not cost more than these, and no more is awaited than is kept.
pub(crate) async fn awaited_keys(cluster: &Cluster) -> anyhow::Result<Verdict> {
    let keyed = cluster.keyed_router("bodies", "json = \"person\"").await?;
    let router = &keyed.router;
    let head = "POST /echo HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut clients = connect(router.address, CRUMBLING + 1).await?;
    let mut endless = clients.pop().context("a client")?;
    let before = rss_kib(router.pid());
    let (crumbs, end) = ("1\r\nx\r\n".repeat(CRUMBS), "13\r\n\",\"person\": \"anna\"}\r\n0\r\n\r\n");
    let begin = bytes::Bytes::from(format!("{head}6\r\n{{\"a\":\"\r\n{crumbs}"));
    let written = clients.iter_mut().map(async |client| client.write_all(&begin).await.is_ok());
    let written = stream::iter(written).buffer_unordered(CRUMBLING).filter(|ok| std::future::ready(*ok)).count().await;
    // Nothing tells what has been read of them but the memory that it takes.
    let mut held = rss_kib(router.pid());
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = rss_kib(router.pid());
        if now <= held {
            break;
        }
        held = now;
    }
    let each = (held.saturating_sub(before) << 10) / CRUMBLING as u64;
    let mut answered = 0;
    for client in &mut clients {
        client.write_all(end.as_bytes()).await?;
        let (status, body) = tokio::time::timeout(PATIENCE, answer(client)).await.context("no answer")??;
        answered += usize::from(status == 200 && body.len() == CRUMBS + 25);
    }
    endless.write_all(&begin).await?;
    endless.write_all(crumbs.as_bytes()).await?;
    let (refused, why) = tokio::time::timeout(PATIENCE, answer(&mut endless)).await.context("no answer")??;
    let is_refused = refused == 400 && String::from_utf8_lossy(&why).contains("bad-partition");
    let fits = each <= CRUMBLING_BYTES && written == CRUMBLING && answered == CRUMBLING && is_refused;
    let what = format!(
        "{CRUMBLING} bodies of {CRUMBS} chunks of a byte before their key: {before} → {held} KiB, {each} bytes each (bound \
         {CRUMBLING_BYTES}); {answered} answered whole; twice as many got {refused}"
    );
    Ok(line(fits, "memory-awaited-keys", what))
}

async fn until(what: &str, condition: impl Fn() -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !condition() {
        ensure!(begun.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

fn line(fits: bool, name: &str, what: String) -> Verdict {
    Verdict::certain(fits, format!("{} {name:<24} {what}", if fits { "ok  " } else { "HARM" }))
}

fn per(now: u64, before: u64) -> u64 {
    (now.saturating_sub(before) << 10) / MANY as u64
}

fn depth(router: &Router) -> f64 {
    router.metric("segue_stash_requests")
}

async fn connect(router: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let made: Vec<_> = stream::iter(0..count).map(|_| TcpStream::connect(router)).buffer_unordered(200).collect().await;
    made.into_iter().collect::<Result<_, _>>().context("connections")
}

/// Each asks once. How many are served, if anybody waits for that.
async fn ask(clients: &mut [TcpStream], method: &str, waits: bool) -> usize {
    let asked = stream::iter(clients.iter_mut().enumerate()).map(async |(key, client)| {
        let request = format!(
            "{method} /echo HTTP/1.1\r\nhost: h\r\nx-partition: 3\r\nx-key: {key}\r\ncontent-length: 5\r\n\r\nhello"
        );
        let sent = client.write_all(request.as_bytes()).await.is_ok();
        sent && (!waits || is_served(client).await)
    });
    asked.buffer_unordered(100).filter(|served| std::future::ready(*served)).count().await
}

async fn is_served(client: &mut TcpStream) -> bool {
    matches!(tokio::time::timeout(PATIENCE, answer(client)).await, Ok(Ok((200, _))))
}

async fn answers(clients: &mut [TcpStream]) -> usize {
    let answered = stream::iter(clients.iter_mut()).map(is_served);
    answered.buffer_unordered(MANY).filter(|served| std::future::ready(*served)).count().await
}

async fn one_more(router: SocketAddr) -> anyhow::Result<u16> {
    let mut client = TcpStream::connect(router).await?;
    client.write_all(b"GET /echo HTTP/1.1\r\nhost: h\r\nx-partition: 3\r\n\r\n").await?;
    Ok(tokio::time::timeout(Duration::from_secs(5), answer(&mut client)).await.context("one more waits")??.0)
}
