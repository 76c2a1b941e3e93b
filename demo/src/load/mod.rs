//! The load: clients that send checked requests to routers over real sockets, and record what they see.
//!
//! There are two kinds. A *steady* client (`steady`) owns some keys and sends a key's next request only after the
//! response to the previous one, each through any of the routers. A *burst* client (`burst`) sends several writes of a
//! key on one HTTP/2 connection without waiting; these can be overtaken in a cutover.
//!
//! [`check`](mod@super::check) states which conclusions the records allow. No request is sent again unless it was
//! certainly not processed: its connection was closed before, or its router stated so with a GOAWAY.

mod burst;
mod connection;
mod steady;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderName, Method, Request, StatusCode};
use http_body_util::Full;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use segue_protocol::ids::{Epoch, PartitionId};
use segue_proxy::tls::ClientTls;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::clock::{self, Nanos};
use super::cluster::ClusterSnapshot;
use super::record::{ClientExchange, Key, Outcome, RequestId, RequestKind};
use super::writer::names;

/// The host that requests name.
const AUTHORITY: &str = "demo";
/// Number of keys of each steady client.
const KEYS: u32 = 8;
/// The pause after a 503, so that refusals do not accumulate as fast as possible.
const AFTER_REFUSAL: Duration = Duration::from_millis(20);

/// The load, and its target.
#[derive(Debug, Clone)]
pub struct LoadSettings {
    /// The routers. Each client uses all of them.
    pub routers: Vec<Destination>,
    /// The number of partitions of the keys.
    pub partitions: u32,
    /// The number of steady clients. Every fourth one uses HTTP/2.
    pub clients: u32,
    /// The number of further burst clients.
    pub bursts: u32,
    /// Requests per second; 0 sends as fast as possible.
    pub rate: u32,
    /// Whether the rate is that of all clients, those of bursts among them.
    pub paces_bursts: bool,
    /// How long a request may go without a response: longer than a router may take for one.
    pub patience: Duration,
    /// The seed of all choices.
    pub seed: u64,
    /// The header that names the partition. Otherwise only the path `/keys/{key}` names the key.
    pub partition_header: Option<HeaderName>,
    /// The snapshot of everything, so that bursts target a moving partition. With `None` they go anywhere.
    pub snapshot: Option<watch::Receiver<ClusterSnapshot>>,
}

/// A router, and the way to reach it.
#[derive(Debug, Clone)]
pub struct Destination {
    /// Its address.
    pub address: SocketAddr,
    /// The authorities to trust, and the name in the router's certificate; without it clear text.
    pub tls: Option<(ClientTls, String)>,
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Destination { address, tls: None }
    }
}

/// Counts while the load runs.
#[derive(Debug, Default)]
pub struct Gauge {
    /// Number of requests sent.
    pub sent: AtomicU64,
    /// Requests that a pod has processed.
    pub ok: AtomicU64,
    errors: Mutex<BTreeMap<(u16, Arc<str>), u64>>,
}

impl Gauge {
    /// Returns the responses without success, by status (0: no response) and reason.
    pub fn errors(&self) -> BTreeMap<(u16, Arc<str>), u64> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ended(&self, outcome: &Outcome) {
        let (code, reason) = match outcome {
            Outcome::Ok => {
                self.ok.fetch_add(1, Relaxed);
                return;
            }
            Outcome::Refused { code, reason } | Outcome::Unknown { code, reason } => (*code, reason.clone()),
            Outcome::Unanswered { .. } => (0, "unanswered".into()),
        };
        *self.errors.lock().unwrap_or_else(PoisonError::into_inner).entry((code, reason)).or_default() += 1;
    }
}

/// A running load.
#[derive(Debug)]
pub struct RunningLoad {
    clients: JoinSet<Vec<ClientExchange>>,
    stop: CancellationToken,
    gauge: Arc<Gauge>,
    common: Arc<Common>,
}

/// The state that all clients share.
#[derive(Debug)]
struct Common {
    settings: LoadSettings,
    gauge: Arc<Gauge>,
    stop: CancellationToken,
    /// The upper half of all request numbers, so that those of two runs against one log differ.
    run: u64,
    keys: Vec<KeyPlace>,
}

/// A key of the run.
#[derive(Debug, Clone)]
struct KeyPlace {
    name: String,
    partition: PartitionId,
}

