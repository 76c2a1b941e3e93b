//! The view of one pod, which leaves out the acks of handoffs in which the pod takes no part, and leaves the records unread that
//! do not name it.
//!
//! The store sends each change to every participant. A pod decides by its own partitions and handoffs alone. It recognises the
//! others before it reads their values: an ack by its key, a record by the bytes of its value.
//!
//! # Invariants
//!
//! * An ack is left out only while the view shows its handoff, readable and between other pods. The handoff's record is
//!   always seen first, because an ack is written only while the record exists, and its parties never change.
//! * An assignment is read as soon as a handoff of its partition names the pod: the handoff started from it.
//! * What replaces a record that names the pod, or one that cannot be read, is always read.
//! * What is left out or unread is no change.

use std::collections::{BTreeMap, BTreeSet};

use memchr::{memchr, memmem};

use super::{View, ViewDelta};
use crate::ids::PartitionId;
use crate::keys::KeyName;
use crate::txn::KeyValue;

/// The pod whose view it is, and what the view has not read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnPod {
    name: String,
    /// The name as a record's JSON has it.
    quoted: Vec<u8>,
    /// The assignments of other pods' partitions.
    assignments: BTreeMap<PartitionId, KeyValue>,
    /// The partitions with a handoff between others.
    handoffs: BTreeSet<PartitionId>,
}

impl OwnPod {
    /// Returns whether a value may be about this pod. Somebody may have written the name with escapes.
    fn is_named_in(&self, value: &[u8]) -> bool {
        memchr(b'\\', value).is_some() || memmem::find(value, &self.quoted).is_some()
    }
}

impl View {
    /// Returns this view as `pod` needs it, which leaves out the acks of handoffs between others, and leaves later changes unread
    /// that are not about it.
    pub fn of_pod(mut self, pod: &str) -> Self {
        self.pod = Some(Box::new(OwnPod {
            name: pod.to_owned(),
            quoted: format!("\"{pod}\"").into_bytes(),
            assignments: BTreeMap::new(),
            handoffs: BTreeSet::new(),
        }));
        let mut acks = std::mem::take(&mut self.acks);
        acks.retain(|partition, _| !self.is_between_others(*partition));
        self.acks = acks;
        self
    }

    /// Takes a change that this view need not read. Returns it if it has to be read.
    pub(super) fn leave_unread(&mut self, name: &KeyName, entry: KeyValue) -> Option<KeyValue> {
        let Some(pod) = &self.pod else { return Some(entry) };
        if pod.is_named_in(&entry.value) {
            return Some(entry);
        }
        match *name {
            // A pod reads whatever replaces a record that names it, however garbled.
            KeyName::Assignment(partition) if !self.concerns_pod(partition) => {
                self.owned.remove(self.assignments.remove(&partition).as_ref());
                self.pod.as_mut().map(|pod| pod.assignments.insert(partition, entry));
                None
            }
            KeyName::Handoff(partition) if !self.concerns_pod(partition) => {
                self.handoffs.remove(&partition);
                self.pod.as_mut().map(|pod| pod.handoffs.insert(partition));
                None
            }
            KeyName::PodAck(partition, ..) if self.is_between_others(partition) => None,
            _ => Some(entry),
        }
    }

    /// Reads what a handoff that names the pod started from.
    pub(super) fn read_for_handoff(&mut self, partition: PartitionId, touched: &mut ViewDelta) {
        let Some(pod) = &mut self.pod else { return };
        pod.handoffs.remove(&partition);
        if let Some(unread) = pod.assignments.remove(&partition) {
            self.put(KeyName::Assignment(partition), unread, touched);
        }
    }

    /// Returns whether a deletion is of something that the view has left out or not read.
    pub(super) fn was_unread(&mut self, name: &KeyName, key: &str) -> bool {
        let Some(pod) = &mut self.pod else { return false };
        match *name {
            KeyName::Assignment(partition) => pod.assignments.remove(&partition).is_some(),
            KeyName::Handoff(partition) => pod.handoffs.remove(&partition),
            // Its handoff may be gone by now.
            KeyName::PodAck(partition, ..) => !self.malformed.contains_key(key) && !self.acks.contains_key(&partition),
            _ => false,
        }
    }

    /// Returns whether the pod owns the partition or takes part in its handoff, as far as the records can be read.
    fn concerns_pod(&self, partition: PartitionId) -> bool {
        let Some(pod) = &self.pod else { return true };
        let owns = self.assignments.get(&partition).is_some_and(|assignment| assignment.value.owner == pod.name);
        let takes_part = self.handoffs.contains_key(&partition) && !self.is_between_others(partition);
        owns || takes_part || self.is_malformed(partition)
    }

    fn is_between_others(&self, partition: PartitionId) -> bool {
        let Some(pod) = &self.pod else { return false };
        let handoff = self.handoffs.get(&partition).map(|handoff| &handoff.value);
        pod.handoffs.contains(&partition)
            || handoff
                .is_some_and(|handoff| handoff.new_owner != pod.name && handoff.old_owner.as_ref() != Some(&pod.name))
    }
}
