//! The two clocks of a pod.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The lease clock counts the time of a suspension.
pub(crate) fn lease_now() -> Duration {
    read(ClockId::Boottime)
}

/// The monotonic clock, in nanoseconds, for records of the log.
pub(crate) fn nanos() -> u64 {
    u64::try_from(read(ClockId::Monotonic).as_nanos()).unwrap_or(u64::MAX)
}

fn read(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}
