//! The file and the variables as written.
//!
//! For: every known key with its value and its place, and a problem for everything else: bad TOML, unknown keys,
//! unknown variables, keys of the wrong shape. Not for: the meaning of a value (`reader`) and relations between values
//! (`validate`).
//!
//! The document is traversed instead of deserialized with serde, because serde stops at the first mistake.
//!
//! # Invariants
//!
//! * Each key of the file ends up either in the values or in a problem.
//! * A variable overrides a key but never starts a role: a setting meant for another process must not turn this one
//!   into a pod, for instance.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Place, Problem, Wrong, bare, nearest, quoted};
use crate::keys::{self, ConfigKeys};

/// A value as written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RawValue {
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    List(Vec<RawValue>),
    /// A table that is a value as a whole, or in a list.
    Table(BTreeMap<String, RawValue>),
    /// A value of a type that no key has, with its name for messages.
    Other(String),
    /// From a variable: text, or TOML where the key has another type.
    Variable(String),
}

impl RawValue {
    fn new(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Self::Text(text.clone().into_owned()),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => Self::Integer(number),
                Err(_) => Self::Other(bare(&number.to_string())),
            },
            DeValue::Float(number) => match number.as_str().parse() {
                Ok(number) => Self::Float(number),
                Err(_) => Self::Other("a number".to_owned()),
            },
            DeValue::Boolean(value) => Self::Boolean(*value),
            DeValue::Datetime(date) => Self::Other(date.to_string()),
            DeValue::Array(items) => Self::List(items.iter().map(|item| Self::new(item.get_ref())).collect()),
            DeValue::Table(table) => {
                let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                    let key: &std::borrow::Cow<'_, str> = key.get_ref();
                    (key.clone().into_owned(), Self::new(value.get_ref()))
                };
                Self::Table(table.iter().map(entry).collect())
            }
        }
    }

    /// Reads TOML from a variable, for a number or a list.
    pub(crate) fn from_toml(text: &str) -> Option<Self> {
        DeValue::parse(text.trim()).ok().map(|value| Self::new(value.get_ref()))
    }
}

/// A known key with its value.
#[derive(Debug)]
pub(crate) struct RawEntry {
    pub(crate) value: RawValue,
    pub(crate) key_place: Place,
    pub(crate) value_place: Place,
}

/// A section that the file has.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) place: Place,
    pub(crate) is_empty: bool,
}

/// A list of tables that the file has.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) place: Place,
    pub(crate) each: Vec<Raw>,
}

/// All known keys and sections that were given.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) keys: &'static ConfigKeys,
    pub(crate) file: Arc<str>,
    pub(crate) values: BTreeMap<&'static str, RawEntry>,
    pub(crate) sections: BTreeMap<String, Section>,
    /// The tables of each list that the file has, in its order.
    pub(crate) tables: BTreeMap<&'static str, Tables>,
    /// The line from which on the file may have been misunderstood.
    pub(crate) doubtful_from: Option<usize>,
}

impl Raw {
    pub(crate) fn read(
        keys: &'static ConfigKeys,
        file: &str,
        text: &str,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> (Self, Vec<Problem>) {
        let file: Arc<str> = file.into();
        let (document, errors) = DeTable::parse_recoverable(text);
        let mut walk =
            Walk { lines: Lines::new(file.clone(), text), raw: Self::empty(keys, file), problems: Vec::new() };
        walk.table("", document.get_ref());
        for (name, value) in env {
            walk.variable(name, value);
        }
        let doubtful_from = errors.iter().filter_map(|error| walk.doubtful_after(error)).min();
        walk.raw.doubtful_from = doubtful_from;
        walk.raw.tables.values_mut().flat_map(|it| &mut it.each).for_each(|table| table.doubtful_from = doubtful_from);
        if let Some(line) = walk.raw.doubtful_from {
            walk.problems.retain(|problem| problem.is_before(line));
        }
        walk.problems.extend(errors.iter().map(|error| syntax_problem(&walk.lines, error)));
        (walk.raw, walk.problems)
    }

    /// Adds a table to a list, after those of the file.
    pub(crate) fn add_table(&mut self, list: &'static str, table: Raw) {
        let place = Place::File { file: table.file.clone(), line: 1, column: 1 };
        self.tables.entry(list).or_insert_with(|| Tables { place, each: Vec::new() }).each.push(table);
    }

    /// Adds the sections of roles that each keyspace has settings of.
    pub(crate) fn add_roles(&mut self) {
        for role in keys::ROLES {
            let place = Place::File { file: self.file.clone(), line: 1, column: 1 };
            self.sections.entry(role.to_owned()).or_insert(Section { place, is_empty: true });
        }
    }

    /// Takes out these keys, and what stands in these sections.
    pub(crate) fn without(&mut self, sections: &[&str]) {
        let is_kept =
            |key: &str| !sections.iter().any(|section| key == *section || keys::within(key, section).is_some());
        self.values.retain(|key, _| is_kept(key));
        self.sections.retain(|key, _| is_kept(key));
    }

    fn empty(keys: &'static ConfigKeys, file: Arc<str>) -> Self {
        let (values, sections, tables) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { keys, file, values, sections, tables, doubtful_from: None }
    }
}

struct Walk<'a> {
    lines: Lines<'a>,
    raw: Raw,
    problems: Vec<Problem>,
}

