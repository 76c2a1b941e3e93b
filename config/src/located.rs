//! A valid configuration that remembers where each of its values was written.

use std::collections::BTreeMap;

use crate::error::{Errors, Place, Problem, Wrong};
use crate::validated::Config;

/// A valid configuration with the places of its values, for later problems such as a file that does not exist.
#[derive(Debug, Clone)]
pub struct Located {
    /// The configuration.
    pub config: Config,
    places: BTreeMap<&'static str, Place>,
    file: Place,
}

impl Located {
    /// Returns a configuration of `file`, whose values were written at `places`.
    pub(crate) fn new(config: Config, places: BTreeMap<&'static str, Place>, file: Place) -> Self {
        Located { config, places, file }
    }

    /// Returns whether the file or a variable sets `key`.
    pub fn is_given(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// Returns a problem of the value of `key`, which is a path such as `router.tls.cert`.
    pub fn problem(&self, key: &str, fact: impl Into<String>, remedy: impl Into<String>) -> Problem {
        let place = self.places.get(key).unwrap_or(&self.file).clone();
        Problem::new(place, key, Wrong::new(fact, remedy))
    }

    /// Returns where the value of `key` was written, or that it is the default.
    pub(crate) fn origin(&self, key: &str) -> String {
        self.places.get(key).map_or_else(|| format!("the default in {}", self.file()), ToString::to_string)
    }

    /// Returns the name of the file.
    pub(crate) fn file(&self) -> String {
        match &self.file {
            Place::File { file, .. } => file.to_string(),
            place @ Place::Variable(_) => place.to_string(),
        }
    }

    /// Returns the configuration, unless there are problems.
    ///
    /// # Errors
    ///
    /// The problems, in the order of the file.
    pub fn unless(self, problems: Vec<Problem>) -> Result<Self, Errors> {
        if problems.is_empty() { Ok(self) } else { Err(Errors::new(problems)) }
    }
}
