//! The roles that a process can have, each joined from its parts: what `segue run` starts and the admin endpoint shows.

pub mod coordinator;
pub mod pod;
pub mod router;
