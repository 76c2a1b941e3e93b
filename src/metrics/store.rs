//! The metrics of the store: whether it answers, and how fast.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use segue_coordination::store::{Store, StoreError, Survey, Tap, Watch};
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Keys, Snapshot, Txn, TxnOutcome};
use tokio::time::Instant;

/// Buckets from a write to memory to the time-out of a request.
const REQUEST_BUCKETS: [f64; 14] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpLabel {
    op: &'static str,
}

/// A store whose requests are timed. A request that its caller gives up is not counted.
#[derive(Debug)]
pub struct MeteredStore {
    store: Arc<dyn Store>,
    up: Gauge,
    /// The store refused the last write.
    refuses_writes: AtomicBool,
    /// The store refused the last request that was neither a write nor a renewal.
    refuses_reads: AtomicBool,
    durations: Family<OpLabel, Histogram>,
}

impl MeteredStore {
    /// Creates and registers the series.
    pub fn new(store: Arc<dyn Store>, registry: &mut Registry) -> Self {
        let durations = Family::<OpLabel, Histogram>::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS));
        for op in ["snapshot", "survey", "watch", "commit", "grant", "keep_alive", "revoke"] {
            drop(durations.get_or_create(&OpLabel { op }));
        }
        let up = Gauge::default();
        let help = "Whether the store served the last request and accepted the last write";
        registry.register("store_up", help, up.clone());
        let help = "How long the store took to answer, errors and time-outs included";
        registry.register("store_request_duration_seconds", help, durations.clone());
        MeteredStore {
            store,
            up,
            refuses_writes: AtomicBool::new(false),
            refuses_reads: AtomicBool::new(false),
            durations,
        }
    }

    fn answered<T>(&self, op: &'static str, since: Instant, answer: &Result<T, StoreError>) {
        let is_refused = matches!(answer, Err(StoreError::Refused(_)));
        let is_reached = !matches!(answer, Err(StoreError::Unavailable(_)));
        match op {
            // etcd goes on renewing the leases of a user from whom it takes nothing else.
            "keep_alive" => {}
            "commit" if is_reached => self.refuses_writes.store(is_refused, Relaxed),
            _ if is_reached => self.refuses_reads.store(is_refused, Relaxed),
            _ => {}
        }
        let refuses = self.refuses_writes.load(Relaxed) || self.refuses_reads.load(Relaxed);
        self.up.set(i64::from(is_reached && !refuses));
        self.took(op, since.elapsed());
    }

    fn took(&self, op: &'static str, time: Duration) {
        self.durations.get_or_create(&OpLabel { op }).observe(time.as_secs_f64());
    }

    async fn timed<T>(
        &self,
        op: &'static str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let since = Instant::now();
        let answer = request.await;
        self.answered(op, since, &answer);
        answer
    }
}

#[async_trait]
impl Store for MeteredStore {
    async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
        self.timed("snapshot", self.store.snapshot(keys)).await
    }

    async fn survey(&self, keys: &Keys, since: Revision) -> Result<Survey, StoreError> {
        self.timed("survey", self.store.survey(keys, since)).await
    }

    async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
        self.timed("watch", self.store.watch(keys, from)).await
    }

    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        self.timed("commit", self.store.commit(txn)).await
    }

    async fn commit_all(&self, txns: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>> {
        let since = Instant::now();
        let answers = self.store.commit_all(txns).await;
        // They are sent together, so they count as one request.
        if let Some(last) = answers.last() {
            self.answered("commit", since, last);
        }
        answers
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.timed("grant", self.store.grant(ttl)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.timed("keep_alive", self.store.keep_alive(lease)).await
    }

    fn forget_lease(&self, lease: LeaseId) {
        self.store.forget_lease(lease);
    }

    fn tap(&self) -> Option<&Tap> {
        self.store.tap()
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.timed("revoke", self.store.revoke(lease)).await
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use segue_coordination::store::{EtcdOptions, EtcdStore, MemoryStore};

    use super::*;

    fn metered(store: Arc<dyn Store>) -> (MeteredStore, Registry) {
        let mut registry = Registry::with_prefix("segue");
        (MeteredStore::new(store, &mut registry), registry)
    }

    fn assert_shown(registry: &Registry, line: &str) {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        assert!(text.lines().any(|shown| shown == line), "{line} is missing in {text}");
    }

    #[tokio::test]
    async fn each_request_is_timed_by_what_it_does() {
        let (store, registry) = metered(Arc::new(MemoryStore::new()));
        assert_shown(&registry, "segue_store_up 0");
        assert_shown(&registry, r#"segue_store_request_duration_seconds_count{op="snapshot"} 0"#);
        let keys = Keys::Prefix("/".to_owned());
        let revision = store.snapshot(&keys).await.unwrap().revision;
        store.survey(&keys, revision).await.unwrap();
        store.watch(&keys, revision.next()).await.unwrap();
        let lease = store.grant(Duration::from_secs(60)).await.unwrap();
        store.keep_alive(lease).await.unwrap();
        store.revoke(lease).await.unwrap();
        store.commit(Txn::default()).await.unwrap();
        assert_eq!(store.commit_all(vec![Txn::default(), Txn::default()]).await.len(), 2);
        let others = ["survey", "watch", "grant", "keep_alive", "revoke"].map(|op| (op, 1));
        for (op, requests) in [("snapshot", 1), ("commit", 2)].into_iter().chain(others) {
            assert_shown(&registry, &format!("segue_store_request_duration_seconds_count{{op=\"{op}\"}} {requests}"));
        }
        // The store has answered, though it knows no such lease.
        store.keep_alive(lease).await.unwrap_err();
        assert_shown(&registry, "segue_store_up 1");
    }

    #[tokio::test]
    async fn a_store_that_refuses_reads_or_writes_is_not_up_although_it_renews_leases() {
        let (store, registry) = metered(Arc::new(MemoryStore::new()));
        let (refused, now) = (Err::<(), _>(StoreError::Refused("authentication failed".to_owned())), Instant::now());
        for (op, answer, up) in [
            ("keep_alive", &Ok(()), 1),
            ("snapshot", &refused, 0),
            ("keep_alive", &Ok(()), 0),
            ("snapshot", &Ok(()), 1),
            ("commit", &refused, 0),
            ("snapshot", &Ok(()), 0),
            ("keep_alive", &Ok(()), 0),
            ("commit", &Ok(()), 1),
        ] {
            store.answered(op, now, answer);
            assert_shown(&registry, &format!("segue_store_up {up}"));
        }
    }

    #[tokio::test]
    async fn a_store_that_is_not_reached_is_not_up() {
        // Nothing listens on this port.
        let etcd = EtcdStore::connect(EtcdOptions::new(["http://127.0.0.1:1".to_owned()])).unwrap();
        let (store, registry) = metered(Arc::new(etcd));
        store.up.set(1);
        store.snapshot(&Keys::One("/".to_owned())).await.unwrap_err();
        assert_shown(&registry, "segue_store_up 0");
        assert_shown(&registry, r#"segue_store_request_duration_seconds_count{op="snapshot"} 1"#);
    }
}
