//! A participant's own key: its state, and the transactions that create, restore and withdraw it.
//!
//! Pure. A plain put by another writer detaches the key from its lease. The key would then outlive its process, and no
//! partition would ever be moved away from it. The participant restores the key under guards that only its own life can
//! meet. Elsewhere: when to check (`participant` of `segue-coordination`), and what a key without a lease means to
//! others ([`View`]).

use std::time::Duration;

use crate::ids::{Incarnation, LeaseId, Revision};
use crate::keys::{KeyName, Keyspace, RoundsKey};
use crate::records::{KeyspaceConfig, Leader, PROTOCOL, PodLoad, PodRecord, RouterRecord, encode};
use crate::txn::{Compare, Op, Txn};
use crate::view::{Versioned, View};

/// The keys that a participant puts under its lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnKeys {
    /// The registration.
    pub key: String,
    /// Keys that end with the registration.
    pub also: Vec<String>,
}

/// A key that exists where a participant is about to register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExistingKey {
    /// The life that it belongs to.
    pub incarnation: Incarnation,
    /// The revision of its last put.
    pub mod_revision: Revision,
    /// The lease that it is attached to.
    pub lease: Option<LeaseId>,
    /// An attempt of this process has put it without learning of it, so that nobody acts by it.
    pub is_forgotten: bool,
}

/// The process that has a key which another one waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyHolder {
    /// The leader: other coordinators wait for its key by design.
    Leader {
        /// Its name.
        name: String,
    },
    /// A participant with the name of the one that waits.
    Namesake {
        /// The name.
        name: String,
        /// The key of the configuration file that sets it.
        setting: &'static str,
        /// An address of the process, if it tells one.
        address: Option<String>,
        /// The time of its lease; 0 if it tells none.
        lease_ttl: Duration,
    },
}

impl KeyHolder {
    /// Returns the holder of a key with this value. `None` if nobody registers by the key.
    pub fn of(keys: &Keyspace, key: &str, value: &[u8]) -> Option<Self> {
        let namesake = |name, setting, address, lease_ttl| KeyHolder::Namesake { name, setting, address, lease_ttl };
        Some(match keys.parse(key)? {
            KeyName::Leader => KeyHolder::Leader { name: serde_json::from_slice::<Leader>(value).ok()?.holder },
            KeyName::Pod(name) => {
                let record = serde_json::from_slice::<PodRecord>(value).ok();
                let ttl = record.as_ref().and_then(|record| record.lease_ttl_ms).unwrap_or(0);
                namesake(name, "pod.name", record.map(|record| record.address), Duration::from_millis(ttl))
            }
            KeyName::Router(name) => {
                let record = serde_json::from_slice::<RouterRecord>(value).ok();
                namesake(name, "router.name", record.and_then(|record| record.admin), Duration::ZERO)
            }
            KeyName::Rounds(RoundsKey::Participant(name)) => namesake(name, "coordinator.name", None, Duration::ZERO),
            _ => return None,
        })
    }
}

/// The state of a participant's own key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attachment {
    /// The key is attached to this participant's lease.
    Attached,
    /// The record still belongs to this life, but has no lease or another one. It was last put at this revision.
    Detached(Revision),
    /// The key is gone, or belongs to another life.
    Gone,
}

/// Returns the state of the key of the life `incarnation` with this lease.
pub fn attachment<T>(seen: Option<&Versioned<T>>, incarnation: Incarnation, lease: LeaseId) -> Attachment {
    match seen.filter(|seen| seen.create_revision == incarnation.revision()) {
        None => Attachment::Gone,
        Some(seen) if seen.lease == Some(lease) => Attachment::Attached,
        Some(seen) => Attachment::Detached(seen.mod_revision),
    }
}

/// Returns why a participant of this build takes no part in a keyspace with these settings: it speaks another version of the
/// protocol. `None` if it may.
pub fn other_protocol(keys: &Keyspace, settings: &KeyspaceConfig) -> Option<String> {
    let spoken = settings.protocol.filter(|spoken| *spoken != PROTOCOL)?;
    let name = keys.name();
    Some(format!("keyspace {name} speaks version {spoken} of the protocol, and this process version {PROTOCOL}"))
}

/// Returns why a participant does not register in a keyspace with these settings, which belongs to another service than the
/// participant. `None` if it may register.
pub fn other_service(keys: &Keyspace, settings: &KeyspaceConfig) -> Option<String> {
    let (own, standing) = (keys.service(), settings.service.as_deref());
    let named = |service: Option<&str>| service.map_or("no service".to_owned(), |name| format!("service {name}"));
    (own != standing).then(|| {
        let name = keys.name();
        format!("keyspace {name} belongs to {}, and this process to {}", named(standing), named(own))
    })
}

