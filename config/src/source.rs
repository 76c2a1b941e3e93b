//! The source of a configuration: the file, the variables and the host's name, as they were when the process started.
//!
//! For: checking them again together with keyspaces that the store lists. Not for: the form of those keyspaces (`stored`).
//!
//! # Invariants
//!
//! * Reading one source twice with the same keyspaces gives the same configuration, whatever has become of the file.

use std::path::Path;

use crate::error::{Errors, LoadError, Problem};
use crate::located::LocatedConfig;
use crate::raw::Raw;
use crate::stored::StoredKeyspace;
use crate::{hostname, validate};

/// The text of a file with its variables and its host.
#[derive(Debug, Clone)]
pub struct ConfigSource {
    file: String,
    text: String,
    variables: Vec<(String, String)>,
    hostname: String,
}

impl ConfigSource {
    /// Reads the file at `path`, with this process's environment and this host's name.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not UTF-8.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
        // Lossy: a variable of Segue that is not UTF-8 is reported like any other bad value, and `std::env::vars` would
        // panic on an unrelated one.
        let variables = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
        Ok(ConfigSource {
            file: path.display().to_string(),
            text,
            variables: variables.collect(),
            hostname: hostname(),
        })
    }

    /// Checks the configuration as if these keyspaces were the last tables of its list.
    ///
    /// # Errors
    ///
    /// All mistakes, in the order of the file. Those of a keyspace of the store name it in place of a file.
    pub fn locate(&self, stored: &[StoredKeyspace]) -> Result<LocatedConfig, Errors> {
        let (mut raw, mut problems) =
            Raw::read(&validate::KEYS, &self.file, &self.text, self.variables.iter().cloned());
        for keyspace in stored {
            let of_keyspace = keyspace.add_to(&mut raw);
            problems.extend(of_keyspace);
        }
        located((raw, problems), &self.hostname)
    }
}

/// Returns the configuration of what was read, unless there are problems.
pub(crate) fn located((raw, mut problems): (Raw, Vec<Problem>), hostname: &str) -> Result<LocatedConfig, Errors> {
    let (config, invalid) = validate::config(&raw, hostname);
    problems.extend(invalid);
    if !problems.is_empty() {
        return Err(Errors::new(problems));
    }
    Ok(LocatedConfig::new(config, raw))
}
