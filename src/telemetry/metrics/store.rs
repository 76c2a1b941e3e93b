//! The metrics of the store: whether it answers, what it refuses, and how fast it is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use segue_coordination::store::{SharedHorizon, Store, StoreError, StoreErrorKind, Survey, Usage, Watch};
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Keys, Snapshot, Txn, TxnOutcome};
use tokio::time::Instant;

/// Buckets from a write to memory to the time-out of a request.
const REQUEST_BUCKETS: [f64; 14] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// How long a refusal of a write counts. Whoever still wants to write repeats it within half a minute.
const REFUSAL_COUNTS_FOR: Duration = Duration::from_secs(60);

/// How long the store may be silent before that is told.
pub(super) const OUTAGE_PATIENCE: Duration = Duration::from_secs(5);

/// The names of the requests.
const OPS: [&str; 7] = ["snapshot", "survey", "watch", "commit", "grant", "keep_alive", "revoke"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpLabel {
    op: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    op: &'static str,
    kind: &'static str,
}

/// The health of the store, by what this process has last heard from it.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth {
    up: Gauge,
    refuses_writes: Gauge,
    heard: Mutex<StoreAnswers>,
}

#[derive(Debug, Default)]
struct StoreAnswers {
    /// When the store refused the last write, and in which words.
    refused_write: Option<(Instant, String)>,
    /// The store refused the last request that was neither a write nor a renewal.
    refuses_reads: bool,
    /// The store responded to the last request.
    is_reached: bool,
    /// Since when it has responded to no request, though one was sent.
    silent_since: Option<Instant>,
    /// Why the last request failed.
    failure: Option<String>,
}

impl StoreHealth {
    /// Returns in which words the store refused the last write of this process, if it did so lately.
    pub(crate) fn write_refusal(&self) -> Option<String> {
        let heard = self.heard();
        let (_, words) = heard.refused_write.as_ref().filter(|(at, _)| at.elapsed() < REFUSAL_COUNTS_FOR)?;
        Some(words.clone())
    }

    /// Returns what is wrong with the store, if something is: what the log says of it.
    pub(crate) fn trouble(&self) -> Option<String> {
        let silent = self.silence().map(|(since, error)| (since.elapsed(), error));
        match silent.filter(|(time, _)| *time >= OUTAGE_PATIENCE) {
            Some((time, error)) => {
                let error = error.unwrap_or_else(|| "no response".to_owned());
                Some(format!("the store has not answered for {} s: {error}", time.as_secs()))
            }
            None => self.write_refusal().map(|words| format!("the store refuses writes: {words}")),
        }
    }

    /// Updates the gauges.
    pub(crate) fn refresh(&self) {
        let refuses_writes = self.write_refusal().is_some();
        let heard = self.heard();
        self.refuses_writes.set(i64::from(refuses_writes));
        self.up.set(i64::from(heard.is_reached && !refuses_writes && !heard.refuses_reads));
    }

    /// Returns since when the store has responded to nothing, and why the last request failed.
    pub(super) fn silence(&self) -> Option<(Instant, Option<String>)> {
        let heard = self.heard();
        Some((heard.silent_since?, heard.failure.clone()))
    }

    /// Notes that a request is sent. Its caller may give it up before the store responds.
    fn asks(&self) {
        self.heard().silent_since.get_or_insert_with(Instant::now);
    }

    fn note(&self, op: &'static str, error: Option<&StoreError>) {
        let mut heard = self.heard();
        heard.is_reached = !matches!(error, Some(StoreError::Unavailable(_)));
        if heard.is_reached {
            heard.silent_since = None;
        }
        heard.failure = error.filter(|_| !heard.is_reached).map(ToString::to_string);
        let refused = error.filter(|error| matches!(error, StoreError::Refused(_)));
        match op {
            // etcd goes on renewing the leases of a user from whom it takes nothing else.
            "keep_alive" => {}
            "commit" if heard.is_reached => {
                heard.refused_write = refused.map(|error| (Instant::now(), error.to_string()));
            }
            // A full etcd refuses it as well, and it is all that a process asks for which has no lease yet. That one is
            // granted says nothing of other writes.
            "grant" if heard.is_reached => {
                let refusal = refused.map(|error| (Instant::now(), error.to_string()));
                heard.refused_write = refusal.or(heard.refused_write.take());
            }
            _ if heard.is_reached => heard.refuses_reads = refused.is_some(),
            _ => {}
        }
        drop(heard);
        self.refresh();
    }

