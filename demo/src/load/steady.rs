//! A steady client: writes and reads of its own keys through any router, one request per key at a time.
//!
//! It has one request in flight, like a thread of a service. A request that is held longer than [`PATIENT`] is awaited
//! separately, and the client continues with its other keys. Otherwise a single held partition would silence all
//! clients, and the other partitions would not be tested.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use super::super::clock;
use super::super::record::{ClientExchange, Key, Outcome, RequestKind};
use super::connection::{ClientConnection, exchange};
use super::{AFTER_REFUSAL, Common, KEYS, next_due};

/// Number of attempts of the last look at a key.
const LOOKS: u32 = 5;
/// Number of concurrent readers of that last look.
const READERS: usize = 16;
/// How long a client waits for a response before it continues with another key.
const PATIENT: Duration = Duration::from_millis(100);

struct Client {
    common: Arc<Common>,
    number: u32,
    http2: bool,
    /// One connection per router; absent while it is in use.
    connections: Vec<Option<ClientConnection>>,
    random: StdRng,
    sent: u32,
}

/// A request, with or without a response.
struct FinishedRequest {
    exchange: ClientExchange,
    router: usize,
    connection: Option<ClientConnection>,
}

/// The client's knowledge of a key.
#[derive(Debug, Clone, Copy, Default)]
struct Writes {
    sent: u64,
    acked: u64,
    under_way: bool,
}

pub(super) async fn run(common: Arc<Common>, number: u32, seed: u64) -> Vec<ClientExchange> {
    let (stop, interval) = (common.stop.clone(), common.settings.interval());
    let mut client = Client::new(common, number, seed);
    let mut exchanges = Vec::new();
    let mut due = clock::now() + if interval > 0 { client.random.random_range(0..interval) } else { 0 };
    let mut writes = [Writes::default(); KEYS as usize];
    let mut aside = JoinSet::new();
    while !stop.is_cancelled() {
        let wait = due.saturating_sub(clock::now());
        if wait > 0 && stop.run_until_cancelled(tokio::time::sleep(Duration::from_nanos(wait))).await.is_none() {
            break;
        }
        let free: Vec<usize> = (0..writes.len()).filter(|own| !writes[*own].under_way).collect();
        let mut current = None;
        if !free.is_empty() {
            let own = free[client.random.random_range(0..free.len())];
            let known = &mut writes[own];
            known.under_way = true;
            let kind = if known.acked > 0 && client.random.random_ratio(1, 4) {
                RequestKind::Read { floor: known.acked, seen: 0, last: false }
            } else {
                known.sent += 1;
                RequestKind::Write { sequence: known.sent }
            };
            current = Some(Box::pin(client.send(number * KEYS + own as u32, kind, due)));
        }
        let patience = tokio::time::sleep(PATIENT);
        tokio::pin!(patience);
        // Until the request is done or is awaited separately. If all keys wait, until one of them no longer does.
        loop {
            let Some(asked) = &mut current else {
                if let Some(Ok(done)) = aside.join_next().await {
                    client.note(done, &mut writes, &mut exchanges).await;
                }
                break;
            };
            tokio::select! {
                done = asked => {
                    let refused = matches!(done.exchange.outcome, Outcome::Refused { .. });
                    client.note(done, &mut writes, &mut exchanges).await;
                    if refused {
                        tokio::time::sleep(AFTER_REFUSAL).await;
                    }
                    break;
                }
                Some(Ok(done)) = aside.join_next(), if !aside.is_empty() => {
                    client.note(done, &mut writes, &mut exchanges).await;
                }
                () = &mut patience => {
                    current.take().map(|asked| aside.spawn(asked));
                    break;
                }
            }
        }
        due = next_due(due, interval);
    }
    while let Some(Ok(done)) = aside.join_next().await {
        exchanges.push(done.exchange);
    }
    exchanges
}

