//! Checks the names of types: a type is a noun that says of what, and a name has one meaning.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::structure::{code, root, sources};

const CRATES: [&str; 8] = [
    "config/src",
    "coordination/protocol/src",
    "coordination/src",
    "coordination/grpc/src",
    "proxy/src",
    "pod/src",
    "demo/src",
    "src",
];

/// Words that say neither what something is nor of what, beside all that end in -ed.
const NO_NOUNS: [&str; 20] = [
    "Ahead", "Around", "Begun", "Behind", "Done", "Due", "Found", "Given", "Gone", "Heard", "Held", "Known", "Lost",
    "Made", "News", "Said", "Seen", "Then", "Told", "Within",
];
/// Names of records and of what users of the crates have in their code.
const KEPT: [&str; 3] = ["Owned", "Versioned", "Wanted"];
/// How many of a hundred names may stand in more than one file.
const MOST_SHARED: usize = 8;

/// The names of types, each with the files that define it.
fn types() -> BTreeMap<String, BTreeSet<PathBuf>> {
    let mut found: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for folder in CRATES {
        let mut files = Vec::new();
        sources(&root().join(folder), &mut files);
        for file in files {
            for line in code(&file).lines() {
                if let Some(name) = type_name(line) {
                    found.entry(name.to_owned()).or_default().insert(file.clone());
                }
            }
        }
    }
    found
}

/// The type that a line defines, if it defines one outside of an `impl`.
fn type_name(line: &str) -> Option<&str> {
    let rest = match line.strip_prefix("pub") {
        Some(rest) => {
            rest.strip_prefix('(').map_or(rest, |rest| rest.split_once(')').map_or("", |(_, rest)| rest)).trim_start()
        }
        None => line,
    };
    let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|keyword| rest.strip_prefix(keyword))?;
    rest.split(|next: char| !next.is_alphanumeric()).next()
}

/// Whether a name is one word that is no noun.
fn is_no_noun(name: &str) -> bool {
    let is_one_word = name.chars().filter(char::is_ascii_uppercase).count() == 1;
    let is_participle = name.ends_with("ed") && !name.ends_with("eed");
    is_one_word && (is_participle || NO_NOUNS.contains(&name)) && !KEPT.contains(&name)
}

#[test]
fn types_are_nouns() {
    let wrong: Vec<String> = types()
        .iter()
        .filter(|(name, _)| is_no_noun(name))
        .map(|(name, files)| format!("{name} in {files:?}: name it by a noun that says of what"))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn few_names_have_several_meanings() {
    let types = types();
    let shared: Vec<&String> = types.iter().filter(|(_, files)| files.len() > 1).map(|(name, _)| name).collect();
    let share = shared.len() * 100 / types.len();
    assert!(share <= MOST_SHARED, "{} of {} names stand in several files: {shared:?}", shared.len(), types.len());
}

#[test]
fn a_type_is_found_however_visible_it_is() {
    for line in [
        "struct Said {",
        "pub enum Said {",
        "pub(in crate::server) type Said<T> = u32;",
        "pub(crate) trait Said: Send {",
    ] {
        assert_eq!(type_name(line), Some("Said"), "{line}");
    }
    assert_eq!(type_name("    type Error = u32;"), None);
    assert!(is_no_noun("Said") && is_no_noun("Registered") && !is_no_noun("Feed") && !is_no_noun("CutOff"));
}
