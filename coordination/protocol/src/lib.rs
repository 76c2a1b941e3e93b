//! The handoff protocol as decisions: pure functions over a [`View`](view::View) of the store, and the transactions they
//! want. No I/O, no clock, no task; the shells carry out what these say.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod handoff;
pub mod ids;
pub mod keys;
pub mod lease;
pub mod mapping;
pub mod planning;
pub mod records;
pub mod registration;
pub mod txn;
pub mod view;
