//! How long planning waits for a pod before it prefers other pods.

use std::time::Duration;

/// Number of heartbeats that a pod misses before it is suspected.
pub const MISSED_BEFORE_SUSPECTED: u32 = 3;
/// How long a pod may warm without progress before other pods are preferred.
pub const SLOW_WARM: Duration = Duration::from_secs(60);
