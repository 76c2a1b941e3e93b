//! Fuzzes the configuration file and the variables. Every input gives either a configuration or mistakes. Each mistake
//! is one line with a place that exists in the text. Parsing an input again gives the same result.

use segue_config::parse;

use crate::Outcome;

const FILE: &str = "segue.toml";

pub fn run(data: &[u8]) -> Outcome {
    let Ok(input) = std::str::from_utf8(data) else { return Outcome::NoInput };
    // Variables follow the first NUL, each as `NAME=value`. A file cannot contain a NUL.
    let (text, variables) = input.split_once('\0').unwrap_or((input, ""));
    let variables: Vec<(String, String)> = variables
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    check(text, &variables);
    Outcome::Checked
}

fn check(text: &str, variables: &[(String, String)]) {
    let read = |text: &str| parse(FILE, text, variables.to_vec(), "host-1");
    let first = read(text);
    assert_eq!(first, read(text), "read twice");
    let mut reversed = variables.to_vec();
    reversed.reverse();
    let names = variables.iter().map(|(name, _)| name).collect::<std::collections::BTreeSet<_>>();
    if names.len() == variables.len() {
        assert_eq!(first, parse(FILE, text, reversed, "host-1"), "the order of the environment");
    }
    match first {
        Ok(config) => {
            // A comment changes nothing. It goes behind the byte order mark, which must stay first.
            let (mark, rest) = text.split_at(if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 });
            assert_eq!(Ok(config.clone()), read(&format!("{mark}# a comment\n{rest}")), "a comment in front");
            assert_eq!(Ok(config), read(&format!("{text}\n# a comment\n")), "a comment behind");
        }
        Err(errors) => {
            let shown = errors.to_string();
            assert_eq!(shown.lines().count(), errors.iter().count().max(1), "{shown:?}");
            assert!(errors.iter().count() > 0);
            let mut last = None;
            for problem in &errors {
                let line = problem.to_string();
                let place = place(&line);
                assert!(place.is_some() || line.starts_with("SEGUE__"), "no place: {line:?}");
                if let Some((row, column)) = place {
                    let rows: Vec<&str> = text.split('\n').collect();
                    let there = rows.get(row.wrapping_sub(1)).unwrap_or_else(|| panic!("no such line: {line:?}"));
                    // The column behind the end is the place of something missing.
                    let width = there.chars().count() + 1;
                    assert!((1..=width).contains(&column), "no such column: {line:?}");
                    assert!(last <= Some((row, column)), "out of order: {shown:?}");
                    last = Some((row, column));
                }
            }
        }
    }
}

/// Returns the line and the column of `segue.toml:3:7: …`.
fn place(line: &str) -> Option<(usize, usize)> {
    let mut parts = line.strip_prefix("segue.toml:")?.splitn(3, ':');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
