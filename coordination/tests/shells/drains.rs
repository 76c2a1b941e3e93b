//! A router whose data plane does not drain in time.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::router::DrainSettings;
use segue_coordination::store::{MemoryStore, Store};
use segue_coordination::test_util::StoredKeyspace;
use segue_protocol::handoff::router::Target;
use segue_protocol::ids::{Epoch, Incarnation, LeaseId, PartitionId};
use segue_protocol::records::{Assignment, Capabilities, Handoff, Phase, PodRecord, encode};
use segue_protocol::txn::{Keys, Op, Txn};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::foreign_writes::{Router, TTL, by_key, get, put, until, write_mapping};
use super::keys;

/// One more than a router stops at a time.
pub(super) const MOVING: [PartitionId; 3] = [PartitionId::new(0), PartitionId::new(1), PartitionId::new(2)];

/// Registers a pod with all capabilities.
async fn join(store: &MemoryStore, name: &str) -> LeaseId {
    let record = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new(name, "127.0.0.1:1") };
    StoredKeyspace::new(Arc::new(store.clone()), keys().name()).put_leased(keys().pod(name), encode(&record)).await
}

/// Starts a router over two pods, of which `old` owns the partitions that will move. The router acts `through` a store of its
/// own.
pub(super) async fn site(store: &MemoryStore, through: Arc<dyn Store>) -> (Router, Moves) {
    write_mapping(store, None).await;
    join(store, "old").await;
    join(store, "new").await;
    let life = async |pod: &str| get(store, keys().pod(pod)).await.unwrap().create_revision;
    let (old, new) = (Incarnation::registered_at(life("old").await), Incarnation::registered_at(life("new").await));
    for partition in MOVING {
        let owned = Assignment::new(partition, "old", old, Epoch::new(1));
        put(store, keys().assignment(partition), encode(&owned)).await;
    }
    let router = Router::start_through(through, "r", by_key("x-key"));
    router.ready().await;
    until("open routes", async || (router.gates.open.lock().unwrap().len() == MOVING.len()).then_some(())).await;
    (router, Moves { old, new })
}

/// Both lives of the pods of [`site`].
pub(super) struct Moves {
    old: Incarnation,
    new: Incarnation,
}

