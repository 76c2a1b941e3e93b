//! Segue's handoff protocol: a partition moves from one writer pod to another while clients keep sending. No request is
//! lost, none is applied by two owners, and none overtakes an earlier one of the same key.
//!
//! The decisions are pure functions in a crate of their own, [`segue_protocol`]. This crate contains the [`store`], and
//! the shells that watch it, call the decisions and carry them out.

#![warn(clippy::missing_errors_doc, clippy::too_many_lines)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod coordinator;
pub mod jitter;
pub mod keyspace_list;
pub mod local_reply;
pub mod pod;
pub mod repeats;
pub mod router;
pub mod session;
pub mod store;
#[cfg(feature = "test-util")]
pub mod test_util;
