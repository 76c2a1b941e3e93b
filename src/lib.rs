//! The parts of the `segue` binary: its commands, and the roles that it assembles from the crates.
//!
//! A library, so that tests can run a command within their own process.

#![warn(clippy::too_many_lines)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admin;
mod any_address;
pub mod api;
pub mod certificates;
pub mod commands;
mod exemplars;
mod exposition;
pub mod files;
pub mod handoff_traces;
pub mod history;
pub mod hot_restart;
pub mod keyspace;
mod kubernetes;
pub mod last_words;
pub mod metrics;
mod operator;
pub mod otlp;
pub mod page;
mod printable;
pub mod resting;
pub mod roles;
mod secret_files;
mod socket_path;
pub mod status;
pub mod supervise;
mod surroundings;
pub mod token_file;
pub mod waits;
