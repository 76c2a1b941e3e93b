//! A burst client: several writes of one key on one HTTP/2 connection, without waiting for responses.
//!
//! A router reads the requests of a connection in the order of sending. To learn that the router has received the whole
//! burst, the client sends a *sentinel* after it: a request that names no partition, to which the router responds
//! itself at once. Its response shows that everything before it was received. Bursts target a moving partition, if one
//! is known.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use segue_protocol::ids::PartitionId;
use tokio::time::timeout;

use super::super::clock::{self, Nanos};
use super::super::record::{Burst, ClientExchange, Outcome, RequestKind};
use super::connection::{self, ClientConnection};
use super::{AFTER_REFUSAL, Common, KEYS, Reply, target};

/// Most writes of a burst.
const LENGTH: u32 = 4;

type Sender = SendRequest<Full<Bytes>>;

/// Sends bursts until the load stops, and returns what became of each write.
pub(super) async fn run(common: Arc<Common>, number: u32, seed: u64) -> Vec<ClientExchange> {
    let mut random = StdRng::seed_from_u64(seed);
    let settings = &common.settings;
    let mut exchanges = Vec::new();
    let partitions = settings.partitions.max(1);
    let mut sequences = vec![0_u64; partitions as usize];
    // Ids of bursts differ between clients.
    let (mut sent, mut id) = (0, u64::from(number) << 32);
    let (mut connection, mut place): (_, Arc<str>) = (None, "".into());
    let (interval, mut due) = (settings.interval() * u64::from(settings.paces_bursts), clock::now());
    while !common.stop.is_cancelled() {
        let Some(ClientConnection::Http2(sender, _)) = &mut connection else {
            let router = &settings.routers[random.random_range(0..settings.routers.len())];
            match ClientConnection::open(router, true).await {
                Ok(opened) => {
                    connection = Some(opened);
                    place = format!("in a burst, HTTP/2 to {}", router.address).into();
                }
                Err(_) => tokio::time::sleep(AFTER_REFUSAL).await,
            }
            continue;
        };
        id += 1;
        let moving = settings.snapshot.as_ref().and_then(|snapshot| snapshot.borrow().any_moving(&mut random));
        let partition = moving.unwrap_or_else(|| PartitionId::new(random.random_range(0..partitions)));
        // The key is this client's alone: those of steady clients come first, then those of each burst client by partition.
        let key = settings.clients * KEYS + number * partitions + partition.get();
        let sequence = &mut sequences[partition.index()];
        let began = clock::now();
        let mut writes = Vec::new();
        for _ in 0..random.random_range(2..=LENGTH) {
            (*sequence, sent) = (*sequence + 1, sent + 1);
            let request = common.request_id(settings.clients + number, sent);
            let kind = RequestKind::Write { sequence: *sequence };
            // The request is handed to the connection here and not at the await, so the order is that of these lines.
            let answer = sender.send_request(common.request(key, &kind, request, true));
            writes.push((request, kind, clock::now(), answer));
            common.gauge.sent.fetch_add(1, Relaxed);
        }
        let sentinel = sentinel(sender);
        let answers = writes.into_iter().map(|(request, kind, sent_at, answer)| {
            let (common, place) = (common.clone(), place.clone());
            async move {
                let reply = timeout(common.settings.patience, reply_to(answer)).await;
                let Reply { outcome, answered_by, .. } = reply.unwrap_or_else(|_| unanswered(place));
                let ended_at = clock::now();
                common.gauge.ended(&outcome);
                let (due_at, burst) = (sent_at, None);
                ClientExchange { request, key, partition, kind, due_at, sent_at, ended_at, outcome, answered_by, burst }
            }
        });
        let all = async { tokio::join!(sentinel, join_all(answers)) };
        let (taken_by, mut answers) = connection::answers_on(&mut connection, all).await;
        answers.iter_mut().for_each(|exchange| exchange.burst = Some(Burst { id, taken_by }));
        let shows_broken_connection = |exchange: &ClientExchange| {
            matches!(exchange.outcome, Outcome::Unknown { code: 0, .. } | Outcome::Unanswered { .. })
        };
        if taken_by.is_none() || answers.iter().any(shows_broken_connection) {
            connection = None;
        }
        // A client that was held does not make up for it: its bursts would come one upon the other.
        due = due.max(began) + interval * answers.len() as u64;
        exchanges.append(&mut answers);
        let pause = match interval {
            0 => Duration::from_micros(random.random_range(500..4_000)),
            _ => Duration::from_nanos(due.saturating_sub(clock::now())),
        };
        common.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
    }
    exchanges
}

/// Returns when the router's local reply arrived. It does not count as a request of the load.
fn sentinel(sender: &mut Sender) -> impl Future<Output = Option<Nanos>> + use<> {
    let request = Request::builder().uri(target("/sentinel", true)).body(Full::default()).unwrap_or_default();
    let answer = sender.send_request(request);
    async move {
        let answered = timeout(Duration::from_secs(5), answer).await.ok()?.ok()?;
        let reply = connection::answer(answered).await;
        matches!(reply.outcome, Outcome::Refused { code: 400, .. }).then(clock::now)
    }
}

async fn reply_to<F>(answer: F) -> Reply
where
    F: Future<Output = hyper::Result<http::Response<hyper::body::Incoming>>>,
{
    match answer.await {
        Ok(response) => connection::answer(response).await,
        Err(error) => connection::broken(&error),
    }
}

fn unanswered(place: Arc<str>) -> Reply {
    Reply { outcome: Outcome::Unanswered { place }, answered_by: None, seen: 0 }
}
