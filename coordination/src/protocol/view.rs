//! The materialised state of a keyspace at one store revision, and the questions that decisions ask of it.
//!
//! Pure. Built from one snapshot and moved on by whole batches of one watch over the keyspace's root, so registry,
//! handoffs and assignments are always seen together. A value that cannot be read is kept apart as malformed, never
//! taken for absent: a partition with such a record is left alone by planning and held by routers.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;

use super::records::{
    Assignment, Epoch, Handoff, KeyspaceConfig, Leader, MAX_PARTITIONS, PodAck, PodAckKind, PodRecord,
    RouterCutoverAck, RouterDrainedAck, RouterRecord,
};
use crate::store::data::{Batch, Event, KeyValue, Revision, Snapshot};
use crate::store::keys::{KeyName, Keyspace, Partition};

/// A record with the revisions of its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stamped<T> {
    /// Which life of the key this is.
    pub create_revision: Revision,
    /// When it was last written.
    pub mod_revision: Revision,
    /// The record.
    pub value: T,
}

/// What routers and pods have said about a partition's handoff.
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
    fn is_empty(&self) -> bool {
        self.drained.is_empty() && self.cutover.is_empty() && self.pods.is_empty()
    }
}

/// What one batch of changes touched, so that a shell looks only at what can have changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Touched {
    /// Partitions whose assignment, handoff or acks changed.
    pub partitions: BTreeSet<Partition>,
    /// A pod or router came, went or changed, or the settings of the keyspace did: every partition may be concerned.
    pub membership: bool,
}

/// The state of a keyspace at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    keys: Keyspace,
    /// The revision that this is the state of.
    pub revision: Revision,
    /// The keyspace's settings, once a leader has written them.
    pub config: Option<Stamped<KeyspaceConfig>>,
    /// Who leads.
    pub leader: Option<Stamped<Leader>>,
    /// The registered pods.
    pub pods: BTreeMap<String, Stamped<PodRecord>>,
    /// The registered routers.
    pub routers: BTreeMap<String, Stamped<RouterRecord>>,
    /// Who owns what.
    pub assignments: BTreeMap<Partition, Stamped<Assignment>>,
    /// What moves.
    pub handoffs: BTreeMap<Partition, Stamped<Handoff>>,
    /// What was acknowledged, also for handoffs that are gone. A partition is here while any ack of it stands, even if
    /// none can be read.
    pub acks: BTreeMap<Partition, Acks>,
    /// Keys whose value this version cannot read, with the reason.
    pub malformed: BTreeMap<String, String>,
    /// The incarnations of pods whose registration cannot be read: they are there all the same.
    unreadable_pods: BTreeMap<String, Revision>,
}

impl View {
    /// A keyspace in which there is nothing yet.
    pub fn empty(keys: Keyspace) -> Self {
        View {
            keys,
            revision: 0,
            config: None,
            leader: None,
            pods: BTreeMap::new(),
            routers: BTreeMap::new(),
            assignments: BTreeMap::new(),
            handoffs: BTreeMap::new(),
            acks: BTreeMap::new(),
            malformed: BTreeMap::new(),
            unreadable_pods: BTreeMap::new(),
        }
    }

    /// The state that a snapshot of the keyspace's root shows.
    pub fn from_snapshot(keys: Keyspace, snapshot: Snapshot) -> Self {
        let mut view = View::empty(keys);
        let mut touched = Touched::default();
        for entry in snapshot.entries {
            view.put(entry, &mut touched);
        }
        view.revision = snapshot.revision;
        view
    }

    /// The names of this keyspace's keys.
    pub fn keys(&self) -> &Keyspace {
        &self.keys
    }

    /// Moves on by the changes of a watch. A batch that is not newer changes nothing: repeated events are harmless.
    pub fn apply(&mut self, batch: Batch) -> Touched {
        let mut touched = Touched::default();
        if batch.revision <= self.revision {
            return touched;
        }
        for event in batch.events {
            match event {
                Event::Put(entry) if entry.mod_revision > self.revision => self.put(entry, &mut touched),
                Event::Put(_) => {}
                Event::Delete { key } => self.delete(&key, &mut touched),
            }
        }
        self.revision = batch.revision;
        touched
    }

