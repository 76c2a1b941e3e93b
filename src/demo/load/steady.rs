//! A steady client: one request at a time, writes and reads of its own keys, by whichever router.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::clock;
use super::super::record::{Exchange, Key, Kind, Outcome};
use super::connection::{Connection, exchange};
use super::{AFTER_REFUSAL, Common, KEYS, next_due};

/// How often the last look at a key is tried.
const LOOKS: u32 = 5;

struct Client {
    common: Arc<Common>,
    number: u32,
    http2: bool,
    connections: Vec<Option<Connection>>,
    random: StdRng,
    sent: u32,
}

pub(super) async fn run(common: Arc<Common>, number: u32, seed: u64) -> Vec<Exchange> {
    let (stop, settings) = (common.stop.clone(), common.settings.clone());
    let mut client = Client::new(common, number, seed);
    let mut exchanges = Vec::new();
    let interval = match settings.rate {
        0 => 0,
        rate => clock::nanos(Duration::from_secs(u64::from(settings.clients)) / rate),
    };
    let mut due = clock::now() + if interval > 0 { client.random.random_range(0..interval) } else { 0 };
    // Per key: the last write that was sent, and the last that was acknowledged.
    let mut writes = [(0_u64, 0_u64); KEYS as usize];
    while !stop.is_cancelled() {
        let wait = due.saturating_sub(clock::now());
        if wait > 0 && stop.run_until_cancelled(tokio::time::sleep(Duration::from_nanos(wait))).await.is_none() {
            break;
        }
        let own = client.random.random_range(0..KEYS as usize);
        let (written, acked) = &mut writes[own];
        let key = number * KEYS + own as u32;
        let kind = if *acked > 0 && client.random.random_ratio(1, 4) {
            Kind::Read { floor: *acked, seen: 0, last: false }
        } else {
            *written += 1;
            Kind::Write { sequence: *written }
        };
        let done = client.send(key, kind, due).await;
        match (&done.outcome, done.kind) {
            (Outcome::Ok, Kind::Write { sequence }) => *acked = sequence,
            (Outcome::Refused { .. }, _) => tokio::time::sleep(AFTER_REFUSAL).await,
            _ => {}
        }
        let repeats = settings.repeats > 0 && client.random.random_ratio(1, settings.repeats);
        if repeats && done.sequence().is_some() && done.outcome == Outcome::Ok {
            client.repeat(&done).await;
        }
        exchanges.push(done);
        due = next_due(due, interval);
    }
    exchanges
}

impl Client {
    fn new(common: Arc<Common>, number: u32, seed: u64) -> Self {
        let connections = common.settings.routers.iter().map(|_| None).collect();
        let http2 = number % 4 == 3;
        Client { common, number, http2, connections, random: StdRng::seed_from_u64(seed), sent: 0 }
    }

    async fn send(&mut self, key: Key, kind: Kind, due_at: u64) -> Exchange {
        self.sent += 1;
        let request = self.common.request_id(self.number, self.sent);
        let sent_at = clock::now();
        let said = self.ask(key, &kind, request).await;
        let ended_at = clock::now();
        self.common.gauge.ended(&said.outcome);
        let kind = match kind {
            Kind::Read { floor, last, .. } => Kind::Read { floor, seen: said.seen, last },
            write => write,
        };
        let partition = self.common.keys[key as usize].partition;
        let (outcome, answered_by) = (said.outcome, said.answered_by);
        Exchange { request, key, partition, kind, due_at, sent_at, ended_at, outcome, answered_by, burst: None }
    }

    async fn ask(&mut self, key: Key, kind: &Kind, request: u64) -> super::Said {
        let settings = &self.common.settings;
        let router = self.random.random_range(0..settings.routers.len());
        let (to, patience) = (settings.routers[router], settings.patience);
        self.common.gauge.sent.fetch_add(1, Relaxed);
        let request = self.common.request(key, kind, request, self.http2);
        exchange(&mut self.connections[router], to, self.http2, request, patience).await
    }

    /// Sends the same request again, which nobody should.
    async fn repeat(&mut self, done: &Exchange) {
        let _ = self.ask(done.key, &done.kind, done.request).await;
    }
}

/// Reads every key that was written once more, to see what has become of it.
pub(super) async fn last_look(common: &Arc<Common>, exchanges: &[Exchange]) -> Vec<Exchange> {
    let mut acked: HashMap<Key, u64> = HashMap::new();
    for exchange in exchanges.iter().filter(|exchange| exchange.outcome == Outcome::Ok) {
        if let Some(sequence) = exchange.sequence() {
            let newest = acked.entry(exchange.key).or_default();
            *newest = sequence.max(*newest);
        }
    }
    let number = common.settings.clients + common.settings.bursts;
    let mut client = Client::new(common.clone(), number, common.run);
    let mut looks = Vec::new();
    for (key, floor) in acked {
        let kind = Kind::Read { floor, seen: 0, last: true };
        let mut look = client.send(key, kind, clock::now()).await;
        for _ in 1..LOOKS {
            if look.outcome == Outcome::Ok {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            look = client.send(key, kind, clock::now()).await;
        }
        looks.push(look);
    }
    looks
}
