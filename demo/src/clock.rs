//! The one clock of a demo: monotonic and the same for all processes of a machine, so that the records of clients and
//! pods can be ordered.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the machine's monotonic clock.
pub type Nanos = u64;

/// Returns the current time.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    // A monotonic clock starts at boot and never reads negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns a duration on this clock.
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
