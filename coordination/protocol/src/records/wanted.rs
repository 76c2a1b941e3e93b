//! The owners that the strategy `external` follows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::PartitionId;

/// `wanted`: `{"generation":41,"owners":{"0":"w-1"},"default":"keep"}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Wanted {
    /// Grows with each change. Moves name it in their reason.
    pub generation: u64,
    /// The wanted pod of each named partition.
    #[serde(default)]
    pub owners: BTreeMap<PartitionId, String>,
    /// What happens to the other partitions.
    #[serde(default)]
    pub default: WantedDefault,
}

/// What happens to a partition that [`Wanted`] does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WantedDefault {
    /// The partition stays where it is.
    #[default]
    Keep,
}
