//! A worker's thread: timers, tasks that outlive their request, and errors that mean the process has run out of something.
//!
//! Nothing here knows of HTTP or of partitions.

pub(crate) mod background;
pub(crate) mod coarse_timer;
pub(crate) mod exchange_timeout;
pub(crate) mod shortage;
