//! The common part of routers, pods and coordinators: they hold a lease, register a key, and follow the store.
//!
//! Shells only: [`lease`](segue_protocol::lease) decides how long a lease may be trusted, and
//! [`holders`](segue_protocol::holders) whose key is deleted while others go on with it.

mod beside;
mod clock;
mod follow;
mod lease;
mod leases;
mod occupied;
mod own_key;
mod participant;
mod patience;
mod registration;
mod resync;
mod shares;
mod watcher;
mod write_queue;

pub use clock::{boottime, count_by_tokio, lease_now, suspend, wakes_at};
pub use follow::Update;
pub use lease::KeptLease;
pub use leases::Leases;
pub(crate) use participant::{Event, LifeEnd, Participant};
pub(crate) use patience::{RepeatedLog, StoreRetry};
pub use registration::{Claim, Registration, raise_floor, register};
pub use shares::LeaseState;
pub use watcher::Watcher;
pub(crate) use write_queue::{WriteQueue, WriteResults};

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the milliseconds since the Unix epoch, for informational timestamps.
pub fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