impl Client {
    fn new(common: Arc<Common>, number: u32, seed: u64) -> Self {
        let connections = common.settings.routers.iter().map(|_| None).collect();
        let http2 = number % 4 == 3;
        Client { common, number, http2, connections, random: StdRng::seed_from_u64(seed), sent: 0 }
    }

    /// Sends a request. The future does not borrow the client.
    fn send(&mut self, key: Key, kind: RequestKind, due_at: u64) -> impl Future<Output = FinishedRequest> + use<> {
        self.sent += 1;
        let request = self.common.request_id(self.number, self.sent);
        let asked = self.ask(key, kind, request);
        let common = self.common.clone();
        async move {
            let sent_at = clock::now();
            let (said, router, connection) = asked.await;
            let ended_at = clock::now();
            common.gauge.ended(&said.outcome);
            let kind = match kind {
                RequestKind::Read { floor, last, .. } => RequestKind::Read { floor, seen: said.seen, last },
                write => write,
            };
            let partition = common.keys[key as usize].partition;
            let (outcome, answered_by, burst) = (said.outcome, said.answered_by, None);
            let exchange = ClientExchange {
                request,
                key,
                partition,
                kind,
                due_at,
                sent_at,
                ended_at,
                outcome,
                answered_by,
                burst,
            };
            FinishedRequest { exchange, router, connection }
        }
    }

    fn ask(
        &mut self,
        key: Key,
        kind: RequestKind,
        request: u64,
    ) -> impl Future<Output = (super::Reply, usize, Option<ClientConnection>)> + use<> {
        let router = self.random.random_range(0..self.connections.len());
        let (to, patience) = (self.common.settings.routers[router].clone(), self.common.settings.patience);
        let (http2, request) = (self.http2, self.common.request(key, &kind, request, self.http2));
        let mut connection = self.connections[router].take();
        self.common.gauge.sent.fetch_add(1, Relaxed);
        async move {
            let said = exchange(&mut connection, &to, http2, request, patience).await;
            (said, router, connection)
        }
    }

    async fn note(
        &mut self,
        done: FinishedRequest,
        writes: &mut [Writes; KEYS as usize],
        exchanges: &mut Vec<ClientExchange>,
    ) {
        let FinishedRequest { exchange, router, connection } = done;
        if self.connections[router].is_none() {
            self.connections[router] = connection;
        }
        let known = &mut writes[(exchange.key - self.number * KEYS) as usize];
        known.under_way = false;
        if let (Outcome::Ok, RequestKind::Write { sequence }) = (&exchange.outcome, exchange.kind) {
            known.acked = sequence;
        }
        exchanges.push(exchange);
    }
}

/// Reads every written key once more, to see its final state.
pub(super) async fn last_look(common: &Arc<Common>, exchanges: &[ClientExchange]) -> Vec<ClientExchange> {
    let mut acked: HashMap<Key, u64> = HashMap::new();
    for exchange in exchanges.iter().filter(|exchange| exchange.outcome == Outcome::Ok) {
        if let Some(sequence) = exchange.sequence() {
            let newest = acked.entry(exchange.key).or_default();
            *newest = sequence.max(*newest);
        }
    }
    let acked: Vec<(Key, u64)> = acked.into_iter().collect();
    let mut readers = JoinSet::new();
    for (reader, keys) in (0..).zip(acked.chunks(acked.len().div_ceil(READERS).max(1))) {
        let number = common.settings.clients + common.settings.bursts + reader;
        readers.spawn(read_all(Client::new(common.clone(), number, common.run), keys.to_vec()));
    }
    readers.join_all().await.concat()
}

async fn read_all(mut client: Client, keys: Vec<(Key, u64)>) -> Vec<ClientExchange> {
    let mut looks = Vec::new();
    for (key, floor) in keys {
        let kind = RequestKind::Read { floor, seen: 0, last: true };
        for tried in 1..=LOOKS {
            let FinishedRequest { exchange, router, connection } = client.send(key, kind, clock::now()).await;
            client.connections[router] = connection;
            if exchange.outcome == Outcome::Ok || tried == LOOKS {
                looks.push(exchange);
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    looks
}
