//! The one clock of a demo: monotonic, and the same for all processes of a machine, so that what clients and pods wrote
//! down can be put in order.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the machine's monotonic clock.
pub type Nanos = u64;

/// The time now.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    // A monotonic clock starts at boot and never reads negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A duration on this clock.
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
