//! The work of a router in a keyspace with many partitions, counted in looks at a partition.

use std::sync::atomic::Ordering::SeqCst;

use segue_coordination::store::MemoryStore;
use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use segue_protocol::records::{Assignment, KeyspaceConfig, Partitioner, PodRecord, encode};

use super::foreign_writes::{Router, get, put, until};
use super::keys;

const PARTITIONS: u32 = 1_000;
const P0: PartitionId = PartitionId::new(0);
const PODS: u32 = 100;

fn record(pod: u32) -> Vec<u8> {
    encode(&PodRecord::new(format!("w-{pod}"), "127.0.0.1:1"))
}

async fn assign(store: &MemoryStore, partition: PartitionId, epoch: u64) {
    let pod = format!("w-{}", partition.get() % PODS);
    let incarnation = Incarnation::registered_at(get(store, keys().pod(&pod)).await.unwrap().create_revision);
    let assignment = Assignment::new(partition, &pod, incarnation, Epoch::new(epoch));
    put(store, keys().assignment(partition), encode(&assignment)).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_or_goes_costs_a_router_a_look_at_that_pods_partitions_alone() {
    let store = MemoryStore::new();
    let config = KeyspaceConfig { partitioner: Some(Partitioner::NUMBER), ..KeyspaceConfig::new(PARTITIONS) };
    put(&store, keys().config(), encode(&config)).await;
    for pod in 0..PODS {
        put(&store, keys().pod(&format!("w-{pod}")), record(pod)).await;
    }
    for partition in PartitionId::all(PARTITIONS) {
        assign(&store, partition, 1).await;
    }
    let router = Router::start(&store, "r", Partitioner::NUMBER);
    router.ready().await;
    let open = || router.gates.open.lock().unwrap();
    until("open routes", async || (open().len() == PARTITIONS as usize).then_some(())).await;

    router.gates.looks.store(0, SeqCst);
    put(&store, keys().pod("w-1"), record(1)).await;
    put(&store, keys().pod("new"), record(PODS)).await;
    put(&store, keys().router("other"), b"{}".to_vec()).await;
    assign(&store, P0, 2).await;
    until("the last change", async || (open().get(&P0)?.epoch == Epoch::new(2)).then_some(())).await;
    // Each look at a partition reads its stage a few times. The pod has ten partitions.
    let looks = router.gates.looks.load(SeqCst);
    assert!((10..=60).contains(&looks), "{looks} looks");
}
