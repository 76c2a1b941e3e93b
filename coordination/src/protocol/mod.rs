//! The handoff protocol as decisions: pure functions over a [`View`](view::View) of the store, and the transactions they
//! want. No I/O, no clock, no task; the shells carry out what these say.

pub mod advance;
pub mod agree;
pub mod door;
pub mod ids;
pub mod lease;
pub mod mapping;
pub mod pod;
pub mod records;
pub mod registration;
pub mod router;
pub mod view;
