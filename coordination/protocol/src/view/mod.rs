//! The materialised state of a keyspace at one store revision, and the queries that decisions make.
//!
//! Pure. Built from one snapshot and advanced by whole batches of one watch over the keyspace's root.
//!
//! # Invariants
//!
//! * Registrations, handoffs and assignments are always seen at one revision.
//! * A value that cannot be read is kept as malformed, and never taken for absent. Planning leaves a partition with
//!   such a record alone, and routers hold it. A handoff whose parties cannot be read stays in its phase.
//! * The settings that were read last stay known while there is no readable `config`.
//! * The floor of epochs does not fall, from one snapshot to the next either.

mod delta;
mod lives;
mod of_pod;
mod operator;
mod owned;
mod reading;
mod rounds;
mod router_acks;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use self::delta::ViewDelta;
use self::of_pod::OwnPod;
pub use self::operator::Intentions;
use self::owned::OwnedPartitions;
use self::reading::RecordReader;
pub use self::rounds::Rounds;
use crate::ids::{Epoch, HandoffId, Incarnation, LeaseId, PartitionId, Revision};
use crate::keys::{KeyName, Keyspace};
use crate::records::{
    Assignment, Checkpoint, Handoff, KeyspaceConfig, Leader, PodAck, PodAckKind, PodLoad, PodRecord, RouterCutoverAck,
    RouterDrainedAck, RouterRecord, Wanted,
};
use crate::txn::{Batch, Event, KeyValue, Snapshot};

/// A record with the revisions of its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Versioned<T> {
    /// The revision that created the key: it identifies this life of it.
    pub create_revision: Revision,
    /// The revision of the last put.
    pub mod_revision: Revision,
    /// The lease that the key is attached to. A registration without one was not put by its owner.
    pub lease: Option<LeaseId>,
    /// The record.
    pub value: T,
}

impl<T> Versioned<T> {
    /// Returns the key without its record.
    pub fn key(&self) -> Versioned<()> {
        let Versioned { create_revision, mod_revision, lease, .. } = *self;
        Versioned { create_revision, mod_revision, lease, value: () }
    }
}

impl Versioned<PodRecord> {
    /// Returns the life of the pod.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation::registered_at(self.create_revision)
    }
}

impl Versioned<RouterRecord> {
    /// Returns the life of the router.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation::registered_at(self.create_revision)
    }
}

impl Versioned<Handoff> {
    /// Returns the identity of the handoff.
    pub fn id(&self) -> HandoffId {
        HandoffId::created_at(self.create_revision)
    }
}

/// The acks of routers and pods for a partition's handoff.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Acks {
    /// By router.
    pub drained: BTreeMap<String, RouterDrainedAck>,
    /// By router.
    pub cutover: BTreeMap<String, RouterCutoverAck>,
    /// By pod and kind.
    pub pods: BTreeMap<(String, PodAckKind), PodAck>,
}

impl Acks {
    /// Returns the acks of this pod.
    pub fn pods_of(&self, pod: &str) -> impl Iterator<Item = &PodAck> {
        self.pods.iter().filter(move |((name, _), _)| name == pod).map(|(_, ack)| ack)
    }

    fn is_empty(&self) -> bool {
        self.drained.is_empty() && self.cutover.is_empty() && self.pods.is_empty()
    }
}

