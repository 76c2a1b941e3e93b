//! The words of a command line as bash gives them to its completion: split at colons and equals signs, so that a URL is several.

use std::ffi::OsString;

/// Puts the words of a command line together that bash has split at colons and equals signs. Returns them, and where the one
/// at `index` is then.
pub(super) fn joined(words: Vec<OsString>, index: usize) -> (Vec<OsString>, usize) {
    let mut together: Vec<OsString> = Vec::new();
    let (mut is_open, mut at) = (false, 0);
    for (number, word) in words.into_iter().enumerate() {
        let is_separator = !word.is_empty() && word.as_encoded_bytes().iter().all(|byte| b":=".contains(byte));
        match together.last_mut().filter(|_| is_open || is_separator) {
            Some(last) => last.push(&word),
            None => together.push(word),
        }
        is_open = is_separator;
        if number <= index {
            at = together.len().saturating_sub(1);
        }
    }
    (together, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split('|').map(OsString::from).collect()
    }

    #[test]
    fn words_that_bash_has_split_are_one_again_and_the_word_at_the_cursor_is_known() {
        let split = words("segue|explain|--server|http|:|//a|:|1|wr|--json");
        assert_eq!(joined(split.clone(), 8), (words("segue|explain|--server|http://a:1|wr|--json"), 4));
        assert_eq!(joined(split, 1).1, 1);
        assert_eq!(joined(words("segue|drain|"), 2), (words("segue|drain|"), 2));
    }
}