/// Creates the key of a new life under its lease. An existing key belongs to another life and is not overwritten.
pub fn register(key: &str, value: Vec<u8>, lease: LeaseId) -> Txn {
    Txn::guarded([Compare::created_at(key, Revision::ZERO)], [Op::put_leased(key, value, lease)])
}

/// Deletes a key that keeps a participant from registering, if its life is known to be over: `ended`, an earlier life of
/// this process which has fenced itself; one that was forgotten; and, where a key means nothing without a lease, one
/// without. `None` if it may belong to another life.
pub fn clear_obstacle(key: &str, standing: ExistingKey, ended: Incarnation, clears_leaseless: bool) -> Option<Txn> {
    if standing.incarnation == ended || standing.is_forgotten {
        return Some(withdraw(key, standing.incarnation));
    }
    (clears_leaseless && standing.lease.is_none()).then(|| clear(key, standing.mod_revision))
}

/// Restores the key of this life as it was registered, if it has not changed since it was last put at `seen`.
pub fn put_back(key: &str, incarnation: Incarnation, seen: Revision, value: Vec<u8>, lease: LeaseId) -> Txn {
    Txn::guarded(
        [Compare::created_at(key, incarnation.revision()), Compare::unchanged_since(key, seen)],
        [Op::put_leased(key, value, lease)],
    )
}

/// Marks this life of a pod, whose service says that it is unhealthy, as one that gives way to another pod: one that is
/// ready, and does not give way itself by the time of the write. Of two pods that each see the other, only one can. `None`
/// if the view shows no other pod, or not this life under its lease.
pub fn give_way(view: &View, pod: &str, incarnation: Incarnation, lease: LeaseId) -> Option<Txn> {
    let own = view.pods.get(pod).filter(|own| own.incarnation() == incarnation && own.lease == Some(lease))?;
    let is_ready = |(other, record): &(&String, &Versioned<PodRecord>)| {
        *other != pod && record.lease.is_some() && !record.value.gives_way && !view.is_draining(other)
    };
    let (other, record) = view.pods.iter().find(is_ready)?;
    let keys = view.keys();
    let mut txn = put_back(
        &keys.pod(pod),
        incarnation,
        own.mod_revision,
        encode(&PodRecord { gives_way: true, ..own.value.clone() }),
        lease,
    );
    txn.when.push(Compare::unchanged_since(keys.pod(other), record.mod_revision));
    txn.when.push(Compare::unchanged_since(keys.drain(other), Revision::ZERO));
    Some(txn)
}

/// Puts a pod's heartbeat under the lease of its registration, if that very life is registered.
pub fn heartbeat(keys: &Keyspace, pod: &str, lease: LeaseId, record: &PodLoad) -> Txn {
    Txn::guarded(
        [Compare::created_at(keys.pod(pod), record.incarnation.revision())],
        [Op::put_leased(keys.load(pod), encode(record), lease)],
    )
}

/// Deletes the heartbeat of a pod that sends no more of them. Without it the pod would be suspected.
pub fn end_heartbeats(keys: &Keyspace, pod: &str, incarnation: Incarnation) -> Txn {
    Txn::guarded([Compare::created_at(keys.pod(pod), incarnation.revision())], [Op::delete(keys.load(pod))])
}

/// Deletes the key of this life, if it exists. The participant must have fenced itself before.
pub fn withdraw(key: &str, incarnation: Incarnation) -> Txn {
    Txn::guarded([Compare::created_at(key, incarnation.revision())], [Op::delete(key)])
}

/// Deletes the registration of this life, if it exists, and the keys that end with it. Those are left behind by a
/// registration that was deleted by hand, and belong to nobody then.
pub fn end(keys: &OwnKeys, incarnation: Incarnation) -> Txn {
    let also = || keys.also.iter().map(|key| Op::delete(key.clone()));
    let mut txn = withdraw(&keys.key, incarnation);
    txn.then.extend(also());
    if !keys.also.is_empty() {
        let is_gone = Compare::created_at(&keys.key, Revision::ZERO);
        txn.otherwise = Some(Box::new(Txn::guarded([is_gone], also().collect::<Vec<_>>())));
    }
    txn
}

/// Deletes a key that was last put at `seen`, with any owner and any lease. An operator's decision.
pub fn forget(key: &str, seen: Revision) -> Txn {
    Txn::guarded([Compare::unchanged_since(key, seen)], [Op::delete(key)])
}

/// Deletes a key without a lease that was last put at `seen`, with any owner.
pub fn clear(key: &str, seen: Revision) -> Txn {
    Txn::guarded([Compare::without_lease(key), Compare::unchanged_since(key, seen)], [Op::delete(key)])
}
