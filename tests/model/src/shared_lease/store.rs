//! The store: a pod's keys in two keyspaces, and the leases that they are attached to. A transaction means what it means in
//! etcd.

use std::collections::BTreeMap;

use segue_protocol::ids::{Incarnation, LeaseId, Revision};
use segue_protocol::txn::{Compare, KeyValue, Keys, Op, Txn};

use super::TTL;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Store {
    entries: BTreeMap<String, KeyValue>,
    /// When each lease may end.
    leases: BTreeMap<LeaseId, u64>,
    revision: Revision,
    granted: i64,
    /// The store does not respond. Leases do not end meanwhile.
    pub(super) is_away: bool,
}

/// The response to a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Response {
    Committed(Incarnation),
    Refused,
    LeaseNotFound,
}

impl Store {
    pub(super) fn get(&self, key: &str) -> Option<&KeyValue> {
        self.entries.get(key)
    }

    pub(super) fn life(&self, key: &str) -> Incarnation {
        self.get(key).map_or(Incarnation::NONE, |entry| Incarnation::registered_at(entry.create_revision))
    }

    pub(super) fn has(&self, lease: LeaseId) -> bool {
        self.leases.contains_key(&lease)
    }

    pub(super) fn grant(&mut self, now: u64) -> LeaseId {
        self.granted += 1;
        let id = LeaseId::new(self.granted);
        self.leases.insert(id, now + TTL);
        id
    }

    /// Returns whether there is such a lease.
    pub(super) fn renew(&mut self, lease: LeaseId, now: u64) -> bool {
        self.leases.get_mut(&lease).map(|ends| *ends = now + TTL).is_some()
    }

    /// Returns the leases that may have ended by now.
    pub(super) fn overdue(&self, now: u64) -> Vec<LeaseId> {
        self.leases.iter().filter(|(_, ends)| **ends <= now).map(|(id, _)| *id).collect()
    }

    pub(super) fn end(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
        self.entries.retain(|_, entry| entry.lease != Some(lease));
    }

    /// Responds again, and extends all leases.
    pub(super) fn returns(&mut self, now: u64) {
        self.is_away = false;
        self.leases.values_mut().for_each(|ends| *ends = now + TTL);
    }

    pub(super) fn commit(&mut self, txn: &Txn) -> Response {
        let holds = |compare: &Compare| match &compare.keys {
            Keys::One(key) => compare.holds_for(self.entries.get(key)),
            _ => unreachable!("a participant compares single keys"),
        };
        if !txn.when.iter().all(holds) {
            return txn.otherwise.as_ref().map_or(Response::Refused, |other| self.commit(other));
        }
        let lease_of = |op: &Op| if let Op::Put { lease, .. } = op { *lease } else { None };
        if txn.then.iter().filter_map(lease_of).any(|lease| !self.has(lease)) {
            return Response::LeaseNotFound;
        }
        self.revision = self.revision.next();
        for op in &txn.then {
            match op {
                Op::Put { key, lease, .. } => {
                    let (create_revision, mod_revision) = (self.revision, self.revision);
                    let (key, value, lease) = (key.clone(), Vec::new(), *lease);
                    let entry = KeyValue { key: key.clone(), value, create_revision, mod_revision, lease };
                    self.entries.insert(key, entry);
                }
                Op::Delete(keys) => self.entries.retain(|key, _| !keys.contains(key)),
            }
        }
        Response::Committed(Incarnation::registered_at(self.revision))
    }
}
