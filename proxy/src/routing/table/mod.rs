//! The routing table: for each partition its gate, the pod that it leads to, and the requests that wait before it.
//!
//! The request path reads it without a lock; `data_plane` changes it as the protocol says. It is a dense array by partition
//! number with a cache line for each partition, and each worker has counters of its own.
//! Elsewhere: the data (`state`), what the control side does (`cutover`), what requests do (`admission`), what is known of
//! a closed gate (`hold`), the requests that come before the number of partitions (`early`), the exchanges that last (`lasting`,
//! `lists`), and the most frequent keys (`hot_keys`).
//!
//! # Invariants
//!
//! * Where a partition leads changes only while its gate is closed and empty, so a request that is inside may read it.
//! * A gate changes only under its partition's lock. It opens only when nobody waits and no request that had to wait can be
//!   overtaken by one of its key.
//! * A request is counted inside from before it can reach a pod until the pod is done with it.

mod admission;
mod bounce;
mod cutover;
mod early;
mod hold;
mod hot_keys;
mod key_counts;
mod key_sketch;
mod lasting;
mod limits;
mod lists;
mod pod_health;
mod pod_traffic;
mod pods;
mod preconnect;
mod ready_pods;
mod refusals;
mod route;
mod sample;
mod state;

pub(crate) use self::admission::{Requeue, WaitOutcome};
pub use self::bounce::Bounce;
pub(crate) use self::hold::POD_RETRY;
pub use self::hot_keys::KeyMeasurement;
pub use self::key_sketch::HotKey;
pub(crate) use self::lasting::LastingId;
pub use self::lasting::{ExchangeAges, OldestExchange};
pub use self::limits::{AdmissionError, StashLimits, StashTotal};
pub use self::pod_health::PodHealth;
pub use self::pod_traffic::CodeClass;
pub(crate) use self::pod_traffic::{TrafficTotal, WorkerTraffic};
pub use self::pods::Pod;
pub(crate) use self::ready_pods::ReadyPod;
pub(crate) use self::refusals::OwnerRefusals;
pub(crate) use self::route::GateRoute;
pub use self::state::Table;
