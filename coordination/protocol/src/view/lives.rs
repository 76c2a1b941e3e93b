//! The lives of pods and the owners of partitions as a view shows them.

use std::collections::BTreeMap;

use super::{PodLife, Versioned, View};
use crate::ids::{Incarnation, PartitionId, Revision};
use crate::keys::{KeyName, Keyspace};
use crate::records::{Assignment, Handoff, PodLoad, PodRecord, canonical_address};

impl View {
    /// Returns the state of one life of a pod in this view.
    pub fn life(&self, pod: &str, incarnation: Incarnation) -> PodLife<'_> {
        match self.pods.get(pod) {
            Some(record) if record.incarnation() != incarnation => PodLife::Over,
            Some(record) if record.lease.is_none() => PodLife::Leaseless(&record.value),
            Some(record) => PodLife::Registered(&record.value),
            None if incarnation != Incarnation::NONE && self.incarnation_of(pod) == incarnation => PodLife::Unreadable,
            None => PodLife::Over,
        }
    }

    /// Returns the last heartbeat of a pod, if its present life has sent one.
    pub fn load(&self, pod: &str) -> Option<&PodLoad> {
        let load = &self.loads.get(pod)?.value;
        self.live_pod(pod, load.incarnation).map(|_| load)
    }

    /// Returns the registration of this very life of a pod.
    pub fn live_pod(&self, pod: &str, incarnation: Incarnation) -> Option<&PodRecord> {
        self.pods.get(pod).filter(|record| record.incarnation() == incarnation).map(|record| &record.value)
    }

    /// Returns the incarnation that is registered under a pod's name; none if there is none. Guards compare it to check
    /// that the pod is unchanged.
    pub fn incarnation_of(&self, pod: &str) -> Incarnation {
        self.pod_key(pod).map_or(Incarnation::NONE, |key| Incarnation::registered_at(key.create_revision))
    }

    /// Returns the lives of all registered pods, including those whose registration cannot be read.
    pub(crate) fn pod_lives(&self) -> BTreeMap<String, Incarnation> {
        let readable = self.pods.iter().map(|(name, pod)| (name.clone(), pod.incarnation()));
        let unreadable = self.unreadable.iter().filter_map(|(key, entry)| match self.keys.parse(key)? {
            KeyName::Pod(name) => Some((name, Incarnation::registered_at(entry.create_revision))),
            _ => None,
        });
        readable.chain(unreadable).collect()
    }

    /// Returns the key of a pod's registration, even if its value cannot be read.
    pub fn pod_key(&self, pod: &str) -> Option<Versioned<()>> {
        self.pods.get(pod).map(Versioned::key).or_else(|| self.unreadable_key(|keys| keys.pod(pod)))
    }

    /// Returns the revision at which a pod's registration was last put; 0 if there is none.
    pub(crate) fn pod_revision(&self, pod: &str) -> Revision {
        self.pod_key(pod).map_or(Revision::ZERO, |key| key.mod_revision)
    }

    /// Returns the revision at which a partition's assignment was last put; 0 if there is none.
    pub(crate) fn assignment_revision(&self, partition: PartitionId) -> Revision {
        let unreadable = || self.unreadable_key(|keys| keys.assignment(partition));
        self.assignments
            .get(&partition)
            .map(Versioned::key)
            .or_else(unreadable)
            .map_or(Revision::ZERO, |key| key.mod_revision)
    }

    /// Returns the revision at which a partition's pin was last put; 0 if there is none.
    pub fn pin_revision(&self, partition: PartitionId) -> Revision {
        let unreadable = || self.unreadable_key(|keys| keys.pin(partition));
        let pin = self.intentions.pin(partition).map(Versioned::key).or_else(unreadable);
        pin.map_or(Revision::ZERO, |key| key.mod_revision)
    }

    /// Returns a key whose value cannot be read, if it exists.
    fn unreadable_key(&self, key: impl FnOnce(&Keyspace) -> String) -> Option<Versioned<()>> {
        // Nearly always there is none: the key's name need not be built.
        if self.unreadable.is_empty() { None } else { self.unreadable.get(&key(&self.keys)).cloned() }
    }

    /// Returns the keys of registrations and of coordinators that exist without their lease and so outlive their writer.
    pub fn leaseless(&self) -> impl Iterator<Item = String> {
        let pods = self.pods.iter().filter(|(_, pod)| pod.lease.is_none()).map(|(name, _)| self.keys.pod(name));
        let routers = self.routers.iter().filter(|(_, it)| it.lease.is_none()).map(|(name, _)| self.keys.router(name));
        let leader = self.leader.iter().filter(|leader| leader.lease.is_none()).map(|_| self.keys.leader());
        pods.chain(routers).chain(leader).chain(self.rounds.leaseless(&self.keys))
    }

    /// Returns the addresses that more than one registered pod advertises, in their [`canonical_address`], each with its pods.
    pub fn shared_addresses(&self) -> BTreeMap<String, Vec<&str>> {
        let mut pods: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (name, pod) in &self.pods {
            pods.entry(canonical_address(&pod.value.address)).or_default().push(name);
        }
        pods.retain(|_, names| names.len() > 1);
        pods
    }

    /// Returns the partition's assignment together with its owner's registration, if that very owner lives.
    pub fn live_owner(&self, partition: PartitionId) -> Option<(&Assignment, &PodRecord)> {
        let assignment = &self.assignments.get(&partition)?.value;
        Some((assignment, self.live_pod(&assignment.owner, assignment.incarnation)?))
    }

    /// Returns the registration of a handoff's old owner, if it lives.
    pub fn live_old_owner(&self, handoff: &Handoff) -> Option<&PodRecord> {
        self.live_pod(handoff.old_owner.as_deref()?, handoff.old_incarnation)
    }

    /// Returns the registration of a handoff's new owner, if it lives.
    pub fn live_new_owner(&self, handoff: &Handoff) -> Option<&PodRecord> {
        self.live_pod(&handoff.new_owner, handoff.new_incarnation)
    }
}
