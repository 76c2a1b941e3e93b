//! What every participant does alike, whether router, pod or coordinator: hold a lease, stand under a key, follow the store.
//!
//! Shells only; when a lease may be trusted is decided in [`lease`](segue_protocol::lease).

mod clock;
mod follow;
mod jitter;
mod lease;
mod outbox;
mod own_key;
mod register;

pub use clock::{boottime, count_by_tokio, lease_now, suspend, wakes_at};
pub use follow::{Follow, Update};
pub use jitter::seed_jitter;
pub use lease::{KeptLease, LeaseState};
pub(crate) use outbox::{Answers, Outbox};
pub(crate) use own_key::OwnKey;
pub use register::{Claim, Registration, register};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch, for the timestamps that people read.
pub fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Waits that grow from 50 ms to 1 s, each shortened at random by up to a half so that participants which lost the store
/// together do not come back together.
#[derive(Debug, Default)]
pub(crate) struct BackOff {
    failures: u32,
}

impl BackOff {
    pub(crate) fn next(&mut self) -> Duration {
        let full = Duration::from_millis(50).saturating_mul(1 << self.failures.min(5)).min(Duration::from_secs(1));
        self.failures += 1;
        jitter::shortened(full)
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}