impl Walk<'_> {
    fn table(&mut self, section: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let path = join(section, name);
            let key_place = self.lines.place(key.span());
            if let Some((list, keys)) = self.raw.keys.tables.iter().find(|(list, _)| *list == path) {
                self.list(list, keys, key_place, value);
            } else if let Some(known) = self.raw.keys.known(&path).filter(|_| !self.is_section(&path, value)) {
                let value_place = self.lines.place(value.span());
                let value = RawValue::new(value.get_ref());
                self.raw.values.insert(known, RawEntry { value, key_place, value_place });
            } else if let Some(new) = keys::renamed(&path) {
                self.problems.push(Problem::new(key_place, path, Wrong::new("renamed", format!("use {new}"))));
            } else if !self.raw.keys.is_section(&path) {
                let expected = format!("expected one of {}", self.raw.keys.children(section).join(", "));
                let wrong = Wrong::new("unknown key", expected).did_you_mean(self.raw.keys.nearest_key(section, name));
                self.problems.push(Problem::new(key_place, path, wrong));
            } else if let DeValue::Table(inner) = value.get_ref() {
                let place = key_place;
                self.raw.sections.insert(path.clone(), Section { place, is_empty: inner.is_empty() });
                self.table(&path, inner);
            } else {
                let wrong = Wrong::new(
                    "not a section",
                    format!("expected a table of {}", self.raw.keys.children(&path).join(", ")),
                );
                self.problems.push(Problem::new(self.lines.place(value.span()), path, wrong));
            }
        }
    }

    /// Returns whether a value is the section of a key that may be either.
    fn is_section(&self, path: &str, value: &Spanned<DeValue<'_>>) -> bool {
        matches!(value.get_ref(), DeValue::Table(_)) && self.raw.keys.is_section(path)
    }

    /// Reads each table of a list like a file of its own.
    fn list(&mut self, name: &'static str, keys: &'static ConfigKeys, place: Place, value: &Spanned<DeValue<'_>>) {
        let not_tables = || Wrong::new("not a list of tables", format!("expected [[{name}]] before each of them"));
        let DeValue::Array(items) = value.get_ref() else {
            self.problems.push(Problem::new(place, name, not_tables()));
            return;
        };
        let mut each = Vec::new();
        for item in items {
            let place = self.lines.place(item.span());
            let DeValue::Table(table) = item.get_ref() else {
                self.problems.push(Problem::new(place, name, not_tables()));
                continue;
            };
            let outer = std::mem::replace(&mut self.raw, Raw::empty(keys, self.lines.file.clone()));
            self.raw.sections.insert(name.to_owned(), Section { place, is_empty: table.is_empty() });
            self.table(name, table);
            each.push(std::mem::replace(&mut self.raw, outer));
        }
        self.raw.tables.insert(name, Tables { place, each });
    }

    /// Returns the line from which on the document is in doubt after this error. `None` if the parser is known to have
    /// recovered.
    fn doubtful_after(&self, error: &toml::de::Error) -> Option<usize> {
        match (Syntax::of(error), self.lines.place(error.span().unwrap_or_default())) {
            (Syntax::Other, Place::File { line, .. }) => Some(line),
            _ => None,
        }
    }

    fn variable(&mut self, name: String, value: String) {
        let Some(rest) = name.strip_prefix(keys::VARIABLE_PREFIX) else {
            return;
        };
        let place = Place::Variable(name.clone());
        let Some(key) = self.raw.keys.all().find(|key| keys::variable(key) == rest) else {
            if let Some(new) = keys::renamed(&rest.to_lowercase().replace("__", ".")) {
                let remedy = format!("use {}{}", keys::VARIABLE_PREFIX, keys::variable(new));
                self.problems.push(Problem::new(place, "variable", Wrong::new("renamed", remedy)));
                return;
            }
            let known: Vec<_> = self.raw.keys.all().map(keys::variable).collect();
            let near = nearest(&rest.to_uppercase(), known.iter().map(String::as_str));
            let near = near.map(|near| format!("{}{near}", keys::VARIABLE_PREFIX));
            let remedy = "expected SEGUE__SECTION__KEY with the name of a key";
            let wrong = Wrong::new("names no known key", remedy).did_you_mean(near);
            self.problems.push(Problem::new(place, "variable", wrong));
            return;
        };
        let section = key.split('.').next().unwrap_or_default();
        if keys::ROLES.contains(&section) && !self.raw.sections.contains_key(section) {
            let fact = format!("{} has no section [{section}]", self.raw.file);
            let remedy = "expected it there: the file says which roles run, variables only override their keys";
            self.problems.push(Problem::new(place, key, Wrong::new(fact, remedy)));
            return;
        }
        let given = RawEntry { value: RawValue::Variable(value), key_place: place.clone(), value_place: place };
        self.raw.values.insert(key, given);
    }
}

