//! A keyspace as tests read and write it by hand. Built with the feature `test-util` alone.
//!
//! A call that the store does not answer is made again: on a busy machine a connection may be given up.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test fails where its store does")]

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{KeyValue, Keys, Op, Txn};
use segue_protocol::view::View;
use tokio::time::{sleep, timeout};

use crate::session::{Update, Watcher};
use crate::store::{Store, StoreError};

/// Longer than anything takes on a busy machine; a paused clock passes it at once.
const PATIENCE: Duration = Duration::from_secs(120);
const INTERVAL: Duration = Duration::from_millis(50);
/// The TTL of a lease that ends in no test.
const LONG: Duration = Duration::from_secs(3600);

/// A keyspace in a store.
#[derive(Clone)]
pub struct StoredKeyspace {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The keys of the keyspace.
    pub keys: Keyspace,
}

impl StoredKeyspace {
    /// Returns the keyspace of this name below `/segue/`.
    pub fn new(store: Arc<dyn Store>, name: &str) -> Self {
        StoredKeyspace { store, keys: Keyspace::new("/segue/", name) }
    }

    /// Commits a transaction whose guards have to hold. Returns its revision.
    pub async fn commit(&self, txn: Txn) -> Revision {
        let outcome = self.store.commit(txn).await.unwrap();
        assert!(outcome.committed(), "a transaction by hand failed");
        outcome.revision
    }

    /// Writes without a guard. Returns the revision.
    pub async fn write(&self, then: Vec<Op>) -> Revision {
        let txn = Txn::guarded([], then);
        available(async || self.store.commit(txn.clone()).await).await.revision
    }

    /// Puts a key without a lease. Returns the revision.
    pub async fn put(&self, key: String, value: impl Into<Vec<u8>>) -> Revision {
        self.write(vec![Op::put(key, value.into())]).await
    }

    /// Puts a key with a lease of its own, which no test outlasts. Returns the lease.
    pub async fn put_leased(&self, key: String, value: impl Into<Vec<u8>>) -> LeaseId {
        let lease = available(async || self.store.grant(LONG).await).await;
        self.write(vec![Op::put_leased(key, value.into(), lease)]).await;
        lease
    }

    /// Deletes a key. Returns the revision.
    pub async fn delete(&self, key: String) -> Revision {
        self.write(vec![Op::Delete(Keys::One(key))]).await
    }

    /// Returns a key as it is.
    pub async fn get(&self, key: String) -> Option<KeyValue> {
        let key = Keys::One(key);
        available(async || self.store.snapshot(&key).await).await.entries.pop()
    }

    /// Returns the keyspace as it is.
    pub async fn view(&self) -> View {
        let all = Keys::Prefix(self.keys.root().to_owned());
        let snapshot = available(async || self.store.snapshot(&all).await).await;
        View::from_snapshot(self.keys.clone(), snapshot)
    }

    /// Waits until the store shows this. Returns the keyspace as it is then.
    pub async fn until(&self, what: &str, shows: impl Fn(&View) -> bool) -> View {
        let mut watcher = Watcher::start_planning(self.store.clone(), self.keys.clone());
        let (mut view, mut is_known) = (View::empty(self.keys.clone()), false);
        let seen = async {
            // The condition may depend on more than the store.
            while !(is_known && shows(&view)) {
                match timeout(INTERVAL, watcher.next()).await {
                    Ok(Update::Snapshot(snapshot)) => (view, is_known) = (*snapshot, true),
                    Ok(Update::Batch(batch)) => drop(view.apply(batch)),
                    Ok(Update::Lost(_)) | Err(_) => {}
                }
            }
        };
        let waited = timeout(PATIENCE, seen).await;
        assert!(waited.is_ok(), "never seen: {what}: {view:#?}");
        view
    }
}

async fn available<T>(ask: impl AsyncFn() -> Result<T, StoreError>) -> T {
    for _ in 0..100 {
        match ask().await {
            Err(StoreError::Unavailable(_)) => sleep(INTERVAL).await,
            answer => return answer.unwrap(),
        }
    }
    panic!("the store is not available")
}
