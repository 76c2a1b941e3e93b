//! The partitions that are assigned to each life of a pod: an index of a view's assignments.
//!
//! With it, a pod that comes or goes costs a look at its own partitions instead of one at all partitions of the keyspace.
//!
//! # Invariants
//!
//! * The index follows from the assignments. It is no part of a view's identity.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use super::{Versioned, View};
use crate::ids::{Incarnation, PartitionId};
use crate::records::Assignment;

/// The assigned partitions, by pod and life.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnedPartitions(BTreeMap<String, BTreeMap<Incarnation, BTreeSet<PartitionId>>>);

impl OwnedPartitions {
    /// Adds an assignment.
    pub(super) fn add(&mut self, assignment: Option<&Versioned<Assignment>>) {
        let Some(Assignment { partition, owner, incarnation, .. }) = assignment.map(|it| &it.value) else { return };
        if !self.0.contains_key(owner) {
            self.0.insert(owner.clone(), BTreeMap::new());
        }
        let lives = self.0.get_mut(owner).expect("it has just been added");
        lives.entry(*incarnation).or_default().insert(*partition);
    }

    /// Removes an assignment.
    pub(super) fn remove(&mut self, assignment: Option<&Versioned<Assignment>>) {
        let Some(Assignment { partition, owner, incarnation, .. }) = assignment.map(|it| &it.value) else { return };
        let Some(lives) = self.0.get_mut(owner) else { return };
        if let Some(partitions) = lives.get_mut(incarnation) {
            partitions.remove(partition);
            if partitions.is_empty() {
                lives.remove(incarnation);
            }
        }
        if lives.is_empty() {
            self.0.remove(owner);
        }
    }
}

impl PartialEq for OwnedPartitions {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OwnedPartitions {}

impl Hash for OwnedPartitions {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl View {
    /// Returns the partitions that are assigned to any life of a pod.
    pub fn assigned_to(&self, pod: &str) -> impl Iterator<Item = PartitionId> {
        self.owned.0.get(pod).into_iter().flat_map(BTreeMap::values).flatten().copied()
    }

    /// Returns whether a partition is assigned to this life of a pod.
    pub fn owns_any(&self, pod: &str, incarnation: Incarnation) -> bool {
        self.owned.0.get(pod).is_some_and(|lives| lives.contains_key(&incarnation))
    }

    /// Returns how many partitions are assigned to any life of a pod.
    pub fn assigned_count(&self, pod: &str) -> usize {
        self.owned.0.get(pod).into_iter().flat_map(BTreeMap::values).map(BTreeSet::len).sum()
    }

    /// Returns how many partitions have a living owner.
    pub fn live_owners(&self) -> usize {
        let of_life = |(pod, incarnation): (&String, Incarnation)| self.owned.0.get(pod)?.get(&incarnation);
        let lives = self.pods.iter().map(|(pod, record)| (pod, record.incarnation()));
        lives.filter_map(of_life).map(BTreeSet::len).sum()
    }
}
