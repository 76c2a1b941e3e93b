//! Segue's handoff protocol: a partition moves from one writer pod to another while clients keep sending, and no request
//! is lost, none is applied by two owners, none overtakes an earlier one of the same key.
//!
//! The decisions are pure functions and a crate of their own, [`segue_protocol`]. Here are the [`store`], and the shells
//! that watch it, ask for a decision and carry it out.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod coordinator;
pub mod local_reply;
pub mod participant;
pub mod pod;
pub mod router;
pub mod store;
