//! The settings of a keyspace, which every participant shares.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::Epoch;

/// The version of the handoff protocol that this build speaks. Builds of one version work side by side in any mixture.
pub const PROTOCOL: u32 = 3;

/// Most partitions of a keyspace. The configuration and the routing table have the same limit.
pub const MAX_PARTITIONS: u32 = 65_536;

/// Most checkpoints of a keyspace per second. With more partitions than that per interval, the interval is longer.
const MAX_CHECKPOINTS_PER_SECOND: u64 = 500;

/// How long a new owner waits for a checkpoint of the old owner, in milliseconds, if the settings do not say.
const DEFAULT_TIMEOUT_MS: u64 = 10_000;

/// When pods make checkpoints. They follow the settings in force, so a leader is not needed for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointTimes {
    /// Time between two checkpoints of a partition.
    pub interval: Duration,
    /// How long a new owner waits for the old owner's checkpoint before it warms from the one before.
    pub timeout: Duration,
}

/// `config`: the settings of the keyspace itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyspaceConfig {
    /// Partitions are numbered `0..partitions`. The number never decreases. It grows only where
    /// [`partitioner`](Self::partitioner) allows it.
    pub partitions: u32,
    /// How requests map to partitions. The first router writes it.
    #[serde(default)]
    pub partitioner: Option<Partitioner>,
    /// The version of the protocol that the participants of the keyspace speak. Whoever writes the settings first writes its own.
    /// Participants of another version do not register. `None`: any version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
    /// The service that the keyspace belongs to: participants of another one do not register. The first coordinator writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Epochs begin above this number. It is above every epoch from before the store went back, and never falls.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch_floor: Epoch,
    /// How the keyspace is planned, by the names of the settings in `[coordinator]`: strategy, mode, times and budget.
    /// The first leader writes it. Any value leaves the rest of the settings readable: planning reads it, and of pods
    /// [`checkpoint_times`](Self::checkpoint_times).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planning: Option<Value>,
    /// Fields that this version does not know. They are kept when the record is written again.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

fn is_zero(epoch: &Epoch) -> bool {
    *epoch == Epoch::default()
}

impl KeyspaceConfig {
    /// Returns settings with this many partitions and this build's version, before a router has written how requests map to
    /// them.
    pub fn new(partitions: u32) -> Self {
        KeyspaceConfig {
            partitions,
            partitioner: None,
            protocol: Some(PROTOCOL),
            service: None,
            epoch_floor: Epoch::default(),
            planning: None,
            unknown: Map::new(),
        }
    }

    /// Returns when pods make checkpoints. `None` if they make none, which is the default.
    pub fn checkpoint_times(&self) -> Option<CheckpointTimes> {
        let millis = |key| self.planning.as_ref()?.get(key)?.as_u64().filter(|millis| *millis > 0);
        let interval = millis("checkpoint_interval_ms")?;
        let spaced = u64::from(self.partitions) * 1000 / MAX_CHECKPOINTS_PER_SECOND;
        let timeout = millis("checkpoint_timeout_ms").unwrap_or(DEFAULT_TIMEOUT_MS);
        // A wait as long as `warm_timeout` would cancel every handoff from an owner that is stuck.
        let longest = millis("warm_timeout_ms").map_or(u64::MAX, |warm| warm / 2);
        Some(CheckpointTimes {
            interval: Duration::from_millis(interval.max(spaced)),
            timeout: Duration::from_millis(timeout.min(longest)),
        })
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

    /// Returns whether another number of partitions would map existing keys to other partitions.
    pub fn fixes_number(&self) -> bool {
        !matches!(self, Partitioner::Number { .. })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn times(partitions: u32, planning: Value) -> Option<(u128, u128)> {
        let config = KeyspaceConfig { planning: Some(planning), ..KeyspaceConfig::new(partitions) };
        config.checkpoint_times().map(|times| (times.interval.as_millis(), times.timeout.as_millis()))
    }

    #[test]
    fn checkpoints_are_off_unless_the_settings_have_a_readable_interval() {
        assert_eq!(KeyspaceConfig::new(64).checkpoint_times(), None);
        for planning in ["{}", r#"{"checkpoint_interval_ms":0}"#, r#"{"checkpoint_interval_ms":"10s"}"#, "7"] {
            assert_eq!(times(64, serde_json::from_str(planning).unwrap()), None, "{planning}");
        }
        assert_eq!(times(64, serde_json::json!({ "checkpoint_interval_ms": 500 })), Some((500, 10_000)));
    }

    #[test]
    fn a_time_of_zero_is_as_none() {
        let planning = serde_json::json!({
            "checkpoint_interval_ms": 1_000, "checkpoint_timeout_ms": 0, "warm_timeout_ms": 0,
        });
        assert_eq!(times(1, planning), Some((1_000, 10_000)));
    }

    #[test]
    fn a_keyspace_makes_a_bounded_number_of_checkpoints_per_second() {
        let planning = serde_json::json!({ "checkpoint_interval_ms": 10_000 });
        assert_eq!(times(5_000, planning.clone()), Some((10_000, 10_000)));
        assert_eq!(times(65_536, planning), Some((131_072, 10_000)));
    }

    #[test]
    fn the_wait_for_a_checkpoint_leaves_time_to_warm() {
        let planning = serde_json::json!({
            "checkpoint_interval_ms": 1_000, "checkpoint_timeout_ms": 60_000, "warm_timeout_ms": 10_000,
        });
        assert_eq!(times(1, planning), Some((1_000, 5_000)));
    }
}
