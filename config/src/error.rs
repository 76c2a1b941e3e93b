//! The problems of a configuration and their places.
//!
//! For: the single form in which a mistake is shown, `file:line:column: key: what was wrong; what was expected; did you
//! mean …`. For a value from the environment the variable's name replaces `file:line:column`. Not for: finding
//! mistakes.
//!
//! # Invariants
//!
//! * A problem is one line, whatever bytes the file contains.
//! * Problems are in the order of the file; those of variables come last.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The place of a key or a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// In the file. Line and column count from 1, the column in characters.
    File { file: Arc<str>, line: usize, column: usize },
    /// In the environment.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            // Any process may set a variable: its name must not break the line.
            Self::Variable(name) => name.escape_debug().fmt(f),
        }
    }
}

/// A problem of a value whose place is not known yet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wrong {
    /// What is wrong.
    pub(crate) fact: String,
    /// What to do instead: `expected …`, `use …`.
    pub(crate) remedy: String,
    /// The name that was probably meant.
    pub(crate) nearest: Option<String>,
}

impl Wrong {
    pub(crate) fn new(fact: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { fact: fact.into(), remedy: remedy.into(), nearest: None }
    }

    pub(crate) fn did_you_mean(mut self, nearest: Option<impl Into<String>>) -> Self {
        self.nearest = nearest.map(Into::into);
        self
    }
}

/// Why a text is no value of its kind: what was wrong and what was expected, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fact}; {remedy}")]
pub struct InvalidText {
    fact: String,
    remedy: String,
}

impl From<Wrong> for InvalidText {
    fn from(Wrong { fact, remedy, .. }: Wrong) -> Self {
        InvalidText { fact, remedy }
    }
}

/// One mistake: its place and key, what was wrong, what was expected and what was probably meant.
///
/// Its `Display` is one line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    place: Place,
    key: String,
    wrong: Wrong,
}

impl Problem {
    pub(crate) fn new(place: Place, key: impl Into<String>, wrong: Wrong) -> Self {
        Self { place, key: key.into(), wrong }
    }

    /// Returns what was wrong, what was expected and what was probably meant, for a value that stood in no file.
    pub fn in_words(&self) -> String {
        let Wrong { fact, remedy, nearest } = &self.wrong;
        let nearest = nearest.iter().map(|nearest| format!("; did you mean {nearest}")).collect::<String>();
        format!("{fact}; {remedy}{nearest}")
    }

    /// Returns whether the problem's place in the file is above line `before`.
    pub(crate) fn is_before(&self, before: usize) -> bool {
        matches!(self.place, Place::File { line, .. } if line < before)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.key, self.in_words())
    }
}

/// All mistakes of one configuration; never empty. Its `Display` has a line for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors(Vec<Problem>);

impl Errors {
    pub(crate) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup();
        Self(problems)
    }

    /// Returns the mistakes in the order of the file; those of variables come last.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a Errors {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// Why a configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file does not exist, cannot be read, or is not UTF-8.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file was read and contains mistakes.
    #[error(transparent)]
    Invalid(#[from] Errors),
}

/// Returns `text` in quotes, on one line and of bounded length.
pub(crate) fn quoted(text: &str) -> String {
    const MAX_QUOTED_CHARS: usize = 60;
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// Returns the same without the quotes, for text that had none in the file.
pub(crate) fn bare(text: &str) -> String {
    quoted(text).replace('"', "")
}

/// Returns the known name that `given` most likely stands for, if one is close enough.
pub(crate) fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Longer than any known name: comparing would only cost time.
    const MAX_COMPARED_BYTES: usize = 80;
    if given.len() > MAX_COMPARED_BYTES {
        return None;
    }
    let near = known.into_iter().map(|name| (strsim::damerau_levenshtein(given, name), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= (given.len().max(name.len()) / 3).max(1)).then_some(name)
}
