//! Helpers of the tests of mistakes.

use segue_config::parse;

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

/// Asserts that a file has no mistakes.
#[track_caller]
pub(crate) fn assert_accepted(text: &str) {
    if let Err(errors) = parse("segue.toml", text, [], "host-1") {
        panic!("{errors}");
    }
}
