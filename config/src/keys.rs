//! The names that a file may use.
//!
//! For: telling a known key from an unknown one, and what an unknown one was probably meant to be. Not for: the keys
//! themselves, their types and defaults, which `validate` has where it reads them.
//!
//! What must stay true: every key of `validate::KEYS` is read there and explained in `segue.example.toml` (tests check both).
//! No key contains a double underscore, so a variable names one key only.

use crate::error::nearest;

/// The keys of a file by their paths, section by section, in the order in which problems name them.
#[derive(Debug)]
pub(crate) struct Keys(pub(crate) &'static [&'static [&'static str]]);

/// Keys of earlier versions, each with its name today. They are errors like unknown keys.
const RENAMED: &[(&str, &str)] = &[("router.handover", "router.hot_restart_socket")];

/// The sections that make a process do something; only the file can ask for one.
pub(crate) const ROLES: [&str; 3] = ["router", "coordinator", "pod"];

/// What the name of a variable of ours begins with.
pub(crate) const VARIABLE_PREFIX: &str = "SEGUE__";

impl Keys {
    /// Every key.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.0.iter().copied().flatten().copied()
    }

    /// The key as this table writes it.
    pub(crate) fn known(&self, path: &str) -> Option<&'static str> {
        self.all().find(|key| *key == path)
    }

    /// Whether keys or sections lie under `path`.
    pub(crate) fn is_section(&self, path: &str) -> bool {
        self.all().any(|key| within(key, path).is_some_and(|rest| !rest.is_empty()))
    }

    /// The names directly under a section; the empty path is the file itself.
    pub(crate) fn children(&self, section: &str) -> Vec<&'static str> {
        let mut names = Vec::new();
        for name in self.all().filter_map(|key| within(key, section)?.split('.').next()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// What an unknown `name` in `section` was probably meant to be: a name of that section, or else the same name where it
    /// does belong.
    pub(crate) fn nearest_key(&self, section: &str, name: &str) -> Option<String> {
        let here = || nearest(name, self.children(section)).map(str::to_owned);
        let elsewhere = || {
            let mut candidates = self.all().flat_map(|key| key.match_indices('.').map(|(i, _)| &key[..i]).chain([key]));
            candidates.find(|path| path.rsplit('.').next() == Some(name)).map(str::to_owned)
        };
        here().or_else(elsewhere)
    }
}

/// Returns the name today of a key that had another one.
pub(crate) fn renamed(path: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(old, _)| *old == path).map(|(_, new)| *new)
}

/// The name of the variable that overrides `key`, behind the prefix.
pub(crate) fn variable(key: &str) -> String {
    key.replace('.', "__").to_uppercase()
}

/// What is left of `path` below `section`.
pub(crate) fn within<'a>(path: &'a str, section: &str) -> Option<&'a str> {
    if section.is_empty() {
        return Some(path);
    }
    path.strip_prefix(section)?.strip_prefix('.')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::validate::KEYS;

    /// The keys that the example shows, commented out or not, by their paths.
    fn shown() -> BTreeSet<String> {
        let mut section = "";
        let mut shown = BTreeSet::new();
        for line in include_str!("../segue.example.toml").lines().filter(|line| !line.contains('`')) {
            if let Some(header) = line.strip_prefix('[') {
                section = header.trim_end_matches(']');
            } else if let Some((name, value)) = line.trim_start_matches("# ").split_once(" = ") {
                let path = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
                match value.strip_prefix("{ ") {
                    Some(inner) => {
                        let names = inner.split(", ").filter_map(|pair| Some(pair.split_once(" = ")?.0));
                        shown.extend(names.map(|inner| format!("{path}.{inner}")));
                    }
                    None => drop(shown.insert(path)),
                }
            }
        }
        shown
    }

    #[test]
    fn the_example_shows_every_key() {
        assert_eq!(shown(), KEYS.all().map(str::to_owned).collect());
    }

    #[test]
    fn each_key_has_a_variable_of_its_own() {
        let variables: BTreeSet<_> = KEYS.all().map(variable).collect();
        assert_eq!(variables.len(), KEYS.all().count());
        assert!(KEYS.all().all(|key| !key.contains("__")));
    }
}
