//! The primitives that the concurrent mechanisms are built from: the real ones, or stand-ins that loom sees.
//!
//! [`gate`](crate::gate), [`segments`](crate::segments), [`table`](crate::table) and [`ticket`](crate::ticket) take their
//! atomics, locks, grants and timers from here and from nowhere else. Without the feature `loom` this file is a list of
//! names. What must stay true: whatever two threads hand each other in these modules goes through something named here,
//! or loom does not see the race.

#[cfg(feature = "loom")]
mod modelled;

#[cfg(feature = "loom")]
pub(crate) use modelled::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, OnceLock, oneshot, time};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{Mutex, MutexGuard, OnceLock};
#[cfg(not(feature = "loom"))]
pub(crate) use tokio::{sync::oneshot, time};
