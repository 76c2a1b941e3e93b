//! The pods' service over real connections, and its published contract.
#![allow(clippy::unwrap_used)]

mod compatibility;
mod pods;
