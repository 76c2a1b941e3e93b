//! The store of the model: etcd's transactions over a handful of keys, every content kept once and named by a number.
//!
//! The environment's part: nothing is decided here. Contents and transactions are interned, so that a state of the model
//! is a few numbers, and committing one transaction to one content is computed once however many states do it. What
//! must stay true: a transaction means what it means in etcd; a view is always that of one revision, and moving a view on
//! by the changes of a commit gives what a fresh snapshot gives (asserted for every content that is ever made).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use dashmap::{DashMap, Entry};
use rustc_hash::FxBuildHasher;
use segue_coordination::protocol::view::View;
use segue_coordination::store::data::{
    Batch, Compare, Event, Field, KeyValue, Keys, Op, Relation, Revision, Snapshot, Txn,
};
use segue_coordination::store::keys::Keyspace;

/// A content of the store at one revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreRef {
    id: u32,
    /// Of the content, so that a state's hash does not depend on the order in which contents were found.
    hash: u64,
}

impl Hash for StoreRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// A transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TxnRef {
    id: u32,
    hash: u64,
}

impl Hash for TxnRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// What a reference to the store stands for.
#[derive(Debug)]
pub(crate) struct Content {
    entries: BTreeMap<String, KeyValue>,
    pub(crate) view: View,
    /// Which life of each key that is asked for often stands; 0: none.
    pub(crate) lives: Vec<Revision>,
}

impl Content {
    fn revision(&self) -> Revision {
        self.view.revision
    }
}

/// All contents and transactions that a search has met.
pub(crate) struct Store {
    pub(crate) keys: Keyspace,
    /// The keys that are asked for often.
    leases: Vec<String>,
    contents: boxcar::Vec<Content>,
    known: DashMap<u64, u32, FxBuildHasher>,
    txns: boxcar::Vec<Txn>,
    known_txns: DashMap<u64, u32, FxBuildHasher>,
    commits: DashMap<(u32, u32), Option<StoreRef>, FxBuildHasher>,
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Store {
    pub(crate) fn new(keys: Keyspace, leases: Vec<String>) -> Self {
        Store {
            keys,
            leases,
            contents: boxcar::Vec::new(),
            known: DashMap::default(),
            txns: boxcar::Vec::new(),
            known_txns: DashMap::default(),
            commits: DashMap::default(),
        }
    }

    /// A store that nobody has written to.
    pub(crate) fn empty(&self) -> StoreRef {
        let view = View::from_snapshot(self.keys.clone(), Snapshot { revision: 1, entries: Vec::new() });
        self.intern(BTreeMap::new(), view)
    }

    pub(crate) fn get(&self, at: StoreRef) -> &Content {
        &self.contents[at.id as usize]
    }

    pub(crate) fn view(&self, at: StoreRef) -> &View {
        &self.get(at).view
    }

    pub(crate) fn txn(&self, txn: Txn) -> TxnRef {
        let hash = hash_of(&txn);
        let id = *self.known_txns.entry(hash).or_insert_with(|| self.txns.push(txn.clone()) as u32);
        debug_assert_eq!(self.txns[id as usize], txn, "two transactions of one hash");
        TxnRef { id, hash }
    }

    /// What the store holds after the transaction. `None`: it is refused, or changes nothing.
    pub(crate) fn commit(&self, at: StoreRef, txn: TxnRef) -> Option<StoreRef> {
        if let Some(known) = self.commits.get(&(at.id, txn.id)) {
            return *known;
        }
        let result = self.carry_out(self.get(at), &self.txns[txn.id as usize]);
        self.commits.insert((at.id, txn.id), result);
        result
    }

    fn carry_out(&self, content: &Content, txn: &Txn) -> Option<StoreRef> {
        let mut branch = Some(txn);
        while let Some(candidate) = branch {
            if candidate.when.iter().all(|compare| holds(content, compare)) {
                return self.apply(content, &candidate.then);
            }
            branch = candidate.otherwise.as_deref();
        }
        None
    }

    fn apply(&self, content: &Content, ops: &[Op]) -> Option<StoreRef> {
        let revision = content.revision() + 1;
        let mut entries = content.entries.clone();
        let mut events = Vec::new();
        for op in ops {
            match op {
                Op::Put { key, value, lease } => {
                    let create_revision = entries.get(key).map_or(revision, |entry| entry.create_revision);
                    let (key, value) = (key.clone(), value.clone());
                    let entry = KeyValue { key, value, create_revision, mod_revision: revision, lease: *lease };
                    events.push(Event::Put(entry.clone()));
                    entries.insert(entry.key.clone(), entry);
                }
                Op::Delete(keys) => {
                    let doomed: Vec<String> = entries.keys().filter(|key| keys.contains(key)).cloned().collect();
                    for key in doomed {
                        entries.remove(&key);
                        events.push(Event::Delete { key });
                    }
                }
            }
        }
        if events.is_empty() {
            return None;
        }
        let snapshot = Snapshot { revision, entries: entries.values().cloned().collect() };
        let view = View::from_snapshot(self.keys.clone(), snapshot);
        let mut moved_on = content.view.clone();
        moved_on.apply(Batch { revision, events });
        assert_eq!(moved_on, view, "a view that moves on by a watch is what a snapshot shows");
        Some(self.intern(entries, view))
    }

    fn intern(&self, entries: BTreeMap<String, KeyValue>, view: View) -> StoreRef {
        let hash = hash_of(&(&entries, view.revision));
        let created = |key: &String| entries.get(key).map_or(0, |entry| entry.create_revision);
        let lives = self.leases.iter().map(created).collect();
        let content = Content { entries, view, lives };
        let id = match self.known.entry(hash) {
            Entry::Occupied(known) => {
                let id = *known.get();
                assert_eq!(self.contents[id as usize].entries, content.entries, "two contents of one hash");
                id
            }
            Entry::Vacant(free) => *free.insert(self.contents.push(content) as u32),
        };
        StoreRef { id, hash }
    }
}

impl StoreRef {
    /// A number of this search's own, for memory of what was computed from it.
    pub(crate) fn id(self) -> u32 {
        self.id
    }
}

fn holds(content: &Content, compare: &Compare) -> bool {
    let related = |entry: Option<&KeyValue>| match &compare.field {
        Field::Value(value) => entry.is_some_and(|entry| relates(compare.relation, &entry.value, value)),
        Field::CreateRevision(revision) => {
            relates(compare.relation, &entry.map_or(0, |entry| entry.create_revision), revision)
        }
        Field::ModRevision(revision) => {
            relates(compare.relation, &entry.map_or(0, |entry| entry.mod_revision), revision)
        }
    };
    match &compare.keys {
        Keys::One(key) => related(content.entries.get(key)),
        Keys::Prefix(prefix) => {
            let mut below = content.entries.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(prefix));
            match below.next() {
                None => related(None),
                Some((_, first)) => related(Some(first)) && below.all(|(_, entry)| related(Some(entry))),
            }
        }
    }
}

fn relates<T: Ord + ?Sized>(relation: Relation, actual: &T, compared: &T) -> bool {
    match relation {
        Relation::Equal => actual == compared,
        Relation::NotEqual => actual != compared,
        Relation::Less => actual < compared,
        Relation::Greater => actual > compared,
    }
}
