//! No input makes the parser panic, and every mistake stays on one line.

use proptest::prelude::*;
use segue_config::{LoadError, load, parse};

const EXAMPLE: &str = include_str!("../segue.example.toml");

/// Callers may rely on one line per problem.
fn check(text: &str, variables: Vec<(String, String)>, hostname: &str) {
    if let Err(errors) = parse("segue.toml", text, variables, hostname) {
        let count = errors.iter().count();
        assert!(count > 0);
        assert_eq!(errors.to_string().lines().count(), count, "{errors}");
    }
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC*|(?s).{0,200}", value: String, hostname: String) {
        check(&text, vec![("SEGUE__STORE__ENDPOINTS".to_owned(), value)], &hostname);
    }

    #[test]
    fn text_that_looks_like_toml_never_panics(
        parts in prop::collection::vec("[\\[\\]{}=\",.#'\\n\\r]|router|pod|partition|key|header|listen|1|\"2s\"|é| ", 0..60),
    ) {
        check(&parts.concat(), Vec::new(), "host-1");
    }

    #[test]
    fn a_damaged_example_never_panics(at: prop::sample::Index, length in 0..40usize, with in "\\PC{0,5}|[\\n\"\\[\\]=]") {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        let start = at.index(text.len());
        text.splice(start..(start + length).min(EXAMPLE.chars().count()), with.chars());
        check(&text.into_iter().collect::<String>(), Vec::new(), "host-1");
    }

    #[test]
    fn arbitrary_values_never_panic(key: prop::sample::Index, value in "\\PC*|-?[0-9]{1,25}[a-zA-Z]{0,3}|[\"\\[{].*") {
        let keys = EXAMPLE.lines().filter_map(|line| line.split_once(" = ")).collect::<Vec<_>>();
        let (name, old) = keys[key.index(keys.len())];
        check(&EXAMPLE.replace(&format!("{name} = {old}"), &format!("{name} = {value}")), Vec::new(), "host-1");
    }
}

#[test]
fn deep_nesting_is_refused() {
    check(&"[".repeat(100_000), Vec::new(), "host-1");
    check(&format!("a = {}", "[".repeat(100_000)), Vec::new(), "host-1");
    check(&format!("{}x = 1", "a.".repeat(10_000)), Vec::new(), "host-1");
    let env = ("SEGUE__STORE__ENDPOINTS".to_owned(), "[".repeat(100_000));
    check("[pod]", vec![env], "host-1");
}

#[test]
fn a_file_may_begin_with_a_byte_order_mark_and_end_its_lines_as_windows_does() {
    parse("segue.toml", "\u{feff}[router]\r\nlisten = \"127.0.0.1:80\"\r\n", [], "host-1").unwrap();
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = load("/nowhere/segue.toml").unwrap_err();
    assert!(matches!(error, LoadError::Read { .. }));
    assert!(error.to_string().starts_with("/nowhere/segue.toml: cannot be read: "), "{error}");
}

#[test]
fn a_file_is_loaded_under_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("segue.toml");
    std::fs::write(&path, "[router]\nname = \"r\"\n").unwrap();
    assert_eq!(load(&path).unwrap().config.router.unwrap().name, "r");
    std::fs::write(&path, "[router]\nname = \"\"\n").unwrap();
    let error = load(&path).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}:2:8: router.name: ", path.display())), "{error}");
}
