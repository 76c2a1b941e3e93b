//! Follows the list of keyspaces that processes take part in.
//!
//! Not here: what becomes of a keyspace that was added or taken out.
//!
//! # Invariants
//!
//! * While the store does not respond, the list is what it was.
//! * A change that the watch has missed is seen a minute later at the latest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::keyspace_list::KeyspaceList;
use segue_protocol::txn::{Batch, Event, KeyValue};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::warn;

use crate::session::{RepeatedLog, StoreRetry};
use crate::store::{Store, StoreError, Watch};

/// Time between two reads of the list while the watch is healthy.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);

/// The keyspaces of the list: the value of each, by name.
pub type ListedKeyspaces = BTreeMap<String, Vec<u8>>;

/// A followed list.
#[derive(Debug)]
pub struct KeyspaceListWatcher {
    store: Arc<dyn Store>,
    list: KeyspaceList,
    watch: Option<(Watch, Instant)>,
    listed: ListedKeyspaces,
    /// Whether the caller has the list as it is.
    is_told: bool,
    retry: StoreRetry,
    log: RepeatedLog,
}

impl KeyspaceListWatcher {
    /// Follows a list.
    pub fn new(store: Arc<dyn Store>, list: KeyspaceList) -> Self {
        let (retry, log) = (StoreRetry::default(), RepeatedLog::default());
        KeyspaceListWatcher { store, list, watch: None, listed: BTreeMap::new(), is_told: false, retry, log }
    }

    /// Returns the list once it is known, and then each time that it has changed. Cancel-safe.
    pub async fn next(&mut self) -> &ListedKeyspaces {
        loop {
            if let Err(error) = self.step().await {
                self.watch = None;
                if let Some(times) = self.log.note(&error) {
                    warn!(%error, times, "cannot follow the list of keyspaces; retrying");
                }
                sleep(self.retry.next_after(&error)).await;
            } else if self.watch.is_some() && !self.is_told {
                self.is_told = true;
                return &self.listed;
            }
        }
    }

    /// Reads the list, or waits for its next change.
    async fn step(&mut self) -> Result<(), StoreError> {
        match &mut self.watch {
            Some((watch, until)) => match timeout_at(*until, watch.next()).await {
                Ok(batch) => self.apply(batch?),
                // Read the list anew.
                Err(_) => self.watch = None,
            },
            None => {
                let snapshot = self.store.snapshot(&self.list.keys()).await?;
                let watch = self.store.watch(&self.list.keys(), snapshot.revision.next()).await?;
                let entry = |entry: KeyValue| Some((self.list.name(&entry.key)?.to_owned(), entry.value));
                let listed: ListedKeyspaces = snapshot.entries.into_iter().filter_map(entry).collect();
                self.is_told &= listed == self.listed;
                self.listed = listed;
                self.watch = Some((watch, Instant::now() + RESYNC_INTERVAL));
                self.retry.reset();
            }
        }
        Ok(())
    }

    fn apply(&mut self, batch: Batch) {
        for event in batch.events {
            let (key, value) = match event {
                Event::Put(entry) => (entry.key, Some(entry.value)),
                Event::Delete { key, .. } => (key, None),
            };
            let Some(name) = self.list.name(&key) else { continue };
            match value {
                Some(value) => drop(self.listed.insert(name.to_owned(), value)),
                None => drop(self.listed.remove(name)),
            }
            self.is_told = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::txn::{Op, Txn};

    use super::*;
    use crate::store::MemoryStore;

    async fn commit(store: &MemoryStore, txn: Txn) {
        assert!(store.commit(txn).await.unwrap().committed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_told_at_first_and_at_each_change_and_not_when_it_is_only_read_again() {
        let (store, list) = (MemoryStore::new(), KeyspaceList::new("/segue/"));
        let mut watcher = KeyspaceListWatcher::new(Arc::new(store.clone()), list.clone());
        assert!(watcher.next().await.is_empty());
        commit(&store, list.add([("a".to_owned(), b"{}".to_vec())])).await;
        assert_eq!(watcher.next().await.keys().collect::<Vec<_>>(), ["a"]);
        let silent = tokio::time::timeout(RESYNC_INTERVAL * 3, watcher.next()).await;
        assert!(silent.is_err(), "{silent:?}");
        commit(&store, Txn::guarded([], [Op::delete(list.key("a"))])).await;
        assert!(watcher.next().await.is_empty());
    }
}
