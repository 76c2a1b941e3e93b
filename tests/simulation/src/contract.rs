//! Checks after each write that the store keeps the protocol, which the transactions' guards are to ensure: the contract of
//! one step (`segue_contract`), and what needs to know more than two views.
//!
//! # Invariants
//!
//! * No function that decides for production is asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use segue_protocol::ids::{Epoch, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Handoff, Phase};
use segue_protocol::txn::{Batch, Event, Snapshot};
use segue_protocol::view::{Versioned, View};

use crate::causes::Causes;
use crate::trace::Trace;

/// The store as it is, and the epochs that it has had.
#[derive(Debug)]
pub(crate) struct Contract {
    trace: Arc<Trace>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    view: View,
    known: BTreeMap<String, Revision>,
    epochs: BTreeMap<PartitionId, Epoch>,
    /// The store has refused writes. A handoff may be cancelled without an entry in the history then.
    refuses: bool,
    /// The entries that the history lacks, each with the authority under which that has come about.
    missing: BTreeMap<PartitionId, (String, Revision)>,
    /// The epochs of the handoffs that came back when the store went back: those may flip again.
    again: BTreeMap<PartitionId, Epoch>,
    /// The store as it was when it went back last, and the revision that it went back to.
    lost: Option<(View, Revision)>,
    causes: Causes,
}

/// The author of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author<'a> {
    /// A coordinator of this name: it must lead.
    Coordinator(&'a str),
    /// A router or a pod.
    Other,
    /// An operator with etcdctl, who may write anything.
    Operator,
}

impl Contract {
    pub(crate) fn new(keys: Keyspace, causes: Causes, trace: Arc<Trace>) -> Self {
        let inner = Inner {
            view: View::empty(keys),
            known: BTreeMap::new(),
            epochs: BTreeMap::new(),
            refuses: false,
            missing: BTreeMap::new(),
            again: BTreeMap::new(),
            lost: None,
            causes,
        };
        Contract { trace, inner: Mutex::new(inner) }
    }

    /// Checks the store as it is now, after a write of `author` or none.
    pub(crate) fn look(&self, snapshot: Snapshot, author: Author<'_>) {
        let mut inner = self.lock();
        let Some(before) = self.apply(&mut inner, snapshot) else { return };
        if author != Author::Operator {
            self.check(&mut inner, &before, author);
        }
        let Inner { view, causes, .. } = &mut *inner;
        causes.look(&before, view, &self.trace);
        note_epochs(&mut inner);
    }

    /// Takes the store as it is now, after any number of writes. Of these, only the epochs are checked.
    pub(crate) fn follow(&self, snapshot: Snapshot) {
        let mut inner = self.lock();
        if self.apply(&mut inner, snapshot).is_none() {
            return;
        }
        for (partition, assignment) in &inner.view.assignments {
            let (epoch, known) = (assignment.value.epoch, inner.epochs.get(partition).copied().unwrap_or_default());
            if epoch < known {
                self.trace.violation("epochs_grow", format!("partition {partition} has epoch {epoch} after {known}"));
            }
        }
        note_epochs(&mut inner);
    }

    /// Takes the store as it is, after it has gone back. The epochs that it has had stay known.
    pub(crate) fn begin_anew(&self, snapshot: Snapshot) {
        let mut inner = self.lock();
        inner.known = snapshot.entries.iter().map(|entry| (entry.key.clone(), entry.mod_revision)).collect();
        let view = View::from_snapshot(inner.view.keys().clone(), snapshot);
        let back_to = view.revision;
        inner.lost = Some((std::mem::replace(&mut inner.view, view), back_to));
        inner.again = inner.view.handoffs.iter().map(|(partition, it)| (*partition, it.value.epoch)).collect();
        inner.missing.clear();
        inner.causes.begin_anew();
    }

