//! The subjects of a batch of changes, so that a shell reconsiders only what may have changed.

use std::collections::BTreeSet;

use crate::ids::PartitionId;
use crate::keys::KeyName;

/// The subjects of one batch of changes, so that a shell reconsiders only what may have changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ViewDelta {
    /// Partitions whose assignment, handoff or acks changed.
    pub partitions: BTreeSet<PartitionId>,
    /// A pod, a router or the settings of the keyspace changed: every partition may be affected.
    pub membership: bool,
    /// An operator's key, the wanted owners or the leader changed: only planning depends on them.
    pub intentions: bool,
}

impl ViewDelta {
    /// Records a change of this key.
    pub(super) fn note(&mut self, name: &KeyName) {
        match name {
            KeyName::Config | KeyName::Pod(_) | KeyName::Router(_) => self.membership = true,
            KeyName::Drain(_) | KeyName::Pin(_) | KeyName::Pause | KeyName::Operation(_) => self.intentions = true,
            KeyName::Leader | KeyName::Wanted => self.intentions = true,
            // Heartbeats are frequent, and nobody has to respond to one.
            KeyName::Load(_) => {}
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
