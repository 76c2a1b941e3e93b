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
use segue_protocol::keys::{KeyName, Keyspace, RoundsKey};
use segue_protocol::records::{
    Assignment, Checkpoint, Handoff, PodAck, Round, RouterCutoverAck, RouterDrainedAck, encode,
};
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
    /// The same without the acknowledgements of routers, if there are any: routers and pods do not follow them.
    followed: Option<View>,
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
    /// When a partition's last handoff ended is kept.
    keeps_ends: bool,
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
            keeps_ends: false,
        }
    }

    /// Keeps when a partition's last handoff ended. Decisions that are not slow see that anyway.
    pub(crate) fn keeping_ends(self, keeps_ends: bool) -> Self {
        Store { keeps_ends, ..self }
    }

    /// Returns an empty store.
    pub(crate) fn empty(&self) -> StoreRef {
        self.intern(Revision::new(1), BTreeMap::new())
    }

    pub(crate) fn get(&self, at: StoreRef) -> &Content {
        &self.contents[at.id as usize]
    }

    pub(crate) fn has(&self, at: StoreRef, key: &str) -> bool {
        self.get(at).entries.contains_key(key)
    }

    /// Whether the key stands without a lease.
    pub(crate) fn is_leaseless(&self, at: StoreRef, key: &str) -> bool {
        self.get(at).entries.get(key).is_some_and(|entry| entry.lease.is_none())
    }

    pub(crate) fn view(&self, at: StoreRef) -> &View {
        &self.get(at).view
    }

    /// The view of routers and pods.
    pub(crate) fn followed(&self, at: StoreRef) -> &View {
        let content = self.get(at);
        content.followed.as_ref().unwrap_or(&content.view)
    }

    pub(crate) fn txn(&self, mut txn: Txn) -> TxnRef {
        self.strike_history(&mut txn);
        let hash = hash_of(&txn);
        let id = *self.known_txns.entry(hash).or_insert_with(|| self.txns.push(txn.clone()) as u32);
        debug_assert_eq!(self.txns[id as usize], txn, "two transactions of one hash");
        TxnRef { id, hash }
    }

    /// Takes the history out of a transaction: of it only matters when the last entry was made.
    fn strike_history(&self, txn: &mut Txn) {
        let history = self.keys.history();
        txn.then.retain_mut(|op| match op {
            Op::Put { key, value, .. } if history.contains(key) => {
                if let Some((partition, _)) = self.keys.parse_history_entry(key) {
                    *key = self.keys.history_entry(partition, HandoffId::NONE);
                }
                value.clear();
                self.keeps_ends
            }
            _ => true,
        });
        txn.otherwise.iter_mut().for_each(|otherwise| self.strike_history(otherwise));
    }

    /// Whether it shows when a handoff ended.
    pub(crate) fn shows_ends(&self, at: StoreRef) -> bool {
        let history = self.keys.history();
        self.keeps_ends && self.get(at).entries.keys().any(|key| history.contains(key))
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
            Some(KeyName::Router(_) | KeyName::Rounds(RoundsKey::Participant(_))) => (true, false),
            Some(KeyName::Config | KeyName::Wanted | KeyName::Assignment(_) | KeyName::Checkpoint(_)) => (false, true),
            // A new revision is a new heartbeat.
            Some(KeyName::Load(_)) => (false, true),
            // The heartbeat's is in no guard, and in views.
            Some(KeyName::Rounds(RoundsKey::Current | RoundsKey::Gathering | RoundsKey::Heartbeat)) => (false, true),
            Some(KeyName::Leader | KeyName::Pod(_) | KeyName::Handoff(_)) => (true, true),
            _ => (self.keys.history().contains(key), false),
        }
    }

    fn assert_asked(&self, compare: &Compare) {
        let (created, modified) = match &compare.keys {
            Keys::One(key) => self.asked(key),
            Keys::Prefix(prefix) => (*prefix == self.keys.routers() || self.keys.history().contains(prefix), false),
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
                    let before = entries.get(key).filter(|_| !self.keys.history().contains(key));
                    let create_revision = before.map_or(revision, |entry| entry.create_revision);
                    let (key, value) = (key.clone(), value.clone());
                    let mut entry = KeyValue { key, value, create_revision, mod_revision: revision, lease: *lease };
                    self.forget_unasked(&mut entry);
                    // A view takes no event for new that is not newer than itself.
                    events.push(Event::Put(KeyValue { mod_revision: revision, ..entry.clone() }));
                    entries.insert(entry.key.clone(), entry);
                }
                Op::Delete(keys) => {
                    let doomed: Vec<String> = entries.keys().filter(|key| keys.contains(key)).cloned().collect();
                    for key in doomed {
                        entries.remove(&key);
                        events.push(Event::Delete { key, mod_revision: revision });
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
        // A decision that is made from now on sees these ends, and with a slow one nothing is numbered anew.
        let history = self.keys.history();
        let entries = content.entries.iter().filter(|(key, _)| !history.contains(key)).map(renumber).collect();
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
            KeyName::Rounds(RoundsKey::Current) => {
                let record = view.rounds.current.as_ref()?.value.clone();
                let lives = record.participants.iter().map(|(name, of)| (name.clone(), life(*of)));
                encode(&Round { participants: lives.collect(), ..record })
            }
            KeyName::Checkpoint(partition) => {
                let record = view.checkpoints.get(&partition)?.value.clone();
                let (epoch, handoff) = (numbers.of_epoch(record.epoch), handoff(record.handoff));
                encode(&Checkpoint { epoch, handoff, ..record })
            }
            // The model has no operator, and where pods send heartbeats nothing is numbered anew.
            KeyName::Rounds(_)
            | KeyName::Load(_)
            | KeyName::Drain(_)
            | KeyName::Pin(_)
            | KeyName::Pause
            | KeyName::Operation(_) => {
                return None;
            }
        })
    }

    /// Takes the revisions out of an entry that nobody compares.
    fn forget_unasked(&self, entry: &mut KeyValue) {
        let (asks_created, asks_modified) = self.asked(&entry.key);
        entry.create_revision = if asks_created { entry.create_revision } else { Revision::ZERO };
        entry.mod_revision = if asks_modified { entry.mod_revision } else { Revision::ZERO };
    }

    /// Interns a content, without what no participant reads of it.
    fn intern(&self, revision: Revision, mut entries: BTreeMap<String, KeyValue>) -> StoreRef {
        entries.values_mut().for_each(|entry| self.forget_unasked(entry));
        let snapshot = Snapshot { revision, entries: entries.values().cloned().collect() };
        let view = as_asked(View::from_snapshot(self.keys.clone(), snapshot));
        for (partition, handoff) in &view.handoffs {
            let key = self.keys.handoff(*partition);
            entries.entry(key).and_modify(|entry| entry.value = encode(&handoff.value));
        }
        if let Some(current) = &view.rounds.current {
            entries.entry(self.keys.round()).and_modify(|entry| entry.value = encode(&current.value));
        }
        if let Some(gathering) = &view.rounds.gathering {
            entries.entry(self.keys.gathering()).and_modify(|entry| entry.value = encode(&gathering.value));
        }
        for (partition, checkpoint) in &view.checkpoints {
            let key = self.keys.checkpoint(*partition);
            entries.entry(key).and_modify(|entry| entry.value = encode(&checkpoint.value));
        }
        let hash = hash_of(&(&entries, view.revision));
        let created = |key: &String| entries.get(key).map_or(Revision::ZERO, |entry| entry.create_revision);
        let lives = self.leases.iter().map(created).collect();
        let mut known = Vec::new();
        identities(&view, |id| known.push(id));
        known.extend(entries.get(&self.keys.round_heartbeat()).map(|entry| entry.mod_revision));
        let mut announced = Vec::new();
        epochs(&view, |epoch| announced.push(epoch));
        let apart = self.keys.router_acks();
        let followed = entries.keys().any(|key| apart.contains(key)).then(|| {
            let entries = entries.values().filter(|entry| !apart.contains(&entry.key)).cloned().collect();
            as_asked(View::from_snapshot(self.keys.clone(), Snapshot { revision, entries }))
        });
        let content = Content { entries, view, followed, lives, identities: known, epochs: announced };
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
    view.routers.values_mut().for_each(|router| router.mod_revision = Revision::ZERO);
    view.rounds.participants.values_mut().for_each(|it| it.mod_revision = Revision::ZERO);
    view.rounds.current.iter_mut().for_each(|current| current.value.closed_by.clear());
    view.rounds.gathering.iter_mut().for_each(|gathering| gathering.value.opened_by.clear());
    for handoff in view.handoffs.values_mut() {
        handoff.value.reason.clear();
        handoff.value.cause.clear();
        handoff.value.past.clear();
    }
    // A new owner asks whether it was made for its own handoff.
    for (partition, checkpoint) in &mut view.checkpoints {
        let present = view.handoffs.get(partition).map(|handoff| handoff.id());
        checkpoint.value.handoff = present.filter(|it| *it == checkpoint.value.handoff).unwrap_or(HandoffId::NONE);
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
