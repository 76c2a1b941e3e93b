//! The owners that an operator or another system wants, for the strategy `external`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::PartitionId;

/// `wanted`: `{"generation":41,"owners":{"0":"w-1"},"default":"keep"}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Wanted {
    /// Grows with each change; moves name it as their reason.
    pub generation: u64,
    /// The pod that each named partition is to move to.
    #[serde(default)]
    pub owners: BTreeMap<PartitionId, String>,
    /// What becomes of the other partitions.
    #[serde(default)]
    pub default: WantedDefault,
}

/// What becomes of a partition that [`Wanted`] does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WantedDefault {
    /// It stays where it is.
    #[default]
    Keep,
}
