//! The store of the model: etcd's transactions over a handful of keys.
//!
//! Contents and transactions are interned: a state of the model is a few numbers, and committing one transaction to one
//! content is computed once, however many states do it. Nothing is decided here.
//!
//! # Invariants
//!
//! * A transaction means what it means in etcd.
//! * A view is always that of one revision.
//! * Applying the changes of a commit to a view gives what a fresh snapshot gives. This is asserted for every content.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use dashmap::{DashMap, Entry};
use rustc_hash::FxBuildHasher;
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, Revision};
use segue_protocol::keys::{KeyName, Keyspace};
use segue_protocol::records::{Assignment, Handoff, PodAck, RouterCutoverAck, RouterDrainedAck, encode};
use segue_protocol::txn::{Batch, Compare, Event, Field, KeyValue, Keys, Op, Snapshot, Txn};
use segue_protocol::view::View;

use crate::canonical::{Numbers, epochs, identities};

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
    /// The revisions by which something in it is known.
    pub(crate) identities: Vec<Revision>,
    /// The epochs in it.
    pub(crate) epochs: Vec<Epoch>,
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

    /// Returns an empty store.
    pub(crate) fn empty(&self) -> StoreRef {
        self.intern(Revision::new(1), BTreeMap::new())
    }

    pub(crate) fn get(&self, at: StoreRef) -> &Content {
        &self.contents[at.id as usize]
    }

    /// Whether the key stands without a lease.
    pub(crate) fn is_leaseless(&self, at: StoreRef, key: &str) -> bool {
        self.get(at).entries.get(key).is_some_and(|entry| entry.lease.is_none())
    }

    pub(crate) fn view(&self, at: StoreRef) -> &View {
        &self.get(at).view
    }

    pub(crate) fn txn(&self, mut txn: Txn) -> TxnRef {
        self.strike_history(&mut txn);
        let hash = hash_of(&txn);
        let id = *self.known_txns.entry(hash).or_insert_with(|| self.txns.push(txn.clone()) as u32);
        debug_assert_eq!(self.txns[id as usize], txn, "two transactions of one hash");
        TxnRef { id, hash }
    }

    /// Takes the history out of a transaction: nobody decides by it.
    fn strike_history(&self, txn: &mut Txn) {
        let history = self.keys.history();
        txn.then.retain(|op| !matches!(op, Op::Put { key, .. } if history.contains(key)));
        txn.otherwise.iter_mut().for_each(|otherwise| self.strike_history(otherwise));
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
            candidate.when.iter().for_each(|compare| self.assert_asked(compare));
            if candidate.when.iter().all(|compare| holds(content, compare)) {
                return self.apply(content, &candidate.then);
            }
            branch = candidate.otherwise.as_deref();
        }
        None
    }

    /// Whether anybody asks when a key was created, and when it was last put.
    fn asked(&self, key: &str) -> (bool, bool) {
        match self.keys.parse(key) {
            Some(KeyName::Leader | KeyName::Router(_)) => (true, false),
            Some(KeyName::Config | KeyName::Wanted | KeyName::Assignment(_)) => (false, true),
            Some(KeyName::Pod(_) | KeyName::Handoff(_)) => (true, true),
            _ => (false, false),
        }
    }

    fn assert_asked(&self, compare: &Compare) {
        let (created, modified) = match &compare.keys {
            Keys::One(key) => self.asked(key),
            Keys::Prefix(prefix) => (*prefix == self.keys.routers(), false),
            Keys::Between(..) => (false, false),
        };
        let is_kept = match compare.field {
            Field::Value(_) => true,
            Field::CreateRevision(_) => created,
            Field::ModRevision(_) => modified,
            Field::Lease(_) => true,
        };
        assert!(is_kept, "{compare:?} asks for a revision that the model does not keep");
    }

    fn apply(&self, content: &Content, ops: &[Op]) -> Option<StoreRef> {
        let revision = content.revision().next();
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
        let mut moved_on = content.view.clone();
        moved_on.apply(Batch { revision, events });
        let at = self.intern(revision, entries);
        assert_eq!(as_asked(moved_on), *self.view(at), "a view that moves on by a watch is what a snapshot shows");
        Some(at)
    }

    /// The same content with its revisions numbered anew.
    pub(crate) fn renumber(&self, at: StoreRef, numbers: &Numbers) -> StoreRef {
        let content = self.get(at);
        let of = |revision: Revision| numbers.of(revision);
        let renumber = |(key, entry): (&String, &KeyValue)| {
            let value = self.renumbered_value(content, key, numbers).unwrap_or_else(|| entry.value.clone());
            let (create_revision, mod_revision) = (of(entry.create_revision), of(entry.mod_revision));
            (key.clone(), KeyValue { value, create_revision, mod_revision, ..entry.clone() })
        };
        let entries = content.entries.iter().map(renumber).collect();
        self.intern(numbers.of_view(content.revision()), entries)
    }

    fn renumbered_value(&self, content: &Content, key: &str, numbers: &Numbers) -> Option<Vec<u8>> {
        let life = |of: Incarnation| Incarnation::registered_at(numbers.of(of.revision()));
        let handoff = |of: HandoffId| HandoffId::created_at(numbers.of(of.revision()));
        let (view, name) = (&content.view, self.keys.parse(key)?);
        let acks = |partition| view.acks.get(&partition);
        Some(match name {
            KeyName::Assignment(partition) => {
                let record = view.assignments.get(&partition)?.value.clone();
                let (incarnation, epoch) = (life(record.incarnation), numbers.of_epoch(record.epoch));
                encode(&Assignment { incarnation, epoch, ..record })
            }
            KeyName::Handoff(partition) => {
                let record = view.handoffs.get(&partition)?.value.clone();
                let (old_incarnation, new_incarnation) = (life(record.old_incarnation), life(record.new_incarnation));
                let epoch = numbers.of_epoch(record.epoch);
                encode(&Handoff { old_incarnation, new_incarnation, epoch, ..record })
            }
            KeyName::RouterDrained(partition, router) => {
                let ack = acks(partition)?.drained.get(&router)?.clone();
                encode(&RouterDrainedAck { handoff: handoff(ack.handoff), ..ack })
            }
            KeyName::RouterCutover(partition, router) => {
                let ack = acks(partition)?.cutover.get(&router)?.clone();
                encode(&RouterCutoverAck { handoff: handoff(ack.handoff), ..ack })
            }
            KeyName::PodAck(partition, pod, kind) => {
                let ack = acks(partition)?.pods.get(&(pod, kind))?.clone();
                encode(&PodAck { handoff: handoff(ack.handoff), ..ack })
            }
            KeyName::Config | KeyName::Leader | KeyName::Wanted | KeyName::Pod(_) | KeyName::Router(_) => return None,
            // The model has no operator, and its pods send no heartbeats.
            KeyName::Load(_) | KeyName::Drain(_) | KeyName::Pin(_) | KeyName::Pause | KeyName::Operation(_) => {
                return None;
            }
        })
    }

    /// Interns a content, without what no participant reads of it.
    fn intern(&self, revision: Revision, mut entries: BTreeMap<String, KeyValue>) -> StoreRef {
        for (key, entry) in &mut entries {
            let (asks_created, asks_modified) = self.asked(key);
            entry.create_revision = if asks_created { entry.create_revision } else { Revision::ZERO };
            entry.mod_revision = if asks_modified { entry.mod_revision } else { Revision::ZERO };
        }
        let snapshot = Snapshot { revision, entries: entries.values().cloned().collect() };
        let view = as_asked(View::from_snapshot(self.keys.clone(), snapshot));
        for (partition, handoff) in &view.handoffs {
            let key = self.keys.handoff(*partition);
            entries.entry(key).and_modify(|entry| entry.value = encode(&handoff.value));
        }
        let hash = hash_of(&(&entries, view.revision));
        let created = |key: &String| entries.get(key).map_or(Revision::ZERO, |entry| entry.create_revision);
        let lives = self.leases.iter().map(created).collect();
        let mut known = Vec::new();
        identities(&view, |id| known.push(id));
        let mut announced = Vec::new();
        epochs(&view, |epoch| announced.push(epoch));
        let content = Content { entries, view, lives, identities: known, epochs: announced };
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

/// Returns a view without revisions that are never compared and without text for people.
fn as_asked(mut view: View) -> View {
    view.config.iter_mut().for_each(|config| config.create_revision = Revision::ZERO);
    view.leader.iter_mut().for_each(|leader| leader.mod_revision = Revision::ZERO);
    view.routers.values_mut().for_each(|router| router.mod_revision = Revision::ZERO);
    view.assignments.values_mut().for_each(|assignment| assignment.create_revision = Revision::ZERO);
    for handoff in view.handoffs.values_mut() {
        handoff.value.reason.clear();
        handoff.value.cause.clear();
        handoff.value.past.clear();
    }
    view
}

impl StoreRef {
    /// A number of this search's own, for memory of what was computed from it.
    pub(crate) fn id(self) -> u32 {
        self.id
    }
}

fn holds(content: &Content, compare: &Compare) -> bool {
    match &compare.keys {
        Keys::One(key) => compare.holds_for(content.entries.get(key)),
        Keys::Between(..) => unreachable!("no decision compares a range"),
        Keys::Prefix(prefix) => {
            let mut below = content.entries.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(prefix));
            match below.next() {
                None => compare.holds_for(None),
                Some((_, first)) => {
                    compare.holds_for(Some(first)) && below.all(|(_, entry)| compare.holds_for(Some(entry)))
                }
            }
        }
    }
}
