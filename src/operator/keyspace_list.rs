//! The list of keyspaces that running processes follow, as an operator reads and changes it.
//!
//! # Invariants
//!
//! * Nothing is added that a process with every role would refuse, for itself or beside the others of the list.
//! * Taking a keyspace out deletes nothing of the keyspace itself.

use std::sync::Arc;

use segue_config::StoredKeyspace;
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use segue_protocol::keyspace_list::KeyspaceList;
use segue_protocol::txn::KeyValue;
use segue_protocol::view::View;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::order::ActionOutcome;
use super::{OperatorError, partitions};

/// A keyspace of the list.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ListedKeyspace {
    pub(crate) name: String,
    /// The settings, as they are stored.
    pub(crate) settings: Value,
    /// The number of its partitions, once a coordinator has created it.
    pub(crate) partitions: Option<u32>,
    /// How many of them have an owner.
    pub(crate) owned: usize,
    /// How many pods and routers are registered in it.
    pub(crate) pods: usize,
    pub(crate) routers: usize,
}

/// The list below a prefix of a store.
#[derive(Debug)]
pub(crate) struct ListLink {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) prefix: String,
}

impl ListLink {
    fn list(&self) -> KeyspaceList {
        KeyspaceList::new(&self.prefix)
    }

    /// Returns what is in the list, by name.
    pub(crate) async fn all(&self) -> Result<Vec<ListedKeyspace>, OperatorError> {
        let mut all = Vec::new();
        for (name, entry) in self.entries().await? {
            let view = self.view(&name).await?;
            all.push(ListedKeyspace {
                settings: serde_json::from_slice(&entry.value).unwrap_or(Value::Null),
                partitions: view.config.as_ref().map(|config| config.value.partitions),
                owned: view.assignments.len(),
                pods: view.pods.len(),
                routers: view.routers.len(),
                name,
            });
        }
        Ok(all)
    }

    /// Adds the keyspaces of a file's tables.
    pub(crate) async fn add(&self, file: &str, text: &str) -> Result<ActionOutcome, OperatorError> {
        let mut others = Vec::new();
        for (name, entry) in self.entries().await? {
            // One that nobody can read is nobody's.
            others.extend(StoredKeyspace::parse(&name, &entry.value));
        }
        let added = StoredKeyspace::of_file(file, text, &others);
        let added = added.map_err(|error| OperatorError::BadInput(error.to_string()))?;
        let names: Vec<_> = added.iter().map(|keyspace| keyspace.name().to_owned()).collect();
        let txn = self.list().add(added.iter().map(|keyspace| (keyspace.name().to_owned(), keyspace.value())));
        if !self.store.commit(txn).await?.committed() {
            let text =
                format!("one of {} is in the list already; segue keyspace remove takes it out", names.join(", "));
            return Err(OperatorError::Refused(text));
        }
        let text = format!("added {}: processes with follow_keyspaces = true take part in it now", names.join(", "));
        Ok(ActionOutcome::new(json!({ "keyspaces": names }), text))
    }

    /// Takes a keyspace out of the list, once it is confirmed.
    pub(crate) async fn remove(&self, name: &str, confirmed: bool) -> Result<ActionOutcome, OperatorError> {
        let entries = self.entries().await?;
        let Some((_, entry)) = entries.iter().find(|(listed, _)| listed == name) else {
            let names: Vec<_> = entries.iter().map(|(name, _)| &**name).collect();
            let known =
                if names.is_empty() { "it is empty".to_owned() } else { format!("it has {}", names.join(", ")) };
            return Err(OperatorError::Refused(format!("the list has no keyspace {name}; {known}")));
        };
        let owned = partitions(self.view(name).await?.assignments.len());
        if !confirmed {
            let text = format!(
                "{owned} of keyspace {name} have an owner. Routers would refuse its requests from then on, after those in \
                 progress, and no partition of it would move; nothing of it would be deleted. Repeat with --yes to take it \
                 out of the list"
            );
            return Err(OperatorError::Refused(text));
        }
        if !self.store.commit(self.list().remove(name, entry.mod_revision)).await?.committed() {
            return Err(OperatorError::Refused(format!("somebody has changed keyspace {name} in the list; try again")));
        }
        let text = format!("took {name} out of the list; its records stay below {}{name}/", self.prefix);
        Ok(ActionOutcome::new(json!({ "keyspace": name }), text))
    }

