//! The heartbeats of pods, with their load.
//!
//! They have keys of their own, which routers and pods do not follow: each would receive the load of all others.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Thousandths;
use crate::ids::{Incarnation, PartitionId};

/// Most partitions that a heartbeat lists: those with the largest load, and of these the most keys. It bounds the size of the record.
pub const MAX_LISTED: usize = 1000;

/// `~heartbeats/{pod}`, leased: a pod's last heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodLoad {
    /// The life of the pod. A heartbeat of another life says nothing.
    pub incarnation: Incarnation,
    /// When it was written. Informational.
    #[serde(default)]
    pub at: u64,
    /// Time until the next heartbeat, in milliseconds.
    pub interval_ms: u64,
    /// The load of all partitions of the pod.
    pub total: Thousandths,
    /// The partitions with the largest load.
    #[serde(default)]
    pub partitions: BTreeMap<PartitionId, PartitionLoad>,
}

/// The load of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PartitionLoad {
    /// Requests per second, or the pods' own measure, which must be the same in all pods of a keyspace.
    pub load: Thousandths,
    /// Number of keys, where the pod knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<u64>,
}

impl PodLoad {
    /// Returns the heartbeat of a pod with these partitions.
    pub fn new(
        incarnation: Incarnation,
        interval_ms: u64,
        mut partitions: BTreeMap<PartitionId, PartitionLoad>,
    ) -> Self {
        let total = partitions.values().fold(0u32, |total, partition| total.saturating_add(partition.load.0));
        if partitions.len() > MAX_LISTED {
            let mut by_load: Vec<_> = partitions.into_iter().collect();
            by_load.sort_by_key(|(_, partition)| Reverse((partition.load, partition.keys)));
            by_load.truncate(MAX_LISTED);
            partitions = by_load.into_iter().collect();
        }
        PodLoad { incarnation, at: 0, interval_ms, total: Thousandths(total), partitions }
    }
}
