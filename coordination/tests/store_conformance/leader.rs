//! Participants with short leases in a cluster of three whose leader is stopped.
//!
//! A stopped leader closes no connection and refuses none, and a follower passes renewals on to it until the others have
//! elected a new one. The new one gives every lease its whole TTL again, so leases end only if their holders are too slow
//! to find it.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::session::{Claim, Update, Watcher, register};
use segue_coordination::store::{EtcdOptions, EtcdStore, Store};
use segue_protocol::keys::Keyspace;
use segue_tests::etcd::Etcd;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::fixture::TEST_TIMEOUT;

/// The election timeout of the chaos tests: members elect another leader after 0.5 s to 1 s of silence.
const LEASE_TTL: Duration = Duration::from_secs(3);

/// Number of participants; enough for each member to have some.
const PARTICIPANTS: usize = 12;

fn leader(members: &[Etcd]) -> usize {
    let leads = |member: &Etcd| member.metric("etcd_server_is_leader") == Some(1.0);
    members.iter().position(leads).expect("a healthy cluster has a leader")
}

/// Holds a lease as routers and pods do, which renew it only while they see the store.
async fn take_part(store: Arc<dyn Store>, name: usize, until: Duration) -> Result<(), String> {
    let keyspace = Keyspace::new("/segue/", "default");
    let claim = Claim::new(&keyspace, format!("/held/{name}"), LEASE_TTL);
    let lease = register(&store.clone().into(), &claim, |_| Vec::new()).await.lease;
    let mut follow = Watcher::start(store, keyspace);
    let (began, mut sighted) = (Instant::now(), true);
    while began.elapsed() < until {
        if sighted {
            lease.made_progress();
        }
        if lease.state().borrow().lost {
            return Err(format!("the lease was lost after {:?}", began.elapsed()));
        }
        tokio::select! {
            update = follow.next() => sighted = !matches!(update, Update::Lost(_)),
            () = sleep(LEASE_TTL / 6) => {}
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_stuck_costs_no_participant_its_lease() {
    let members: [Etcd; 3] = Etcd::cluster();
    let stuck = leader(&members);
    // As in production, not with the suite's own timeouts.
    let options = EtcdOptions::new(members.iter().map(Etcd::endpoint));
    let mut participants = JoinSet::new();
    for name in 0..PARTICIPANTS {
        let store: Arc<dyn Store> = Arc::new(EtcdStore::connect(options.clone()).unwrap());
        participants.spawn(take_part(store, name, LEASE_TTL * 3));
    }
    sleep(LEASE_TTL / 3).await;
    // For longer than a lease lasts, counted from the election. It never wakes up: an etcd before 3.4.31 and 3.5.13 would
    // have the new leader revoke all leases then (etcd-io/etcd#15247).
    members[stuck].pause();
    let ended = tokio::time::timeout(TEST_TIMEOUT, participants.join_all()).await.unwrap();
    let lost: Vec<_> = ended.iter().filter_map(|it| it.as_ref().err()).collect();
    assert!(lost.is_empty(), "{} of {PARTICIPANTS}: {lost:?}", lost.len());
}
