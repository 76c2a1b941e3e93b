//! The settings that say how many partitions a keyspace has, which pods get them, and how many move at a time: in the
//! coordinator's section, or in the table of a keyspace.
//!
//! For: those settings of planning that a table may have of its own. Not for: those that all keyspaces of a file share
//! (`coordinator`).
//!
//! # Invariants
//!
//! * A key of a table takes the same values as the key of the section that it stands in for.

use segue_protocol::planning::{Policy, Strategy};

use crate::reader::ConfigReader;

/// The keys of such settings.
pub(super) struct PlacementKeys {
    partitions: &'static str,
    strategy: &'static str,
    max_concurrent_handoffs: &'static str,
    max_warming_per_pod: &'static str,
    cool_down: &'static str,
    balance_load: &'static str,
    max_keys_per_partition: &'static str,
}

macro_rules! keys_of {
    ($section:literal) => {
        PlacementKeys {
            partitions: concat!($section, ".partitions"),
            strategy: concat!($section, ".strategy"),
            max_concurrent_handoffs: concat!($section, ".max_concurrent_handoffs"),
            max_warming_per_pod: concat!($section, ".max_warming_per_pod"),
            cool_down: concat!($section, ".cool_down"),
            balance_load: concat!($section, ".balance_load"),
            max_keys_per_partition: concat!($section, ".max_keys_per_partition"),
        }
    };
}

/// The keys in `[coordinator]`, which apply to all keyspaces.
pub(super) const COORDINATOR: PlacementKeys = keys_of!("coordinator");
/// The keys in a table of `[[keyspaces]]`.
pub(super) const KEYSPACE: PlacementKeys = keys_of!("keyspaces");

/// Returns `default` with the settings that are given.
pub(super) fn read(r: &mut ConfigReader<'_>, keys: &PlacementKeys, default: &Policy) -> Policy {
    let count = 1..=i64::MAX;
    Policy {
        partitions: r.integer(keys.partitions, 1..=65536, default.partitions),
        strategy: r.choice(keys.strategy, Strategy::NAMES, default.strategy),
        max_concurrent_handoffs: r.integer(
            keys.max_concurrent_handoffs,
            count.clone(),
            default.max_concurrent_handoffs,
        ),
        max_warming_per_pod: r.integer(keys.max_warming_per_pod, count, default.max_warming_per_pod),
        cool_down: r.duration_or_zero(keys.cool_down, default.cool_down),
        balance_load: r.boolean(keys.balance_load, default.balance_load),
        max_keys_per_partition: r.integer(keys.max_keys_per_partition, 0..=i64::MAX, default.max_keys_per_partition),
        ..default.clone()
    }
}
