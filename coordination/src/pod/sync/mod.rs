//! The primitives under [`ownership`](super::ownership) and [`term`](super::term): the real ones, or those that loom sees.
//!
//! What two threads hand each other there goes through these, so that the models (`make loom`) see every race. Loom takes
//! `SeqCst` for `AcqRel`; that is enough here, since nobody writes one word and then reads another's.

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
