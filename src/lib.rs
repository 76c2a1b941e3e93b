//! What the `segue` binary is made of: its commands, the roles that it joins from the crates, and the demo.
//!
//! A library so that tests can run the demo with options that the command line does not have.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admin;
pub mod certificates;
pub mod commands;
pub mod demo;
pub mod files;
pub mod hot_restart;
pub mod keyspace;
pub mod metrics;
pub mod overview;
pub mod roles;
pub mod supervise;
