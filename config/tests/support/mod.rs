//! What the tests of mistakes share.

#![allow(clippy::unwrap_used)]

use segue_config::parse;

/// The text that a bad file gets.
#[track_caller]
pub(crate) fn refused(text: &str) -> String {
    parse("segue.toml", text, [], "host-1").unwrap_err().to_string()
}

/// A bad file gets these lines.
#[track_caller]
pub(crate) fn assert_refused(text: &str, expected: &[&str]) {
    assert_eq!(refused(text).lines().collect::<Vec<_>>(), expected, "\n{text}");
}

/// A file is good.
#[track_caller]
pub(crate) fn assert_accepted(text: &str) {
    if let Err(errors) = parse("segue.toml", text, [], "host-1") {
        panic!("{errors}");
    }
}
