//! Compares, branches, and transactions that are refused.

use std::sync::Arc;

use segue_coordination::store::StoreError;
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Compare, Field, Keys, Op, Relation, Txn};

use super::fixture::{Fixture, TTL};

use Field::{CreateRevision as Created, Lease, ModRevision as Modified};
use Relation::{Equal, Greater, Less, NotEqual};

fn value(value: &str) -> Field {
    Field::Value(value.into())
}

pub(crate) async fn a_compare_means_the_same_to_both_stores(fixture: Fixture) {
    let old = fixture.put("set/a", "m").await;
    let middle = fixture.put("set/b", "m").await;
    let new = fixture.put("set/b", "m").await;
    let (a, b, set) = (fixture.one("set/a"), fixture.one("set/b"), fixture.below("set/"));
    let (absent, empty) = (fixture.one("absent"), fixture.below("absent/"));
    let cases = [
        // An absent key has revision 0 and no value: nothing that is said of its value holds.
        (&absent, Created(Revision::ZERO), Equal, true),
        (&absent, Created(Revision::ZERO), NotEqual, false),
        (&absent, Created(Revision::new(1)), Less, true),
        (&absent, Created(Revision::ZERO), Greater, false),
        (&absent, Modified(Revision::ZERO), Equal, true),
        (&absent, Modified(old), NotEqual, true),
        (&absent, value(""), Equal, false),
        (&absent, value("m"), NotEqual, false),
        (&absent, value("m"), Less, false),
        (&absent, value(""), Greater, false),
        // A range without keys is held against an absent key.
        (&empty, Created(Revision::ZERO), Equal, true),
        (&empty, Created(Revision::ZERO), NotEqual, false),
        (&empty, Created(Revision::new(1)), Less, true),
        (&empty, Created(Revision::ZERO), Greater, false),
        (&empty, Modified(Revision::ZERO), Greater, false),
        (&empty, Modified(new), Less, true),
        (&empty, value(""), Equal, false),
        (&empty, value("m"), NotEqual, false),
        // One key.
        (&a, Created(old), Equal, true),
        (&a, Created(middle), Equal, false),
        (&a, Created(old), NotEqual, false),
        (&a, Created(old), Less, false),
        (&a, Created(old.next()), Less, true),
        (&a, Created(old), Greater, false),
        (&a, Created(Revision::new(old.get() - 1)), Greater, true),
        (&a, Created(Revision::new(u64::MAX)), Less, true),
        (&b, Created(middle), Equal, true),
        (&b, Modified(new), Equal, true),
        (&b, Modified(middle), Equal, false),
        (&b, Modified(middle), Greater, true),
        (&b, Modified(new), NotEqual, false),
        (&a, value("m"), Equal, true),
        (&a, value(""), Equal, false),
        (&a, value("m"), NotEqual, false),
        (&a, value("ma"), Less, true),
        (&a, value("l"), Greater, true),
        (&a, value("m"), Less, false),
        (&a, value("é"), Less, true),
        // A range: every key must do.
        (&set, Created(middle.next()), Less, true),
        (&set, Created(middle), Less, false),
        (&set, Created(old), Equal, false),
        (&set, Created(Revision::new(old.get() - 1)), Greater, true),
        (&set, Created(old), Greater, false),
        (&set, Created(new), NotEqual, true),
        (&set, Created(middle), NotEqual, false),
        (&set, Modified(new), Less, false),
        (&set, Modified(new.next()), Less, true),
        (&set, value("m"), Equal, true),
        (&set, value("n"), NotEqual, true),
        (&set, value("m"), NotEqual, false),
        (&Keys::Prefix(String::new()), Modified(Revision::ZERO), Greater, true),
        (&Keys::Prefix(String::new()), Created(old), Less, false),
    ];
    for (keys, field, relation, expected) in cases {
        let compare = fixture.compare(keys.clone(), field, relation);
        let text = format!("{compare:?} (old {old}, middle {middle}, new {new})");
        let outcome = fixture.commit([compare], []).await.unwrap();
        assert_eq!(outcome.committed(), expected, "{text}");
    }
    // All guards must hold, and none at all do.
    let (holds, fails) =
        (Compare::created_at(fixture.key("set/a"), old), Compare::created_at(fixture.key("set/a"), Revision::new(1)));
    assert!(!fixture.commit([holds.clone(), fails], []).await.unwrap().committed());
    assert!(fixture.commit([holds.clone(), holds], []).await.unwrap().committed());
}

