//! Settings, registrations and leaders' keys that another hand has written into the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use segue_coordination::router::{
    CutoverTimes, DataPlane, DrainSettings, RouterPorts, RouterSettings, RouterStatus, run_router,
};
use segue_coordination::store::{MemoryStore, Store};
use segue_protocol::handoff::router::{GateStage, HoldCause, OnStoreLoss, Target};
use segue_protocol::ids::{LeaseId, PartitionId};
use segue_protocol::mapping::replace;
use segue_protocol::records::{KeyspaceConfig, Leader, Partitioner, PodRecord, RouterRecord, encode};
use segue_protocol::txn::{KeyValue, Keys, Op, Txn};
use segue_protocol::view::View;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{coordinator, keys};

const P0: PartitionId = PartitionId::new(0);

const TEST_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const TTL: Duration = Duration::from_secs(3);
const ADMIN: &str = "10.0.0.7:9090";

pub(crate) async fn put(store: &MemoryStore, key: String, value: Vec<u8>) {
    let put = Op::put(key, value);
    assert!(store.commit(Txn::guarded([], [put])).await.unwrap().committed());
}

pub(crate) async fn get(store: &MemoryStore, key: String) -> Option<KeyValue> {
    store.snapshot(&Keys::One(key)).await.unwrap().entries.pop()
}