    async fn entries(&self) -> Result<Vec<(String, KeyValue)>, OperatorError> {
        let list = self.list();
        let snapshot = self.store.snapshot(&list.keys()).await?;
        let named = |entry: KeyValue| Some((list.name(&entry.key)?.to_owned(), entry));
        Ok(snapshot.entries.into_iter().filter_map(named).collect())
    }

    async fn view(&self, name: &str) -> Result<View, OperatorError> {
        let keys = Keyspace::new(&self.prefix, name);
        Ok(View::from_snapshot(keys.clone(), self.store.snapshot(&keys.followed()).await?))
    }
}

#[cfg(test)]
mod tests {
    use segue_coordination::store::MemoryStore;

    use super::*;

    const ORDERS: &str = "[[keyspaces]]\nname = \"orders\"\nmatch.host = \"orders\"\npartition.key.header = \"x-order\"\n\
                          partitions = 8\n";

    fn link() -> ListLink {
        ListLink { store: Arc::new(MemoryStore::new()), prefix: "/segue/".to_owned() }
    }

    #[tokio::test]
    async fn what_is_added_is_listed_and_what_is_removed_is_not() {
        let link = link();
        let text = link.add("orders.toml", ORDERS).await.unwrap().text;
        assert!(text.starts_with("added orders"), "{text}");
        let [orders] = &*link.all().await.unwrap() else { panic!("one keyspace") };
        let settings =
            json!({ "match": {"host": "orders"}, "partition": {"key": {"header": "x-order"}}, "partitions": 8 });
        assert_eq!((&*orders.name, &orders.settings, orders.partitions), ("orders", &settings, None));
        let refused = link.remove("orders", false).await.unwrap_err().to_string();
        assert!(refused.starts_with("0 partitions of keyspace orders have an owner"), "{refused}");
        link.remove("orders", true).await.unwrap();
        assert!(link.all().await.unwrap().is_empty());
        let refused = link.remove("orders", true).await.unwrap_err().to_string();
        assert_eq!(refused, "the list has no keyspace orders; it is empty");
    }

    #[tokio::test]
    async fn what_a_process_would_refuse_is_not_added() {
        let link = link();
        link.add("orders.toml", ORDERS).await.unwrap();
        let table = |name: &str, rest: &str| format!("[[keyspaces]]\nname = \"{name}\"\n{rest}\n");
        for (text, why) in [
            (ORDERS.to_owned(), "\"orders\" is the name of another keyspace, too"),
            (
                table("a", "match.host = \"orders\"\npartition.key.header = \"x\""),
                "matches the same requests as another",
            ),
            (table("a", "partition.key.header = \"x\"\npartitions = 0"), "0 is out of range"),
            (table("a", ""), "keyspaces.partition: not given"),
            (table("a/b", "partition.key.header = \"x\""), "cannot be a name"),
            ("[router]\n".to_owned(), "it has router; expected tables [[keyspaces]] and nothing else"),
            (String::new(), "it has no keyspace"),
            ("keyspaces = 1".to_owned(), "not a list of tables"),
        ] {
            let refused = link.add("file.toml", &text).await.unwrap_err().to_string();
            assert!(refused.contains(why), "{text}: {refused}");
        }
        assert_eq!(link.all().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_mistake_of_somebody_else_keeps_nobody_from_adding() {
        let link = link();
        for (name, value) in
            [("broken", "{"), ("typo", r#"{"partition":{"heder":"x"}}"#), ("rest", r#"{"partitions":0}"#)]
        {
            let txn = link.list().add([(name.to_owned(), value.as_bytes().to_vec())]);
            assert!(link.store.commit(txn).await.unwrap().committed());
        }
        link.add("orders.toml", ORDERS).await.unwrap();
        assert_eq!(link.all().await.unwrap().len(), 4);
    }
}
