//! The changes that a new reading of the list of keyspaces makes for a process. Pure.
//!
//! # Invariants
//!
//! * A keyspace that is served keeps the settings that it was added with, whatever the list says of it now. It goes only when
//!   the list no longer has its name.
//! * A keyspace whose settings are refused, for itself or beside others, changes nothing for those others.

use std::collections::BTreeMap;
use std::time::Duration;

use segue_config::{ConfigSource, Errors, KeyspaceSection, StoredKeyspace, readable};
use segue_coordination::keyspace_list::ListedKeyspaces;

const HAS_CHANGED: &str =
    "its settings have changed in the list; they take effect once it is removed and added again, or with a restart";

/// The settings that a keyspace of the list has to go with.
#[derive(Debug)]
pub(super) struct ListTerms {
    /// The file of the process.
    pub source: ConfigSource,
    /// The time in which the router drains, which has to be below each `stash.max_wait`.
    pub drain_timeout: Option<Duration>,
}

/// The changes of a reading.
#[derive(Debug, Default)]
pub(super) struct ListChanges {
    /// The keyspaces to begin with.
    pub new: Vec<(StoredKeyspace, KeyspaceSection)>,
    /// The names of served keyspaces that the list no longer has.
    pub gone: Vec<String>,
    /// The keyspaces that are not served as the list has them, and why.
    pub remarks: BTreeMap<String, String>,
}

impl ListTerms {
    /// Compares a reading with what is served, by name.
    pub(super) fn changes(&self, served: &BTreeMap<String, StoredKeyspace>, listed: &ListedKeyspaces) -> ListChanges {
        let gone = served.keys().filter(|name| !listed.contains_key(*name)).cloned().collect();
        let mut changes = ListChanges { gone, ..ListChanges::default() };
        let mut candidates = Vec::new();
        for (name, value) in listed {
            let parsed = StoredKeyspace::parse(name, value);
            match (served.get(name), parsed) {
                (Some(served), parsed) => {
                    if !parsed.is_ok_and(|parsed| parsed == *served) {
                        changes.remarks.insert(name.clone(), HAS_CHANGED.to_owned());
                    }
                }
                (None, Ok(candidate)) => candidates.push(candidate),
                (None, Err(why)) => changes.refuse(name, &why.to_string()),
            }
        }
        // Where one is wrong, they are looked at one after the other.
        let mut all: Vec<StoredKeyspace> = served.values().cloned().collect();
        let together = all.iter().chain(&candidates).cloned().collect::<Vec<_>>();
        if let Ok(sections) = self.sections(&together) {
            candidates.into_iter().for_each(|candidate| self.take(candidate, &sections, &mut changes));
            return changes;
        }
        for candidate in candidates {
            all.push(candidate.clone());
            match self.sections(&all) {
                Ok(sections) => self.take(candidate, &sections, &mut changes),
                Err(why) => {
                    all.pop();
                    changes.refuse(candidate.name(), &why.to_string());
                }
            }
        }
        changes
    }

    /// Returns the keyspaces of a file that lists these as well.
    fn sections(&self, stored: &[StoredKeyspace]) -> Result<Vec<KeyspaceSection>, Errors> {
        self.source.locate(stored).map(|located| located.config.keyspaces)
    }

    /// Takes a keyspace whose settings are among these, if they go with what the process keeps.
    fn take(&self, candidate: StoredKeyspace, sections: &[KeyspaceSection], changes: &mut ListChanges) {
        let Some(section) = sections.iter().find(|section| section.name == candidate.name()) else { return };
        match self.conflict(section) {
            None => changes.new.push((candidate, section.clone())),
            Some(why) => changes.refuse(candidate.name(), &why),
        }
    }

    /// Returns why the settings of a keyspace do not go with what the process keeps.
    fn conflict(&self, section: &KeyspaceSection) -> Option<String> {
        let (drain, max_wait) = (self.drain_timeout?, section.routing.as_ref()?.stash.max_wait);
        (max_wait <= drain).then(|| {
            let [max_wait, drain] = [max_wait, drain].map(readable);
            format!("its stash.max_wait is {max_wait}, not above the router.drain.timeout of this process, {drain}")
        })
    }
}

impl ListChanges {
    fn refuse(&mut self, name: &str, why: &str) {
        self.remarks.insert(name.to_owned(), format!("it is not served: {}", why.replace('\n', "; ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> ListTerms {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("segue.toml");
        std::fs::write(&file, "follow_keyspaces = true\n[router]\nname = \"r\"\n").unwrap();
        ListTerms { source: ConfigSource::read(&file).unwrap(), drain_timeout: Some(Duration::from_secs(20)) }
    }

    fn value(host: &str) -> Vec<u8> {
        format!(r#"{{"match":{{"host":"{host}"}},"partition":{{"header":"x-partition"}},"partitions":4}}"#).into_bytes()
    }

    fn listed<const N: usize>(entries: [(&str, Vec<u8>); N]) -> ListedKeyspaces {
        entries.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn served(name: &str, host: &str) -> BTreeMap<String, StoredKeyspace> {
        BTreeMap::from([(name.to_owned(), StoredKeyspace::parse(name, &value(host)).unwrap())])
    }

    fn names(changes: &ListChanges) -> Vec<&str> {
        changes.new.iter().map(|(keyspace, _)| keyspace.name()).collect()
    }

    #[test]
    fn a_name_that_comes_is_new_and_one_that_goes_is_gone() {
        let changes = terms().changes(&served("a", "a"), &listed([("b", value("b"))]));
        assert_eq!((names(&changes), &*changes.gone), (vec!["b"], &["a".to_owned()][..]));
        assert!(changes.remarks.is_empty());
    }

    #[test]
    fn a_served_keyspace_stays_as_it_is_whatever_its_value_becomes() {
        for edited in [value("other"), b"{".to_vec(), br#"{"partition":{"heder":"x"}}"#.to_vec()] {
            let changes = terms().changes(&served("a", "a"), &listed([("a", edited), ("b", value("b"))]));
            assert_eq!((names(&changes), changes.gone.len()), (vec!["b"], 0));
            assert_eq!(changes.remarks["a"], HAS_CHANGED);
        }
    }

    #[test]
    fn a_newcomer_is_compared_with_what_is_served_and_not_with_what_the_list_says_of_it() {
        let changes = terms().changes(&served("a", "a"), &listed([("a", value("b")), ("b", value("a"))]));
        assert!(names(&changes).is_empty());
        assert!(changes.remarks["b"].contains("matches the same requests"), "{changes:?}");
    }

    #[test]
    fn what_is_wrong_keeps_nobody_else_out() {
        let short = br#"{"match":{"host":"s"},"partition":{"header":"x"},"stash":{"max_wait":"1s"}}"#.to_vec();
        let all = listed([("broken", b"{".to_vec()), ("clash", value("a")), ("ok", value("ok")), ("short", short)]);
        let changes = terms().changes(&served("a", "a"), &all);
        assert_eq!((names(&changes), changes.remarks.len()), (vec!["ok"], 3), "{changes:?}");
        assert!(changes.remarks["short"].contains("1.0 s, not above the router.drain.timeout"), "{changes:?}");
    }
}