pub(crate) async fn keys_between_two_include_the_first_and_not_the_second(fixture: Fixture) {
    let between = |from: &str, to: &str| Keys::Between(fixture.key(from), fixture.key(to));
    let start = fixture.write(["a", "b", "c/1", "d", "da"].map(|name| fixture.put_op(name, "0"))).await;
    let snapshot = fixture.store.snapshot(&between("b", "d")).await.unwrap();
    let keys: Vec<&str> = snapshot.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, [fixture.key("b"), fixture.key("c/1")]);
    for (from, to) in [("d", "d"), ("e", "b")] {
        assert_eq!(fixture.store.snapshot(&between(from, to)).await.unwrap().entries, [], "{from} to {to}");
    }
    let newer = fixture.put("d", "1").await;
    for (from, to, expected) in [("b", "d", true), ("b", "da", false), ("x", "z", true)] {
        let compare = fixture.compare(between(from, to), Modified(newer), Less);
        assert_eq!(fixture.commit([compare], []).await.unwrap().committed(), expected, "{from} to {to}");
    }
    let mut watch = fixture.watch(between("b", "d"), start).await;
    fixture.delete(between("c", "da")).await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(fixture.short(&watch.next().await.unwrap().events));
    }
    assert_eq!(seen, ["b=0", "c/1=0", "-c/1"]);
    let left: Vec<String> = fixture.contents().await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["a", "b", "da"]);
}

pub(crate) async fn a_key_that_was_put_without_its_lease_can_be_told_apart(fixture: Fixture) {
    let lease = fixture.store.grant(TTL).await.unwrap();
    fixture.write([fixture.leased_op("leader", "", Some(lease))]).await;
    let holds = async |field, relation| {
        let compare = fixture.compare(fixture.one("leader"), field, relation);
        fixture.commit([compare], []).await.unwrap().committed()
    };
    assert!(
        holds(Lease(lease), Equal).await
            && holds(Lease(LeaseId::NONE), NotEqual).await
            && holds(Lease(LeaseId::NONE), Greater).await
    );
    assert!(!holds(Lease(LeaseId::NONE), Equal).await && !holds(Lease(lease), NotEqual).await);
    let without_lease = || Compare::without_lease(fixture.key("leader"));
    assert!(!fixture.commit([without_lease()], []).await.unwrap().committed());
    fixture.put("leader", "by hand").await;
    assert!(fixture.commit([without_lease()], []).await.unwrap().committed());
    assert!(!holds(Lease(lease), Equal).await);
    fixture.delete(fixture.one("leader")).await;
    assert!(fixture.commit([without_lease()], []).await.unwrap().committed(), "an absent key goes with no lease");
    assert!(!holds(Lease(LeaseId::NONE), NotEqual).await);
}

pub(crate) async fn a_range_compare_tells_new_keys_from_old_ones(fixture: Fixture) {
    let guard = |revision| Compare::none_created_after(fixture.key("routers/"), revision);
    let view = fixture.snapshot().await.revision;
    assert!(fixture.commit([guard(view)], []).await.unwrap().committed(), "none at all");

    let joined = fixture.put("routers/a", "").await;
    assert!(!fixture.commit([guard(view)], []).await.unwrap().committed(), "one has joined");
    assert!(fixture.commit([guard(joined)], []).await.unwrap().committed(), "the view has it");

    fixture.put("routers/a", "heartbeat").await;
    assert!(fixture.commit([guard(joined)], []).await.unwrap().committed(), "it is still the same life");
    fixture.put("routerz", "").await;
    assert!(fixture.commit([guard(joined)], []).await.unwrap().committed(), "that is no router");

    fixture.delete(fixture.one("routers/a")).await;
    assert!(fixture.commit([guard(joined)], []).await.unwrap().committed(), "one that left is not in the way");
    fixture.put("routers/a", "").await;
    assert!(!fixture.commit([guard(joined)], []).await.unwrap().committed(), "it came back as another life");
}

pub(crate) async fn the_branch_whose_guards_hold_first_is_the_only_one_carried_out(fixture: Fixture) {
    let now = fixture.put("state", "0").await;
    let first = Revision::new(1);
    let txn = |guards: [Revision; 3]| {
        let mut txn = None;
        for (branch, guard) in guards.into_iter().enumerate().rev() {
            txn = Some(Box::new(Txn {
                when: vec![Compare::unchanged_since(fixture.key("state"), guard)],
                then: vec![fixture.put_op("branch", &branch.to_string())],
                otherwise: txn,
            }));
        }
        *txn.unwrap()
    };
    for (guards, expected) in [
        ([now, first, first], Some(0)),
        ([now, now, now], Some(0)),
        ([first, now, now], Some(1)),
        ([first, first, now], Some(2)),
        ([first, first, first], None),
    ] {
        fixture.delete(fixture.one("branch")).await;
        let outcome = fixture.store.commit(txn(guards)).await.unwrap();
        assert_eq!(outcome.branch, expected, "{guards:?}");
        let written = fixture.get("branch").await;
        let branch = written.as_ref().map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
        assert_eq!(branch, expected.map(|branch| branch.to_string()), "{guards:?}");
        if let Some(written) = written {
            assert_eq!(written.mod_revision, outcome.revision);
        }
    }
}

