//! The parts of the `segue` binary: its commands, and the roles that it assembles from the crates.
//!
//! A library, so that tests can run a command within their own process. They and `main` use [`commands`] and
//! [`process::last_words`] alone; rustc's `unreachable_pub` keeps everything else `pub(crate)`.

#![warn(clippy::too_many_lines)]
// What is printed goes through `process::printable`.
#![warn(clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admin;
mod checks;
pub mod commands;
mod operator;
pub mod process;
mod roles;
mod telemetry;
