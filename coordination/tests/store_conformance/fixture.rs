//! What a case runs on: a store, a prefix of its own, and the means to stop, stall and compact the store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use segue_coordination::store::{EtcdOptions, EtcdStore, MemoryStore, Store, StoreError, Watch};
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Batch, Compare, Event, Field, KeyValue, Keys, Op, Relation, Snapshot, Txn, TxnOutcome};
use segue_tests::etcd::Etcd;
use tokio::time::timeout;

/// The shortest TTL that etcd grants.
pub(crate) const TTL: Duration = Duration::from_secs(1);

/// Bounds every call to the stores.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Longer than anything here takes, even on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

static SHARED: LazyLock<Etcd> = LazyLock::new(Etcd::start);
static PREFIXES: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) prefix: String,
    behind: Behind,
}

enum Behind {
    Memory(MemoryStore),
    Shared,
    Own(Etcd),
}

/// A store at `endpoints` with the suite's timeouts.
pub(crate) fn etcd_store(endpoints: impl IntoIterator<Item = String>) -> EtcdStore {
    let mut options = EtcdOptions::new(endpoints);
    options.request_timeout = REQUEST_TIMEOUT;
    options.connect_timeout = REQUEST_TIMEOUT / 2;
    EtcdStore::connect(options).unwrap()
}

impl Fixture {
    pub(crate) fn memory() -> Self {
        let store = MemoryStore::new();
        Fixture::new(Arc::new(store.clone()), Behind::Memory(store))
    }

    pub(crate) fn shared() -> Self {
        Fixture::new(Arc::new(etcd_store([SHARED.endpoint()])), Behind::Shared)
    }

    pub(crate) fn own() -> Self {
        let etcd = Etcd::start();
        Fixture::new(Arc::new(etcd_store([etcd.endpoint()])), Behind::Own(etcd))
    }

    fn new(store: Arc<dyn Store>, behind: Behind) -> Self {
        let number = PREFIXES.fetch_add(1, Ordering::Relaxed);
        Fixture { store, prefix: format!("/case-{number:03}/"), behind }
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(crate) fn all(&self) -> Keys {
        Keys::Prefix(self.prefix.clone())
    }

    pub(crate) fn below(&self, name: &str) -> Keys {
        Keys::Prefix(self.key(name))
    }

    pub(crate) fn one(&self, name: &str) -> Keys {
        Keys::One(self.key(name))
    }

    pub(crate) fn put_op(&self, name: &str, value: &str) -> Op {
        self.leased_op(name, value, None)
    }

    pub(crate) fn leased_op(&self, name: &str, value: &str, lease: Option<LeaseId>) -> Op {
        Op::Put { key: self.key(name), value: value.into(), lease }
    }

    pub(crate) fn compare(&self, keys: Keys, field: Field, relation: Relation) -> Compare {
        Compare { keys, field, relation }
    }

    pub(crate) async fn put(&self, name: &str, value: &str) -> Revision {
        self.write([self.put_op(name, value)]).await
    }

    pub(crate) async fn delete(&self, keys: Keys) -> Revision {
        self.write([Op::Delete(keys)]).await
    }

    /// Carries out `ops` without guards.
    pub(crate) async fn write(&self, ops: impl IntoIterator<Item = Op>) -> Revision {
        let outcome = self.commit([], ops).await.unwrap();
        assert_eq!(outcome.branch, Some(0));
        outcome.revision
    }

    pub(crate) async fn commit(
        &self,
        when: impl IntoIterator<Item = Compare>,
        then: impl IntoIterator<Item = Op>,
    ) -> Result<TxnOutcome, StoreError> {
        let txn = Txn::guarded(when.into_iter().collect::<Vec<_>>(), then.into_iter().collect::<Vec<_>>());
        self.store.commit(txn).await
    }

    pub(crate) async fn snapshot(&self) -> Snapshot {
        self.store.snapshot(&self.all()).await.unwrap()
    }

    pub(crate) async fn get(&self, name: &str) -> Option<KeyValue> {
        self.store.snapshot(&self.one(name)).await.unwrap().entries.pop()
    }

    pub(crate) async fn watch(&self, keys: Keys, from: Revision) -> Watch {
        self.store.watch(&keys, from).await.unwrap()
    }

    /// Returns the names and values below the prefix, in order.
    pub(crate) async fn contents(&self) -> Vec<(String, String)> {
        let name = |entry: KeyValue| {
            let key = entry.key[self.prefix.len()..].to_owned();
            (key, String::from_utf8(entry.value).unwrap())
        };
        self.snapshot().await.entries.into_iter().map(name).collect()
    }

    /// Returns events in short: `name=value` or `-name`.
    pub(crate) fn short(&self, events: &[Event]) -> Vec<String> {
        let short = |event: &Event| match event {
            Event::Put(entry) => {
                let value = String::from_utf8_lossy(&entry.value);
                format!("{}={value}", &entry.key[self.prefix.len()..])
            }
            Event::Delete { key, .. } => format!("-{}", &key[self.prefix.len()..]),
        };
        events.iter().map(short).collect()
    }

    pub(crate) async fn compact(&self, revision: Revision) {
        match &self.behind {
            Behind::Memory(store) => store.compact(revision).unwrap(),
            Behind::Own(etcd) => {
                let mut client = etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap();
                client.compact(i64::try_from(revision.get()).unwrap(), None).await.unwrap();
            }
            Behind::Shared => unreachable!("other cases would see it"),
        }
    }

    /// Makes the store unavailable. etcd is killed.
    pub(crate) fn stop(&self) {
        match &self.behind {
            Behind::Memory(store) => store.set_available(false),
            Behind::Own(etcd) => etcd.kill(),
            Behind::Shared => unreachable!("other cases would see it"),
        }
    }

    /// Makes the store available again after [`stop`](Self::stop).
    pub(crate) fn start(&self) {
        match &self.behind {
            Behind::Memory(store) => store.set_available(true),
            Behind::Own(etcd) => etcd.restart(),
            Behind::Shared => unreachable!("other cases would see it"),
        }
    }

    /// Makes the store hang. etcd keeps its connections and answers nothing.
    pub(crate) fn pause(&self) {
        match &self.behind {
            Behind::Own(etcd) => etcd.pause(),
            _ => self.stop(),
        }
    }

    /// Ends [`pause`](Self::pause).
    pub(crate) fn resume(&self) {
        match &self.behind {
            Behind::Own(etcd) => etcd.resume(),
            _ => self.start(),
        }
    }
}

/// Returns the next batch. A watch that stays silent fails the case instead of hanging it.
pub(crate) async fn next(watch: &mut Watch) -> Batch {
    try_next(watch).await.unwrap()
}

pub(crate) async fn try_next(watch: &mut Watch) -> Result<Batch, StoreError> {
    timeout(TEST_TIMEOUT, watch.next()).await.expect("the watch stays silent")
}

/// Reads until `count` events have come.
pub(crate) async fn collect(watch: &mut Watch, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        events.extend(next(watch).await.events);
    }
    events
}