    fn put(&mut self, entry: KeyValue, touched: &mut Touched) {
        let Some(name) = self.keys.parse(&entry.key) else {
            return;
        };
        touched.note(&name);
        self.malformed.remove(&entry.key);
        let read = Reading { entry: &entry };
        let result = match name {
            KeyName::Config => read.config().map(|value| self.config = Some(value)),
            KeyName::Leader => read.stamped().map(|value| self.leader = Some(value)),
            KeyName::Pod(pod) => {
                let result = read.put_into(&mut self.pods, pod.clone());
                match &result {
                    Ok(()) => drop(self.unreadable_pods.remove(&pod)),
                    Err(_) => drop(self.unreadable_pods.insert(pod, entry.create_revision)),
                }
                result
            }
            KeyName::Router(router) => {
                let result = read.put_into(&mut self.routers, router.clone());
                if result.is_err() {
                    // Whatever it says of itself, it may route: it must be waited for.
                    let value = RouterRecord { router_name: router.clone(), registered_at: 0, last_heartbeat: 0 };
                    self.routers.insert(router, read.stamp(value));
                }
                result
            }
            KeyName::Assignment(partition) => {
                let named = |record: &Assignment| (record.partition, record.epoch);
                read.put_numbered(&mut self.assignments, partition, named)
            }
            KeyName::Handoff(partition) => {
                let named = |record: &Handoff| (record.partition, record.epoch);
                read.put_numbered(&mut self.handoffs, partition, named)
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
        };
        if let Err(reason) = result {
            self.malformed.insert(entry.key, reason);
        }
    }

    fn delete(&mut self, key: &str, touched: &mut Touched) {
        let Some(name) = self.keys.parse(key) else { return };
        touched.note(&name);
        self.malformed.remove(key);
        let partition = match name {
            KeyName::Config => return self.config = None,
            KeyName::Leader => return self.leader = None,
            KeyName::Pod(pod) => {
                self.unreadable_pods.remove(&pod);
                return drop(self.pods.remove(&pod));
            }
            KeyName::Router(router) => return drop(self.routers.remove(&router)),
            KeyName::Assignment(partition) => return drop(self.assignments.remove(&partition)),
            KeyName::Handoff(partition) => return drop(self.handoffs.remove(&partition)),
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
        };
        // As long as one stands, be it unreadable, there is something to sweep.
        let unreadable = |prefix: String| {
            self.malformed.range(prefix.clone()..).next().is_some_and(|(key, _)| key.starts_with(&prefix))
        };
        let empty = self.acks.get(&partition).is_some_and(Acks::is_empty);
        if empty && !self.keys.acks_of(partition).into_iter().any(unreadable) {
            self.acks.remove(&partition);
        }
    }

    /// How many partitions the keyspace has; 0 until a leader has written its settings.
    pub fn partitions(&self) -> u32 {
        self.config.as_ref().map_or(0, |config| config.value.partitions)
    }

    /// The registration of this very life of a pod.
    pub fn live_pod(&self, pod: &str, incarnation: Revision) -> Option<&PodRecord> {
        self.pods.get(pod).filter(|record| record.create_revision == incarnation).map(|record| &record.value)
    }

    /// The incarnation that stands under a pod's name; 0 if none does. What a guard "still as I saw it" compares.
    pub fn incarnation_of(&self, pod: &str) -> Revision {
        let unreadable = || self.unreadable_pods.get(pod).copied().unwrap_or(0);
        self.pods.get(pod).map_or_else(unreadable, |record| record.create_revision)
    }

    /// The partition's assignment together with its owner's registration, if that very owner lives.
    pub fn live_owner(&self, partition: Partition) -> Option<(&Assignment, &PodRecord)> {
        let assignment = &self.assignments.get(&partition)?.value;
        Some((assignment, self.live_pod(&assignment.owner, assignment.incarnation)?))
    }

    /// The registration of a handoff's old owner, if it has one that lives.
    pub fn live_old_owner(&self, handoff: &Handoff) -> Option<&PodRecord> {
        self.live_pod(handoff.old_owner.as_deref()?, handoff.old_incarnation)
    }

    /// The registration of a handoff's new owner, if it lives.
    pub fn live_new_owner(&self, handoff: &Handoff) -> Option<&PodRecord> {
        self.live_pod(&handoff.new_owner, handoff.new_incarnation)
    }

    /// The router's word that it has drained for this very handoff.
    pub fn drained_ack(&self, partition: Partition, router: &str, handoff: Revision) -> Option<&RouterDrainedAck> {
        self.acks.get(&partition)?.drained.get(router).filter(|ack| ack.handoff == handoff)
    }

    /// The router's word that it has cut over in this very handoff.
    pub fn cutover_ack(&self, partition: Partition, router: &str, handoff: Revision) -> Option<&RouterCutoverAck> {
        self.acks.get(&partition)?.cutover.get(router).filter(|ack| ack.handoff == handoff)
    }

    /// The pod's word about this very handoff.
    pub fn pod_ack(&self, partition: Partition, pod: &str, kind: PodAckKind, handoff: Revision) -> Option<&PodAck> {
        let acks = &self.acks.get(&partition)?.pods;
        acks.get(&(pod.to_owned(), kind)).filter(|ack| ack.handoff == handoff)
    }

    /// Whether a record of this partition stands that this version cannot read. Nothing is decided about it then.
    pub fn is_malformed(&self, partition: Partition) -> bool {
        !self.malformed.is_empty()
            && (self.malformed.contains_key(&self.keys.assignment(partition))
                || self.malformed.contains_key(&self.keys.handoff(partition)))
    }
}

impl Touched {
    fn note(&mut self, name: &KeyName) {
        match name {
            KeyName::Config | KeyName::Pod(_) | KeyName::Router(_) => self.membership = true,
            KeyName::Leader => {}
            KeyName::Assignment(partition)
            | KeyName::Handoff(partition)
            | KeyName::RouterDrained(partition, _)
            | KeyName::RouterCutover(partition, _)
            | KeyName::PodAck(partition, ..) => {
                self.partitions.insert(*partition);
            }
        }
    }
}

struct Reading<'a> {
    entry: &'a KeyValue,
}