pub(crate) async fn until<T>(what: &str, mut shows: impl AsyncFnMut() -> Option<T>) -> T {
    let seen = async {
        loop {
            if let Some(seen) = shows().await {
                return seen;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TEST_TIMEOUT, seen).await.unwrap_or_else(|_| panic!("never seen: {what}"))
}

pub(crate) fn by_key(name: &str) -> Partitioner {
    Partitioner::Key { key: format!("header:{name}"), hash: "murmur2".into() }
}

pub(crate) async fn write_mapping(store: &MemoryStore, partitioner: Option<Partitioner>) {
    put(store, keys().config(), encode(&KeyspaceConfig { partitioner, ..KeyspaceConfig::new(4) })).await;
}

/// Registers a pod that owns partition 0.
async fn own_p0(store: &MemoryStore) {
    let pod = br#"{"pod_name":"w","address":"127.0.0.1:1"}"#;
    put(store, keys().pod("w"), pod.to_vec()).await;
    let incarnation = get(store, keys().pod("w")).await.unwrap().create_revision;
    let owned = format!(r#"{{"partition":0,"owner":"w","incarnation":{incarnation},"epoch":1}}"#);
    put(store, keys().assignment(P0), owned.into_bytes()).await;
}

async fn mapping(store: &MemoryStore) -> Option<Partitioner> {
    let config = get(store, keys().config()).await.unwrap();
    serde_json::from_slice::<KeyspaceConfig>(&config.value).unwrap().partitioner
}

/// A data plane that records its routes.
#[derive(Default)]
pub(crate) struct Gates {
    pub(crate) open: Mutex<BTreeMap<PartitionId, Target>>,
    /// Where the requests that are in flight have gone, if there are any.
    pub(crate) in_flight: Mutex<Option<Target>>,
    /// The partitions whose owner has refused requests, and when they are sent again.
    pub(crate) refused: Mutex<BTreeMap<PartitionId, Instant>>,
    pub(crate) severed: Mutex<BTreeSet<PartitionId>>,
    /// When the router first severed streams of a partition.
    pub(crate) severed_streams: Mutex<BTreeMap<PartitionId, Instant>>,
    /// Since when a partition's oldest exchange has lasted.
    pub(crate) oldest: Mutex<BTreeMap<PartitionId, Instant>>,
    /// How often the router has looked at a partition.
    pub(crate) looks: AtomicU32,
}

impl Gates {
    fn are_shut(&self) -> bool {
        self.open.lock().unwrap().is_empty()
    }
}

impl DataPlane for Gates {
    fn set_partitions(&self, _: u32) {}
    fn stage(&self, partition: PartitionId) -> (GateStage, Option<Instant>) {
        self.looks.fetch_add(1, SeqCst);
        let (open, in_flight) = (self.open.lock().unwrap(), self.in_flight.lock().unwrap());
        let shut = || in_flight.clone().map_or(GateStage::Closed, GateStage::Draining);
        let retry_at = self.refused.lock().unwrap().get(&partition).copied();
        (open.get(&partition).cloned().map_or_else(shut, GateStage::Open), retry_at)
    }
    fn stop(&self, partition: PartitionId, _: HoldCause) {
        self.open.lock().unwrap().remove(&partition);
    }
    fn name_cause(&self, _: PartitionId, _: HoldCause) {}
    fn switch(&self, partition: PartitionId, target: &Target, _: &PodRecord, _: bool) {
        self.open.lock().unwrap().insert(partition, target.clone());
    }
    fn retry_now(&self, partition: PartitionId) {
        self.refused.lock().unwrap().remove(&partition);
    }
    fn sever(&self, partition: PartitionId) -> u64 {
        self.severed.lock().unwrap().insert(partition);
        0
    }
    fn sever_streams(&self, partition: PartitionId) -> u64 {
        self.severed_streams.lock().unwrap().entry(partition).or_insert_with(Instant::now);
        0
    }
    fn oldest_exchange(&self, partition: PartitionId) -> Option<Instant> {
        self.oldest.lock().unwrap().get(&partition).copied()
    }
    fn trust_until(&self, _: Instant) {}
    fn take_times(&self, _: PartitionId) -> Option<CutoverTimes> {
        None
    }
}

pub(crate) struct Router {
    pub(crate) gates: Arc<Gates>,
    status: watch::Receiver<RouterStatus>,
    shutdown: CancellationToken,
    pub(crate) notices: mpsc::UnboundedSender<PartitionId>,
}

impl Router {
    pub(crate) fn start(store: &MemoryStore, name: &str, partitioner: Partitioner) -> Self {
        Self::start_through(Arc::new(store.clone()), name, partitioner)
    }

    pub(crate) fn start_through(store: Arc<dyn Store>, name: &str, partitioner: Partitioner) -> Self {
        let settings = RouterSettings {
            name: name.into(),
            lease_ttl: TTL,
            on_store_loss: OnStoreLoss::Auto,
            drain: DrainSettings { timeout: TTL, ..DrainSettings::default() },
            request_timeout: Duration::from_secs(60),
            max_wait: Duration::from_secs(60),
            admin: Some(ADMIN.into()),
            partitioner: Some(partitioner),
        };
        let (sender, status) = watch::channel(RouterStatus::default());
        let (notice, notices) = mpsc::unbounded_channel();
        let gates = Arc::new(Gates::default());
        let ports = RouterPorts { plane: gates.clone(), notices, observer: Arc::new(()), status: sender };
        let shutdown = CancellationToken::new();
        tokio::spawn(run_router(store, keys(), settings, ports, shutdown.clone()));
        Router { gates, status, shutdown, notices: notice }
    }

    async fn not_ready(&self, because: &str) {
        let says = async || {
            let reason = self.status.borrow().not_ready.clone();
            reason.filter(|reason| reason.contains(because))
        };
        until(because, says).await;
    }

    pub(crate) async fn ready(&self) {
        until("a router that is ready", async || self.status.borrow().not_ready.is_none().then_some(())).await;
    }
}

async fn is_registered(store: &MemoryStore, name: &str) -> bool {
    get(store, keys().router(name)).await.is_some()
}

#[tokio::test(start_paused = true)]
async fn the_first_router_writes_its_mapping_and_one_with_another_stays_out_and_says_why() {
    let store = MemoryStore::new();
    let first = Router::start(&store, "first", by_key("x-key"));
    first.not_ready("no coordinator has led").await;
    put(&store, keys().config(), br#"{"partitions":4,"of_a_later_version":1}"#.to_vec()).await;
    first.ready().await;
    assert_eq!(mapping(&store).await, Some(by_key("x-key")));
    let config = String::from_utf8(get(&store, keys().config()).await.unwrap().value).unwrap();
    assert!(config.contains(r#""of_a_later_version":1"#), "{config}");

    let other = Router::start(&store, "other", by_key("x-other"));
    other.not_ready("by the murmur2 hash of header:x-key, this router by the murmur2 hash of header:x-other").await;
    assert!(!is_registered(&store, "other").await, "no handoff waits for it");
    let same = Router::start(&store, "same", by_key("x-key"));
    same.ready().await;

    for router in [&first, &same] {
        router.shutdown.cancel();
    }
    for name in ["first", "same"] {
        until("a router less", async || (!is_registered(&store, name).await).then_some(())).await;
    }
    sleep(Duration::from_secs(5)).await;
    assert_eq!(mapping(&store).await, Some(by_key("x-key")), "no router replaces it, though none is registered");
    other.not_ready("segue remap").await;
    let snapshot = store.snapshot(&keys().followed()).await.unwrap();
    let replacement = replace(&View::from_snapshot(keys(), snapshot), &by_key("x-other")).unwrap();
    assert!(store.commit(replacement.txn).await.unwrap().committed());
    other.ready().await;
    let config = String::from_utf8(get(&store, keys().config()).await.unwrap().value).unwrap();
    assert!(config.contains("x-other") && config.contains(r#""of_a_later_version":1"#), "{config}");
}

#[tokio::test(start_paused = true)]
async fn a_running_router_that_sees_another_number_under_a_key_hash_fences_until_it_is_put_back() {
    let store = MemoryStore::new();
    write_mapping(&store, Some(by_key("x-key"))).await;
    own_p0(&store).await;
    let router = Router::start(&store, "r", by_key("x-key"));
    router.ready().await;
    until("an open route", async || (!router.gates.are_shut()).then_some(())).await;
    for partitioner in [Some(by_key("x-key")), None] {
        let grown = KeyspaceConfig { partitioner, ..KeyspaceConfig::new(8) };
        put(&store, keys().config(), encode(&grown)).await;
        router.not_ready("has 8 partitions, and this router mapped requests").await;
        sleep(TTL * 2).await;
        assert!(router.gates.are_shut() && !is_registered(&store, "r").await);
        let left = get(&store, keys().config()).await.unwrap();
        assert_eq!(left.value, encode(&grown), "it writes no mapping into settings with another number");
        write_mapping(&store, Some(by_key("x-key"))).await;
        router.ready().await;
        until("an open route", async || (!router.gates.are_shut()).then_some(())).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_router_that_sees_another_mapping_leaves_until_its_own_is_put_back() {
    let store = MemoryStore::new();
    write_mapping(&store, None).await;
    own_p0(&store).await;
    let router = Router::start(&store, "r", by_key("x-key"));
    router.ready().await;
    let is_open = async || (!router.gates.are_shut()).then_some(());
    until("an open route", is_open).await;
    put(&store, keys().config(), b"{".to_vec()).await;
    sleep(TTL * 2).await;
    router.ready().await;
    assert!(is_registered(&store, "r").await, "what cannot be read changes nothing");

    let target = router.gates.open.lock().unwrap()[&P0].clone();
    *router.gates.in_flight.lock().unwrap() = Some(target);
    write_mapping(&store, Some(Partitioner::NUMBER)).await;
    until("the fence", async || router.gates.are_shut().then_some(())).await;
    sleep(TTL / 2).await;
    assert!(is_registered(&store, "r").await, "handoffs wait for what it has in flight");
    *router.gates.in_flight.lock().unwrap() = None;
    router.not_ready("by the partition's number in the request, this router").await;
    assert!(!is_registered(&store, "r").await);
    assert!(router.gates.are_shut(), "it has fenced");
    write_mapping(&store, Some(by_key("x-key"))).await;
    router.ready().await;
    assert!(is_registered(&store, "r").await);
    until("an open route", is_open).await;
}

#[tokio::test(start_paused = true)]
async fn a_mapping_that_somebody_deleted_is_put_back_by_a_router_that_has_it() {
    let store = MemoryStore::new();
    write_mapping(&store, None).await;
    own_p0(&store).await;
    let router = Router::start(&store, "r", by_key("x-key"));
    router.ready().await;
    until("an open route", async || (!router.gates.are_shut()).then_some(())).await;
    let other = Router::start(&store, "other", by_key("x-other"));
    other.not_ready("segue remap").await;
    // The running router lets what is in flight end first. Meanwhile the waiting one sees settings without a mapping.
    let target = router.gates.open.lock().unwrap().values().next().cloned();
    *router.gates.in_flight.lock().unwrap() = target;
    write_mapping(&store, None).await;
    other.not_ready("do not say any more how requests map").await;
    *router.gates.in_flight.lock().unwrap() = None;
    until("the mapping", async || mapping(&store).await).await;
    assert_eq!(mapping(&store).await, Some(by_key("x-key")));
    router.ready().await;
    other.not_ready("segue remap").await;
}

#[tokio::test(start_paused = true)]
async fn a_routers_registration_that_another_hand_wrote_is_put_back_and_ends_with_its_lease() {
    let store = MemoryStore::new();
    write_mapping(&store, None).await;
    let router = Router::start(&store, "r", by_key("x-key"));
    router.ready().await;
    let own = get(&store, keys().router("r")).await.unwrap();
    for by_hand in [own.value.clone(), b"{".to_vec()] {
        put(&store, keys().router("r"), by_hand).await;
        let again = async || get(&store, keys().router("r")).await.filter(|entry| entry.lease == own.lease);
        let entry = until("the registration stands again", again).await;
        assert_eq!(entry.create_revision, own.create_revision, "the same life");
        let record: RouterRecord = serde_json::from_slice(&entry.value).unwrap();
        assert_eq!((record.router_name.as_str(), record.admin.as_deref()), ("r", Some(ADMIN)));
    }
    assert_eq!(router.status.borrow().not_ready, None, "it has not fenced");
    router.shutdown.cancel();
    until("a router less", async || (!is_registered(&store, "r").await).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_leaders_key_without_its_lease_stands_in_nobodys_way() {
    let store = MemoryStore::new();
    // The key of a leader that is long gone.
    put(&store, keys().leader(), encode(&Leader::new("ghost", LeaseId::new(1)))).await;
    for name in ["c-0", "c-1"] {
        tokio::spawn(coordinator(Arc::new(store.clone()), name, TTL, Arc::default()));
    }
    let leads = async || {
        let entry = get(&store, keys().leader()).await?;
        let leader: Leader = serde_json::from_slice(&entry.value).ok()?;
        entry.lease.map(|_| leader.holder)
    };
    until("a leader with a lease", leads).await;

    // The key of the current leader, which puts it back unless a candidate deletes it first.
    let own = get(&store, keys().leader()).await.unwrap();
    for by_hand in [own.value, b"{".to_vec()] {
        put(&store, keys().leader(), by_hand).await;
        until("a leader with a lease", leads).await;
    }
}