impl RunningLoad {
    /// Starts all clients.
    pub fn start(settings: LoadSettings) -> Self {
        let mut random = StdRng::seed_from_u64(settings.seed);
        let partitions = settings.partitions.max(1);
        let (steady, bursts) = (settings.clients * KEYS, settings.bursts * partitions);
        let first: u32 = random.random_range(0..partitions);
        let run: u64 = rand::rng().random::<u64>() << 40;
        let keys = (0..steady + bursts).map(|key| KeyPlace {
            name: format!("{:x}-{key}", run >> 40),
            // Each burst client has a key in each partition.
            partition: PartitionId::new(if key < steady {
                (first + key) % partitions
            } else {
                (key - steady) % partitions
            }),
        });
        let (gauge, stop) = (Arc::new(Gauge::default()), CancellationToken::new());
        let common = Arc::new(Common { keys: keys.collect(), gauge: gauge.clone(), stop: stop.clone(), run, settings });
        let mut clients = JoinSet::new();
        for client in 0..common.settings.clients {
            let seed = random.random();
            clients.spawn(steady::run(common.clone(), client, seed));
        }
        for client in 0..common.settings.bursts {
            clients.spawn(burst::run(common.clone(), client, random.random()));
        }
        RunningLoad { clients, stop, gauge, common }
    }

    /// Returns the current counts.
    pub fn gauge(&self) -> &Arc<Gauge> {
        &self.gauge
    }

    /// Lets each client finish its requests, reads every key once more, and returns the records.
    pub async fn finish(mut self) -> Vec<ClientExchange> {
        self.stop.cancel();
        let mut exchanges = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            // A client that panicked has reported it. Its records are missing, and its writes appear as unknown ones in
            // the log.
            exchanges.append(&mut client.unwrap_or_default());
        }
        let last = steady::last_look(&self.common, &exchanges).await;
        exchanges.extend(last);
        exchanges
    }
}

impl Common {
    fn request_id(&self, client: u32, count: u32) -> RequestId {
        // 40 bits below those of the run: enough for clients of up to 16 million requests each, at most 65,536 of them.
        self.run | (u64::from(client) << 24) | u64::from(count & 0xff_ffff)
    }

    fn request(&self, key: Key, kind: &RequestKind, id: RequestId, http2: bool) -> Request<Full<Bytes>> {
        let place = &self.keys[key as usize];
        let mut request = Request::builder()
            .uri(target(&format!("/keys/{}", place.name), http2))
            .header(names::REQUEST, id)
            .header(names::KEY, &place.name);
        if let Some(header) = &self.settings.partition_header {
            request = request.header(header, place.partition.get());
        }
        let body = match kind {
            RequestKind::Read { .. } => String::new(),
            RequestKind::Write { sequence } => {
                request = request.method(Method::PUT).header(names::SEQUENCE, *sequence);
                format!("write {sequence} of {}", place.name)
            }
        };
        if !http2 {
            request = request.header(HOST, AUTHORITY);
        }
        // Names and numbers are always valid in a request head.
        request.body(body.into()).unwrap_or_default()
    }
}

/// Returns the request target: HTTP/2 sends the authority with the target, HTTP/1.1 in a header.
fn target(path: &str, http2: bool) -> String {
    if http2 { format!("http://{AUTHORITY}{path}") } else { path.to_owned() }
}

/// The content of a response.
#[derive(Debug)]
struct Reply {
    outcome: Outcome,
    answered_by: Option<(Arc<str>, Epoch)>,
    /// The newest write that the pod knew.
    seen: u64,
}

fn understand(status: StatusCode, headers: &HeaderMap) -> Reply {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |name: &HeaderName| text(name).and_then(|text| text.parse().ok());
    let by_router = text(&names::SEGUE_REASON);
    let reason: Arc<str> = by_router.unwrap_or("by the service").into();
    let code = status.as_u16();
    let outcome = match code {
        _ if by_router.is_none() && status.is_success() => Outcome::Ok,
        // The router responds with these before anything was sent to a pod, or instead of it.
        400 | 408 | 413 | 429 | 431 | 503 if by_router.is_some() => Outcome::Refused { code, reason },
        421 => Outcome::Refused { code, reason },
        _ => Outcome::Unknown { code, reason },
    };
    let answered_by =
        text(&names::WRITER).zip(number(&names::EPOCH)).map(|(pod, epoch)| (pod.into(), Epoch::new(epoch)));
    Reply { outcome, answered_by, seen: number(&names::SEQUENCE).unwrap_or(0) }
}

impl LoadSettings {
    /// Returns the time between two requests of a client that the rate counts; 0: none.
    fn interval(&self) -> Nanos {
        let clients = u64::from(self.clients) + u64::from(self.bursts) * u64::from(self.paces_bursts);
        match self.rate {
            0 => 0,
            rate => clock::nanos(Duration::from_secs(clients) / rate),
        }
    }
}

/// Returns when the next request of a client that sends every `interval` is due; 0: at once.
fn next_due(last: Nanos, interval: Nanos) -> Nanos {
    match interval {
        0 => clock::now(),
        // A client that was held is behind its rate, and its late requests count from when they were due.
        _ => last + interval,
    }
}
