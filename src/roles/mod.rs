//! The roles of a process, each assembled from its parts: `segue run` starts them and the admin endpoint shows them.

pub(crate) mod bound;
pub(crate) mod coordinator;
mod exchanges;
pub(crate) mod keyspace;
pub(crate) mod keyspace_follower;
pub(crate) mod pod;
mod progress;
mod readiness;
mod refusal_log;
pub(crate) mod router;
pub(crate) mod running;
