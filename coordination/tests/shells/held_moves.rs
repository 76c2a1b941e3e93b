//! Moves that a leader holds back, as others see them.

use std::sync::Arc;

use segue_coordination::store::MemoryStore;
use segue_protocol::planning::ROLL_PATIENCE;
use segue_protocol::records::{PodRecord, encode};
use tokio::time::sleep;

use super::foreign_writes::until;
use super::refused_writes::{Coordinator, Site};

#[tokio::test(start_paused = true)]
async fn a_leader_says_in_its_key_what_it_holds_back_until_it_does_not() {
    let store = Arc::new(MemoryStore::new());
    let site = Site::new(store.clone()).await;
    let _coordinator = Coordinator::leading(store).await;
    // The first pod of a version: the next ones may drain into it.
    for (pod, version) in [("old", "v1"), ("new", "v2")] {
        let record = PodRecord { version: Some(version.to_owned()), ..PodRecord::new(pod, "127.0.0.1:1") };
        site.put(site.keys.pod(pod), encode(&record), Some(site.lease().await)).await;
    }
    let held = async || site.view().await.leader.unwrap().value.held;
    let first = until("what it holds back", async || held().await.pop()).await;
    assert_eq!((first.to.as_str(), first.partitions), ("new", 1));
    assert_eq!(first.why, "pods restart one by one");
    assert_eq!(first.incarnation, site.view().await.incarnation_of("new"));
    sleep(ROLL_PATIENCE).await;
    until("nothing", async || held().await.is_empty().then_some(())).await;
    assert_eq!(site.view().await.handoffs.len(), 1, "it has begun");
}