/// The state of a keyspace at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    keys: Keyspace,
    /// The revision that this state belongs to.
    pub revision: Revision,
    /// The keyspace's settings as stored. Decisions use [`settings`](Self::settings).
    pub config: Option<Versioned<KeyspaceConfig>>,
    /// The settings that were read last.
    known_config: Option<KeyspaceConfig>,
    /// The highest floor of epochs that any settings had.
    epoch_floor: Epoch,
    /// The leader.
    pub leader: Option<Versioned<Leader>>,
    /// The assignment rounds, which replace the leader.
    pub rounds: Rounds,
    /// The owners that the strategy `external` follows.
    pub wanted: Option<Versioned<Wanted>>,
    /// The registered pods.
    pub pods: BTreeMap<String, Versioned<PodRecord>>,
    /// The last heartbeat of each pod, possibly of an earlier life. Decisions use [`load`](Self::load).
    pub loads: BTreeMap<String, Versioned<PodLoad>>,
    /// The registered routers.
    pub routers: BTreeMap<String, Versioned<RouterRecord>>,
    /// The owner of each partition.
    pub assignments: BTreeMap<PartitionId, Versioned<Assignment>>,
    owned: OwnedPartitions,
    /// The handoff of each partition that moves.
    pub handoffs: BTreeMap<PartitionId, Versioned<Handoff>>,
    /// The acks of each partition, also of handoffs that are gone. A partition is listed while any ack of it exists,
    /// even if none can be read.
    pub acks: BTreeMap<PartitionId, Acks>,
    /// The newest checkpoint of each partition that has one.
    pub checkpoints: BTreeMap<PartitionId, Versioned<Checkpoint>>,
    /// The intentions of operators.
    pub intentions: Intentions,
    /// The keys whose value this version cannot read, with the reason.
    pub malformed: BTreeMap<String, String>,
    /// The unreadable values by key: the keys exist all the same.
    unreadable: BTreeMap<String, Versioned<()>>,
    /// The pod whose view this is. `None` for all other participants.
    pod: Option<Box<OwnPod>>,
}

