//! What simulated pods report of their load: a pattern for each seed, in place of the number of requests.
//!
//! A few clients make too even a load for any pod to be overloaded for long.

use std::time::Duration;

use segue_protocol::ids::PartitionId;

/// How the load of partitions differs, and changes with time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// The requests that pods count themselves.
    Requests,
    /// The same everywhere.
    Even,
    /// Every third partition has many times what the others have.
    Skewed,
    /// The partition with most of the load is another one every half minute.
    Drifting,
    /// Each heartbeat shows the opposite of the one before, about as far off as an overload begins.
    Noisy,
}

/// The time between two heartbeats.
const BEAT: u64 = 5;

impl Pattern {
    pub(crate) const ALL: [Pattern; 5] =
        [Pattern::Requests, Pattern::Even, Pattern::Skewed, Pattern::Drifting, Pattern::Noisy];

    /// What a pod reports of a partition after this time. `None`: nothing.
    pub(crate) fn load(self, partition: PartitionId, partitions: u32, elapsed: Duration) -> Option<f64> {
        let (partition, second) = (u64::from(partition.get()), elapsed.as_secs());
        match self {
            Pattern::Requests => None,
            Pattern::Even => Some(100.0),
            Pattern::Skewed if partition.is_multiple_of(3) => Some(400.0),
            Pattern::Skewed => Some(20.0 + partition as f64),
            Pattern::Drifting if partition == second / 30 % u64::from(partitions) => Some(500.0),
            Pattern::Drifting => Some(30.0),
            Pattern::Noisy if (second / BEAT + partition).is_multiple_of(2) => Some(160.0),
            Pattern::Noisy => Some(100.0),
        }
    }
}
