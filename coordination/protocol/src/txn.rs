//! The part of etcd v3 that the protocol needs, as plain data: keys with their revisions, compares, transactions, events.
//!
//! Pure: decisions build these values, and the `Store` of `segue-coordination` carries them out. Their meaning is etcd's
//! own, to the letter, because every guard of the protocol leans on it; `coordination/tests/store_conformance` holds both
//! stores to it.

use serde::{Deserialize, Serialize};

use crate::ids::{LeaseId, Revision};

/// One key with its value and the revisions that identify this life of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyValue {
    /// The whole key, prefix included.
    pub key: String,
    /// What was put there.
    pub value: Vec<u8>,
    /// The revision that created the key. A key that was deleted and put again has a new one: it is another life.
    pub create_revision: Revision,
    /// The revision of the last put.
    pub mod_revision: Revision,
    /// The lease that the key goes with.
    pub lease: Option<LeaseId>,
}

/// Which keys an operation or a compare is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Keys {
    /// Exactly this key.
    One(String),
    /// Every key that starts with this.
    Prefix(String),
}

impl Keys {
    /// Whether `key` is one of them.
    pub fn contains(&self, key: &str) -> bool {
        match self {
            Keys::One(one) => one == key,
            Keys::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }
}

/// How a key's field must stand to the compared value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Relation {
    /// The same.
    Equal,
    /// Not the same.
    NotEqual,
    /// Smaller.
    Less,
    /// Larger.
    Greater,
}

/// The field of a key that is compared, with the value to compare it to. An absent key has revision 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Field {
    /// The value. Compared on an absent key it never holds.
    Value(Vec<u8>),
    /// The revision that created the key.
    CreateRevision(Revision),
    /// The revision of the last put.
    ModRevision(Revision),
    /// The lease that the key goes with; none if it goes with none, or is absent.
    Lease(LeaseId),
}

/// One guard of a transaction. Over a prefix it must hold for every key there; over no key at all it is held against
/// an absent key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Compare {
    /// The keys that are looked at.
    pub keys: Keys,
    /// What is looked at.
    pub field: Field,
    /// How it must stand.
    pub relation: Relation,
}

impl Compare {
    /// The key was created at exactly this revision: it is that very life of it. 0: the key is absent.
    pub fn created_at(key: impl Into<String>, revision: Revision) -> Self {
        Compare { keys: Keys::One(key.into()), field: Field::CreateRevision(revision), relation: Relation::Equal }
    }

    /// The key was not created at this revision: that life of it is over, or never was.
    pub fn not_created_at(key: impl Into<String>, revision: Revision) -> Self {
        Compare { keys: Keys::One(key.into()), field: Field::CreateRevision(revision), relation: Relation::NotEqual }
    }

    /// The key was last put at exactly this revision. 0: the key is absent.
    pub fn unchanged_since(key: impl Into<String>, revision: Revision) -> Self {
        Compare { keys: Keys::One(key.into()), field: Field::ModRevision(revision), relation: Relation::Equal }
    }

    /// The key goes with no lease, or is absent.
    pub fn without_lease(key: impl Into<String>) -> Self {
        Compare { keys: Keys::One(key.into()), field: Field::Lease(LeaseId::NONE), relation: Relation::Equal }
    }

    /// No key below `prefix` was created after `revision`.
    pub fn none_created_after(prefix: impl Into<String>, revision: Revision) -> Self {
        Compare {
            keys: Keys::Prefix(prefix.into()),
            field: Field::CreateRevision(revision.next()),
            relation: Relation::Less,
        }
    }
}

/// One write of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    /// Put a value; with a lease the key goes when the lease does.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The lease to attach it to. `None` detaches an existing key from its lease, as etcd does.
        lease: Option<LeaseId>,
    },
    /// Delete keys. Deleting what is absent is no error.
    Delete(Keys),
}

/// Guards and writes that happen at one revision or not at all. etcd refuses to write one key twice in one transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Txn {
    /// All must hold for `then` to be carried out.
    pub when: Vec<Compare>,
    /// The writes.
    pub then: Vec<Op>,
    /// Tried at the same revision when a guard of `when` fails.
    pub otherwise: Option<Box<Txn>>,
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TxnOutcome {
    /// The store's revision after it.
    pub revision: Revision,
    /// Which branch was carried out: 0 for `then`, 1 for the `then` of `otherwise`, and so on. `None`: a guard of each
    /// failed and nothing was written.
    pub branch: Option<usize>,
}

impl TxnOutcome {
    /// Whether anything was carried out.
    pub fn committed(&self) -> bool {
        self.branch.is_some()
    }
}

/// What a range held at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The store's revision that this is the state of. A watch goes on from the next one.
    pub revision: Revision,
    /// The keys, in order.
    pub entries: Vec<KeyValue>,
}

/// One change that a watch reports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A key was put.
    Put(KeyValue),
    /// A key was deleted or went with its lease.
    Delete {
        /// The key.
        key: String,
    },
}

/// The changes of one or more whole revisions, in order. A revision is never split over two batches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Batch {
    /// The last revision that this batch carries.
    pub revision: Revision,
    /// The changes.
    pub events: Vec<Event>,
}