pub(crate) async fn a_key_written_twice_in_one_branch_is_refused(fixture: Fixture) {
    let put = |name| fixture.put_op(name, "new");
    let delete = |name| Op::Delete(fixture.one(name));
    let delete_below = |name| Op::Delete(fixture.below(name));
    for (ops, fine) in [
        (vec![put("a"), put("b")], true),
        (vec![put("a"), put("a")], false),
        (vec![put("a"), delete("a")], false),
        (vec![delete("a"), put("a")], false),
        (vec![put("d/x"), delete_below("d/")], false),
        (vec![delete_below("d/"), put("d/x")], false),
        (vec![delete_below("d/"), put("d")], true),
        (vec![delete_below("d"), put("d")], false),
        (vec![delete("a"), delete("a")], true),
        (vec![delete_below("d/"), delete("d/x"), delete_below("d")], true),
    ] {
        // By itself, and in a branch that is not even carried out.
        let unwanted = Txn { when: vec![], then: vec![], otherwise: Some(Box::new(Txn::guarded([], ops.clone()))) };
        for txn in [Txn::guarded([], ops.clone()), unwanted] {
            fixture.put("a", "old").await;
            let before = fixture.contents().await;
            let result = fixture.store.commit(txn).await;
            match result {
                Ok(_) => assert!(fine, "{ops:?}"),
                Err(StoreError::Refused(why)) => {
                    assert!(!fine, "{ops:?}");
                    assert!(why.words().contains("duplicate key given in txn request"), "{why}");
                    assert_eq!(fixture.contents().await, before, "{ops:?}");
                }
                Err(other) => panic!("{other}: {ops:?}"),
            }
        }
    }
    // Two branches may write one key: only one of them is carried out.
    let otherwise = Txn::guarded([], [delete_below("")]);
    let then = vec![put("a")];
    let txn = Txn { then, otherwise: Some(Box::new(otherwise)), ..Txn::default() };
    assert_eq!(fixture.store.commit(txn).await.unwrap().branch, Some(0));
}

pub(crate) async fn a_question_is_accepted_and_changes_nothing(fixture: Fixture) {
    let before = fixture.put("there", "m").await;
    let Keys::One(there) = fixture.one("there") else { unreachable!("one key") };
    let Keys::One(absent) = fixture.one("absent") else { unreachable!("one key") };
    for key in [there, absent] {
        let outcome = fixture.store.commit(Txn::question(&key)).await.unwrap();
        assert_eq!((outcome.branch, outcome.revision), (None, before), "{key}");
    }
}

pub(crate) async fn what_etcd_has_no_room_for_is_refused(fixture: Fixture) {
    let ops = |count: usize| (0..count).map(|number| fixture.put_op(&number.to_string(), "")).collect::<Vec<_>>();
    let guards = |count: usize| vec![Compare::created_at(fixture.key("absent"), Revision::ZERO); count];
    let nested = |above: usize, below: usize| Txn {
        when: guards(1),
        then: ops(above),
        otherwise: Some(Box::new(Txn::guarded([], ops(below)))),
    };
    let plain = |when, then| Txn::guarded(when, then);
    let value = |kib: usize| vec![fixture.put_op("big", &"v".repeat(kib * 1024))];
    for (name, txn, refused) in [
        ("128 operations", plain(vec![], ops(128)), None),
        ("129 operations", plain(vec![], ops(129)), Some("too many operations")),
        ("128 of each", plain(guards(128), ops(128)), None),
        ("129 guards", plain(guards(129), vec![]), Some("too many operations")),
        ("100 + 28", nested(100, 28), None),
        ("100 + 29", nested(100, 29), Some("too many operations")),
        ("1.4 MiB", plain(vec![], value(1434)), None),
        ("1.6 MiB", plain(vec![], value(1640)), Some("request is too large")),
        ("no key to put", plain(vec![], vec![Op::put(String::new(), vec![])]), Some("key is not provided")),
        ("no key to delete", plain(vec![], vec![Op::Delete(Keys::One(String::new()))]), Some("key is not provided")),
        (
            "no key to compare",
            plain(vec![Compare::created_at("", Revision::ZERO)], vec![]),
            Some("key is not provided"),
        ),
    ] {
        match (fixture.store.commit(txn).await, refused) {
            (Ok(_), None) => {}
            (Err(StoreError::Refused(why)), Some(expected)) => assert!(why.words().contains(expected), "{name}: {why}"),
            (result, _) => panic!("{name}: {result:?}"),
        }
    }
}

