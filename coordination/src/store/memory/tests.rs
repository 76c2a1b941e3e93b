//! Properties that only the embedded store has: tokio's clock, tasks that must end, a bounded history. The rest is in
//! `tests/store_conformance`.

use std::time::Duration;

use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Compare, Event, Op};
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::{Instant, advance, timeout};

use super::*;

fn put(key: &str, lease: Option<LeaseId>) -> Txn {
    let then = vec![Op::Put { key: key.into(), value: Vec::new(), lease }];
    Txn::guarded([], then)
}

fn everything() -> Keys {
    Keys::Prefix(String::new())
}

async fn keys_of(store: &MemoryStore) -> Vec<String> {
    let entries = store.snapshot(&everything()).await.unwrap().entries;
    entries.into_iter().map(|entry| entry.key).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_at_its_time_and_not_before_though_nobody_watches() {
    let store = MemoryStore::new();
    let ttl = Duration::from_millis(1500);
    let lease = store.grant(ttl).await.unwrap();
    store.commit(put("a", Some(lease))).await.unwrap();
    advance(ttl - Duration::from_nanos(1)).await;
    assert_eq!(keys_of(&store).await, ["a"]);
    store.keep_alive(lease).await.unwrap();
    advance(ttl - Duration::from_nanos(1)).await;
    assert_eq!(keys_of(&store).await, ["a"]);
    advance(Duration::from_nanos(1)).await;
    assert_eq!(keys_of(&store).await, [""; 0]);
    assert!(matches!(store.keep_alive(lease).await, Err(StoreError::LeaseNotFound)));
}

#[tokio::test(start_paused = true)]
async fn a_watch_reports_the_end_of_a_lease_at_its_time_without_any_call() {
    let store = MemoryStore::new();
    let began = Instant::now();
    let mut watch = store.watch(&everything(), Revision::new(1)).await.unwrap();
    // The later end first, so that the watch has to learn of an earlier end than the one it sleeps for.
    let late = store.grant(Duration::from_secs(9)).await.unwrap();
    let last = store.commit(put("late", Some(late))).await.unwrap();
    watch.next().await.unwrap();
    let soon = store.grant(Duration::from_secs(3)).await.unwrap();
    store.commit(put("soon", Some(soon))).await.unwrap();
    watch.next().await.unwrap();

    for (seconds, key, revision) in [(3, "soon", last.revision.get() + 2), (9, "late", last.revision.get() + 3)] {
        let batch = watch.next().await.unwrap();
        assert_eq!(began.elapsed().as_millis(), seconds * 1000);
        assert_eq!(batch.events, [Event::Delete { key: key.into(), mod_revision: Revision::new(revision) }]);
        assert_eq!(batch.revision, Revision::new(revision));
    }
}

#[tokio::test(start_paused = true)]
async fn leases_age_while_the_store_is_not_available() {
    let store = MemoryStore::new();
    let lease = store.grant(Duration::from_secs(5)).await.unwrap();
    let put = store.commit(put("a", Some(lease))).await.unwrap();
    store.set_available(false);
    advance(Duration::from_secs(6)).await;
    assert!(matches!(store.keep_alive(lease).await, Err(StoreError::Unavailable(_))));
    store.set_available(true);
    assert!(matches!(store.keep_alive(lease).await, Err(StoreError::LeaseNotFound)));
    assert_eq!(store.snapshot(&everything()).await.unwrap().revision, put.revision.next());
}

#[tokio::test(start_paused = true)]
async fn a_watch_notices_an_outage_that_is_over_before_it_looks() {
    let store = MemoryStore::new();
    let mut watch = store.watch(&everything(), Revision::new(1)).await.unwrap();
    yield_now().await;
    store.set_available(false);
    store.set_available(true);
    assert!(matches!(watch.next().await, Err(StoreError::Unavailable(_))));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_watch_leaves_no_task() {
    let store = MemoryStore::new();
    let idle = store.watch(&everything(), Revision::new(1)).await.unwrap();
    let full = store.watch(&everything(), Revision::new(1)).await.unwrap();
    for _ in 0..4 * BUFFERED_BATCHES {
        store.commit(put("a", None)).await.unwrap();
        yield_now().await;
    }
    let waiting = store.watch(&everything(), Revision::new(1_000)).await.unwrap();
    yield_now().await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 3);
    drop((idle, full, waiting));
    for _ in 0..10 {
        yield_now().await;
    }
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_history_is_bounded_and_a_watch_that_falls_out_of_it_is_told() {
    let store = MemoryStore::new();
    let mut stuck = store.watch(&everything(), Revision::new(1)).await.unwrap();
    let mut last = Revision::ZERO;
    for number in 0..10_200 {
        last = store.commit(put("a", None)).await.unwrap().revision;
        // The watch's buffer fills up first, batch by batch. Afterwards the watch can lose its place in the history.
        if number < 100 {
            yield_now().await;
        }
    }
    let oldest = Revision::new(last.get() - 10_000 + 1);
    let mut at = Revision::new(1);
    let error = loop {
        match stuck.next().await {
            Ok(batch) => at = batch.revision,
            Err(error) => break error,
        }
    };
    let StoreError::Compacted { requested, oldest: named } = error else {
        panic!("{error}");
    };
    assert_eq!((requested, named), (at.next(), oldest));
    assert!(store.watch(&everything(), Revision::new(oldest.get() - 1)).await.is_err());
    let mut whole = store.watch(&everything(), oldest).await.unwrap();
    let mut seen = 0;
    while seen < 10_000 {
        seen += whole.next().await.unwrap().events.len();
    }
    assert_eq!(seen, 10_000);
}

#[tokio::test(start_paused = true)]
async fn the_history_is_bounded_in_bytes_too() {
    let store = MemoryStore::new();
    for _ in 0..100 {
        let mut txn = put("a", None);
        if let Op::Put { value, .. } = &mut txn.then[0] {
            value.resize(1024 * 1024, 0);
        }
        store.commit(txn).await.unwrap();
    }
    let kept =
        (1..=101).map(Revision::new).filter(|from| store.call(|state, _| state.check_start(*from)).is_ok()).count();
    assert_eq!(kept, 63);
}

#[test]
fn compaction_takes_only_what_is_there_to_be_compacted() {
    let store = MemoryStore::new();
    assert!(matches!(store.compact(Revision::new(2)), Err(StoreError::Refused(_))));
    store.compact(Revision::new(1)).unwrap();
    assert!(matches!(store.compact(Revision::new(1)), Err(StoreError::Compacted { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_lose_no_update_and_watches_see_every_one() {
    let store = MemoryStore::new();
    store.commit(put("a", None)).await.unwrap();
    let mut watch = store.watch(&everything(), Revision::new(3)).await.unwrap();
    let writers: Vec<_> = (0..16)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    loop {
                        let now = store.snapshot(&everything()).await.unwrap().entries.remove(0);
                        let mut txn = put("a", None);
                        txn.when = vec![Compare::unchanged_since("a", now.mod_revision)];
                        if store.commit(txn).await.unwrap().committed() {
                            break;
                        }
                    }
                    yield_now().await;
                }
            })
        })
        .collect();
    let mut revisions = Vec::new();
    while revisions.len() < 1600 {
        let batch = timeout(Duration::from_secs(20), watch.next()).await.unwrap().unwrap();
        revisions.extend(batch.events.iter().map(|event| match event {
            Event::Put(entry) => entry.mod_revision,
            Event::Delete { .. } => panic!("nothing is deleted"),
        }));
    }
    assert_eq!(revisions, (3..1603).map(Revision::new).collect::<Vec<_>>());
    for writer in writers {
        writer.await.unwrap();
    }
}
