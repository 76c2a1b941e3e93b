//! Operators' intentions as a view shows them.
//!
//! # Invariants
//!
//! * An unreadable intention is not absent: an unreadable drain is a drain, an unreadable pause is a pause, and an
//!   unreadable pin keeps its partition where it is.

use std::collections::BTreeMap;

use super::reading::RecordReader;
use super::{Versioned, View};
use crate::ids::PartitionId;
use crate::keys::KeyName;
use crate::records::{Drain, Operation, Origin, Pause, Pin, PodStatus};

/// Operators' intentions for a keyspace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Intentions {
    /// The pods that operators drain.
    pub drains: BTreeMap<String, Versioned<Drain>>,
    /// The pin of each pinned partition. `None` for a pin that cannot be read.
    pub pins: BTreeMap<PartitionId, Option<Versioned<Pin>>>,
    /// The pause of planned moves, if there is one.
    pub pause: Option<Versioned<Pause>>,
    /// The operations that can be read, by id.
    pub operations: BTreeMap<String, Versioned<Operation>>,
}

impl Intentions {
    pub(super) fn put(&mut self, name: &KeyName, read: &RecordReader<'_>) -> Result<(), String> {
        let unreadable = || Origin { who: "somebody".into(), why: "the record cannot be read".into(), at: 0 };
        match name {
            KeyName::Drain(pod) => {
                let result = read.stamped();
                let stands =
                    result.as_ref().map_or_else(|_| read.stamp(Drain { origin: unreadable() }), Versioned::clone);
                self.drains.insert(pod.clone(), stands);
                result.map(drop)
            }
            KeyName::Pause => {
                let result = read.stamped();
                let stands = || read.stamp(Pause { origin: unreadable(), until: None });
                self.pause = Some(result.as_ref().map_or_else(|_| stands(), Versioned::clone));
                result.map(drop)
            }
            KeyName::Pin(partition) => {
                let result = read.stamped();
                self.pins.insert(*partition, result.as_ref().ok().cloned());
                result.map(drop)
            }
            KeyName::Operation(id) => read.put_into(&mut self.operations, id.clone()),
            _ => Ok(()),
        }
    }

    pub(super) fn delete(&mut self, name: &KeyName) {
        match name {
            KeyName::Drain(pod) => drop(self.drains.remove(pod)),
            KeyName::Pause => self.pause = None,
            KeyName::Pin(partition) => drop(self.pins.remove(partition)),
            KeyName::Operation(id) => drop(self.operations.remove(id)),
            _ => {}
        }
    }

    /// Returns the partition's pin, if it can be read.
    pub fn pin(&self, partition: PartitionId) -> Option<&Versioned<Pin>> {
        self.pins.get(&partition)?.as_ref()
    }
}

impl View {
    /// Returns whether a pod gives up its partitions: by its own record, or because an operator drains it.
    pub fn is_draining(&self, pod: &str) -> bool {
        self.intentions.drains.contains_key(pod) || self.leaves_by_itself(pod)
    }

    /// Returns whether a pod's own record says that it gives up its partitions.
    pub fn leaves_by_itself(&self, pod: &str) -> bool {
        self.pods.get(pod).is_some_and(|pod| pod.value.status == PodStatus::Draining)
    }

    /// Returns whether the partition is pinned to this incarnation of this pod.
    pub fn is_pinned_to(&self, partition: PartitionId, pod: &str) -> bool {
        let Some(pin) = self.intentions.pin(partition).map(|pin| &pin.value) else { return false };
        let lives = !pin.ends_with_the_pod() || self.incarnation_of(pod) == pin.incarnation;
        pin.to == pod && lives
    }
}
