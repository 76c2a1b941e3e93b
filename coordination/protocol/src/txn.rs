//! The part of etcd v3 that the protocol needs, as plain data: keys with their revisions, compares, transactions,
//! events.
//!
//! Pure: decisions build these values, and the `Store` of `segue-coordination` carries them out. Their semantics are
//! exactly etcd's, because every guard of the protocol depends on it; `coordination/tests/store_conformance` checks
//! both stores.

use serde::{Deserialize, Serialize};

use crate::ids::{LeaseId, Revision};

/// A key with its value and the revisions that identify this life of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyValue {
    /// The full key, prefix included.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// The revision that created the key. A key that is deleted and put again has a new one: it is another life.
    pub create_revision: Revision,
    /// The revision of the last put.
    pub mod_revision: Revision,
    /// The lease that the key is attached to.
    pub lease: Option<LeaseId>,
}

/// The keys of an operation or a compare.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Keys {
    /// Exactly this key.
    One(String),
    /// Every key that starts with this.
    Prefix(String),
    /// Every key from the first one up to, but not including, the second one.
    Between(String, String),
}

impl Keys {
    /// Returns whether `key` is one of them.
    pub fn contains(&self, key: &str) -> bool {
        match self {
            Keys::One(one) => one == key,
            Keys::Prefix(prefix) => key.starts_with(prefix.as_str()),
            Keys::Between(from, to) => from.as_str() <= key && key < to.as_str(),
        }
    }
}

/// The relation that a compare requires between a key's field and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Relation {
    /// The field equals the value.
    Equal,
    /// The field differs from the value.
    NotEqual,
    /// The field is smaller.
    Less,
    /// The field is larger.
    Greater,
}

impl Relation {
    fn holds<T: Ord + ?Sized>(self, actual: &T, compared: &T) -> bool {
        match self {
            Relation::Equal => actual == compared,
            Relation::NotEqual => actual != compared,
            Relation::Less => actual < compared,
            Relation::Greater => actual > compared,
        }
    }
}

/// The field that is compared, with the value to compare it to. An absent key has revision 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Field {
    /// The value. For an absent key the compare fails.
    Value(Vec<u8>),
    /// The revision that created the key.
    CreateRevision(Revision),
    /// The revision of the last put.
    ModRevision(Revision),
    /// The lease that the key is attached to. An absent key and one without a lease have none.
    Lease(LeaseId),
}

/// One guard of a transaction. Over several keys it must hold for each that exists. If none does, it is evaluated for
/// an absent key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Compare {
    /// The keys.
    pub keys: Keys,
    /// The field of each key.
    pub field: Field,
    /// The required relation.
    pub relation: Relation,
}

impl Compare {
    /// Requires that the key was created at exactly this revision, so that it is this very life of it. 0 requires that
    /// it is absent.
    pub fn created_at(key: impl Into<String>, revision: Revision) -> Self {
        Compare { keys: Keys::One(key.into()), field: Field::CreateRevision(revision), relation: Relation::Equal }
    }

    /// Requires that the key was not created at this revision: that life of it is over, or never began.
    pub fn not_created_at(key: impl Into<String>, revision: Revision) -> Self {
        Compare { keys: Keys::One(key.into()), field: Field::CreateRevision(revision), relation: Relation::NotEqual }
    }

    /// Requires that the key was last put at exactly this revision. 0 requires that it is absent.
    pub fn unchanged_since(key: impl Into<String>, revision: Revision) -> Self {
        Compare { keys: Keys::One(key.into()), field: Field::ModRevision(revision), relation: Relation::Equal }
    }

    /// Requires that the key has no lease, or is absent.
    pub fn without_lease(key: impl Into<String>) -> Self {
        Compare { keys: Keys::One(key.into()), field: Field::Lease(LeaseId::NONE), relation: Relation::Equal }
    }

    /// Requires that the key is attached to this lease.
    pub fn leased(key: impl Into<String>, lease: LeaseId) -> Self {
        Compare { keys: Keys::One(key.into()), field: Field::Lease(lease), relation: Relation::Equal }
    }

    /// Requires that no key below `prefix` was created after `revision`.
    pub fn none_created_after(prefix: impl Into<String>, revision: Revision) -> Self {
        Compare {
            keys: Keys::Prefix(prefix.into()),
            field: Field::CreateRevision(revision.next()),
            relation: Relation::Less,
        }
    }

