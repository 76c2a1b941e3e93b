//! Watches: which events they report, from which revision on, and in which batches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use segue_coordination::store::StoreError;
use segue_protocol::ids::Revision;
use segue_protocol::txn::{Event, Op};

use super::fixture::{Fixture, collect, next, try_next};

fn put_revision(event: &Event) -> Revision {
    match event {
        Event::Put(entry) => entry.mod_revision,
        Event::Delete { key, .. } => panic!("{key} was deleted"),
    }
}

pub(crate) async fn a_watch_from_the_past_replays_what_happened(fixture: Fixture) {
    let first = fixture.put("a", "1").await;
    fixture.put("b", "1").await;
    fixture.put("a", "2").await;
    fixture.delete(fixture.one("a")).await;
    let last = fixture.put("a", "3").await;

    let mut watch = fixture.watch(fixture.all(), first).await;
    let events = collect(&mut watch, 5).await;
    assert_eq!(fixture.short(&events), ["a=1", "b=1", "a=2", "-a", "a=3"]);
    assert_eq!((put_revision(&events[0]), put_revision(&events[4])), (first, last));

    let mut always = fixture.watch(fixture.all(), Revision::ZERO).await;
    assert_eq!(fixture.short(&collect(&mut always, 5).await), ["a=1", "b=1", "a=2", "-a", "a=3"]);
    let mut later = fixture.watch(fixture.all(), first.next()).await;
    assert_eq!(fixture.short(&collect(&mut later, 4).await), ["b=1", "a=2", "-a", "a=3"]);

    // They go on with what comes.
    fixture.delete(fixture.all()).await;
    for watch in [&mut watch, &mut always, &mut later] {
        assert_eq!(fixture.short(&next(watch).await.events), ["-a", "-b"]);
    }
}

pub(crate) async fn a_watch_from_the_future_waits_for_its_revision(fixture: Fixture) {
    let now = fixture.put("a", "1").await;
    let mut next_one = fixture.watch(fixture.all(), now.next()).await;
    // Other cases write to the same etcd: the revisions of this one's writes are not known before.
    let far = Revision::new(now.get() + 10_000);
    let mut far_one = fixture.watch(fixture.all(), far).await;
    let soon = fixture.put("a", "2").await;
    let batch = next(&mut next_one).await;
    assert_eq!((batch.revision, fixture.short(&batch.events)), (soon, vec!["a=2".to_owned()]));
    let early = tokio::time::timeout(Duration::from_millis(200), far_one.next()).await;
    assert!(early.is_err(), "{early:?}");
}

pub(crate) async fn a_watch_sees_its_own_keys_only(fixture: Fixture) {
    let start = fixture.put("x", "").await;
    let mut one = fixture.watch(fixture.one("a"), start).await;
    let mut below = fixture.watch(fixture.below("a/"), start).await;
    for name in ["a", "a/1", "a0", "b", "a/2"] {
        fixture.put(name, "").await;
    }
    fixture.delete(fixture.below("a")).await;
    assert_eq!(fixture.short(&collect(&mut one, 2).await), ["a=", "-a"]);
    assert_eq!(fixture.short(&collect(&mut below, 4).await), ["a/1=", "a/2=", "-a/1", "-a/2"]);
}

pub(crate) async fn a_transaction_arrives_in_one_batch_in_its_own_order(fixture: Fixture) {
    let start = fixture.write(["d/1", "d/2", "z"].map(|name| fixture.put_op(name, "0"))).await;
    let mut live = fixture.watch(fixture.all(), start.next()).await;
    let ops = [
        fixture.put_op("z", "1"),
        Op::Delete(fixture.below("d/")),
        fixture.put_op("a", "1"),
        Op::Delete(fixture.one("absent")),
    ];
    let revision = fixture.write(ops).await;
    let mut replayed = fixture.watch(fixture.all(), start.next()).await;
    for watch in [&mut live, &mut replayed] {
        let batch = next(watch).await;
        assert_eq!(batch.revision, revision);
        assert_eq!(fixture.short(&batch.events), ["z=1", "-d/1", "-d/2", "a=1"]);
    }
}

pub(crate) async fn no_batch_ends_within_a_revision(fixture: Fixture) {
    const EVENTS_PER_REVISION: usize = 100;
    const REVISIONS: usize = 60;
    let start = fixture.put("x", "").await.next();
    let mut live = fixture.watch(fixture.all(), start).await;
    // 4 MiB in all: a server that splits by size would do it.
    let value = "v".repeat(700);
    for _ in 0..REVISIONS {
        fixture.write((0..EVENTS_PER_REVISION).map(|number| fixture.put_op(&number.to_string(), &value))).await;
    }
    let mut replayed = fixture.watch(fixture.all(), start).await;
    for watch in [&mut live, &mut replayed] {
        let mut seen = 0;
        let mut last = Revision::ZERO;
        while seen < EVENTS_PER_REVISION * REVISIONS {
            let batch = next(watch).await;
            assert_eq!(batch.events.len() % EVENTS_PER_REVISION, 0);
            for whole in batch.events.chunks(EVENTS_PER_REVISION) {
                let revision = put_revision(&whole[0]);
                assert!(revision > last && whole.iter().all(|event| put_revision(event) == revision));
                last = revision;
            }
            assert_eq!(batch.revision, last);
            seen += batch.events.len();
        }
    }
}

