//! The keys of a configuration file.
//!
//! For: distinguishing known from unknown keys, and suggesting what an unknown one was meant to be. Not for: types and
//! defaults, which `validate` contains where it reads the keys.
//!
//! # Invariants
//!
//! * Every key of `validate::KEYS` is read there and explained in `segue.example.toml` (tests check both).
//! * No key contains a double underscore, so a variable names one key only.
//! * No variable names a key of a list's tables, because it could not say which table.

use crate::error::nearest;

/// The keys of a file by their paths, section by section, in the order in which problems list them.
#[derive(Debug)]
pub(crate) struct ConfigKeys {
    pub(crate) sections: &'static [&'static [&'static str]],
    /// The lists of tables that the file may have, by their paths, with the keys of each table.
    pub(crate) tables: &'static [(&'static str, &'static ConfigKeys)],
}

/// Keys of earlier versions, each with its present name. Like unknown keys, they are errors.
const RENAMED: &[(&str, &str)] = &[("router.handover", "router.hot_restart_socket")];

/// The list of the tables of keyspaces.
pub(crate) const KEYSPACES: &str = "keyspaces";

/// The sections that start a role. Only the file can contain them.
pub(crate) const ROLES: [&str; 3] = ["router", "coordinator", "pod"];

/// The prefix of Segue's variables.
pub(crate) const VARIABLE_PREFIX: &str = "SEGUE__";

impl ConfigKeys {
    /// Returns every key.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.sections.iter().copied().flatten().copied()
    }

    /// Returns the key as this table spells it.
    pub(crate) fn known(&self, path: &str) -> Option<&'static str> {
        self.all().find(|key| *key == path)
    }

    /// Returns whether there are keys or sections below `path`.
    pub(crate) fn is_section(&self, path: &str) -> bool {
        self.all().any(|key| within(key, path).is_some_and(|rest| !rest.is_empty()))
    }

    /// Returns the names directly below a section. The empty path is the file itself.
    pub(crate) fn children(&self, section: &str) -> Vec<&'static str> {
        let mut names = Vec::new();
        for name in self.all().filter_map(|key| within(key, section)?.split('.').next()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let of_section = |(list, _): &&(&'static str, _)| list.rsplit_once('.').map_or("", |(of, _)| of) == section;
        names.extend(self.tables.iter().filter(of_section).filter_map(|(list, _)| list.rsplit('.').next()));
        names
    }

    /// Returns what an unknown `name` in `section` was probably meant to be: a name of that section, or otherwise the
    /// same name in its proper section.
    pub(crate) fn nearest_key(&self, section: &str, name: &str) -> Option<String> {
        let here = || nearest(name, self.children(section)).map(str::to_owned);
        let elsewhere = || {
            let mut candidates = self.all().flat_map(|key| key.match_indices('.').map(|(i, _)| &key[..i]).chain([key]));
            candidates.find(|path| path.rsplit('.').next() == Some(name)).map(str::to_owned)
        };
        here().or_else(elsewhere)
    }
}

/// Returns the present name of a renamed key.
pub(crate) fn renamed(path: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(old, _)| *old == path).map(|(_, new)| *new)
}

/// Returns the name, without the prefix, of the variable that overrides `key`.
pub(crate) fn variable(key: &str) -> String {
    key.replace('.', "__").to_uppercase()
}

/// Returns the rest of `path` below `section`.
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
    use crate::raw::RawValue;
    use crate::validate::KEYS;

    /// Returns the paths of the keys in `lines` of the example, commented out or not.
    fn shown<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
        let mut section = "";
        let mut shown = BTreeSet::new();
        for line in lines.filter(|line| !line.contains('`')) {
            if let Some(header) = line.strip_prefix('[').or_else(|| line.strip_prefix("# [[")) {
                section = header.trim_matches(['[', ']']);
            } else if let Some((name, value)) = line.trim_start_matches("# ").split_once(" = ") {
                let path = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
                let value = RawValue::from_toml(value).unwrap_or_else(|| RawValue::Other(value.to_owned()));
                inner(&path, &value, &mut shown);
            }
        }
        shown
    }

    /// Adds the paths of the keys in the value of `path`, or `path` itself.
    fn inner(path: &str, value: &RawValue, shown: &mut BTreeSet<String>) {
        let is_section = || {
            let keys = KEYS.tables.iter().flat_map(|(_, keys)| keys.all()).chain(KEYS.all());
            keys.into_iter().any(|key| within(key, path).is_some())
        };
        match value {
            RawValue::Table(items) if is_section() => {
                items.iter().for_each(|(name, value)| inner(&format!("{path}.{name}"), value, shown));
            }
            _ => drop(shown.insert(path.to_owned())),
        }
    }

    const EXAMPLE: &str = include_str!("../segue.example.toml");

    #[test]
    fn the_example_shows_every_key() {
        // The part of each list begins with its first table.
        let parts: Vec<&str> = EXAMPLE.split("\n# [[").collect();
        assert_eq!(shown(parts[0].lines()), KEYS.all().map(str::to_owned).collect());
        for (list, keys) in KEYS.tables {
            let is_of_list = |part: &&str| part.starts_with(&format!("{list}]]"));
            let tables = parts.iter().copied().filter(is_of_list).flat_map(|part| {
                // An empty line ends a table.
                let table = part.split("\n\n").next().unwrap();
                let header = format!("# [[{list}]]");
                shown(std::iter::once(header.as_str()).chain(table.lines().skip(1)))
            });
            assert_eq!(tables.collect::<BTreeSet<_>>(), keys.all().map(str::to_owned).collect(), "{list}");
        }
    }

    #[test]
    fn each_key_has_a_variable_of_its_own() {
        let variables: BTreeSet<_> = KEYS.all().map(variable).collect();
        assert_eq!(variables.len(), KEYS.all().count());
        assert!(KEYS.all().all(|key| !key.contains("__")));
    }
}
