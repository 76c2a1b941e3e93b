//! Revisions, and the contents of snapshots.

use segue_protocol::ids::Revision;
use segue_protocol::txn::{Compare, Op, Txn};

use super::fixture::{Fixture, TTL};

pub(crate) async fn a_change_makes_one_revision_and_nothing_else_makes_any(fixture: Fixture) {
    assert_eq!(fixture.snapshot().await.revision, Revision::new(1), "an untouched store");

    assert_eq!(fixture.put("a", "1").await, Revision::new(2));
    assert_eq!(fixture.put("a", "1").await, Revision::new(3), "the same value again is a change");
    let three = ["b", "c", "d"].map(|name| fixture.put_op(name, ""));
    assert_eq!(fixture.write(three).await, Revision::new(4), "a transaction has one revision");
    assert_eq!(fixture.delete(fixture.one("absent")).await, Revision::new(4));
    assert_eq!(fixture.delete(fixture.below("absent/")).await, Revision::new(4));
    assert_eq!(fixture.delete(fixture.one("b")).await, Revision::new(5));
    assert_eq!(fixture.write([]).await, Revision::new(5));

    let failed =
        fixture.commit([Compare::created_at(fixture.key("a"), Revision::new(1))], [fixture.put_op("a", "2")]).await;
    let failed = failed.unwrap();
    assert_eq!((failed.revision, failed.branch), (Revision::new(5), None));
    let too_late = Txn {
        when: vec![Compare::created_at(fixture.key("a"), Revision::new(1))],
        then: vec![],
        otherwise: Some(Box::new(Txn::guarded([], [Op::Delete(fixture.one("absent"))]))),
    };
    let outcome = fixture.store.commit(too_late).await.unwrap();
    assert_eq!((outcome.revision, outcome.branch), (Revision::new(5), Some(1)));

    let lease = fixture.store.grant(TTL).await.unwrap();
    fixture.store.keep_alive(lease).await.unwrap();
    fixture.store.revoke(lease).await.unwrap();
    assert_eq!(fixture.snapshot().await.revision, Revision::new(5), "a lease without keys");
    let lease = fixture.store.grant(TTL).await.unwrap();
    fixture.write(["x", "y"].map(|name| fixture.leased_op(name, "", Some(lease)))).await;
    fixture.store.revoke(lease).await.unwrap();
    assert_eq!(fixture.snapshot().await.revision, Revision::new(7), "a lease's keys go at one revision");

    assert_eq!(fixture.delete(fixture.all()).await, Revision::new(8));
    assert_eq!(fixture.snapshot().await.entries, []);
}

pub(crate) async fn a_put_keeps_the_create_revision_and_a_new_life_has_a_new_one(fixture: Fixture) {
    let created = fixture.put("a", "1").await;
    let first = fixture.get("a").await.unwrap();
    assert_eq!((first.create_revision, first.mod_revision), (created, created));

    let changed = fixture.put("a", "2").await;
    let second = fixture.get("a").await.unwrap();
    assert_eq!((second.create_revision, second.mod_revision), (created, changed));
    assert_eq!(second.value, b"2");

    fixture.delete(fixture.one("a")).await;
    assert_eq!(fixture.get("a").await, None);
    let again = fixture.put("a", "3").await;
    let third = fixture.get("a").await.unwrap();
    assert_eq!((third.create_revision, third.mod_revision), (again, again));
    assert!(again > changed);
}

pub(crate) async fn a_snapshot_holds_its_keys_in_order_and_no_others(fixture: Fixture) {
    // "a0" comes right after everything below "a/": the first key that the prefix must leave out.
    for name in ["b", "a/2", "a", "a0", "a/1", "a/10", "ä"] {
        fixture.put(name, name).await;
    }
    let names = async |keys| {
        let entries = fixture.store.snapshot(&keys).await.unwrap().entries;
        entries.into_iter().map(|entry| entry.key[fixture.prefix.len()..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(fixture.below("a/")).await, ["a/1", "a/10", "a/2"]);
    assert_eq!(names(fixture.one("a")).await, ["a"]);
    assert_eq!(names(fixture.one("a/")).await, [""; 0]);
    assert_eq!(names(fixture.all()).await, ["a", "a/1", "a/10", "a/2", "a0", "b", "ä"]);
}

pub(crate) async fn a_large_keyspace_loads_in_one_snapshot(fixture: Fixture) {
    // More than the 4 MiB at which gRPC clients stop by default.
    let value = "v".repeat(1024);
    let names: Vec<String> = (0..5_000).map(|number| format!("{number:04}")).collect();
    let mut last = Revision::ZERO;
    for chunk in names.chunks(128) {
        last = fixture.write(chunk.iter().map(|name| fixture.put_op(name, &value))).await;
    }
    let snapshot = fixture.snapshot().await;
    assert!(snapshot.revision >= last);
    let keys: Vec<_> = snapshot.entries.iter().map(|entry| &entry.key[fixture.prefix.len()..]).collect();
    assert_eq!(keys, names);
    assert!(snapshot.entries.iter().all(|entry| entry.value == value.as_bytes()));
}

pub(crate) async fn a_survey_counts_the_keys_and_tells_whether_any_was_put_since(fixture: Fixture) {
    let surveyed = async |since: Revision| {
        let survey = fixture.store.survey(&fixture.below("in/"), since).await.unwrap();
        (survey.keys, survey.is_changed)
    };
    let before = fixture.put("out", "1").await;
    assert_eq!(surveyed(Revision::ZERO).await, (0, false));
    fixture.put("in/a", "1").await;
    let second = fixture.put("in/b", "1").await;
    assert_eq!(surveyed(before).await, (2, true), "the count is of all, not of those that were put since");
    assert_eq!(surveyed(second).await, (2, false));
    let other = fixture.put("out", "2").await;
    assert_eq!(surveyed(second).await, (2, false), "nobody asked about that key");
    let survey = fixture.store.survey(&fixture.below("in/"), second).await.unwrap();
    assert!(survey.revision >= other, "{survey:?}");
    let again = fixture.put("in/a", "2").await;
    assert_eq!((surveyed(second).await, surveyed(again).await), ((2, true), (2, false)));
    fixture.delete(fixture.one("in/b")).await;
    assert_eq!(surveyed(again).await, (1, false), "a deletion shows in the count alone");
}
