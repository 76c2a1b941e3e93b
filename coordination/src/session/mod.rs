//! The common part of routers, pods and coordinators: they hold a lease, register a key, and follow the store.
//!
//! Shells only: [`lease`](segue_protocol::lease) decides how long a lease may be trusted, and
//! [`holders`](segue_protocol::holders) whose key is deleted while others go on with it.

mod beside;
mod clock;
mod jitter;
mod lease;
mod leases;
mod own_key;
mod registration;
mod shares;
mod watcher;
mod write_queue;

pub use clock::{boottime, count_by_tokio, lease_now, suspend, wakes_at};
pub use jitter::seed_jitter;
pub use lease::KeptLease;
pub use leases::Leases;
pub(crate) use own_key::OwnKey;
pub use registration::{Claim, Registration, register};
pub use shares::LeaseState;
pub use watcher::{Update, Watcher};
pub(crate) use write_queue::{WriteQueue, WriteResults};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use segue_protocol::back_off::BackOff;

/// Returns the milliseconds since the Unix epoch, for informational timestamps.
pub fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The waits before the store is retried, each shortened at random by up to a half: participants that lost the store
/// together do not return together.
#[derive(Debug, Default)]
pub(crate) struct StoreRetry {
    failures: u32,
}

impl StoreRetry {
    const BACK_OFF: BackOff = BackOff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

    pub(crate) fn next(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        jitter::jittered(Self::BACK_OFF.after(self.failures))
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}