impl Moves {
    /// Lets handoffs of these partitions be in `Ready`.
    pub(super) async fn begin(&self, store: &MemoryStore, partitions: &[PartitionId]) {
        let ready = partitions.iter().map(|&partition| {
            let handoff = Handoff::new(partition, "new", self.new, Epoch::new(100)).taken_from("old", self.old);
            let value = encode(&handoff.entering(Phase::Ready, 0));
            Op::put(keys().handoff(partition), value)
        });
        assert!(store.commit(Txn::guarded([], ready.collect::<Vec<_>>())).await.unwrap().committed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_while_a_stop_is_queued_does_not_make_the_drain_last_for_ever() {
    let store = MemoryStore::new();
    let (router, moves) = site(&store, Arc::new(store.clone())).await;
    let gates = &router.gates;
    moves.begin(&store, &MOVING).await;
    // No time passes: the place of a stopped partition does not become free.
    while gates.open.lock().unwrap().len() > 1 {
        yield_now().await;
    }
    // Requests of the partition whose turn has not come are refused, and one goes on without end.
    let (queued, target) = gates.open.lock().unwrap().pop_first().unwrap();
    gates.refused.lock().unwrap().insert(queued, Instant::now());
    *gates.in_flight.lock().unwrap() = Some(Target { ..target });
    router.notices.send(queued).unwrap();
    until("the sever", async || gates.severed.lock().unwrap().contains(&queued).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn streams_are_severed_long_before_the_rest_of_a_drain() {
    let store = MemoryStore::new();
    let (router, moves) = site(&store, Arc::new(store.clone())).await;
    let gates = &router.gates;
    let (moving, began) = (MOVING[0], Instant::now());
    *gates.in_flight.lock().unwrap() = gates.open.lock().unwrap().get(&moving).cloned();
    moves.begin(&store, &[moving]).await;
    until("the end of streams", async || gates.severed_streams.lock().unwrap().get(&moving).copied()).await;
    let streams = began.elapsed();
    until("the sever", async || gates.severed.lock().unwrap().contains(&moving).then_some(())).await;
    let DrainSettings { streams: due, .. } = DrainSettings::default();
    let slack = Duration::from_millis(200);
    assert!(streams >= due && streams < due + slack, "streams after {streams:?}");
    assert!(began.elapsed() >= TTL && began.elapsed() < TTL + slack, "the rest after {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn streams_to_a_pod_that_cannot_confirm_its_drain_are_not_severed() {
    let store = MemoryStore::new();
    let (router, moves) = site(&store, Arc::new(store.clone())).await;
    // A later record of the same life: the pod confirms nothing.
    let key = get(&store, keys().pod("old")).await.unwrap();
    let record = PodRecord { capabilities: Capabilities::default(), ..PodRecord::new("old", "127.0.0.1:1") };
    let put = Op::Put { key: key.key, value: encode(&record), lease: key.lease };
    assert!(store.commit(Txn::guarded([], [put])).await.unwrap().committed());
    let gates = &router.gates;
    let moving = MOVING[0];
    *gates.in_flight.lock().unwrap() = gates.open.lock().unwrap().get(&moving).cloned();
    moves.begin(&store, &[moving]).await;
    let gave_up = async || get(&store, keys().router_drained(moving, "r")).await;
    let ack = until("the router to give up", gave_up).await;
    assert!(String::from_utf8(ack.value).unwrap().contains("\"gave_up\":true"));
    assert!(gates.severed_streams.lock().unwrap().is_empty() && gates.severed.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_planned_move_waits_for_a_long_exchange_before_it_stops_and_not_for_longer_than_the_patience() {
    let store = MemoryStore::new();
    let (router, moves) = site(&store, Arc::new(store.clone())).await;
    let gates = &router.gates;
    let [ends, endless, short] = MOVING;
    let now = Instant::now();
    gates.oldest.lock().unwrap().extend([ends, endless].map(|partition| (partition, now)));
    sleep(Duration::from_secs(2)).await;
    gates.oldest.lock().unwrap().insert(short, Instant::now() - Duration::from_millis(500));
    let began = Instant::now();
    moves.begin(&store, &MOVING).await;
    let stops = async |partition: PartitionId| {
        until("a stop", async || (!gates.open.lock().unwrap().contains_key(&partition)).then_some(())).await;
        began.elapsed()
    };
    assert!(stops(short).await < Duration::from_millis(200), "it has not lasted for a second");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(gates.open.lock().unwrap().len(), 2, "requests are still routed");
    gates.oldest.lock().unwrap().remove(&ends);
    let ended = stops(ends).await;
    assert!(ended < Duration::from_millis(5_400), "after {ended:?}");
    let patience = DrainSettings::default().patience;
    let stopped = stops(endless).await;
    assert!(stopped >= patience && stopped < patience + Duration::from_millis(200), "after {stopped:?}");
}

#[tokio::test(start_paused = true)]
async fn a_long_exchange_does_not_postpone_the_stop_once_the_old_owner_has_died() {
    let store = MemoryStore::new();
    let (router, moves) = site(&store, Arc::new(store.clone())).await;
    let (gates, moving) = (&router.gates, MOVING[0]);
    gates.oldest.lock().unwrap().insert(moving, Instant::now());
    sleep(Duration::from_secs(2)).await;
    moves.begin(&store, &[moving]).await;
    sleep(Duration::from_secs(1)).await;
    assert!(gates.open.lock().unwrap().contains_key(&moving));
    let died = Instant::now();
    let gone = Op::Delete(Keys::One(keys().pod("old")));
    assert!(store.commit(Txn::guarded([], [gone])).await.unwrap().committed());
    until("the stop", async || (!gates.open.lock().unwrap().contains_key(&moving)).then_some(())).await;
    assert!(died.elapsed() < Duration::from_millis(200), "after {:?}", died.elapsed());
}
