//! Helpers of the tests of mistakes.

use segue_config::{Config, parse};

/// Returns the text of a bad file's mistakes.
#[track_caller]
pub(crate) fn refused(text: &str) -> String {
    parse("segue.toml", text, [], "host-1").unwrap_err().to_string()
}

/// Asserts that a bad file has exactly these mistakes.
#[track_caller]
pub(crate) fn assert_refused(text: &str, expected: &[&str]) {
    assert_eq!(refused(text).lines().collect::<Vec<_>>(), expected, "\n{text}");
}

/// Returns what a file without mistakes says.
#[track_caller]
pub(crate) fn accepted(text: &str) -> Config {
    parse("segue.toml", text, [], "host-1").unwrap_or_else(|errors| panic!("{errors}"))
}

/// Asserts that a file has no mistakes.
#[track_caller]
pub(crate) fn assert_accepted(text: &str) {
    accepted(text);
}
