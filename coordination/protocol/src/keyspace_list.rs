//! The list of the keyspaces that processes take part in while they run: their keys, and what an operator changes in it.
//!
//! Not here: the form of a keyspace's settings, which is that of a table `[[keyspaces]]` of a configuration file.
//!
//! # Invariants
//!
//! * Its keys are below no keyspace: a name has no `~`.

use crate::ids::Revision;
use crate::txn::{Compare, Keys, Op, Txn};

/// The folder of the list, below the prefix of all keyspaces.
const FOLDER: &str = "~keyspaces/";

/// The list of the keyspaces below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceList {
    root: String,
}

impl KeyspaceList {
    /// Returns the list below `prefix`, which ends with a slash.
    pub fn new(prefix: &str) -> Self {
        KeyspaceList { root: format!("{prefix}{FOLDER}") }
    }

    /// Returns the keys of all its keyspaces.
    pub fn keys(&self) -> Keys {
        Keys::Prefix(self.root.clone())
    }

    /// Returns the key of a keyspace.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.root)
    }

    /// Returns the keyspace that a key is of.
    pub fn name<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.root).filter(|name| !name.is_empty() && !name.contains('/'))
    }

    /// Adds keyspaces with these names and values, none of which may be in the list.
    pub fn add(&self, keyspaces: impl IntoIterator<Item = (String, Vec<u8>)>) -> Txn {
        let (mut when, mut then) = (Vec::new(), Vec::new());
        for (name, value) in keyspaces {
            let key = self.key(&name);
            when.push(Compare::created_at(&*key, Revision::ZERO));
            then.push(Op::put(key, value));
        }
        Txn::guarded(when, then)
    }

    /// Takes a keyspace out, as it was last put at this revision.
    pub fn remove(&self, name: &str, revision: Revision) -> Txn {
        let key = self.key(name);
        Txn::guarded([Compare::unchanged_since(&*key, revision)], [Op::delete(key)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keyspace;

    #[test]
    fn a_keyspace_of_the_list_is_found_by_its_key_and_by_no_other() {
        let list = KeyspaceList::new("/segue/");
        assert_eq!(list.name(&list.key("orders")), Some("orders"));
        assert!(list.keys().contains(&list.key("orders")));
        for other in ["/segue/orders", "/segue/~keyspaces/", "/segue/~keyspaces/a/b", "/other/~keyspaces/a"] {
            assert_eq!(list.name(other), None, "{other}");
        }
        assert!(!Keyspace::new("/segue/", "orders").followed().contains(&list.key("orders")));
    }
}
