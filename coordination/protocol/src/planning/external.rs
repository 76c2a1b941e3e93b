//! The strategy `external`: an operator or another system sets the owners in the key `wanted`.
//!
//! Segue moves partitions to these owners under the same rules as any other move: within the budget, with the barrier,
//! and never to a draining pod. A partition stays where it is if `wanted` does not name it, or if its pod is absent or
//! accepts no partitions. A partition whose owner is dead or drains has to move: it goes to the next incarnation of
//! that owner, or else to the pod with the fewest partitions for its weight. Nothing else is balanced.
//!
//! # Invariants
//!
//! * Without the key, or while it cannot be read, no partition moves unless it has to.
//! * [`write()`] replaces only the value that its caller has seen, and only by a later generation.

use std::fmt;

use super::placement::{Eligibility, Layout, Placement};
use crate::ids::{PartitionId, Revision};
use crate::records::{Wanted, encode};
use crate::txn::{Compare, Op, Txn};
use crate::view::View;

/// The strategy that follows the key `wanted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct External;

impl Placement for External {
    fn place(&self, layout: &Layout<'_>) -> Vec<Option<usize>> {
        let no_other_choice = layout.has_no_other_choice();
        let is_open = |member: &usize| match layout.members[*member].eligibility {
            Eligibility::Open => true,
            Eligibility::Shunned => no_other_choice,
            Eligibility::Leaving => false,
        };
        let stays = |member: &usize| layout.members[*member].eligibility != Eligibility::Leaving;
        let mut placed: Vec<Option<usize>> = layout
            .slots
            .iter()
            .map(|slot| {
                let is_there = slot.owner.filter(|owner| slot.wanted == Some(*owner)).filter(stays);
                let wanted = slot.wanted.filter(is_open);
                is_there.or(wanted).or(slot.owner.filter(stays)).or(slot.home.filter(is_open))
            })
            .collect();
        let mut loads = vec![0u64; layout.members.len()];
        placed.iter().flatten().for_each(|member| loads[*member] += 1);
        for place in placed.iter_mut().filter(|place| place.is_none()) {
            // A weight of zero counts as the smallest positive weight.
            let weight = |member: usize| u64::from(layout.members[member].weight.0.max(1));
            let open = (0..loads.len()).filter(is_open);
            let least = open.min_by(|one, other| {
                let (one_load, other_load) = (loads[*one] + 1, loads[*other] + 1);
                (one_load * weight(*other)).cmp(&(other_load * weight(*one))).then(one.cmp(other))
            });
            let Some(least) = least else { break };
            loads[least] += 1;
            *place = Some(least);
        }
        placed
    }
}

/// Leaves partitions where they are unless they have to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stay;

impl Placement for Stay {
    fn place(&self, layout: &Layout<'_>) -> Vec<Option<usize>> {
        let mut layout = layout.clone();
        layout.slots.iter_mut().for_each(|slot| slot.wanted = None);
        External.place(&layout)
    }
}

/// Why [`write()`] refuses wanted owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteError {
    /// The key exists but cannot be read, so its generation is unknown.
    Unreadable {
        /// The key.
        key: String,
    },
    /// The generation is not later than the stored one.
    Outdated {
        /// The stored generation.
        stored: u64,
    },
    /// The keyspace has no such partition.
    NoSuchPartition {
        /// The partition.
        partition: PartitionId,
        /// The number of partitions of the keyspace.
        partitions: u32,
    },
}

impl std::error::Error for WriteError {}

impl fmt::Display for WriteError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Unreadable { key } => {
                write!(out, "{key} cannot be read, so its generation is not known; delete it or restore it first")
            }
            WriteError::Outdated { stored } => {
                write!(out, "generation {stored} is stored; expected a later one")
            }
            WriteError::NoSuchPartition { partition, partitions } => {
                write!(out, "partition {partition} is wanted, but the keyspace has {partitions}")
            }
        }
    }
}

/// Returns the transaction that writes the wanted owners. It fails if the key has changed since this view.
///
/// # Errors
///
/// Refuses a generation that is not later than the stored one, an unreadable key, and a partition that the keyspace has
/// not.
pub fn write(view: &View, wanted: &Wanted) -> Result<Txn, WriteError> {
    let key = view.keys().wanted();
    if view.malformed.contains_key(&key) {
        return Err(WriteError::Unreadable { key });
    }
    if let Some(stored) = view.wanted.as_ref().map(|stored| stored.value.generation)
        && stored >= wanted.generation
    {
        return Err(WriteError::Outdated { stored });
    }
    let partitions = view.partitions();
    if let Some(partition) = wanted.owners.keys().copied().find(|partition| partition.get() >= partitions) {
        return Err(WriteError::NoSuchPartition { partition, partitions });
    }
    let seen = view.wanted.as_ref().map_or(Revision::ZERO, |stored| stored.mod_revision);
    Ok(Txn::guarded([Compare::unchanged_since(key.clone(), seen)], [Op::put(key, encode(wanted))]))
}