    fn heard(&self) -> MutexGuard<'_, StoreAnswers> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store whose requests are timed and whose errors are counted. A request that its caller gives up is not counted.
#[derive(Debug)]
pub(crate) struct MeteredStore {
    store: Arc<dyn Store>,
    health: Arc<StoreHealth>,
    durations: Family<OpLabel, Histogram>,
    errors: Family<ErrorLabels, Counter>,
}

impl MeteredStore {
    /// Creates and registers the series.
    pub(crate) fn new(store: Arc<dyn Store>, registry: &mut Registry) -> Self {
        let durations = Family::<OpLabel, Histogram>::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS));
        let errors = Family::<ErrorLabels, Counter>::default();
        for op in OPS {
            drop(durations.get_or_create(&OpLabel { op }));
            for (kind, _) in StoreErrorKind::NAMES {
                drop(errors.get_or_create(&ErrorLabels { op, kind }));
            }
        }
        let (up, refuses_writes) = (Gauge::default(), Gauge::default());
        let help = "Whether the store served the last request and accepted the last write";
        registry.register("store_up", help, up.clone());
        let help = "Whether the store refused the last write of this process, within the last minute";
        registry.register("store_refuses_writes", help, refuses_writes.clone());
        let help = "How long the store took to answer, errors and time-outs included";
        registry.register("store_request_duration_seconds", help, durations.clone());
        let help = "Requests that the store did not serve, by who can mend it";
        registry.register("store_errors", help, errors.clone());
        let health = Arc::new(StoreHealth { up, refuses_writes, heard: Mutex::default() });
        MeteredStore { store, health, durations, errors }
    }

    /// Returns what is known of the store, for those who show it.
    pub(crate) fn health(&self) -> Arc<StoreHealth> {
        self.health.clone()
    }

    fn answered<T>(&self, op: &'static str, since: Instant, answer: &Result<T, StoreError>) {
        self.took(op, since.elapsed());
        self.count(op, answer);
        self.health.note(op, answer.as_ref().err());
    }

    fn count<T>(&self, op: &'static str, answer: &Result<T, StoreError>) {
        let kind = answer.as_ref().err().and_then(StoreError::kind);
        let name = StoreErrorKind::NAMES.iter().find(|(_, named)| Some(*named) == kind);
        if let Some((kind, _)) = name {
            self.errors.get_or_create(&ErrorLabels { op, kind }).inc();
        }
    }

    fn took(&self, op: &'static str, time: Duration) {
        self.durations.get_or_create(&OpLabel { op }).observe(time.as_secs_f64());
    }

    async fn timed<T>(
        &self,
        op: &'static str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.health.asks();
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
        self.health.asks();
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

    fn horizon(&self) -> Option<&SharedHorizon> {
        self.store.horizon()
    }

    async fn usage(&self, key: &str, since: Revision) -> Result<Option<Usage>, StoreError> {
        self.store.usage(key, since).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.timed("revoke", self.store.revoke(lease)).await
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use segue_coordination::store::{EtcdOptions, EtcdStore, MemoryStore};
    use tokio::time::advance;

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
        let (refused, now) = (Err::<(), _>(StoreError::Refused("authentication failed".into())), Instant::now());
        for (op, answer, up) in [
            ("keep_alive", &Ok(()), 1),
            ("snapshot", &refused, 0),
            ("keep_alive", &Ok(()), 0),
            ("snapshot", &Ok(()), 1),
            ("commit", &refused, 0),
            ("snapshot", &Ok(()), 0),
            ("keep_alive", &Ok(()), 0),
            ("commit", &Ok(()), 1),
            ("grant", &refused, 0),
            ("snapshot", &Ok(()), 0),
            ("grant", &Ok(()), 0),
            ("commit", &Ok(()), 1),
        ] {
            store.answered(op, now, answer);
            assert_shown(&registry, &format!("segue_store_up {up}"));
        }
        for (op, count) in [("commit", 1), ("snapshot", 1), ("grant", 1), ("keep_alive", 0)] {
            assert_shown(&registry, &format!(r#"segue_store_errors_total{{op="{op}",kind="permission"}} {count}"#));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_write_counts_until_the_next_one_or_for_a_minute() {
        let (store, registry) = metered(Arc::new(MemoryStore::new()));
        let words = "etcdserver: mvcc: database space exceeded";
        let (refused, now) = (Err::<(), _>(StoreError::Refused(words.into())), Instant::now());
        assert_shown(&registry, "segue_store_refuses_writes 0");
        store.answered("commit", now, &refused);
        assert_shown(&registry, "segue_store_refuses_writes 1");
        assert_shown(&registry, r#"segue_store_errors_total{op="commit",kind="no_space"} 1"#);
        assert!(store.health.write_refusal().is_some_and(|shown| shown.contains(words)));
        store.answered("commit", now, &Ok(()));
        assert_shown(&registry, "segue_store_refuses_writes 0");
        store.answered("commit", now, &refused);
        for (pause, refuses) in [(59, 1), (1, 0)] {
            advance(Duration::from_secs(pause)).await;
            store.health.refresh();
            assert_shown(&registry, &format!("segue_store_refuses_writes {refuses}"));
            assert_shown(&registry, &format!("segue_store_up {}", 1 - refuses));
        }
    }

    #[tokio::test]
    async fn all_kinds_of_errors_are_there_from_the_start() {
        let (_store, registry) = metered(Arc::new(MemoryStore::new()));
        for op in OPS {
            for kind in ["unavailable", "refused", "no_space", "permission"] {
                assert_shown(&registry, &format!(r#"segue_store_errors_total{{op="{op}",kind="{kind}"}} 0"#));
            }
        }
    }

    #[tokio::test]
    async fn a_store_that_is_not_reached_is_not_up() {
        // Nothing listens on this port.
        let etcd = EtcdStore::connect(EtcdOptions::new(["http://127.0.0.1:1".to_owned()])).unwrap();
        let (store, registry) = metered(Arc::new(etcd));
        store.health.up.set(1);
        store.snapshot(&Keys::One("/".to_owned())).await.unwrap_err();
        assert_shown(&registry, "segue_store_up 0");
        assert_shown(&registry, r#"segue_store_request_duration_seconds_count{op="snapshot"} 1"#);
    }
}
