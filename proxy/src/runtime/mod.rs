//! A worker's thread: timers, tasks that outlive their request, the pace of log lines, counters, and
//! errors that mean that the process lacks a resource.
//!
//! Nothing here depends on HTTP or on partitions.

pub(crate) mod background;
pub(crate) mod coarse_timer;
pub(crate) mod exchange_timeout;
pub(crate) mod last_turn;
pub(crate) mod repeated_line;
pub(crate) mod shortage;
pub(crate) mod single_writer;
