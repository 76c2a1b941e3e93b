//! The primitives under [`ownership`](super::ownership) and [`lease_window`](super::lease_window): the real ones, or
//! loom's.
//!
//! All data shared between threads there goes through these, so that the models (`make loom`) see every race. The models
//! are part of `tests/loom`, which compiles these modules once more with `cfg(segue_loom)`. Loom treats `SeqCst` as
//! `AcqRel`. That is enough here: no thread writes one word and then reads another's.

#[cfg(segue_loom)]
mod modelled;

#[cfg(segue_loom)]
pub(super) use loom::sync::atomic::AtomicU64;
#[cfg(segue_loom)]
pub(super) use loom::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(segue_loom)]
pub(super) use modelled::{Notify, OwnedNotified};
#[cfg(not(segue_loom))]
pub(super) use std::sync::atomic::AtomicU64;
#[cfg(not(segue_loom))]
pub(super) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(segue_loom))]
pub(super) use tokio::sync::{Notify, futures::OwnedNotified};