    /// Applies what has changed. Returns the view before it, if anything has.
    fn apply(&self, inner: &mut Inner, snapshot: Snapshot) -> Option<View> {
        if snapshot.revision <= inner.view.revision {
            return None;
        }
        let mut events = Vec::new();
        let mut known = BTreeMap::new();
        for entry in snapshot.entries {
            known.insert(entry.key.clone(), entry.mod_revision);
            if inner.known.get(&entry.key) != Some(&entry.mod_revision) {
                self.trace.event(format_args!("{} put at {}", entry.key, entry.mod_revision));
                events.push(Event::Put(entry));
            }
        }
        let gone: Vec<String> = inner.known.keys().filter(|key| !known.contains_key(*key)).cloned().collect();
        for key in gone {
            self.trace.event(format_args!("{key} deleted"));
            events.push(Event::Delete { key, mod_revision: snapshot.revision });
        }
        inner.known = known;
        let before = inner.view.clone();
        inner.view.apply(Batch { revision: snapshot.revision, events });
        Some(before)
    }

    /// Takes note that the store refuses writes from now on, or has done so.
    pub(crate) fn writes_are_refused(&self) {
        self.lock().refuses = true;
    }

    /// Calls `ask` with the view of the store.
    pub(crate) fn with_view<T>(&self, ask: impl FnOnce(&View) -> T) -> T {
        ask(&self.lock().view)
    }

    /// The newest epoch of each partition that had an owner.
    pub(crate) fn epochs(&self) -> BTreeMap<PartitionId, Epoch> {
        self.lock().epochs.clone()
    }

    fn check(&self, inner: &mut Inner, before: &View, author: Author<'_>) {
        let after = &inner.view;
        if let Author::Coordinator(name) = author
            && before.leader.as_ref().or(after.leader.as_ref()).is_none_or(|leader| leader.value.holder != name)
            && !acts(before, after, name)
        {
            self.trace.violation("single_leader", format!("{name} writes and has no authority"));
        }
        let round = |view: &View| view.rounds.current.as_ref().map(|round| round.mod_revision);
        if round(after) > round(before) {
            self.trace.seen("an assignment round closed");
        }
        let breaches = match &inner.lost {
            Some((lost, back_to)) => {
                let [before, after] = [before, after].map(|view| with_what_was_lost(view, lost, *back_to));
                segue_contract::breaches(&before, &after)
            }
            None => segue_contract::breaches(before, after),
        };
        for breach in breaches {
            self.trace.violation(breach.rule, breach.what);
        }
        for (partition, assignment) in &after.assignments {
            let was = before.assignments.get(partition);
            if was.is_some_and(|was| was.mod_revision == assignment.mod_revision) {
                continue;
            }
            let (epoch, known) = (assignment.value.epoch, inner.epochs.get(partition).copied().unwrap_or_default());
            let flips_again = epoch == known && inner.again.get(partition) == Some(&epoch);
            if epoch <= known && !flips_again {
                self.trace
                    .violation("epochs_grow", format!("partition {partition} is assigned epoch {epoch} after {known}"));
            }
        }
        for (partition, handoff) in &before.handoffs {
            match after.handoffs.get(partition) {
                Some(now) => self.note_phase(handoff.value.phase, now.value.phase),
                None => {
                    self.note_end(&handoff.value, after);
                    let entry = after.keys().history_entry(*partition, handoff.id());
                    let may_lack = inner.refuses && handoff.value.phase < Phase::Switching;
                    match inner.known.contains_key(&entry) {
                        true => {}
                        false if may_lack => {
                            self.trace.seen("a handoff was cancelled without an entry in the history");
                            inner.missing.insert(*partition, (entry, authority(after)));
                        }
                        false => {
                            self.trace
                                .violation("history", format!("a handoff of partition {partition} left no {entry}"));
                        }
                    }
                }
            }
        }
        for partition in after.handoffs.keys().filter(|partition| !before.handoffs.contains_key(partition)) {
            let missing = inner.missing.remove(partition);
            let is_missing = |(entry, _): &(String, Revision)| !inner.known.contains_key(entry);
            if let Some((entry, _)) = missing.filter(is_missing).filter(|(_, under)| *under == authority(after)) {
                let early = format!("a handoff of partition {partition} began before {entry} was put");
                self.trace.violation("history", early);
            }
        }
    }

