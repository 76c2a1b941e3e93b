//! A pod's side of one connection by HTTP/2.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Response, StatusCode};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::http2_client::whole;
use super::pod::{Behaviour, FOR_EVER};
use super::world::{World, body_of};

/// A command of an exchange to its connection.
enum Command {
    /// Ends it at once.
    Break,
    /// Has it take no more streams.
    Leave,
}

/// The link of an exchange to its connection.
#[derive(Clone)]
struct ExchangeLink {
    commands: mpsc::UnboundedSender<Command>,
    /// The requests that have come by it.
    ids: Rc<RefCell<Vec<u64>>>,
}

/// Serves one connection.
pub(super) async fn serve(world: Rc<World>, pod: usize, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let (commands, mut commanded) = mpsc::unbounded_channel();
    let link = ExchangeLink { commands, ids: Rc::default() };
    loop {
        tokio::select! {
            biased;
            Some(command) = commanded.recv() => match command {
                Command::Break => return breaks(&world, &link.ids.borrow()),
                Command::Leave => connection.graceful_shutdown(),
            },
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                let (world, link) = (world.clone(), link.clone());
                tokio::task::spawn_local(async move {
                    let number = |name| request.headers().get(name)?.to_str().ok()?.parse().ok();
                    let (id, epoch) = (number("x-id").unwrap_or(u64::MAX), number("segue-epoch").unwrap_or(u64::MAX));
                    link.ids.borrow_mut().push(id);
                    let owns = world.arrives(id, pod, epoch);
                    // The router may reset any stream.
                    if let Err(error) = exchange(&world, (pod, owns), id, request.into_body(), respond, &link).await {
                        world.note(|| format!("pod {pod}: {id} ends: {error}"));
                    }
                    world.leaves(id);
                });
            }
        }
    }
}

/// Notes whom the end of a connection may cost its response.
fn breaks(world: &World, ids: &[u64]) {
    let is_open = |id: &u64| {
        let request = world.request(*id);
        request.ended.is_none() || request.is_at_work
    };
    ids.iter().copied().filter(is_open).for_each(|id| world.faulted(id, "breaks its connection"));
}

async fn exchange(
    world: &World,
    (pod, owns): (usize, bool),
    id: u64,
    body: RecvStream,
    mut respond: SendResponse<Bytes>,
    link: &ExchangeLink,
) -> Result<(), h2::Error> {
    let behaviour = if owns { Behaviour::choose(world, id) } else { Behaviour::Refuses };
    if let Some(fault) = behaviour.fault() {
        world.faulted(id, fault);
    }
    if world.rng.percent(world.scenario.closes_idle / 3) {
        let _ = link.commands.send(Command::Leave);
    }
    if behaviour == Behaviour::BreaksBefore {
        return end(world, respond, link);
    }
    let body =
        if behaviour == Behaviour::AnswersEarly { body_of(id, world.request(id).body) } else { whole(body).await? };
    if behaviour == Behaviour::Refuses {
        world.note(|| format!("pod {pod} refuses {id}"));
        if world.rng.percent(50) {
            respond.send_reset(Reason::REFUSED_STREAM);
        } else {
            let mut refusal = Response::new(());
            *refusal.status_mut() = StatusCode::MISDIRECTED_REQUEST;
            respond.send_response(refusal, true)?;
        }
        return Ok(());
    }
    world.acts(id, pod, &body);
    match behaviour {
        Behaviour::BreaksBehind => return end(world, respond, link),
        Behaviour::NeverAnswers => sleep(FOR_EVER).await,
        Behaviour::AnswersLate => sleep(world.rng.millis(1..=50)).await,
        _ => {}
    }
    let answer = Bytes::from(body_of(id + 1, world.request(id).body));
    let head = Response::builder().header("x-id", id).body(()).unwrap();
    let mut stream = respond.send_response(head, false)?;
    let half = answer.len() / 2;
    stream.send_data(answer.slice(..half), false)?;
    match behaviour {
        Behaviour::BreaksInResponse => {
            stream.send_reset(Reason::INTERNAL_ERROR);
            return Ok(());
        }
        Behaviour::AnswersInPieces => sleep(world.rng.millis(1..=5)).await,
        _ => {}
    }
    stream.send_data(answer.slice(half..), true)
}

/// Ends an exchange without a response: the stream, or the connection with all of its streams.
fn end(world: &World, mut respond: SendResponse<Bytes>, link: &ExchangeLink) -> Result<(), h2::Error> {
    if world.rng.percent(50) {
        respond.send_reset(Reason::INTERNAL_ERROR);
    } else {
        let _ = link.commands.send(Command::Break);
    }
    Ok(())
}
