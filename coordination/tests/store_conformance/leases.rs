//! Leases: how they are kept and end, and which keys end with them.

use std::future::Future;
use std::time::Duration;

use segue_coordination::store::StoreError;
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Compare, Txn};
use tokio::time::{Instant, sleep};

use super::fixture::{Fixture, TEST_TIMEOUT, TTL, collect, next};

const UNKNOWN_LEASE: LeaseId = LeaseId::new(0x5e60e);

/// Checks that all keys of the lease that `end` ends are deleted in one batch and at one revision, as a watch of each key
/// shows.
async fn all_go_at_once(fixture: &Fixture, last: Revision, names: [&str; 3], end: impl Future<Output = ()>) {
    let mut together = fixture.watch(fixture.all(), last.next()).await;
    let mut alone = Vec::new();
    for name in names {
        alone.push((name, fixture.watch(fixture.one(name), last.next()).await));
    }
    end.await;
    let batch = next(&mut together).await;
    assert_eq!(fixture.short(&batch.events), names.map(|name| format!("-{name}")));
    assert!(batch.revision > last);
    for (name, mut watch) in alone {
        let own = next(&mut watch).await;
        assert_eq!((own.revision, own.events.len()), (batch.revision, 1), "{name}");
    }
}

pub(crate) async fn an_expired_lease_takes_all_its_keys_in_one_batch(fixture: Fixture) {
    let granted = Instant::now();
    let lease = fixture.store.grant(TTL).await.unwrap();
    fixture.put("stays", "").await;
    // Put in several transactions and out of order.
    let mut last = Revision::ZERO;
    for name in ["c", "a", "b"] {
        last = fixture.write([fixture.leased_op(name, "", Some(lease))]).await;
    }
    assert_eq!(fixture.get("a").await.unwrap().lease, Some(lease));
    all_go_at_once(&fixture, last, ["a", "b", "c"], async {}).await;
    assert!(granted.elapsed() >= TTL, "it ended after {:?}", granted.elapsed());
    assert_eq!(fixture.contents().await, [("stays".to_owned(), String::new())]);
    let late = fixture.store.keep_alive(lease).await;
    assert!(matches!(late, Err(StoreError::LeaseNotFound)), "{late:?}");
}

pub(crate) async fn a_lease_that_is_kept_alive_outlives_its_ttl(fixture: Fixture) {
    // Twice the shortest, so that a busy machine does not keep the renewals from coming in time.
    let ttl = TTL * 2;
    let lease = fixture.store.grant(ttl).await.unwrap();
    let other = fixture.store.grant(TTL).await.unwrap();
    fixture.write([fixture.leased_op("kept", "", Some(lease))]).await;
    let last = fixture.write([fixture.leased_op("left", "", Some(other))]).await;
    let mut watch = fixture.watch(fixture.all(), last.next()).await;

    // Renew it past its own TTL, and until the other lease, which is not renewed, has ended.
    let began = Instant::now();
    let mut renewed = began;
    let mut left = false;
    while !left || began.elapsed() < ttl * 3 / 2 {
        assert!(began.elapsed() < TEST_TIMEOUT, "a lease that nobody renews goes on");
        renewed = Instant::now();
        fixture.store.keep_alive(lease).await.unwrap();
        sleep(ttl / 10).await;
        if let Some(batch) = watch.try_next() {
            assert_eq!(fixture.short(&batch.unwrap().events), ["-left"]);
            left = true;
        }
    }
    assert_eq!(fixture.short(&next(&mut watch).await.events), ["-kept"]);
    assert!(renewed.elapsed() >= ttl, "it ended {:?} after it was renewed", renewed.elapsed());
}

pub(crate) async fn a_lease_that_is_gone_cannot_be_kept_alive(fixture: Fixture) {
    let unknown = fixture.store.keep_alive(UNKNOWN_LEASE).await;
    assert!(matches!(unknown, Err(StoreError::LeaseNotFound)), "{unknown:?}");
    let lease = fixture.store.grant(TTL).await.unwrap();
    // Once with a stream that stands already, and once more after that.
    fixture.store.keep_alive(lease).await.unwrap();
    fixture.store.keep_alive(lease).await.unwrap();
    fixture.store.revoke(lease).await.unwrap();
    for _ in 0..2 {
        let gone = fixture.store.keep_alive(lease).await;
        assert!(matches!(gone, Err(StoreError::LeaseNotFound)), "{gone:?}");
    }
}

pub(crate) async fn a_revoked_lease_takes_all_its_keys_in_one_batch(fixture: Fixture) {
    let lease = fixture.store.grant(Duration::from_secs(600)).await.unwrap();
    let last = fixture.write(["b", "a", "c"].map(|name| fixture.leased_op(name, "", Some(lease)))).await;
    let revoke = async {
        fixture.store.revoke(lease).await.unwrap();
        assert_eq!(fixture.contents().await, []);
    };
    all_go_at_once(&fixture, last, ["a", "b", "c"], revoke).await;
    // Again, and one that never was: no error.
    fixture.store.revoke(lease).await.unwrap();
    fixture.store.revoke(UNKNOWN_LEASE).await.unwrap();
}

pub(crate) async fn a_put_with_a_dead_lease_writes_nothing(fixture: Fixture) {
    let lease = fixture.store.grant(TTL).await.unwrap();
    fixture.store.revoke(lease).await.unwrap();
    for dead in [lease, UNKNOWN_LEASE] {
        let ops = [fixture.put_op("a", ""), fixture.leased_op("b", "", Some(dead))];
        let result = fixture.commit([], ops).await;
        assert!(matches!(result, Err(StoreError::LeaseNotFound)), "{result:?}");
        assert_eq!(fixture.contents().await, [], "the other write neither");
    }
    // A branch that is not carried out may name what it likes.
    let elsewhere = Txn {
        when: vec![Compare::created_at(fixture.key("a"), Revision::new(1))],
        then: vec![fixture.leased_op("b", "", Some(lease))],
        otherwise: Some(Box::new(Txn::guarded([], [fixture.put_op("a", "")]))),
    };
    assert_eq!(fixture.store.commit(elsewhere).await.unwrap().branch, Some(1));
}

pub(crate) async fn a_key_goes_with_the_lease_of_its_last_put(fixture: Fixture) {
    let first = fixture.store.grant(Duration::from_secs(600)).await.unwrap();
    let second = fixture.store.grant(Duration::from_secs(600)).await.unwrap();
    let names = ["again", "detached", "moved", "reborn"];
    let start = fixture.write(names.map(|name| fixture.leased_op(name, "", Some(first)))).await;
    fixture.put("detached", "").await;
    fixture.write([fixture.leased_op("moved", "", Some(second))]).await;
    fixture.write([fixture.leased_op("again", "", Some(first))]).await;
    fixture.delete(fixture.one("reborn")).await;
    fixture.put("reborn", "").await;
    let leases: Vec<_> = fixture.snapshot().await.entries.iter().map(|entry| entry.lease).collect();
    assert_eq!(leases, [Some(first), None, Some(second), None]);

    let mut watch = fixture.watch(fixture.all(), start.next()).await;
    collect(&mut watch, 5).await;
    fixture.store.revoke(first).await.unwrap();
    assert_eq!(fixture.short(&next(&mut watch).await.events), ["-again"]);
    fixture.store.revoke(second).await.unwrap();
    assert_eq!(fixture.short(&next(&mut watch).await.events), ["-moved"]);
}