    /// Returns whether it holds for one of its keys as it stands, or for an absent one.
    pub fn holds_for(&self, entry: Option<&KeyValue>) -> bool {
        let revision = |of: fn(&KeyValue) -> Revision| entry.map_or(Revision::ZERO, of);
        match &self.field {
            // An absent value is not an empty one; no compare of it holds, not even "not equal".
            Field::Value(value) => entry.is_some_and(|entry| self.relation.holds(&entry.value, value)),
            Field::CreateRevision(to) => self.relation.holds(&revision(|entry| entry.create_revision), to),
            Field::ModRevision(to) => self.relation.holds(&revision(|entry| entry.mod_revision), to),
            Field::Lease(to) => {
                let lease = entry.and_then(|entry| entry.lease).unwrap_or(LeaseId::NONE);
                self.relation.holds(&lease, to)
            }
        }
    }
}

/// One write of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    /// Puts a value. A key with a lease is deleted when the lease ends.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The lease to attach it to. `None` detaches an existing key from its lease, as etcd does.
        lease: Option<LeaseId>,
    },
    /// Deletes keys. Absent keys are no error.
    Delete(Keys),
}

impl Op {
    /// Puts a value without a lease.
    pub fn put(key: impl Into<String>, value: Vec<u8>) -> Self {
        Op::Put { key: key.into(), value, lease: None }
    }

    /// Puts a value under a lease.
    pub fn put_leased(key: impl Into<String>, value: Vec<u8>, lease: LeaseId) -> Self {
        Op::Put { key: key.into(), value, lease: Some(lease) }
    }

    /// Deletes one key.
    pub fn delete(key: impl Into<String>) -> Self {
        Op::Delete(Keys::One(key.into()))
    }
}

/// Guards and writes that are applied at one revision or not at all. etcd refuses to write one key twice in one
/// transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Txn {
    /// The guards: all must hold for `then` to be applied.
    pub when: Vec<Compare>,
    /// The writes.
    pub then: Vec<Op>,
    /// The transaction to try at the same revision if a guard of `when` fails.
    pub otherwise: Option<Box<Txn>>,
}

impl Txn {
    /// Returns a transaction that writes if all guards hold, and nothing otherwise.
    pub fn guarded(when: impl Into<Vec<Compare>>, then: impl Into<Vec<Op>>) -> Self {
        Txn { when: when.into(), then: then.into(), otherwise: None }
    }

    /// Returns whether any branch puts a value. A store without space refuses such a transaction, and accepts others.
    pub fn puts(&self) -> bool {
        let puts = |op: &Op| matches!(op, Op::Put { .. });
        self.then.iter().any(puts) || self.otherwise.as_deref().is_some_and(Txn::puts)
    }

    /// Returns a transaction that asks whether the store accepts a write of this key, and never writes it: its guards
    /// contradict each other. A store without space, or whose user may not write the key, refuses it before it looks at the
    /// guards.
    pub fn question(key: &str) -> Self {
        Txn::guarded(
            [Compare::created_at(key, Revision::ZERO), Compare::not_created_at(key, Revision::ZERO)],
            [Op::put(key, Vec::new())],
        )
    }
}

/// The result of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TxnOutcome {
    /// The store's revision after the transaction.
    pub revision: Revision,
    /// The branch that was applied: 0 for `then`, 1 for the `then` of `otherwise`, and so on. `None` if each had a
    /// failing guard and nothing was written.
    pub branch: Option<usize>,
}

impl TxnOutcome {
    /// Returns whether a branch was applied.
    pub fn committed(&self) -> bool {
        self.branch.is_some()
    }
}

/// The content of a range at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The store's revision that the content belongs to. A watch continues from the next one.
    pub revision: Revision,
    /// The keys, in order.
    pub entries: Vec<KeyValue>,
}

/// One change that a watch reports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A key was put.
    Put(KeyValue),
    /// A key was deleted, by a request or with its lease.
    Delete {
        /// The key.
        key: String,
        /// The revision of the deletion.
        mod_revision: Revision,
    },
}

impl Event {
    /// Returns the revision of the change.
    pub fn mod_revision(&self) -> Revision {
        match self {
            Event::Put(KeyValue { mod_revision, .. }) | Event::Delete { mod_revision, .. } => *mod_revision,
        }
    }
}

/// The changes of one or more whole revisions, in order. A revision is never split over two batches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Batch {
    /// The last revision in this batch.
    pub revision: Revision,
    /// The changes.
    pub events: Vec<Event>,
}
