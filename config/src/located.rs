//! A valid configuration that remembers what was written, and where.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Errors, Place, Problem, Wrong};
use crate::keys;
use crate::raw::{Raw, RawValue};
use crate::validated::{Config, StoreKind};

/// A valid configuration with the places of its values, for later problems such as a file that does not exist.
#[derive(Debug, Clone)]
pub struct LocatedConfig {
    /// The configuration.
    pub config: Config,
    places: Places,
    /// Those of each table of the list of keyspaces.
    tables: Vec<Places>,
    file: Place,
    written: WrittenValues,
}

/// The values of a configuration as they were written, by the list and the number of their table. Those of no table have an
/// empty name of a list.
#[derive(Debug, Clone)]
pub struct WrittenValues(BTreeMap<(&'static str, usize), BTreeMap<&'static str, RawValue>>);

impl WrittenValues {
    /// Returns the keys whose values differ, or that only one of the two has, in the order of their names. A key of the
    /// second table is `keyspaces.1.name`.
    pub fn differing(&self, other: &WrittenValues) -> Vec<String> {
        let empty = BTreeMap::new();
        let mut differing = Vec::new();
        for (list, number) in self.0.keys().chain(other.0.keys()).collect::<BTreeSet<_>>() {
            let [one, two] = [self, other].map(|written| written.0.get(&(*list, *number)).unwrap_or(&empty));
            let keys: BTreeSet<_> = one.keys().chain(two.keys()).filter(|key| one.get(*key) != two.get(*key)).collect();
            differing.extend(keys.into_iter().map(|key| match key.strip_prefix(list) {
                Some(rest) if !list.is_empty() => format!("{list}.{number}{rest}"),
                _ => (*key).to_owned(),
            }));
        }
        differing
    }
}

/// Where values were written.
pub(crate) type Places = BTreeMap<&'static str, Place>;

/// A setting of one keyspace: the key in its table, and the key that stands for all keyspaces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) own: &'static str,
    pub(crate) common: &'static str,
}

impl LocatedConfig {
    /// Returns a configuration that was read from `raw`.
    pub(crate) fn new(config: Config, mut raw: Raw) -> Self {
        let file = Place::File { file: raw.file.clone(), line: 1, column: 1 };
        let values = |raw: &Raw| raw.values.iter().map(|(key, given)| (*key, given.value.clone())).collect();
        let lists = raw.tables.iter().flat_map(|(list, tables)| {
            tables.each.iter().enumerate().map(|(number, table)| ((*list, number), values(table)))
        });
        let written = WrittenValues(lists.chain([(("", 0), values(&raw))]).collect());
        let tables = raw.tables.remove(keys::KEYSPACES).map_or_else(Vec::new, |tables| tables.each);
        let places = |raw: Raw| raw.values.into_iter().map(|(key, given)| (key, given.value_place)).collect();
        LocatedConfig { config, places: places(raw), tables: tables.into_iter().map(places).collect(), file, written }
    }

    /// Returns what was written.
    pub fn written(&self) -> &WrittenValues {
        &self.written
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

    /// Returns the key that sets `setting` in the keyspace with this index, and where it was written.
    fn place_in(&self, keyspace: usize, setting: Setting) -> (&'static str, Option<&Place>) {
        let own = self.tables.get(keyspace).and_then(|places| places.get(setting.own));
        match own {
            Some(place) => (setting.own, Some(place)),
            None => (setting.common, self.places.get(setting.common)),
        }
    }

    /// Returns the key that sets `setting` in the keyspace with this index.
    pub(crate) fn key_in(&self, keyspace: usize, setting: Setting) -> &'static str {
        self.place_in(keyspace, setting).0
    }

    /// Returns a problem of a setting of the keyspace with this index.
    pub(crate) fn problem_in(
        &self,
        keyspace: usize,
        setting: Setting,
        fact: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Problem {
        let (key, place) = self.place_in(keyspace, setting);
        Problem::new(place.unwrap_or(&self.file).clone(), key, Wrong::new(fact, remedy))
    }

    /// Returns a problem of a setting that is a table, of the keyspace with this index.
    pub(crate) fn table_problem(
        &self,
        keyspace: usize,
        setting: Setting,
        fact: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Problem {
        let own = self
            .tables
            .get(keyspace)
            .and_then(|places| places.iter().find(|(key, _)| keys::within(key, setting.own).is_some()));
        let (key, place) = own.map_or((setting.common, &self.file), |(_, place)| (setting.own, place));
        Problem::new(place.clone(), key, Wrong::new(fact, remedy))
    }

    /// Returns where a setting of the keyspace with this index was written, or that it is the default.
    pub(crate) fn origin_in(&self, keyspace: usize, setting: Setting) -> String {
        let (_, place) = self.place_in(keyspace, setting);
        place.map_or_else(|| format!("the default in {}", self.file()), ToString::to_string)
    }

    /// Returns the name of the file.
    pub(crate) fn file(&self) -> String {
        match &self.file {
            Place::File { file, .. } => file.to_string(),
            place @ Place::Variable(_) => place.to_string(),
        }
    }

    /// Returns the warning that the keyspace has its default name in a store that others may share.
    pub fn unnamed_keyspace(&self) -> Option<Problem> {
        const KEYSPACE: &str = "keyspace";
        let is_named = self.is_given(KEYSPACE) || !self.tables.is_empty();
        (!is_named && self.config.store.kind == StoreKind::Etcd).then(|| {
            let fact = "not written, so it is \"default\": another site on this etcd that does not write it either is the same \
                        keyspace";
            self.problem(KEYSPACE, fact, "expected a name")
        })
    }

    /// Returns the warning that clients choose the partition, although the file does not say so.
    pub fn unwritten_partition(&self) -> Option<Problem> {
        const PARTITION: &str = "router.partition";
        let names_source = |key: &str| key.starts_with(PARTITION) && !key.contains("without_key");
        let is_written = self.places.keys().any(|key| names_source(key)) || !self.tables.is_empty();
        (self.config.router.is_some() && !is_written).then(|| {
            let fact =
                "not written, so the header x-partition names the partition: whoever may set it chooses the partition";
            self.problem(PARTITION, fact, "expected key = { … }, or header = \"x-partition\" if that is meant")
        })
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
