//! A leader that does not see the store for a while.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::store::{FaultyStore, MemoryStore};
use segue_protocol::txn::{Keys, Op, Txn};
use tokio::time::{Instant, sleep};

use super::foreign_writes::until;
use super::refused_writes::{Coordinator, Site};

const SETTLE: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn a_leader_that_did_not_see_the_store_waits_for_owners_that_were_cut_off_like_it() {
    let memory = MemoryStore::new();
    let site = Site::new(Arc::new(memory.clone())).await;
    let store = Arc::new(FaultyStore::new(Arc::new(memory)));
    let _coordinator = Coordinator::settling(store.clone(), SETTLE).await;
    // Longer than a fresh leader waits.
    sleep(3 * SETTLE).await;
    store.blind();
    let gone = vec![Op::Delete(Keys::One(site.keys.pod("old")))];
    site.commit(Txn::guarded([], gone)).await;
    site.join("other").await;
    sleep(SETTLE).await;
    let sees = Instant::now();
    store.pass();
    until("a handoff", async || (!site.view().await.handoffs.is_empty()).then_some(())).await;
    assert!(sees.elapsed() >= SETTLE, "after {:?}", sees.elapsed());
}
