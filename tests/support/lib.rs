//! What the integration tests of the whole workspace share. Never part of a release.
//!
//! `etcd` must stay free of Segue's own crates: they use it from their own tests, and a type that came in through here
//! as well would exist twice.

#![allow(clippy::unwrap_used)]

pub mod certificates;
pub mod etcd;
#[cfg(segue_loom)]
pub mod loom;
pub mod ports;
pub mod process;
