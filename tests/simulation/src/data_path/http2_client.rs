//! A client's side of one connection by HTTP/2: several requests at a time, in the order of their numbers.

use std::rc::Rc;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::Request;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::client::PATIENCE;
use super::world::{Outcome, World, body_of};

/// Uses one connection until it ends, or for some requests. Returns how many are left.
pub(super) async fn connection(world: &Rc<World>, client: usize, stream: TcpStream, mut left: u64) -> u64 {
    let _ = stream.set_nodelay(true);
    let Ok((mut requests, connection)) = h2::client::handshake(stream).await else { return left };
    let connection = tokio::task::spawn_local(async move { drop(connection.await) });
    let (mut exchanges, mut sent) = (JoinSet::new(), Vec::new());
    let leaves = world.rng.percent(world.scenario.leaves);
    for _ in 0..world.rng.among(1..=12).min(left) {
        requests = match requests.ready().await {
            Ok(ready) => ready,
            Err(_) => break,
        };
        left -= 1;
        let id = world.begin(client, None);
        world.sent(id);
        sent.push(id);
        match send(world, id, &mut requests) {
            Ok((response, upload)) => {
                exchanges.spawn_local(exchange(world.clone(), id, response, upload));
            }
            Err(_) => world.ends(id, Outcome::CutOff),
        }
        if world.rng.percent(40) {
            sleep(world.rng.millis(0..=20)).await;
        }
    }
    if leaves {
        sleep(world.rng.millis(0..=10)).await;
        sent.iter().for_each(|id| world.ends(*id, Outcome::Left));
        connection.abort();
    }
    while exchanges.join_next().await.is_some() {}
    left
}

fn send(
    world: &World,
    id: u64,
    requests: &mut SendRequest<Bytes>,
) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
    let request = world.request(id);
    let head = Request::builder()
        .method(if request.is_safe { "GET" } else { "POST" })
        .uri(format!("http://h/{id}"))
        .header("x-partition", request.partition)
        .header("x-key", request.key)
        .header("x-id", id)
        .body(())
        .unwrap();
    requests.send_request(head, request.body == 0)
}

async fn exchange(world: Rc<World>, id: u64, response: ResponseFuture, mut upload: SendStream<Bytes>) {
    let leaves_after = world.rng.percent(world.scenario.leaves).then(|| world.rng.millis(0..=30));
    let length = world.request(id).body;
    let talk = async {
        if length > 0 {
            let body = Bytes::from(body_of(id, length));
            let half = world.rng.among(0..=length as u64) as usize;
            upload.send_data(body.slice(..half), false)?;
            if world.rng.percent(50) {
                sleep(world.rng.millis(1..=20)).await;
            }
            // The pod may have answered, and ended the stream.
            let _ = upload.send_data(body.slice(half..), true);
        }
        let (head, stream) = response.await?.into_parts();
        let body = whole(stream).await?;
        let field = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        world.response(id, head.status.as_str(), field("x-id"), field("segue-reason"), &body);
        Ok::<(), h2::Error>(())
    };
    let outcome = match leaves_after {
        Some(after) => match timeout(after, talk).await {
            Ok(Ok(())) => return,
            Ok(Err(_)) => Outcome::CutOff,
            Err(_) => Outcome::Left,
        },
        None => match timeout(PATIENCE, talk).await {
            Ok(Ok(())) => return,
            Ok(Err(_)) => Outcome::CutOff,
            Err(_) => {
                world.violated(format!("{id} has no response"));
                Outcome::CutOff
            }
        },
    };
    world.ends(id, outcome);
}

/// Reads a body to its end.
pub(super) async fn whole(mut stream: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    Ok(body)
}
