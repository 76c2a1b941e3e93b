//! A pod's process that takes part in two keyspaces under one lease.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::pod::{PodHandle, PodSettings};
use segue_coordination::session::{Leases, count_by_tokio};
use segue_coordination::store::{MemoryStore, Store};
use segue_protocol::ids::{Incarnation, LeaseId};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{Policy, stored};
use segue_protocol::records::{KeyspaceConfig, encode};
use segue_protocol::txn::{Keys, Op, Txn};
use tokio::time::{sleep, timeout};

use super::foreign_writes::get;

const TTL: Duration = Duration::from_secs(3);
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The part of a pod's process in one keyspace.
struct Part {
    store: MemoryStore,
    keys: Keyspace,
    pod: PodHandle,
}

impl Part {
    fn start(store: &MemoryStore, leases: &Leases, keyspace: &str) -> Self {
        let (keys, settings) = (Keyspace::new("/segue/", keyspace), PodSettings::new("w", "127.0.0.1:1"));
        let settings = PodSettings { lease_ttl: TTL, ..settings };
        let pod = PodHandle::start(leases.clone(), keyspace, keys.clone(), settings, Arc::new(()));
        Part { store: store.clone(), keys, pod }
    }

    async fn becomes(&self, what: &str, holds: impl Fn(Option<&str>, Incarnation) -> bool) -> Incarnation {
        let mut status = self.pod.status();
        let reached = status.wait_for(|state| holds(state.not_ready.as_deref(), state.incarnation));
        let reached = timeout(TEST_TIMEOUT, reached).await.unwrap_or_else(|_| panic!("never: {what}"));
        reached.unwrap().incarnation
    }

    async fn ready(&self) -> Incarnation {
        self.becomes("ready", |not_ready, _| not_ready.is_none()).await
    }

    async fn lease(&self) -> Option<LeaseId> {
        get(&self.store, self.keys.pod("w")).await.and_then(|entry| entry.lease)
    }
}

fn two_parts(store: &MemoryStore) -> (Part, Part) {
    count_by_tokio();
    let leases = Leases::from(Arc::new(store.clone()));
    (Part::start(store, &leases, "a"), Part::start(store, &leases, "b"))
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_key_is_deleted_in_one_keyspace_fences_there_alone_and_returns_under_the_same_lease() {
    let store = MemoryStore::new();
    let (a, b) = two_parts(&store);
    let (first, other) = (a.ready().await, b.ready().await);
    let lease = a.lease().await;
    assert_eq!(b.lease().await, lease);
    let delete = Op::Delete(Keys::One(a.keys.pod("w")));
    store.commit(Txn::guarded([], [delete])).await.unwrap();
    let second = a.becomes("anew", |not_ready, incarnation| not_ready.is_none() && incarnation > first).await;
    assert_eq!((a.lease().await, b.lease().await), (lease, lease));
    sleep(TTL * 3).await;
    assert_eq!((a.ready().await, b.ready().await), (second, other));
    assert_eq!(b.lease().await, lease);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_key_is_deleted_leaves_no_heartbeat_behind_under_the_lease_that_goes_on() {
    let store = MemoryStore::new();
    let (a, b) = two_parts(&store);
    let (first, _) = (a.ready().await, b.ready().await);
    let settings = |balance_load| {
        let planning = Some(stored(&Policy { balance_load, ..Policy::default() }));
        let value = encode(&KeyspaceConfig { planning, ..KeyspaceConfig::new(4) });
        Op::put(a.keys.config(), value)
    };
    let commit = async |then| store.commit(Txn::guarded([], then)).await.unwrap();
    commit(vec![settings(true)]).await;
    let sent = timeout(TEST_TIMEOUT, async {
        while get(&store, a.keys.load("w")).await.is_none() {
            sleep(Duration::from_millis(100)).await;
        }
    });
    sent.await.expect("a heartbeat");
    // The next life sends none, which would take the place of this one.
    commit(vec![Op::Delete(Keys::One(a.keys.pod("w"))), settings(false)]).await;
    a.becomes("anew", |not_ready, incarnation| not_ready.is_none() && incarnation > first).await;
    assert_eq!(get(&store, a.keys.load("w")).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_lease_is_revoked_begins_a_new_life_in_each_keyspace_under_one_new_lease() {
    let store = MemoryStore::new();
    let (a, b) = two_parts(&store);
    let (first, other) = (a.ready().await, b.ready().await);
    let lease = a.lease().await.unwrap();
    store.revoke(lease).await.unwrap();
    a.becomes("anew", |not_ready, incarnation| not_ready.is_none() && incarnation > first).await;
    b.becomes("anew", |not_ready, incarnation| not_ready.is_none() && incarnation > other).await;
    let next = a.lease().await;
    assert!(next.is_some_and(|next| next != lease));
    assert_eq!(b.lease().await, next);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_leaves_one_keyspace_stays_in_the_other() {
    let store = MemoryStore::new();
    let (a, b) = two_parts(&store);
    let (_, other) = (a.ready().await, b.ready().await);
    let lease = b.lease().await;
    a.pod.shutdown(Duration::from_secs(1)).await;
    assert_eq!(a.lease().await, None);
    sleep(TTL * 3).await;
    assert_eq!((b.ready().await, b.lease().await), (other, lease));
    b.pod.shutdown(Duration::from_secs(1)).await;
    assert_eq!(b.lease().await, None);
}
