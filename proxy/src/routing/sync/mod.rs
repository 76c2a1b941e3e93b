//! The primitives that the concurrent mechanisms are built from: the real ones, or stand-ins that loom sees.
//!
//! [`gate`](crate::routing::gate), [`segments`](crate::routing::segmented_vec), [`table`](crate::routing::table) and [`ticket`](crate::routing::permit) take their
//! atomics, locks, grants and timers from here and from nowhere else. Without `--cfg segue_loom` this file is a list of
//! names (tokio and bytes have a meaning of their own for `cfg(loom)`). What must stay true: whatever two threads hand each other in these modules goes through something named here,
//! or loom does not see the race.

#[cfg(segue_loom)]
mod modelled;

#[cfg(segue_loom)]
pub(crate) use modelled::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, OnceLock, oneshot, time};
#[cfg(not(segue_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(not(segue_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, OnceLock};
#[cfg(not(segue_loom))]
pub(crate) use tokio::{sync::oneshot, time};
