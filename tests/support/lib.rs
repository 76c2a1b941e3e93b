//! What the integration tests of the whole workspace share. Never part of a release.
//!
//! The crate must not depend on Segue's own crates: they use it from their own tests, and a type that came in through
//! here as well would exist twice.

#![allow(clippy::unwrap_used)]

pub mod certificates;
pub mod cluster;
pub mod config;
pub mod etcd;
pub mod etcd_admin;
pub mod examples;
pub mod http;
pub mod ports;
pub mod process;
pub mod status;
