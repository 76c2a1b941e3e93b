//! The roles of a process, each assembled from its parts: `segue run` starts them and the admin endpoint shows them.

pub mod coordinator;
mod exchanges;
pub mod keyspace;
pub mod pod;
mod progress;
pub mod router;
pub mod running;