/// The kinds of bad TOML.
#[derive(Debug, PartialEq)]
enum Syntax {
    /// A bare word in place of a string; the parser continues as if it had quotes.
    Unquoted,
    /// A key given twice; the parser keeps the first.
    Duplicate,
    /// Anything else; what follows may have been misunderstood.
    Other,
}

impl Syntax {
    /// Recognises the kind by the parser's message. A test notices if a new version of the parser changes it.
    fn of(error: &toml::de::Error) -> Self {
        match error.message() {
            "duplicate key" => Self::Duplicate,
            message if message.starts_with("string values must be quoted") => Self::Unquoted,
            _ => Self::Other,
        }
    }
}

fn syntax_problem(lines: &Lines<'_>, error: &toml::de::Error) -> Problem {
    let span = error.span().unwrap_or_default();
    let place = lines.place(span.clone());
    let text = lines.text.get(span).unwrap_or_default();
    let wrong = match Syntax::of(error) {
        Syntax::Unquoted => Wrong::new(format!("the text {} has no quotes", bare(text)), "expected a quoted string")
            .did_you_mean(Some(quoted(text))),
        Syntax::Duplicate => Wrong::new(format!("the key {} is given twice", quoted(text)), "expected it once"),
        Syntax::Other => {
            let message = error.message().replace(['\n', '\r'], " ");
            match message.split_once(", expected ") {
                Some((fact, expected)) => Wrong::new(fact, format!("expected {expected}")),
                None => Wrong::new(message, "expected TOML"),
            }
        }
    };
    Problem::new(place, "syntax", wrong)
}

/// Returns `section.name`, with the name quoted unless it is a bare key: a dot in it must not make it look like a path.
fn join(section: &str, name: &str) -> String {
    let is_bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let name = if is_bare { name.to_owned() } else { quoted(name) };
    if section.is_empty() { name } else { format!("{section}.{name}") }
}

/// Converts positions to lines and columns.
struct Lines<'a> {
    file: Arc<str>,
    text: &'a str,
    /// The start of each line, in bytes.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(file: Arc<str>, text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        Self { file, text, starts }
    }

    fn place(&self, span: Range<usize>) -> Place {
        let line = self.starts.partition_point(|start| *start <= span.start).max(1);
        let start = self.starts.get(line - 1).copied().unwrap_or_default();
        let before = self.text.get(start..).unwrap_or_default().char_indices();
        let column = before.take_while(|(i, _)| start + i < span.start).count() + 1;
        Place::File { file: self.file.clone(), line, column }
    }
}
