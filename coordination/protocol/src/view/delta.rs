//! The subjects of a batch of changes, so that a shell reconsiders only what may have changed.

use std::collections::BTreeSet;

use super::{Versioned, View};
use crate::ids::PartitionId;
use crate::keys::{KeyName, RoundsKey};
use crate::records::Handoff;

/// The subjects of one batch of changes, so that a shell reconsiders only what may have changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ViewDelta {
    /// Partitions whose assignment, handoff, acks or checkpoint changed.
    pub partitions: BTreeSet<PartitionId>,
    /// The participants whose acks of a partition changed, with that partition.
    pub acks: Vec<(PartitionId, String)>,
    /// Pods whose registration changed.
    pub pods: BTreeSet<String>,
    /// The settings of the keyspace changed: every partition may be affected.
    pub settings: bool,
    /// A pod, a router or the settings of the keyspace changed.
    pub membership: bool,
    /// An operator's key, the wanted owners, the leader or the assignment round changed: only planning depends on them.
    pub intentions: bool,
    /// The handoffs whose records were deleted, as they stood last. Some may have begun since the shell last looked.
    pub ended: Vec<Versioned<Handoff>>,
}

impl ViewDelta {
    /// Adds the changes of a later batch.
    pub fn extend(&mut self, later: ViewDelta) {
        let ViewDelta { partitions, acks, pods, settings, membership, intentions, ended } = later;
        self.partitions.extend(partitions);
        self.acks.extend(acks);
        self.pods.extend(pods);
        self.settings |= settings;
        self.membership |= membership;
        self.intentions |= intentions;
        self.ended.extend(ended);
    }

    /// Returns the partitions about which a router or a pod may decide otherwise after these changes, given the view
    /// that includes them. `None` means all.
    ///
    /// A registration concerns the partitions that are assigned to its pod and every handoff: a pod's record decides
    /// what a handoff waits for, and a router's whether it waits for that router.
    pub fn affected(&self, view: &View) -> Option<BTreeSet<PartitionId>> {
        if self.settings {
            return None;
        }
        let mut affected = self.partitions.clone();
        if self.membership {
            affected.extend(view.handoffs.keys());
            affected.extend(self.pods.iter().flat_map(|pod| view.assigned_to(pod)));
        }
        Some(affected)
    }

    /// Records a change of this key.
    pub(super) fn note(&mut self, name: &KeyName) {
        match name {
            KeyName::Config => (self.membership, self.settings) = (true, true),
            KeyName::Pod(pod) => {
                self.membership = true;
                self.pods.insert(pod.clone());
            }
            KeyName::Router(_) => self.membership = true,
            KeyName::Drain(_) | KeyName::Pin(_) | KeyName::Pause | KeyName::Operation(_) => self.intentions = true,
            KeyName::Leader | KeyName::Wanted => self.intentions = true,
            KeyName::Rounds(RoundsKey::Current) => self.intentions = true,
            KeyName::Rounds(_) => {}
            // Heartbeats are frequent, and nobody has to respond to one.
            KeyName::Load(_) => {}
            KeyName::Assignment(partition) | KeyName::Handoff(partition) | KeyName::Checkpoint(partition) => {
                self.partitions.insert(*partition);
            }
            KeyName::RouterDrained(partition, who)
            | KeyName::RouterCutover(partition, who)
            | KeyName::PodAck(partition, who, _) => {
                self.partitions.insert(*partition);
                self.acks.push((*partition, who.clone()));
            }
        }
    }
}