/// One life of a pod as a view shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodLife<'a> {
    /// The registration exists.
    Registered(&'a PodRecord),
    /// The registration exists without its lease, so another writer put it. Requests are routed to the pod, and
    /// handoffs wait until the pod has restored its registration.
    Leaseless(&'a PodRecord),
    /// The registration exists and cannot be read.
    Unreadable,
    /// There is no registration of this life.
    Over,
}

impl View {
    /// Returns the view of an empty keyspace.
    pub fn empty(keys: Keyspace) -> Self {
        View {
            keys,
            revision: Revision::ZERO,
            config: None,
            known_config: None,
            epoch_floor: Epoch::default(),
            wanted: None,
            leader: None,
            rounds: Rounds::default(),
            pods: BTreeMap::new(),
            loads: BTreeMap::new(),
            routers: BTreeMap::new(),
            assignments: BTreeMap::new(),
            owned: OwnedPartitions::default(),
            handoffs: BTreeMap::new(),
            acks: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            intentions: Intentions::default(),
            malformed: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            pod: None,
        }
    }

    /// Returns the view of a snapshot of the keyspace's root.
    pub fn from_snapshot(keys: Keyspace, snapshot: Snapshot) -> Self {
        let mut view = View::empty(keys);
        let mut touched = ViewDelta::default();
        for entry in snapshot.entries {
            view.apply_put(entry, &mut touched);
        }
        view.revision = snapshot.revision;
        view
    }

    /// Continues from a fresh snapshot of the same keyspace. The known settings stay known if the snapshot has none
    /// that can be read.
    pub fn resync(&mut self, fresh: View) {
        let (known, floor) = (self.known_config.take(), self.epoch_floor);
        *self = fresh;
        self.epoch_floor = self.epoch_floor.max(floor);
        if self.known_config.is_none() {
            self.known_config = known;
        }
    }

    /// Returns the keys of this keyspace.
    pub fn keys(&self) -> &Keyspace {
        &self.keys
    }

    /// Applies the changes of a watch. What is not newer than the view changes nothing, in a newer batch neither: a member of
    /// etcd that has lagged may repeat old changes.
    pub fn apply(&mut self, batch: Batch) -> ViewDelta {
        let mut touched = ViewDelta::default();
        if batch.revision <= self.revision {
            return touched;
        }
        for event in batch.events {
            match event {
                event if event.mod_revision() <= self.revision => {}
                Event::Put(entry) => self.apply_put(entry, &mut touched),
                Event::Delete { key, .. } => self.apply_delete(&key, &mut touched),
            }
        }
        self.revision = batch.revision;
        touched
    }

    fn apply_put(&mut self, entry: KeyValue, touched: &mut ViewDelta) {
        let Some(name) = self.keys.parse(&entry.key) else { return };
        if let Some(entry) = self.leave_unread(&name, entry) {
            self.put(name, entry, touched);
        }
    }

    fn put(&mut self, name: KeyName, entry: KeyValue, touched: &mut ViewDelta) {
        touched.note(&name);
        self.forget(&entry.key);
        if let KeyName::Handoff(partition) = name {
            self.read_for_handoff(partition, touched);
        }
        let read = RecordReader { entry: &entry };
        let result = match name {
            KeyName::Config => self.put_config(&read),
            KeyName::Wanted => {
                self.wanted = None;
                read.stamped().map(|wanted| self.wanted = Some(wanted))
            }
            KeyName::Leader => {
                let result = read.stamped();
                // A leader's key excludes every other leader while it exists, whatever its value.
                let nameless = || read.stamp(Leader::new("unreadable", LeaseId::NONE));
                let leader = result.as_ref().map_or_else(|_| nameless(), Versioned::clone);
                self.leader = Some(leader);
                result.map(drop)
            }
            KeyName::Pod(pod) => read.put_into(&mut self.pods, pod),
            KeyName::Load(pod) => read.put_into(&mut self.loads, pod),
            KeyName::Rounds(key) => self.rounds.put(key, &read),
            KeyName::Router(router) => {
                let result = read.put_into(&mut self.routers, router.clone());
                if result.is_err() {
                    // The router may be routing, whatever its record says, so handoffs must wait for it.
                    let router_name = router.clone();
                    let value = RouterRecord::new(router_name);
                    self.routers.insert(router, read.stamp(value));
                }
                result
            }
            KeyName::Assignment(partition) => {
                let named = |record: &Assignment| (record.partition, record.epoch);
                self.owned.remove(self.assignments.get(&partition));
                let result = read.put_numbered(&mut self.assignments, partition, named);
                self.owned.add(self.assignments.get(&partition));
                result
            }
            KeyName::Handoff(partition) => {
                let named = |record: &Handoff| (record.partition, record.epoch);
                read.put_numbered(&mut self.handoffs, partition, named)
            }
            KeyName::Checkpoint(partition) => {
                let named = |record: &Checkpoint| (record.partition, record.epoch);
                read.put_numbered(&mut self.checkpoints, partition, named)
            }
            KeyName::RouterDrained(partition, router) => {
                read.put_ack(&mut self.acks.entry(partition).or_default().drained, router)
            }
            KeyName::RouterCutover(partition, router) => {
                read.put_ack(&mut self.acks.entry(partition).or_default().cutover, router)
            }
            KeyName::PodAck(partition, pod, kind) => {
                read.put_ack(&mut self.acks.entry(partition).or_default().pods, (pod, kind))
            }
            KeyName::Drain(_) | KeyName::Pin(_) | KeyName::Pause | KeyName::Operation(_) => {
                self.intentions.put(&name, &read)
            }
        };
        if let Err(reason) = result {
            self.unreadable.insert(entry.key.clone(), read.stamp(()));
            self.malformed.insert(entry.key, reason);
        }
    }

    /// Forgets that this key could not be read.
    fn forget(&mut self, key: &str) {
        self.malformed.remove(key);
        self.unreadable.remove(key);
    }

    fn put_config(&mut self, read: &RecordReader<'_>) -> Result<(), String> {
        self.config = None;
        let config = read.config()?;
        self.epoch_floor = self.epoch_floor.max(config.value.epoch_floor);
        self.known_config = Some(config.value.clone());
        self.config = Some(config);
        Ok(())
    }

    fn apply_delete(&mut self, key: &str, touched: &mut ViewDelta) {
        let Some(name) = self.keys.parse(key) else { return };
        if self.was_unread(&name, key) {
            return;
        }
        touched.note(&name);
        self.forget(key);
        let partition = match name {
            KeyName::Config => return self.config = None,
            KeyName::Leader => return self.leader = None,
            KeyName::Wanted => return self.wanted = None,
            KeyName::Rounds(key) => return self.rounds.delete(key),
            KeyName::Pod(pod) => return drop(self.pods.remove(&pod)),
            KeyName::Load(pod) => return drop(self.loads.remove(&pod)),
            KeyName::Router(router) => return drop(self.routers.remove(&router)),
            KeyName::Assignment(partition) => return self.owned.remove(self.assignments.remove(&partition).as_ref()),
            KeyName::Handoff(partition) => return touched.ended.extend(self.handoffs.remove(&partition)),
            KeyName::Checkpoint(partition) => return drop(self.checkpoints.remove(&partition)),
            KeyName::RouterDrained(partition, router) => {
                self.acks.entry(partition).or_default().drained.remove(&router);
                partition
            }
            KeyName::RouterCutover(partition, router) => {
                self.acks.entry(partition).or_default().cutover.remove(&router);
                partition
            }
            KeyName::PodAck(partition, pod, kind) => {
                self.acks.entry(partition).or_default().pods.remove(&(pod, kind));
                partition
            }
            KeyName::Drain(_) | KeyName::Pin(_) | KeyName::Pause | KeyName::Operation(_) => {
                return self.intentions.delete(&name);
            }
        };
        // An ack that remains, even an unreadable one, has to be swept.
        let unreadable = |prefix: String| {
            self.malformed.range(prefix.clone()..).next().is_some_and(|(key, _)| key.starts_with(&prefix))
        };
        let empty = self.acks.get(&partition).is_some_and(Acks::is_empty);
        if empty && !self.keys.acks_of(partition).into_iter().any(unreadable) {
            self.acks.remove(&partition);
        }
    }

    /// Returns the settings to use: those that were read last, even while they are gone or cannot be read.
    pub fn settings(&self) -> Option<&KeyspaceConfig> {
        self.known_config.as_ref()
    }

    /// Returns the number above which epochs begin. It never falls, whatever somebody writes into the settings.
    pub fn epoch_floor(&self) -> Epoch {
        self.epoch_floor
    }

    /// Returns the number of partitions of the keyspace; 0 until settings have been read.
    pub fn partitions(&self) -> u32 {
        self.settings().map_or(0, |settings| settings.partitions)
    }

    /// Returns the router's ack that it has drained for this very handoff.
    pub fn drained_ack(&self, partition: PartitionId, router: &str, handoff: HandoffId) -> Option<&RouterDrainedAck> {
        self.acks.get(&partition)?.drained.get(router).filter(|ack| ack.handoff == handoff)
    }

    /// Returns the router's ack that it has cut over in this very handoff.
    pub fn cutover_ack(&self, partition: PartitionId, router: &str, handoff: HandoffId) -> Option<&RouterCutoverAck> {
        self.acks.get(&partition)?.cutover.get(router).filter(|ack| ack.handoff == handoff)
    }

    /// Returns the pod's ack for this very handoff.
    pub fn pod_ack(&self, partition: PartitionId, pod: &str, kind: PodAckKind, handoff: HandoffId) -> Option<&PodAck> {
        let acks = &self.acks.get(&partition)?.pods;
        acks.get(&(pod.to_owned(), kind)).filter(|ack| ack.handoff == handoff)
    }

    /// Returns whether a record of this partition exists that this version cannot read. Nothing is decided about the
    /// partition then.
    pub fn is_malformed(&self, partition: PartitionId) -> bool {
        !self.malformed.is_empty()
            && (self.malformed.contains_key(&self.keys.assignment(partition))
                || self.malformed.contains_key(&self.keys.handoff(partition)))
    }
}
