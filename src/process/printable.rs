//! Texts that others have written, such as reasons and names in the store, on a terminal.
//!
//! # Invariants
//!
//! * No character but a line feed moves the cursor, changes a colour or clears the screen.

use std::borrow::Cow;

/// Escapes control characters other than line feeds.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_control_a_terminal_is_escaped() {
        assert_eq!(printable("drained by ann (naïve)\nnext"), "drained by ann (naïve)\nnext");
        assert_eq!(printable("a\u{1b}[2Jb\rc\u{9b}d"), "a\\u{1b}[2Jb\\rc\\u{9b}d");
    }
}
