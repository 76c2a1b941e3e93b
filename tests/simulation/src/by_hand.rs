//! What an operator does to a keyspace by hand.

use std::rc::Rc;

use segue_coordination::store::Store as _;
use segue_protocol::records::{PodRecord, PodStatus, encode};
use segue_protocol::registration::clear;
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use tokio::time::sleep;

use crate::cluster::Cluster;
use crate::contract::Author;
use crate::site::Site;

/// An operator writes a pod's status by hand.
pub(crate) async fn set_status(cluster: &Cluster, pod: &str, status: PodStatus) {
    let world = &cluster.world;
    world.look(Author::Other).await;
    let own = world.contract.with_view(|view| view.pods.get(pod).cloned()).filter(|own| own.value.status != status);
    let (Some(own), key) = (own, world.keys.pod(pod)) else { return };
    let Ok(snapshot) = world.store.snapshot(&Keys::One(key.clone())).await else { return };
    let Some(entry) = snapshot.entries.first() else { return };
    let value = encode(&PodRecord { status, ..own.value });
    let when = vec![Compare::unchanged_since(key.clone(), own.mod_revision)];
    by_hand(cluster, Txn { when, then: vec![Op::Put { key, value, lease: entry.lease }], otherwise: None }).await;
}

/// The operator takes back what he has written.
pub(crate) async fn undrain(site: &Site) {
    for cluster in &site.clusters {
        for pod in cluster.pods() {
            set_status(cluster, &pod.member.process.name, PodStatus::Ready).await;
        }
    }
}

/// An operator forgets registrations that have stood without a lease for so long that nobody can be going to put them back.
pub(crate) async fn forget(site: Rc<Site>) {
    sleep(site.world().setting.lease_ttl * 2).await;
    for cluster in &site.clusters {
        forget_in(cluster).await;
    }
}

async fn forget_in(cluster: &Cluster) {
    let world = &cluster.world;
    world.look(Author::Other).await;
    let keys: Vec<String> =
        world.contract.with_view(|view| view.leaseless().chain(view.malformed.keys().cloned()).collect());
    for key in keys {
        let Ok(snapshot) = world.store.snapshot(&Keys::One(key.clone())).await else { return };
        if let Some(entry) = snapshot.entries.first().filter(|entry| entry.lease.is_none()) {
            world.trace.event(format_args!("{key} is forgotten"));
            by_hand(cluster, clear(&key, entry.mod_revision)).await;
        }
    }
}

/// Commits a write of somebody who takes no part in the protocol.
pub(crate) async fn by_hand(cluster: &Cluster, txn: Txn) {
    let world = &cluster.world;
    world.look(Author::Other).await;
    // An operator gives up when the store is out of reach.
    let _ = world.store.commit(txn).await;
    world.look(Author::Operator).await;
}
