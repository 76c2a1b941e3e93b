//! Texts that others have written, such as reasons and names in the store, on a terminal.
//!
//! # Invariants
//!
//! * No character but a line feed moves the cursor, changes a colour, clears the screen or turns the direction of a line.
//! * JSON stays JSON of the same values.

use std::borrow::Cow;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Escapes control characters other than line feeds.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_control(c) && c != '\n', |into, c| into.extend(c.escape_default()))
}

/// Escapes control characters, line feeds as well: a line feed would begin a line that nobody has written.
pub(crate) fn on_one_line(text: &str) -> String {
    escaped(text, is_control, |into, c| into.extend(c.escape_default())).into_owned()
}

/// Escapes control characters in JSON, as JSON does. They stand in strings, because the JSON was written without spaces.
pub(crate) fn printable_json(json: &str) -> Cow<'_, str> {
    escaped(json, is_control, |into, c| {
        let mut units = [0; 2];
        into.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
    })
}

/// Returns a report whose texts are each on one line, for a form of it with lines of its own.
pub(crate) fn with_texts_on_one_line<T: Serialize + DeserializeOwned>(report: &T) -> serde_json::Result<T> {
    let mut value = serde_json::to_value(report)?;
    put_on_one_line(&mut value);
    serde_json::from_value(value)
}

fn put_on_one_line(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(is_control) => *text = on_one_line(text),
        Value::Array(values) => values.iter_mut().for_each(put_on_one_line),
        Value::Object(fields) => {
            fields.values_mut().for_each(put_on_one_line);
            if fields.keys().any(|key| key.contains(is_control)) {
                *fields = std::mem::take(fields).into_iter().map(|(key, value)| (on_one_line(&key), value)).collect();
            }
        }
        _ => {}
    }
}

/// Returns bytes of others as text of one line without escapes: what is no text or would control a terminal is replaced.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let replaced = |c: char| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c };
    String::from_utf8_lossy(bytes).chars().map(replaced).collect()
}

/// Returns whether a terminal obeys a character instead of showing it: control characters, and those that turn the direction
/// of a line.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_escaped(c) {
            true => escape(&mut escaped, c),
            false => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_would_control_a_terminal_is_escaped() {
        assert_eq!(printable("drained by ann (naïve)\nnext"), "drained by ann (naïve)\nnext");
        assert_eq!(printable("a\u{1b}[2Jb\rc\u{9b}d\u{202e}e"), "a\\u{1b}[2Jb\\rc\\u{9b}d\\u{202e}e");
        assert_eq!(on_one_line("ann\nleader evil"), "ann\\nleader evil");
        assert_eq!(shown(b"j\xc3\xb6rg\x1b[2J\n\xff"), "jörg\u{fffd}[2J\u{fffd}\u{fffd}");
    }

    #[test]
    fn escaped_json_has_the_same_values() {
        let value = Value::from(vec!["\u{1b}[2J", "\u{9b}2J", "\u{7f}", "\u{202e}", "é\n"]);
        let json = printable_json(&value.to_string()).into_owned();
        assert!(!json.contains(is_control), "{json:?}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
    }

    #[test]
    fn every_text_of_a_report_is_put_on_one_line_whatever_its_depth() {
        let report = BTreeMap::from([("a\nb".to_owned(), vec![BTreeMap::from([("c".to_owned(), "d\ne".to_owned())])])]);
        let shown = with_texts_on_one_line(&report).unwrap();
        let expected =
            BTreeMap::from([("a\\nb".to_owned(), vec![BTreeMap::from([("c".to_owned(), "d\\ne".to_owned())])])]);
        assert_eq!(shown, expected);
    }
}
