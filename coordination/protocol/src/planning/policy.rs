//! The settings that planning obeys. [`in_force`](super::in_force()) decides whose they are.

use std::time::Duration;

use super::{external, jump, placement, ring, sticky};
use crate::records::Mode;

/// The operator's policy: section `[coordinator]` of the configuration file. All of it but `partitions` and `config_wins`
/// is in force only until the keyspace has settings of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The wanted number of partitions. The keyspace grows to a larger number only if requests name their partition. A
    /// smaller number is refused.
    pub partitions: u32,
    /// The placement strategy.
    pub strategy: Strategy,
    /// How coordinators share their work.
    pub coordination: Coordination,
    /// How routers cut over. `Independent` applies only while fewer than two routers are registered.
    pub mode: Mode,
    /// How long nothing may have changed before a round closes.
    pub settle: Duration,
    /// Longest time from the first change to the close of its round.
    pub settle_max: Duration,
    /// Shortest time between two rounds.
    pub min_interval: Duration,
    /// Time from the last round to the next if nothing changes.
    pub heartbeat: Duration,
    /// How long a new owner may take to warm.
    pub warm_timeout: Duration,
    /// How long `Ready` and `Syncing` may take together, and each of the later phases. The patience of the registered
    /// routers is added to the former.
    pub phase_timeout: Duration,
    /// Time between two checkpoints of a partition; zero for none. Pods obey it, not planning.
    pub checkpoint_interval: Duration,
    /// How long a new owner waits for a checkpoint of the old owner before it warms from the one before.
    pub checkpoint_timeout: Duration,
    /// Most moves in flight at a time ([`budget`](super::budget)).
    pub max_concurrent_handoffs: usize,
    /// Most partitions that one pod warms at a time.
    pub max_warming_per_pod: usize,
    /// Shortest time between a partition's move and its next move for balance.
    pub cool_down: Duration,
    /// Whether partitions move for load, too. Only the strategy [`sticky`] does so.
    pub balance_load: bool,
    /// Number of keys of a partition above which the operator is warned; 0 for no warning.
    pub max_keys_per_partition: u64,
    /// Whether these settings replace those of the keyspace where they differ ([`in_force`](super::in_force())).
    pub config_wins: bool,
}

/// The defaults of the configuration file.
impl Default for Policy {
    fn default() -> Self {
        Policy {
            partitions: 64,
            strategy: Strategy::default(),
            coordination: Coordination::default(),
            mode: Mode::default(),
            settle: Duration::from_secs(1),
            settle_max: Duration::from_secs(5),
            min_interval: Duration::from_secs(2),
            heartbeat: Duration::from_secs(30),
            warm_timeout: Duration::from_secs(300),
            phase_timeout: Duration::from_secs(25),
            checkpoint_interval: Duration::ZERO,
            checkpoint_timeout: Duration::from_secs(10),
            max_concurrent_handoffs: 64,
            max_warming_per_pod: 8,
            cool_down: Duration::from_secs(10),
            balance_load: false,
            max_keys_per_partition: 0,
            config_wins: false,
        }
    }
}

/// How coordinators share their work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Coordination {
    /// One elected coordinator.
    #[default]
    Leader,
    /// All coordinators, each for its share of the partitions ([`rounds`](crate::rounds)).
    Rounds,
}

impl Coordination {
    /// Each with its name in the configuration file and in the keyspace's settings.
    pub const NAMES: &[(&str, Self)] = &[("leader", Coordination::Leader), ("rounds", Coordination::Rounds)];

    /// Returns the name in the configuration file and in the keyspace's settings.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, known)| *known == self).map_or("leader", |(name, _)| name)
    }
}

/// The name of a placement strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Strategy {
    /// [`sticky`]: balanced to the quota with the fewest moves; respects weights and zones.
    #[default]
    Sticky,
    /// [`jump`]: jump consistent hash; ignores weights.
    Jump,
    /// [`ring`]: consistent hash ring with bounded loads; ignores zones.
    Ring,
    /// [`external`]: the owners that the key `wanted` names.
    External,
    /// A strategy of the program that runs the coordinator.
    Custom(placement::Custom),
    /// The keyspace has a strategy that this coordinator does not know. Partitions stay where they are unless they have
    /// to move.
    Unknown,
}

impl Strategy {
    /// The strategies of the configuration file, by their names there.
    pub const NAMES: &[(&str, Self)] = &[
        ("sticky", Strategy::Sticky),
        ("jump", Strategy::Jump),
        ("ring", Strategy::Ring),
        ("external", Strategy::External),
    ];

    /// Returns the function that places partitions.
    pub fn placement(self) -> &'static dyn placement::Placement {
        match self {
            Strategy::Sticky => &sticky::Sticky,
            Strategy::Jump => &jump::Jump,
            Strategy::Ring => &ring::Ring,
            Strategy::External => &external::External,
            Strategy::Custom(custom) => custom.placement(),
            Strategy::Unknown => &external::Stay,
        }
    }

    /// Returns the strategy's name in the configuration file and in the keyspace's settings.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Custom(custom) => custom.name(),
            _ => Self::NAMES.iter().find(|(_, strategy)| *strategy == self).map_or("unknown", |(name, _)| name),
        }
    }
}
