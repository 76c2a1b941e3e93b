//! The primitives that the concurrent mechanisms are built from: the real ones, or loom's models of them.
//!
//! [`gate`](crate::routing::gate), [`segmented_vec`](crate::routing::segmented_vec), [`table`](crate::routing::table)
//! and [`permit`](crate::routing::permit) take their atomics, locks, grants and timers only from here. In this crate the
//! file is a list of names. `tests/loom` compiles the folder `routing` once more with `cfg(segue_loom)`, for its models.
//! (The name is not `cfg(loom)` because that has a meaning of its own for tokio and bytes.)
//!
//! # Invariants
//!
//! * Whatever two threads hand each other in these modules goes through a primitive named here; otherwise loom does not
//!   see the race.

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
