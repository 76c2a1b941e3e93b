//! What commands print: facts on standard output, remarks on standard error.
//!
//! # Invariants
//!
//! * Everything printed is [printable], whoever wrote it.
//! * A reader that is gone (`segue status | head -3`) is no failure of the command.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::CommandFailure;
use crate::process::printable::{printable, printable_json, with_texts_on_one_line};

/// Whether somebody reads standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Present,
    Gone,
}

/// Prints text.
pub(super) fn print_text(text: &str) -> Result<Reader, CommandFailure> {
    write(printable(text).as_bytes())
}

/// Prints a report as JSON on one line, or in words.
pub(super) fn print_report<T: Serialize + DeserializeOwned>(
    report: &T,
    json: bool,
    in_words: impl FnOnce(&T) -> String,
) -> Result<Reader, CommandFailure> {
    match json {
        true => print_json(report),
        false => print_text(&in_words(&with_texts_on_one_line(report).map_err(anyhow::Error::from)?)),
    }
}

/// Prints a value as JSON on one line.
pub(super) fn print_json(value: &impl Serialize) -> Result<Reader, CommandFailure> {
    let json = serde_json::to_string(value).map_err(anyhow::Error::from)?;
    write((printable_json(&json).into_owned() + "\n").as_bytes())
}

/// Writes a remark to standard error. No command fails because it cannot be read.
pub(super) fn remark(text: impl Display) {
    let _ = io::stderr().lock().write_all(format!("{}\n", printable(&text.to_string())).as_bytes());
}

pub(super) fn write(bytes: &[u8]) -> Result<Reader, CommandFailure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Present),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(anyhow::Error::new(error).context("cannot write to standard output").into()),
    }
}