    fn note_phase(&self, from: Phase, to: Phase) {
        if from == to {
            return;
        }
        self.trace.seen(match to {
            Phase::Warming | Phase::Ready => "a new owner got warm",
            Phase::Syncing => "routers drained",
            Phase::Switching => "a partition was switched",
            Phase::Complete => "a handoff completed",
        });
    }

    fn note_end(&self, record: &Handoff, after: &View) {
        let owns = after.assignments.get(&record.partition).is_some_and(|at| at.value.epoch == record.epoch);
        self.trace.seen(match record.phase {
            Phase::Complete => return,
            _ if segue_contract::may_have_served(record) && after.live_new_owner(record).is_none() => {
                "a new owner died after it had taken over"
            }
            Phase::Switching => "a handoff completed",
            _ if owns && record.old_owner.is_none() => "a partition got its first owner",
            _ => "a handoff was cancelled",
        });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The revision that the present authority began with: that of the leader, or of the round.
fn authority(view: &View) -> Revision {
    let leader = view.leader.as_ref().map(|leader| leader.create_revision);
    leader.or(view.rounds.current.as_ref().map(|round| round.mod_revision)).unwrap_or(Revision::ZERO)
}

/// Returns the view without the routers whose lives had ended when the store went back to this revision, and with the acks that
/// went with it, for handoffs and lives that have come back. What is over or done stays so, and a transaction that relies on it
/// may be under way.
fn with_what_was_lost(view: &View, lost: &View, back_to: Revision) -> View {
    let mut view = view.clone();
    let is_over = |name: &String, life: Revision| {
        life <= back_to && lost.routers.get(name).is_none_or(|it| it.create_revision != life)
    };
    view.routers.retain(|name, router| !is_over(name, router.create_revision));
    for (partition, lost_acks) in &lost.acks {
        let Some(id) = view.handoffs.get(partition).map(Versioned::id) else { continue };
        let life = |view: &View, who: &str| {
            let router = view.routers.get(who).map(|it| it.create_revision);
            router.or_else(|| view.pods.get(who).map(|it| it.create_revision))
        };
        let stands =
            |who: &str, handoff| handoff == id && life(&view, who).is_some_and(|now| life(lost, who) == Some(now));
        let mut acks = view.acks.get(partition).cloned().unwrap_or_default();
        add(&mut acks.drained, &lost_acks.drained, |router, ack| stands(router, ack.handoff));
        add(&mut acks.cutover, &lost_acks.cutover, |router, ack| stands(router, ack.handoff));
        add(&mut acks.pods, &lost_acks.pods, |(pod, _), ack| stands(pod, ack.handoff));
        view.acks.insert(*partition, acks);
    }
    view
}

fn add<K: Ord + Clone, A: Clone>(acks: &mut BTreeMap<K, A>, lost: &BTreeMap<K, A>, stands: impl Fn(&K, &A) -> bool) {
    for (who, ack) in lost.iter().filter(|(who, ack)| stands(who, ack)) {
        acks.entry(who.clone()).or_insert_with(|| ack.clone());
    }
}

/// Notes the newest epoch of each partition.
fn note_epochs(inner: &mut Inner) {
    let Inner { view, epochs, .. } = inner;
    for (partition, assignment) in &view.assignments {
        let epoch = epochs.entry(*partition).or_default();
        *epoch = assignment.value.epoch.max(*epoch);
    }
}

/// A participant of the assignment round has written, and acts for all partitions that have changed.
fn acts(before: &View, after: &View, name: &str) -> bool {
    let Some(round) = before.rounds.current.as_ref().filter(|_| before.leader.is_none()) else { return false };
    let participants: Vec<&String> = round.value.participants.keys().collect();
    let changed = |partition: &PartitionId| {
        let records = |view: &View| {
            let handoff = view.handoffs.get(partition).map(|it| it.mod_revision);
            (handoff, view.assignments.get(partition).map(|it| it.mod_revision))
        };
        records(before) != records(after)
    };
    participants.iter().any(|known| *known == name)
        && PartitionId::all(after.partitions())
            .filter(changed)
            .all(|partition| participants[partition.index() % participants.len()] == name)
}
