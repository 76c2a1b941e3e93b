//! The clients: each sends its requests one after the other, or several at a time, and notes how they end.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::http2_client;
use super::wire::{Wire, chunked};
use super::world::{Outcome, World, body_of};

/// Longer than a router may take for any request.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Sends all requests of a client.
pub(super) async fn run(world: Rc<World>, client: usize, fronts: Vec<SocketAddr>) {
    let is_http2 = world.rng.percent(50);
    let mut left = world.scenario.requests_per_client;
    while left > 0 {
        sleep(world.rng.millis(0..=40)).await;
        let stream = match TcpStream::connect(*world.rng.pick(&fronts).unwrap()).await {
            Ok(stream) => stream,
            Err(_) if world.stopped_at.get().is_some() => return,
            Err(error) => return world.violated(format!("client {client} cannot connect: {error}")),
        };
        left = if is_http2 {
            http2_client::connection(&world, client, stream, left).await
        } else {
            http1(&world, client, Wire::new(stream), left).await
        };
    }
}

/// Uses one connection until it ends. Returns how many requests are left.
async fn http1(world: &World, client: usize, mut wire: Wire, mut left: u64) -> u64 {
    while left > 0 {
        let mut batch = Vec::new();
        for _ in 0..world.rng.among(1..=3).min(left) {
            batch.push(world.begin(client, batch.last().copied()));
        }
        left -= batch.len() as u64;
        if batch.len() == 1 && world.rng.percent(10) {
            if !expecting(world, &mut wire, batch[0]).await {
                return left;
            }
            continue;
        }
        let leaves = world.rng.percent(world.scenario.leaves);
        let sent = send(world, &mut wire, &batch, leaves).await;
        if leaves {
            batch.iter().for_each(|id| world.ends(*id, Outcome::Left));
            sleep(world.rng.millis(0..=3)).await;
            if world.rng.percent(50) {
                wire.reset();
            }
            return left;
        }
        if !read(world, &mut wire, &batch).await || sent.is_err() {
            return left;
        }
        sleep(world.rng.millis(0..=20)).await;
    }
    left
}

/// Writes the requests, whole or in pieces. One that `leaves` may stop within them.
async fn send(world: &World, wire: &mut Wire, batch: &[u64], leaves: bool) -> io::Result<()> {
    let (mut bytes, mut heads) = (Vec::new(), Vec::new());
    for id in batch {
        let (head, body) = encode(world, *id, "");
        bytes.extend(head);
        heads.push((*id, bytes.len()));
        bytes.extend(body);
    }
    if leaves && world.rng.percent(50) {
        bytes.truncate(world.rng.among(1..=bytes.len() as u64) as usize);
    }
    // A client that still writes would read the responses late, and tell late when the router gets to the next request.
    let in_pieces = batch.len() == 1 && world.rng.percent(30);
    let first = if in_pieces { world.rng.among(0..=bytes.len() as u64) as usize } else { bytes.len() };
    let sent = |from, to| heads.iter().filter(move |(_, end)| (from + 1..=to).contains(end)).map(|(id, _)| *id);
    sent(0, first).for_each(|id| world.sent(id));
    wire.write(&bytes[..first]).await?;
    if first < bytes.len() {
        sleep(world.rng.millis(1..=20)).await;
        sent(first, bytes.len()).for_each(|id| world.sent(id));
        wire.write(&bytes[first..]).await?;
    }
    Ok(())
}

/// Returns a request's head and body.
fn encode(world: &World, id: u64, fields: &str) -> (Vec<u8>, Vec<u8>) {
    let request = world.request(id);
    let (partition, key) = (request.partition, request.key);
    let method = if request.is_safe { "GET" } else { "POST" };
    let mut head = format!(
        "{method} /{id} HTTP/1.1\r\nhost: h\r\nx-partition: {partition}\r\nx-key: {key}\r\nx-id: {id}\r\n{fields}"
    );
    let body = body_of(id, request.body);
    let body = match request.body {
        0 if request.is_safe => Vec::new(),
        _ if world.rng.percent(30) => {
            head.push_str("transfer-encoding: chunked\r\n");
            chunked(&body)
        }
        length => {
            head.push_str(&format!("content-length: {length}\r\n"));
            body
        }
    };
    head.push_str("\r\n");
    (head.into_bytes(), body)
}

/// Sends a request whose body waits for the pod's word. Returns whether the connection may be used again.
async fn expecting(world: &World, wire: &mut Wire, id: u64) -> bool {
    world.change(id, |request| (request.body, request.is_safe) = (request.body.max(1), false));
    world.sent(id);
    let (head, body) = encode(world, id, "expect: 100-continue\r\n");
    let exchange = async {
        wire.write(&head).await?;
        let mut head = wire.head().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if head.second() == "100" {
            wire.write(&body).await?;
            head = wire.head().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        let answer = wire.body(&head).await?;
        world.response(id, head.second(), head.get("x-id"), head.get("segue-reason"), &answer);
        // Whether the body is still wanted cannot be known.
        io::Result::Ok(!head.closes() && head.second() == "200")
    };
    match timeout(PATIENCE, exchange).await {
        Ok(Ok(goes_on)) => return goes_on,
        Ok(Err(_)) => {}
        Err(_) => world.violated(format!("{id} has no response")),
    }
    world.ends(id, Outcome::CutOff);
    false
}

/// Reads the responses to these requests. Returns whether the connection may be used again.
async fn read(world: &World, wire: &mut Wire, batch: &[u64]) -> bool {
    for (index, id) in batch.iter().enumerate() {
        let one = async {
            let head = wire.head().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let body = wire.body(&head).await?;
            world.response(*id, head.second(), head.get("x-id"), head.get("segue-reason"), &body);
            io::Result::Ok(head.closes())
        };
        let (goes_on, others) = match timeout(PATIENCE, one).await {
            Ok(Ok(false)) => continue,
            Ok(Ok(true)) => (false, Outcome::Unserved),
            Ok(Err(_)) => {
                world.ends(*id, Outcome::CutOff);
                (false, Outcome::CutOff)
            }
            Err(_) => {
                world.violated(format!("{id} has no response"));
                (false, Outcome::CutOff)
            }
        };
        batch[index + 1..].iter().for_each(|other| world.ends(*other, others.clone()));
        return goes_on;
    }
    true
}