impl Reading<'_> {
    fn parse<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(&self.entry.value).map_err(|error| error.to_string())
    }

    fn stamp<T>(&self, value: T) -> Stamped<T> {
        Stamped { create_revision: self.entry.create_revision, mod_revision: self.entry.mod_revision, value }
    }

    fn stamped<T: DeserializeOwned>(&self) -> Result<Stamped<T>, String> {
        Ok(self.stamp(self.parse()?))
    }

    /// A value that cannot be read takes the readable one that stood there before with it.
    fn put_into<K: Ord, T: DeserializeOwned>(&self, map: &mut BTreeMap<K, Stamped<T>>, key: K) -> Result<(), String> {
        map.remove(&key);
        map.insert(key, self.stamped()?);
        Ok(())
    }

    /// More partitions than anyone can have would be taken for a size to allocate.
    fn config(&self) -> Result<Stamped<KeyspaceConfig>, String> {
        let config: Stamped<KeyspaceConfig> = self.stamped()?;
        match config.value.partitions {
            partitions if partitions > MAX_PARTITIONS => {
                Err(format!("it has {partitions} partitions, and no keyspace has more than {MAX_PARTITIONS}"))
            }
            _ => Ok(config),
        }
    }

    /// The same for a record that names its partition and an epoch: it must be the partition of its key, and an epoch
    /// that another can follow.
    fn put_numbered<T: DeserializeOwned>(
        &self,
        map: &mut BTreeMap<Partition, Stamped<T>>,
        partition: Partition,
        named: impl Fn(&T) -> (Partition, Epoch),
    ) -> Result<(), String> {
        map.remove(&partition);
        let record = self.stamped()?;
        let (named, epoch) = named(&record.value);
        if named != partition {
            return Err(format!("it names partition {named}"));
        }
        if epoch == Epoch::MAX {
            return Err("no epoch can follow its own".to_owned());
        }
        map.insert(partition, record);
        Ok(())
    }

    fn put_ack<K: Ord, T: DeserializeOwned>(&self, acks: &mut BTreeMap<K, T>, key: K) -> Result<(), String> {
        acks.remove(&key);
        acks.insert(key, self.parse()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str, create: Revision, modified: Revision) -> KeyValue {
        KeyValue {
            key: format!("/segue/default/{key}"),
            value: value.as_bytes().to_vec(),
            create_revision: create,
            mod_revision: modified,
            lease: None,
        }
    }

    fn view(entries: Vec<KeyValue>, revision: Revision) -> View {
        View::from_snapshot(Keyspace::new("/segue/", "default"), Snapshot { revision, entries })
    }

    const POD: &str = r#"{"pod_name":"w","address":"127.0.0.1:1"}"#;
    const OWNED: &str = r#"{"partition":0,"owner":"w","incarnation":3,"epoch":1}"#;

    #[test]
    fn a_pod_of_the_same_name_with_another_incarnation_is_not_the_owner() {
        let seen = view(vec![entry("pods/w", POD, 3, 3), entry("assignments/0", OWNED, 4, 4)], 4);
        assert!(seen.live_owner(0).is_some());
        let seen = view(vec![entry("pods/w", POD, 9, 9), entry("assignments/0", OWNED, 4, 4)], 9);
        assert!(seen.live_owner(0).is_none());
    }

    #[test]
    fn a_repeated_batch_changes_nothing() {
        let mut seen = view(vec![entry("pods/w", POD, 3, 3)], 5);
        let batch = Batch { revision: 4, events: vec![Event::Delete { key: "/segue/default/pods/w".into() }] };
        assert_eq!(seen.apply(batch), Touched::default());
        assert_eq!(seen.pods.len(), 1);
    }

    #[test]
    fn a_value_that_cannot_be_read_is_kept_apart_and_not_taken_for_absent() {
        let mut seen = view(vec![entry("assignments/0", OWNED, 4, 4)], 4);
        let batch = Batch { revision: 5, events: vec![Event::Put(entry("assignments/0", "{", 4, 5))] };
        let touched = seen.apply(batch);
        assert!(touched.partitions.contains(&0));
        assert!(seen.is_malformed(0) && seen.assignments.is_empty());
        seen.apply(Batch { revision: 6, events: vec![Event::Put(entry("assignments/0", OWNED, 4, 6))] });
        assert!(!seen.is_malformed(0) && seen.assignments.len() == 1);
    }

    #[test]
    fn a_router_whose_registration_cannot_be_read_is_still_there() {
        let mut seen = view(vec![entry("routers/r", "[]", 3, 3)], 3);
        assert_eq!(seen.routers["r"].create_revision, 3);
        assert_eq!(seen.malformed.len(), 1);
        seen.apply(Batch { revision: 4, events: vec![Event::Delete { key: "/segue/default/routers/r".into() }] });
        assert!(seen.routers.is_empty() && seen.malformed.is_empty());
    }

    #[test]
    fn a_pod_whose_registration_cannot_be_read_has_its_incarnation_and_is_no_owner() {
        let seen = view(vec![entry("pods/w", "[]", 3, 3), entry("assignments/0", OWNED, 4, 4)], 4);
        assert_eq!(seen.incarnation_of("w"), 3);
        assert!(seen.live_owner(0).is_none());
    }

    #[test]
    fn a_record_that_names_another_partition_than_its_key_is_malformed() {
        let seen = view(vec![entry("assignments/1", OWNED, 4, 4)], 4);
        assert!(seen.is_malformed(1) && seen.assignments.is_empty());
    }

    #[test]
    fn an_unreadable_ack_is_still_to_be_swept_when_the_last_readable_one_is_gone() {
        let ack = r#"{"router_name":"r","partition":0,"handoff":10}"#;
        let entries = vec![entry("handoff_drains/0/r", ack, 11, 11), entry("handoff_acks/0/r", "{", 12, 12)];
        let mut seen = view(entries, 12);
        let delete = |key: &str| vec![Event::Delete { key: format!("/segue/default/{key}") }];
        seen.apply(Batch { revision: 13, events: delete("handoff_drains/0/r") });
        assert_eq!(seen, view(vec![entry("handoff_acks/0/r", "{", 12, 12)], 13));
        assert!(seen.acks.contains_key(&0));
        seen.apply(Batch { revision: 14, events: delete("handoff_acks/0/r") });
        assert_eq!(seen, view(Vec::new(), 14));
    }

    #[test]
    fn numbers_that_nobody_could_go_on_from_are_malformed() {
        let last = r#"{"partition":0,"owner":"w","incarnation":3,"epoch":18446744073709551615}"#;
        let seen = view(vec![entry("assignments/0", last, 4, 4)], 4);
        assert!(seen.is_malformed(0) && seen.assignments.is_empty());
        for (partitions, readable) in [(65_536, true), (65_537, false), (u32::MAX, false)] {
            let seen = view(vec![entry("config", &format!(r#"{{"partitions":{partitions}}}"#), 4, 4)], 4);
            assert_eq!((seen.config.is_some(), seen.malformed.is_empty()), (readable, readable), "{partitions}");
        }
    }

    #[test]
    fn an_ack_of_another_handoff_is_no_ack() {
        let ack = r#"{"router_name":"r","partition":0,"handoff":10}"#;
        let seen = view(vec![entry("handoff_drains/0/r", ack, 11, 11)], 11);
        assert!(seen.drained_ack(0, "r", 10).is_some());
        assert!(seen.drained_ack(0, "r", 12).is_none());
    }
}
