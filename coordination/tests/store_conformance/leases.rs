//! Leases: how they end, what keeps them, and what goes with them.

use std::future::Future;
use std::time::Duration;

use segue_coordination::store::StoreError;
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Compare, Txn};
use tokio::time::{Instant, sleep};

use crate::site::{PATIENCE, Site, TTL, collect, next};

const UNKNOWN: LeaseId = LeaseId::new(0x5e60e);

/// `end` ends a lease: the keys go in one batch, and at one revision, which a watch of each key alone tells.
async fn all_go_at_once(site: &Site, last: Revision, names: [&str; 3], end: impl Future<Output = ()>) {
    let mut together = site.watch(site.all(), last.next()).await;
    let mut alone = Vec::new();
    for name in names {
        alone.push((name, site.watch(site.one(name), last.next()).await));
    }
    end.await;
    let batch = next(&mut together).await;
    assert_eq!(site.short(&batch.events), names.map(|name| format!("-{name}")));
    assert!(batch.revision > last);
    for (name, mut watch) in alone {
        let own = next(&mut watch).await;
        assert_eq!((own.revision, own.events.len()), (batch.revision, 1), "{name}");
    }
}

pub(crate) async fn an_expired_lease_takes_all_its_keys_in_one_batch(site: Site) {
    let granted = Instant::now();
    let lease = site.store.grant(TTL).await.unwrap();
    site.put("stays", "").await;
    // Put in several transactions and out of order.
    let mut last = Revision::ZERO;
    for name in ["c", "a", "b"] {
        last = site.write([site.leased_op(name, "", Some(lease))]).await;
    }
    assert_eq!(site.get("a").await.unwrap().lease, Some(lease));
    all_go_at_once(&site, last, ["a", "b", "c"], async {}).await;
    assert!(granted.elapsed() >= TTL, "it ended after {:?}", granted.elapsed());
    assert_eq!(site.contents().await, [("stays".to_owned(), String::new())]);
    let late = site.store.keep_alive(lease).await;
    assert!(matches!(late, Err(StoreError::LeaseNotFound)), "{late:?}");
}

pub(crate) async fn a_lease_that_is_kept_alive_outlives_its_ttl(site: Site) {
    // Twice the shortest, so that a busy machine does not keep the renewals from coming in time.
    let ttl = TTL * 2;
    let lease = site.store.grant(ttl).await.unwrap();
    let other = site.store.grant(TTL).await.unwrap();
    site.write([site.leased_op("kept", "", Some(lease))]).await;
    let last = site.write([site.leased_op("left", "", Some(other))]).await;
    let mut watch = site.watch(site.all(), last.next()).await;

    // Beyond its own TTL, and until the other lease, which nobody renews, has ended.
    let began = Instant::now();
    let mut renewed = began;
    let mut left = false;
    while !left || began.elapsed() < ttl * 3 / 2 {
        assert!(began.elapsed() < PATIENCE, "a lease that nobody renews goes on");
        renewed = Instant::now();
        site.store.keep_alive(lease).await.unwrap();
        sleep(ttl / 10).await;
        if let Some(batch) = watch.try_next() {
            assert_eq!(site.short(&batch.unwrap().events), ["-left"]);
            left = true;
        }
    }
    assert_eq!(site.short(&next(&mut watch).await.events), ["-kept"]);
    assert!(renewed.elapsed() >= ttl, "it ended {:?} after it was renewed", renewed.elapsed());
}

pub(crate) async fn a_lease_that_is_gone_cannot_be_kept_alive(site: Site) {
    let unknown = site.store.keep_alive(UNKNOWN).await;
    assert!(matches!(unknown, Err(StoreError::LeaseNotFound)), "{unknown:?}");
    let lease = site.store.grant(TTL).await.unwrap();
    // Once with a stream that stands already, and once more after that.
    site.store.keep_alive(lease).await.unwrap();
    site.store.keep_alive(lease).await.unwrap();
    site.store.revoke(lease).await.unwrap();
    for _ in 0..2 {
        let gone = site.store.keep_alive(lease).await;
        assert!(matches!(gone, Err(StoreError::LeaseNotFound)), "{gone:?}");
    }
}

pub(crate) async fn a_revoked_lease_takes_all_its_keys_in_one_batch(site: Site) {
    let lease = site.store.grant(Duration::from_secs(600)).await.unwrap();
    let last = site.write(["b", "a", "c"].map(|name| site.leased_op(name, "", Some(lease)))).await;
    let revoke = async {
        site.store.revoke(lease).await.unwrap();
        assert_eq!(site.contents().await, []);
    };
    all_go_at_once(&site, last, ["a", "b", "c"], revoke).await;
    // Again, and one that never was: no error.
    site.store.revoke(lease).await.unwrap();
    site.store.revoke(UNKNOWN).await.unwrap();
}

pub(crate) async fn a_put_with_a_dead_lease_writes_nothing(site: Site) {
    let lease = site.store.grant(TTL).await.unwrap();
    site.store.revoke(lease).await.unwrap();
    for dead in [lease, UNKNOWN] {
        let ops = [site.put_op("a", ""), site.leased_op("b", "", Some(dead))];
        let result = site.commit([], ops).await;
        assert!(matches!(result, Err(StoreError::LeaseNotFound)), "{result:?}");
        assert_eq!(site.contents().await, [], "the other write neither");
    }
    // A branch that is not carried out may name what it likes.
    let elsewhere = Txn {
        when: vec![Compare::created_at(site.key("a"), Revision::new(1))],
        then: vec![site.leased_op("b", "", Some(lease))],
        otherwise: Some(Box::new(Txn { then: vec![site.put_op("a", "")], ..Txn::default() })),
    };
    assert_eq!(site.store.commit(elsewhere).await.unwrap().branch, Some(1));
}

pub(crate) async fn a_key_goes_with_the_lease_of_its_last_put(site: Site) {
    let first = site.store.grant(Duration::from_secs(600)).await.unwrap();
    let second = site.store.grant(Duration::from_secs(600)).await.unwrap();
    let names = ["again", "detached", "moved", "reborn"];
    let start = site.write(names.map(|name| site.leased_op(name, "", Some(first)))).await;
    site.put("detached", "").await;
    site.write([site.leased_op("moved", "", Some(second))]).await;
    site.write([site.leased_op("again", "", Some(first))]).await;
    site.delete(site.one("reborn")).await;
    site.put("reborn", "").await;
    let leases: Vec<_> = site.snapshot().await.entries.iter().map(|entry| entry.lease).collect();
    assert_eq!(leases, [Some(first), None, Some(second), None]);

    let mut watch = site.watch(site.all(), start.next()).await;
    collect(&mut watch, 5).await;
    site.store.revoke(first).await.unwrap();
    assert_eq!(site.short(&next(&mut watch).await.events), ["-again"]);
    site.store.revoke(second).await.unwrap();
    assert_eq!(site.short(&next(&mut watch).await.events), ["-moved"]);
}
