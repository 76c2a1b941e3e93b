//! Segue's handoff protocol: a partition moves from one writer pod to another while clients keep sending, and no request
//! is lost, none is applied by two owners, none overtakes an earlier one of the same key.
//!
//! Three kinds of code, never mixed in a file: decisions ([`protocol`], [`planning`]: pure functions over a view of the
//! store), the [`store`], and the shells that watch, decide and carry out. With default features off only
//! the decisions are built, and they need no runtime.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(feature = "shell")]
pub mod coordinator;
#[cfg(feature = "shell")]
pub mod participant;
pub mod planning;
#[cfg(feature = "shell")]
pub mod pod;
pub mod protocol;
#[cfg(feature = "shell")]
pub mod router;
pub mod store;
