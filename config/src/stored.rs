//! A keyspace whose settings are in the store: the table of a list `[[keyspaces]]`, as JSON.
//!
//! For: its form, its mistakes, and its place in the list of a file that follows the store. Not for: where in the store it
//! is (`segue_protocol::keyspace_list`), and who follows it.
//!
//! # Invariants
//!
//! * One text serves every role: a process leaves the settings of roles that it does not have unread.
//! * A keyspace of a file has been checked as a file with every role would be.

use toml::{Table, Value};

use crate::error::{Errors, Problem};
use crate::keys::KEYSPACES;
use crate::raw::Raw;
use crate::validate;

/// The key of the name, which the store has as the name of the key.
const NAME: &str = "name";

/// A keyspace that the store lists.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredKeyspace {
    name: String,
    /// The keys of its table, without the name.
    settings: Table,
}

/// Why something is no keyspace of the store.
#[derive(Debug, thiserror::Error)]
pub enum InvalidKeyspace {
    /// The value is not a JSON object with the keys of a table `[[keyspaces]]`.
    #[error("keyspace {name} in the store: {reason}; expected a JSON object with the keys of a table [[keyspaces]]")]
    Form {
        /// The keyspace.
        name: String,
        /// The mistake.
        reason: String,
    },
    /// A file is no TOML, or has more than tables of keyspaces.
    #[error("{file}: {reason}; expected tables [[keyspaces]] and nothing else")]
    File {
        /// The file.
        file: String,
        /// The mistake.
        reason: String,
    },
    /// Its settings have mistakes.
    #[error(transparent)]
    Settings(#[from] Errors),
}

impl StoredKeyspace {
    /// Reads the value that the store has for the keyspace `name`.
    ///
    /// # Errors
    ///
    /// The value is not a JSON object, or has something that no table can have, such as `null`. Whether its settings are
    /// right is found by [`ConfigSource::locate`](crate::ConfigSource::locate).
    pub fn parse(name: &str, value: &[u8]) -> Result<Self, InvalidKeyspace> {
        let form = |reason: String| InvalidKeyspace::Form { name: name.to_owned(), reason };
        let settings: Table = serde_json::from_slice(value).map_err(|error| form(error.to_string()))?;
        match settings.get(NAME) {
            None => Ok(StoredKeyspace { name: name.to_owned(), settings }),
            Some(_) => Err(form(format!("it has \"{NAME}\", which is part of the key"))),
        }
    }

    /// Reads the tables `[[keyspaces]]` of a text in TOML, and checks them beside those of `others` that have no mistake, as a
    /// process with every role would.
    ///
    /// # Errors
    ///
    /// The text is no TOML, has anything else, or its tables have mistakes.
    pub fn of_file(file: &str, text: &str, others: &[StoredKeyspace]) -> Result<Vec<Self>, InvalidKeyspace> {
        let wrong = |reason: String| InvalidKeyspace::File { file: file.to_owned(), reason };
        let (mut raw, mut problems) = Raw::read(&validate::KEYS, file, text, []);
        if problems.is_empty() {
            let document: Table = text.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
            if let Some(other) = document.keys().find(|key| *key != KEYSPACES) {
                return Err(wrong(format!("it has {other}")));
            }
            let Some(Value::Array(tables)) = document.get(KEYSPACES) else {
                return Err(wrong("it has no keyspace".to_owned()));
            };
            raw.add_roles();
            Self::sound(others).into_iter().for_each(|other| problems.extend(other.add_to(&mut raw)));
            let (_, invalid) = validate::config(&raw, "host");
            problems.extend(invalid);
            if problems.is_empty() {
                return Ok(tables.iter().filter_map(Self::of_table).collect());
            }
        }
        Err(Errors::new(problems).into())
    }

    /// Returns those without a mistake, for themselves and beside those before them.
    fn sound(all: &[StoredKeyspace]) -> Vec<&Self> {
        let mut sound: Vec<&Self> = Vec::new();
        for keyspace in all {
            let (mut raw, mut problems) = Raw::read(&validate::KEYS, "", "", []);
            raw.add_roles();
            sound.iter().chain([&keyspace]).for_each(|keyspace| problems.extend(keyspace.add_to(&mut raw)));
            if problems.is_empty() && validate::config(&raw, "host").1.is_empty() {
                sound.push(keyspace);
            }
        }
        sound
    }

    /// Returns the keyspace of a table that has been checked.
    fn of_table(table: &Value) -> Option<Self> {
        let mut settings = table.as_table()?.clone();
        let Some(Value::String(name)) = settings.remove(NAME) else { return None };
        Some(StoredKeyspace { name, settings })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value for the store.
    pub fn value(&self) -> Vec<u8> {
        // It came from TOML or JSON, so each of its keys is text and each of its values has a form in JSON.
        serde_json::to_vec(&self.settings).unwrap_or_default()
    }

    /// Adds the keyspace to the list of a file, without the settings of roles that this file does not have. Returns its
    /// mistakes.
    pub(crate) fn add_to(&self, raw: &mut Raw) -> Vec<Problem> {
        let mut table = self.settings.clone();
        table.insert(NAME.to_owned(), Value::String(self.name.clone()));
        let list = Table::from_iter([(KEYSPACES.to_owned(), Value::Array(vec![Value::Table(table)]))]);
        let file = format!("keyspace {} in the store", self.name);
        let (mut own, problems) = Raw::read(&validate::KEYS, &file, &list.to_string(), []);
        let read = own.tables.remove(KEYSPACES).map_or_else(Vec::new, |tables| tables.each);
        for mut table in read {
            table.without(&validate::settings_of_absent_roles(raw));
            raw.add_table(KEYSPACES, table);
        }
        problems
    }
}