pub(crate) async fn a_batch_is_at_the_revision_of_its_last_change(fixture: Fixture) {
    // More than a store reports at once to a watch that is behind: etcd takes 1,000 revisions a time, and names its
    // newest one in the answer.
    const ROUNDS: usize = 12;
    const PUTS_PER_ROUND: usize = 100;
    let start = fixture.put("x", "").await.next();
    for _ in 0..ROUNDS {
        join_all((0..PUTS_PER_ROUND).map(|number| fixture.put(if number % 2 == 0 { "a" } else { "b" }, ""))).await;
    }
    let mut watch = fixture.watch(fixture.all(), start).await;
    let mut seen = 0;
    while seen < ROUNDS * PUTS_PER_ROUND {
        let batch = next(&mut watch).await;
        assert_eq!(batch.events.last().map(put_revision), Some(batch.revision));
        seen += batch.events.len();
    }
}

pub(crate) async fn a_write_between_snapshot_and_watch_is_seen(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    let writer = Arc::clone(&fixture);
    let writer = tokio::spawn(async move {
        for number in 0..400 {
            let name = format!("{}", number % 7);
            if number % 5 == 4 {
                writer.delete(writer.one(&name)).await;
            } else {
                writer.put(&name, &number.to_string()).await;
            }
            tokio::task::yield_now().await;
        }
        writer.put("end", "").await
    });
    let mut views = Vec::new();
    while !writer.is_finished() && views.len() < 50 {
        let snapshot = fixture.snapshot().await;
        // Room for a write between the two.
        tokio::task::yield_now().await;
        let watch = fixture.watch(fixture.all(), snapshot.revision.next()).await;
        views.push((snapshot, watch));
    }
    let end = writer.await.unwrap();
    let truth: BTreeMap<_, _> =
        fixture.snapshot().await.entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
    let mut followed = 0;
    for (snapshot, mut watch) in views {
        let mut at = snapshot.revision;
        let mut view: BTreeMap<_, _> = snapshot.entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        while at < end {
            let batch = next(&mut watch).await;
            assert!(batch.revision > at, "a revision came twice");
            at = batch.revision;
            for event in batch.events {
                match event {
                    Event::Put(entry) => view.insert(entry.key.clone(), entry),
                    Event::Delete { key, .. } => view.remove(&key),
                };
            }
            followed += 1;
        }
        assert_eq!(view, truth);
    }
    assert!(followed > 0, "nothing was written meanwhile, so nothing was shown");
}

pub(crate) async fn a_slow_watch_loses_nothing(fixture: Fixture) {
    const WRITES: usize = 600;
    let start = fixture.put("x", "").await.next();
    let mut slow = fixture.watch(fixture.all(), start).await;
    for number in 0..WRITES {
        fixture.put("a", &number.to_string()).await;
        // So that each is a batch of its own, as far as there is room.
        tokio::task::yield_now().await;
    }
    let events = collect(&mut slow, WRITES).await;
    let expected: Vec<_> = (0..WRITES).map(|number| format!("a={number}")).collect();
    assert_eq!(fixture.short(&events), expected);
}

pub(crate) async fn a_watch_from_a_compacted_revision_fails_as_such(fixture: Fixture) {
    let first = fixture.put("a", "1").await;
    let mut running = fixture.watch(fixture.all(), first).await;
    assert_eq!(fixture.short(&next(&mut running).await.events), ["a=1"]);
    fixture.put("a", "2").await;
    let kept = fixture.put("a", "3").await;
    assert_eq!(fixture.short(&collect(&mut running, 2).await), ["a=2", "a=3"]);
    fixture.compact(kept).await;

    let compacted = match fixture.store.watch(&fixture.all(), Revision::new(kept.get() - 1)).await {
        Ok(mut watch) => try_next(&mut watch).await.unwrap_err(),
        Err(error) => error,
    };
    let StoreError::Compacted { requested, oldest } = compacted else {
        panic!("{compacted}");
    };
    assert_eq!((requested, oldest), (Revision::new(kept.get() - 1), kept));

    let mut fresh = fixture.watch(fixture.all(), oldest).await;
    fixture.put("a", "4").await;
    assert_eq!(fixture.short(&collect(&mut fresh, 2).await), ["a=3", "a=4"]);
    assert_eq!(fixture.short(&next(&mut running).await.events), ["a=4"], "one that had read it all goes on");
}
