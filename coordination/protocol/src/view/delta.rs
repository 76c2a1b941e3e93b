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
}

impl ViewDelta {
    /// Records a change of this key.
    pub(super) fn note(&mut self, name: &KeyName) {
        match name {
            KeyName::Config | KeyName::Pod(_) | KeyName::Router(_) => self.membership = true,
            // Only planning depends on operators' keys and the wanted owners, and it examines the whole view.
            KeyName::Drain(_) | KeyName::Pin(_) | KeyName::Pause | KeyName::Operation(_) => {}
            KeyName::Leader | KeyName::Wanted => {}
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
