//! The settings of a keyspace, which every participant shares.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Most partitions of a keyspace. The configuration and the routing table have the same limit.
pub const MAX_PARTITIONS: u32 = 65_536;

/// `config`: the settings of the keyspace itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyspaceConfig {
    /// Partitions are numbered `0..partitions`. The number never decreases. It grows only where
    /// [`partitioner`](Self::partitioner) allows it.
    pub partitions: u32,
    /// How requests map to partitions. The first router writes it.
    #[serde(default)]
    pub partitioner: Option<Partitioner>,
    /// How the keyspace is planned, by the names of the settings in `[coordinator]`: strategy, mode, times and budget.
    /// The first leader writes it. Only planning reads it, so any value leaves the rest of the settings readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planning: Option<Value>,
    /// Fields that this version does not know. They are kept when the record is written again.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl KeyspaceConfig {
    /// Returns settings with this many partitions, before a router has written how requests map to them.
    pub fn new(partitions: u32) -> Self {
        KeyspaceConfig { partitions, partitioner: None, planning: None, unknown: Map::new() }
    }
}

/// How requests map to partitions, in the form in which routers compare it. A mapping with an additional field is a
/// different one, and [`Unknown`](Self::Unknown) to this version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Partitioner {
    /// `{"key":"path:/persons/{key}","hash":"murmur2"}`: the hash of a key in the request, modulo the number of
    /// partitions.
    Key {
        /// `header:`, `path:`, `query:` or `cookie:`, followed by the value from the configuration file.
        key: String,
        /// The name of the hash.
        hash: String,
    },
    /// `{"number":true}`: the request names the partition itself.
    Number {
        /// Always true.
        number: bool,
    },
    /// A mapping that this version does not know. It is no router's own.
    Unknown(Value),
}

impl Partitioner {
    /// The mapping of a request that names its partition.
    pub const NUMBER: Partitioner = Partitioner::Number { number: true };
}

impl fmt::Display for Partitioner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Partitioner::Key { key, hash } => write!(out, "the {hash} hash of {key}"),
            Partitioner::Number { .. } => out.write_str("the partition's number in the request"),
            Partitioner::Unknown(value) => write!(out, "{value}"),
        }
    }
}
