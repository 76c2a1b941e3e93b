//! A leader that can do nothing for a while does nothing: it neither spins nor repeats its writes.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use segue_coordination::store::{Fault, FaultyStore, MemoryStore, Store as _, StoreCall};
use segue_protocol::txn::Keys;
use tokio::time::{sleep, timeout};

use super::{ViewCount, coordinator, keys};

#[tokio::test(start_paused = true)]
async fn a_leader_whose_write_is_under_way_rests_until_it_is_done() {
    let (store, views) = (MemoryStore::new(), Arc::new(ViewCount::default()));
    let slow_disk = Arc::new(FaultyStore::new(Arc::new(store.clone())));
    slow_disk.set_rule(|call| match call {
        StoreCall::Commit(_) => Fault::hold(sleep(Duration::from_secs(2))),
        _ => Fault::Pass,
    });
    let run = coordinator(slow_disk, "c", Duration::from_secs(6), views.clone());
    timeout(Duration::from_secs(10), run).await.expect_err("nobody ends it");
    assert!(!store.snapshot(&Keys::One(keys().config())).await.unwrap().entries.is_empty(), "its write was made");
    assert!(views.0.load(SeqCst) < 40, "{} rounds in ten seconds", views.0.load(SeqCst));
}
