//! Segue's TOML file as types, and every mistake in it by line and column.
//!
//! For: turning a file, the `SEGUE__SECTION__KEY` variables and the host's name into one [`Config`], which is checked
//! as a whole before any address is bound or connected. Not for: carrying settings out, reading the files that settings
//! name, or watching the file for changes.
//!
//! ```text
//! text + variables ──(raw, keys)──► values with their places ──(reader, units)──► types ──(validate)──► Config
//!                        └─────────────────────┴── problems, all of them ──────────────────┴──► Errors
//! ```
//!
//! # Invariants
//!
//! * [`parse`] is pure, panics on no input, and reports all mistakes together.
//! * A setting is refused or obeyed, never ignored.
//! * Settings have the types and defaults of the crates that obey them.
//! * `segue.example.toml` beside this crate explains each key and shows its default; a test keeps the two equal.

#![warn(clippy::missing_errors_doc, clippy::too_many_lines)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod deployment;
mod drain_time;
mod error;
mod keys;
mod located;
mod raw;
mod reader;
mod source;
mod stored;
mod units;
mod validate;
mod validated;

pub use deployment::{ComparisonFindings, compare};
pub use error::{Errors, InvalidText, LoadError, Problem};
pub use located::{LocatedConfig, WrittenValues};
pub use source::ConfigSource;
pub use stored::{InvalidKeyspace, StoredKeyspace};
pub use validated::{
    Admin, AdminWrite, Config, Coordinator, Credentials, Exec, ExecUser, KeyspaceSection, Log, LogFormat, LogLevel,
    Pod, Router, Routing, Store, StoreKind, StreamListen, Tracing,
};

use std::path::Path;

/// Checks `text` and the variables in `env` that begin with `SEGUE__`.
///
/// `file_name` is used only in the places of problems. `hostname` is the name of roles that have none in the file.
///
/// # Errors
///
/// All mistakes of the text, of the variables and of the relations between settings, in the order of the file. After a
/// mistake that leaves the rest of the file in doubt, such as a section header without its `]`, only the single values
/// before it are checked.
pub fn parse(
    file_name: &str,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
    hostname: &str,
) -> Result<Config, Errors> {
    locate(file_name, text, env, hostname).map(|located| located.config)
}

/// Checks like [`parse`], and remembers where each value was written.
///
/// # Errors
///
/// Those of [`parse`].
pub fn locate(
    file_name: &str,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
    hostname: &str,
) -> Result<LocatedConfig, Errors> {
    source::located(raw::Raw::read(&validate::KEYS, file_name, text, env), hostname)
}

/// Reads the file at `path`, with this process's environment and this host's name, and checks it like [`parse`].
///
/// # Errors
///
/// The file cannot be read, is not UTF-8, or contains mistakes.
pub fn load(path: impl AsRef<Path>) -> Result<LocatedConfig, LoadError> {
    Ok(ConfigSource::read(path)?.locate(&[])?)
}

/// Returns the host's name. Empty if the host has none.
pub fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    name.unwrap_or_default().trim().to_owned()
}

/// Parses a duration as in the file (`"250ms"`, `"10s"`, `"5m"`), for command lines.
///
/// # Errors
///
/// Refuses a text that is no whole number with one of the units, and one that is too large for a duration.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, InvalidText> {
    units::duration(text).map_err(InvalidText::from)
}

/// Reads a name, as every key of a configuration file that names something takes it.
///
/// # Errors
///
/// Refuses an empty name, and one with characters that names may not have.
pub fn parse_name(text: &str) -> Result<String, InvalidText> {
    reader::name(text).map_err(InvalidText::from)
}

/// Returns a duration of whole milliseconds as [`parse_duration`] takes it, in the largest unit that divides it.
pub fn show_duration(duration: std::time::Duration) -> String {
    units::show_duration(duration)
}

/// Returns a measured duration for people, rounded: `564 µs`, `4.2 ms`, `4.9 s`, `3m20s`.
pub fn readable(duration: std::time::Duration) -> String {
    units::readable(duration)
}
