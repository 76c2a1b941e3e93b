//! What is wrong with a configuration, and where.
//!
//! For: the one form in which a mistake is shown, `file:line:column: key: what was wrong; what was expected; did you
//! mean …`, with the variable's name in the place of `file:line:column` for a value from the environment. Not for:
//! finding mistakes.
//!
//! What must stay true: a problem is one line, whatever bytes the file had; problems come in the order of the file,
//! those of variables last.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a key or a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// In the file; line and column count from 1, the column in characters.
    File { file: Arc<str>, line: usize, column: usize },
    /// In the environment.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            // Anyone may set a variable: its name must not break the line.
            Self::Variable(name) => name.escape_debug().fmt(f),
        }
    }
}

/// What is wrong with a value, before it is known where the value stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wrong {
    /// The fact.
    pub(crate) fact: String,
    /// What to do instead: `expected …`, `use …`.
    pub(crate) remedy: String,
    /// What was probably meant.
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

/// One mistake: where, in which key, what was wrong, what was expected and what was probably meant.
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

    /// Whether it stands in the file above `before`.
    pub(crate) fn is_before(&self, before: usize) -> bool {
        matches!(self.place, Place::File { line, .. } if line < before)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { fact, remedy, nearest } = &self.wrong;
        write!(f, "{}: {}: {fact}; {remedy}", self.place, self.key)?;
        match nearest {
            Some(nearest) => write!(f, "; did you mean {nearest}"),
            None => Ok(()),
        }
    }
}

/// Every mistake of one configuration; never empty. Its `Display` is a line for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors(Vec<Problem>);

impl Errors {
    pub(crate) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup();
        Self(problems)
    }

    /// The mistakes in the order of the file, those of variables last.
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
    /// The file is not there, may not be read, or is not UTF-8.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file was read and says something wrong.
    #[error(transparent)]
    Invalid(#[from] Errors),
}

/// `text` in quotes, on one line and of bounded length.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// The same without the quotes, for what had none in the file.
pub(crate) fn bare(text: &str) -> String {
    quoted(text).replace('"', "")
}

/// The known name that `given` most likely stands for, if one is near enough.
pub(crate) fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Longer than any name there is: comparing would only cost time.
    const LONGEST: usize = 80;
    if given.len() > LONGEST {
        return None;
    }
    let near = known.into_iter().map(|name| (strsim::damerau_levenshtein(given, name), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= (given.len().max(name.len()) / 3).max(1)).then_some(name)
}
