//! The view of one pod, which leaves out the acks of handoffs in which the pod takes no part.
//!
//! The store sends each pod's ack to every participant. A pod decides from the acks of its own handoffs alone. It recognises
//! the others by their keys, before it reads their values.
//!
//! # Invariants
//!
//! * An ack is left out only while the view shows its handoff, readable and between other pods. The handoff's record is
//!   always seen first, because an ack is written only while the record exists, and its parties never change.
//! * An ack that is left out is no change.

use super::View;
use crate::ids::PartitionId;

impl View {
    /// Returns this view as `pod` needs it, which leaves out the acks of handoffs between others, now and after later
    /// changes.
    pub fn of_pod(mut self, pod: &str) -> Self {
        self.pod = Some(pod.to_owned());
        let mut acks = std::mem::take(&mut self.acks);
        acks.retain(|partition, _| !self.is_between_others(*partition));
        self.acks = acks;
        self
    }

    /// Returns whether this key is an ack that the view leaves out.
    pub(super) fn leaves_out(&self, key: &str) -> bool {
        self.pod.is_some() && self.keys.acked_by_pod(key).is_some_and(|partition| self.is_between_others(partition))
    }

    /// Returns whether this key is an ack that the view has left out, if it had existed. Its handoff may be gone by now.
    pub(super) fn has_left_out(&self, key: &str) -> bool {
        let is_absent = |partition| !self.acks.contains_key(&partition);
        let is_known = self.malformed.contains_key(key);
        self.pod.is_some() && !is_known && self.keys.acked_by_pod(key).is_some_and(is_absent)
    }

    fn is_between_others(&self, partition: PartitionId) -> bool {
        let Some(pod) = &self.pod else { return false };
        let handoff = self.handoffs.get(&partition).map(|handoff| &handoff.value);
        handoff.is_some_and(|handoff| handoff.new_owner != *pod && handoff.old_owner.as_ref() != Some(pod))
    }
}
