//! The parts of the `segue` binary: its commands, and the roles that it assembles from the crates.
//!
//! A library, so that tests can run a command within their own process.

#![warn(clippy::too_many_lines)]
// What is printed goes through `process::printable`.
#![warn(clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admin;
mod checks;
pub mod commands;
pub mod operator;
pub mod process;
pub mod roles;
pub mod telemetry;
