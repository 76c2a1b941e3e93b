//! The routing table: for each partition its gate, where it leads, and who waits before it.
//!
//! The request path reads it without a lock; `plane` changes it as the protocol says. A dense
//! array by partition number, one cache line each; counters of its own for each worker.
//! What must stay true, for each partition:
//! * where it leads changes only while the gate is closed and empty, so whoever is inside may read it;
//! * the gate's position changes only under the partition's lock, and opens only when nobody waits and no request that
//!   had to wait can be overtaken by one of its key;
//! * a request is counted inside from before it can reach a pod until the pod is done with it.

mod admission;
mod cutover;
mod hold;
mod limits;
mod pod_health;
mod pods;
mod preconnect;
mod refusals;
mod route;
mod state;

pub(crate) use self::admission::{ComesBack, Turn};
pub use self::limits::{Refusal, StashLimits};
pub use self::pod_health::{Health, Refused};
pub use self::pods::Pod;
pub(crate) use self::refusals::{Refusals, Returned};
pub(crate) use self::route::Route;
pub use self::state::Table;
