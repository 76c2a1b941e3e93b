//! A router whose data plane does not drain in time.

use std::time::Duration;

use segue_coordination::store::{MemoryStore, Store as _};
use segue_protocol::handoff::router::Target;
use segue_protocol::ids::{Epoch, Incarnation, LeaseId, PartitionId};
use segue_protocol::records::{Assignment, Capabilities, Handoff, Phase, PodRecord, encode};
use segue_protocol::txn::{Op, Txn};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::foreign_writes::{Router, by_key, get, put, until, write_mapping};
use super::keys;

/// One more than a router stops at a time.
const MOVING: [PartitionId; 3] = [PartitionId::new(0), PartitionId::new(1), PartitionId::new(2)];

/// Registers a pod with all capabilities.
async fn join(store: &MemoryStore, name: &str) -> LeaseId {
    let lease = store.grant(Duration::from_secs(3600)).await.unwrap();
    let record = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new(name, "127.0.0.1:1") };
    let put = Op::Put { key: keys().pod(name), value: encode(&record), lease: Some(lease) };
    assert!(store.commit(Txn { then: vec![put], ..Txn::default() }).await.unwrap().committed());
    lease
}

#[tokio::test(start_paused = true)]
async fn a_refusal_while_a_stop_is_queued_does_not_make_the_drain_last_for_ever() {
    let store = MemoryStore::new();
    write_mapping(&store, None).await;
    join(&store, "old").await;
    join(&store, "new").await;
    let life = async |pod: &str| get(&store, keys().pod(pod)).await.unwrap().create_revision;
    let (old, new) = (Incarnation::registered_at(life("old").await), Incarnation::registered_at(life("new").await));
    for partition in MOVING {
        let owned = Assignment::new(partition, "old", old, Epoch::new(1));
        put(&store, keys().assignment(partition), encode(&owned)).await;
    }
    let router = Router::start(&store, "r", by_key("x-key"));
    router.ready().await;
    let gates = &router.gates;
    until("open routes", async || (gates.open.lock().unwrap().len() == MOVING.len()).then_some(())).await;

    let ready = MOVING.map(|partition| {
        let handoff = Handoff::new(partition, "new", new, Epoch::new(100)).taken_from("old", old);
        let value = encode(&handoff.entering(Phase::Ready, 0));
        Op::Put { key: keys().handoff(partition), value, lease: None }
    });
    assert!(store.commit(Txn { then: ready.to_vec(), ..Txn::default() }).await.unwrap().committed());
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