pub(crate) async fn transactions_that_go_together_are_each_carried_out_by_itself(fixture: Fixture) {
    let absent = |name: &str| Compare::created_at(fixture.key(name), Revision::ZERO);
    let create = |name: &str, value: &str| Txn::guarded([absent(name)], [fixture.put_op(name, value)]);
    fixture.put("there", "old").await;
    let or_else = Txn { otherwise: Some(Box::new(create("else", "new"))), ..create("there", "new") };
    // More than go to etcd in one request.
    let many = (0..200).map(|number| create(&format!("many/{number}"), "new"));
    let txns: Vec<Txn> = [create("a", "new"), create("there", "new"), or_else].into_iter().chain(many).collect();
    let outcomes = fixture.store.commit_all(txns).await;
    let branches: Vec<Option<usize>> = outcomes.iter().map(|outcome| outcome.as_ref().unwrap().branch).collect();
    assert_eq!(branches[..3], [Some(0), None, Some(1)]);
    assert!(branches[3..].iter().all(|branch| *branch == Some(0)) && branches.len() == 203);
    assert_eq!(fixture.get("there").await.unwrap().value, b"old");
    for (name, outcome) in [("a", &outcomes[0]), ("else", &outcomes[2]), ("many/199", &outcomes[202])] {
        let written = fixture.get(name).await.unwrap();
        assert_eq!((written.value.as_slice(), written.mod_revision), (&b"new"[..], outcome.as_ref().unwrap().revision));
    }

    // One that is refused as such takes none of the others along, nor do two that write the same key.
    let senseless = Txn::guarded([], [fixture.put_op("twice", ""), fixture.put_op("twice", "")]);
    let same = [create("same", "one"), create("same", "other")];
    let txns = [create("b", "new"), senseless, create("c", "new")].into_iter().chain(same).collect();
    let outcomes = fixture.store.commit_all(txns).await;
    assert!(matches!(outcomes[1], Err(StoreError::Refused(_))), "{outcomes:?}");
    let committed = |at: usize| outcomes[at].as_ref().unwrap().committed();
    assert!(committed(0) && committed(2) && (committed(3) ^ committed(4)));
    assert!(fixture.store.commit_all(Vec::new()).await.is_empty());

    // Of two that exclude each other, one comes first.
    for number in 0..10 {
        let [ended, recorded] = ["ended", "recorded"].map(|name| format!("{name}/{number}"));
        let record = Txn::guarded([absent(&ended)], [fixture.put_op(&recorded, "")]);
        let outcomes = fixture.store.commit_all(vec![record, create(&ended, "")]).await;
        let [record, end] = &outcomes[..] else { panic!("{outcomes:?}") };
        let (record, end) = (record.as_ref().unwrap(), end.as_ref().unwrap());
        assert!(end.committed() && (!record.committed() || record.revision < end.revision), "{outcomes:?}");
    }
}

pub(crate) async fn concurrent_increments_lose_no_update(fixture: Fixture) {
    const TASKS: usize = 16;
    const INCREMENTS_PER_TASK: usize = 10;
    fixture.put("count", "0").await;
    let fixture = Arc::new(fixture);
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let fixture = Arc::clone(&fixture);
            tokio::spawn(async move {
                let mut conflicts = 0;
                for _ in 0..INCREMENTS_PER_TASK {
                    loop {
                        let now = fixture.get("count").await.unwrap();
                        // Lets the others in between reading and writing, under a single thread too.
                        tokio::task::yield_now().await;
                        let count: usize = String::from_utf8(now.value).unwrap().parse().unwrap();
                        let guard = Compare::unchanged_since(now.key, now.mod_revision);
                        let op = fixture.put_op("count", &(count + 1).to_string());
                        if fixture.commit([guard], [op]).await.unwrap().committed() {
                            break;
                        }
                        conflicts += 1;
                    }
                }
                conflicts
            })
        })
        .collect();
    let mut conflicts = 0;
    for task in tasks {
        conflicts += task.await.unwrap();
    }
    assert_eq!(fixture.get("count").await.unwrap().value, (TASKS * INCREMENTS_PER_TASK).to_string().as_bytes());
    assert!(conflicts > 0, "nothing was concurrent, so nothing was shown");
}
