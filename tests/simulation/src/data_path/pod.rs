//! The pods: each owns what it is told, refuses everything else, and treats a request of its own as the scenario says.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::http2_pod;
use super::wire::{Head, Wire, chunked};
use super::world::{World, body_of};

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;
/// A response to nothing.
const STRAY: &[u8] = b"HTTP/1.1 200 OK\r\nx-id: stray\r\ncontent-length: 0\r\n\r\n";
/// How often a pod refuses a request of its own at most.
const MOST_REFUSALS: u32 = 2;

/// The treatment of a request by a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    Answers,
    AnswersLate,
    AnswersInPieces,
    /// Answers before it has read the body.
    AnswersEarly,
    Refuses,
    BreaksBefore,
    BreaksBehind,
    BreaksInResponse,
    NeverAnswers,
}

impl Behaviour {
    pub(super) fn choose(world: &World, id: u64) -> Self {
        let (rng, scenario) = (&world.rng, &world.scenario);
        // The router gives up a request that its pod refuses again and again.
        if world.request(id).refusals < MOST_REFUSALS && rng.percent(scenario.refuses) {
            world.change(id, |request| request.refusals += 1);
            return Behaviour::Refuses;
        }
        if rng.percent(scenario.breaks) {
            let breaks = [Behaviour::BreaksBefore, Behaviour::BreaksBehind, Behaviour::BreaksInResponse];
            return *rng.pick(&breaks).unwrap();
        }
        if rng.percent(scenario.stalls) {
            return Behaviour::NeverAnswers;
        }
        let usual = [
            Behaviour::Answers,
            Behaviour::Answers,
            Behaviour::AnswersLate,
            Behaviour::AnswersInPieces,
            Behaviour::AnswersEarly,
        ];
        *rng.pick(&usual).unwrap()
    }

    /// Returns what it may cost a request of its own, if it may cost it its response.
    pub(super) fn fault(self) -> Option<&'static str> {
        match self {
            Behaviour::BreaksBefore => Some("breaks without having acted"),
            Behaviour::BreaksBehind => Some("acts and breaks"),
            Behaviour::BreaksInResponse => Some("breaks within its response"),
            Behaviour::NeverAnswers => Some("acts and never answers"),
            _ => None,
        }
    }
}

/// Longer than a router waits for a pod.
pub(super) const FOR_EVER: Duration = Duration::from_secs(60);

/// Returns a socket at this address that does not listen yet: connections are refused, and nobody else gets the port.
pub(super) fn silent_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Serves all connections. Sometimes the pod listens no longer for a while.
pub(super) async fn serve(world: Rc<World>, pod: usize, socket: TcpSocket) -> io::Result<()> {
    let address = socket.local_addr()?;
    let mut listener = socket.listen(BACKLOG)?;
    loop {
        let ends = world.rng.among(0..=999) < u64::from(world.scenario.outages);
        let patience = Duration::from_millis(if ends { 1 } else { 100 });
        match timeout(patience, listener.accept()).await {
            Ok(accepted) => drop(spawn_local(connection(world.clone(), pod, accepted?.0))),
            Err(_) if ends => {
                let silent = silent_socket(address)?;
                drop(listener);
                world.note(|| format!("pod {pod} does not listen"));
                sleep(world.rng.millis(1..=300)).await;
                listener = silent.listen(BACKLOG)?;
            }
            Err(_) => {}
        }
    }
}

async fn connection(world: Rc<World>, pod: usize, stream: TcpStream) {
    if world.scenario.pods_speak_http2 {
        http2_pod::serve(world, pod, stream).await;
    } else {
        // The router may end any connection.
        let _ = serve_http1(&world, pod, stream).await;
    }
}

async fn serve_http1(world: &World, pod: usize, stream: TcpStream) -> io::Result<()> {
    let mut wire = Wire::new(stream);
    let mut is_new = true;
    loop {
        let closes = !std::mem::take(&mut is_new) && world.rng.percent(world.scenario.closes_idle);
        let patience = if closes { world.rng.millis(1..=30) } else { FOR_EVER };
        let Ok(head) = timeout(patience, wire.head()).await else {
            world.note(|| format!("pod {pod} closes an idle connection"));
            return Ok(());
        };
        let Some(head) = head? else { return Ok(()) };
        let id = number(&head, "x-id");
        let goes_on = exchange(world, pod, &mut wire, (id, &head)).await;
        world.leaves(id);
        if !goes_on? {
            return Ok(());
        }
    }
}

fn number(head: &Head, name: &str) -> u64 {
    head.get(name).and_then(|value| value.parse().ok()).unwrap_or(u64::MAX)
}

/// Treats one request. Returns whether the connection may be used again.
async fn exchange(world: &World, pod: usize, wire: &mut Wire, (id, head): (u64, &Head)) -> io::Result<bool> {
    let owns = world.arrives(id, pod, number(head, "segue-epoch"));
    let behaviour = if owns { Behaviour::choose(world, id) } else { Behaviour::Refuses };
    if let Some(fault) = behaviour.fault() {
        world.faulted(id, fault);
    }
    if behaviour == Behaviour::AnswersEarly {
        world.acts(id, pod, &body_of(id, world.request(id).body));
        wire.write(&response(world, id, true)).await?;
        world.leaves(id);
        wire.rest().await;
        return Ok(false);
    }
    if behaviour == Behaviour::BreaksBefore && world.rng.percent(50) {
        return Ok(false);
    }
    if head.get("expect").is_some() {
        wire.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    let body = wire.body(head).await?;
    match behaviour {
        Behaviour::Refuses => {
            world.note(|| format!("pod {pod} refuses {id}"));
            wire.write(b"HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n").await?;
            return Ok(true);
        }
        Behaviour::BreaksBefore => return Ok(false),
        _ => world.acts(id, pod, &body),
    }
    match behaviour {
        Behaviour::BreaksBehind => return Ok(false),
        Behaviour::NeverAnswers => sleep(FOR_EVER).await,
        Behaviour::AnswersLate => sleep(world.rng.millis(1..=50)).await,
        _ => {}
    }
    let closes = world.rng.percent(10);
    let response = response(world, id, closes);
    match behaviour {
        Behaviour::BreaksInResponse => {
            let part = world.rng.among(1..=response.len() as u64 - 1) as usize;
            wire.write(&response[..part]).await?;
            Ok(false)
        }
        Behaviour::AnswersInPieces => {
            let (first, second) = response.split_at(world.rng.among(1..=response.len() as u64 - 1) as usize);
            wire.write(first).await?;
            sleep(world.rng.millis(1..=5)).await;
            wire.write(second).await?;
            Ok(!closes)
        }
        _ => {
            // Some servers send what nobody has asked for, and all of it at once.
            let stray = if world.rng.percent(world.scenario.breaks) { STRAY } else { b"" };
            wire.write(&[&response, stray].concat()).await?;
            Ok(!closes)
        }
    }
}

/// Returns a whole response.
fn response(world: &World, id: u64, closes: bool) -> Vec<u8> {
    let body = body_of(id + 1, world.request(id).body);
    let mut response = format!("HTTP/1.1 200 OK\r\nx-id: {id}\r\n").into_bytes();
    if closes {
        response.extend(b"connection: close\r\n");
    }
    if world.rng.percent(30) {
        response.extend(b"transfer-encoding: chunked\r\n\r\n");
        response.extend(chunked(&body));
    } else {
        response.extend(format!("content-length: {}\r\n\r\n", body.len()).into_bytes());
        response.extend(body);
    }
    response
}
