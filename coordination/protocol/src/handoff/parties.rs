//! The partitions in which each pod has a part: those that are assigned to it, and those of handoffs from or to it.
//!
//! When a pod joins or leaves, every pod has to be looked at again. With this index that costs one look at each
//! partition in all, instead of one for each pod.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::PartitionId;
use crate::view::View;

/// An index of a view, kept up to date with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parties {
    by_pod: BTreeMap<String, BTreeSet<PartitionId>>,
    by_partition: BTreeMap<PartitionId, BTreeSet<String>>,
}

impl Parties {
    /// Returns the index of a view.
    pub fn of(view: &View) -> Self {
        let mut parties = Parties::default();
        parties.update(view, view.assignments.keys().chain(view.handoffs.keys()).copied());
        parties
    }

    /// Brings the index up to date with a view in which the records of these partitions have changed.
    pub fn update(&mut self, view: &View, changed: impl IntoIterator<Item = PartitionId>) {
        for partition in changed {
            let now = parties(view, partition);
            let before = if now.is_empty() {
                self.by_partition.remove(&partition)
            } else {
                self.by_partition.insert(partition, now.clone())
            };
            let before = before.unwrap_or_default();
            for gone in before.difference(&now) {
                if let Some(partitions) = self.by_pod.get_mut(gone) {
                    partitions.remove(&partition);
                    if partitions.is_empty() {
                        self.by_pod.remove(gone);
                    }
                }
            }
            for new in now.difference(&before) {
                self.by_pod.entry(new.clone()).or_default().insert(partition);
            }
        }
    }

    /// Returns the partitions in which a pod of this name has a part.
    pub fn partitions(&self, pod: &str) -> impl Iterator<Item = PartitionId> {
        self.by_pod.get(pod).into_iter().flatten().copied()
    }
}

fn parties(view: &View, partition: PartitionId) -> BTreeSet<String> {
    let owner = view.assignments.get(&partition).map(|assignment| &assignment.value.owner);
    let handoff = view.handoffs.get(&partition).map(|handoff| &handoff.value);
    let moving = handoff.into_iter().flat_map(|handoff| handoff.old_owner.iter().chain([&handoff.new_owner]));
    owner.into_iter().chain(moving).cloned().collect()
}
