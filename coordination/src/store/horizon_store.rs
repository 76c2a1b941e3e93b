//! A store that remembers how far it has been seen, and notices when it has gone back.
//!
//! All participants of a process that share one such store learn of it together.
//!
//! # Invariants
//!
//! * Only linearizable reads and transactions show that the store went back: `snapshot`, `survey` and `commit`. Watches and
//!   leases may be answered by a member that lags.
//! * What a response shows is known before its caller has it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Keys, Snapshot, Txn, TxnOutcome};

use super::horizon::Observer;
use super::{SharedHorizon, Store, StoreError, Survey, Usage, Watch};

/// A store whose revisions are remembered.
#[derive(Debug)]
pub struct HorizonStore {
    store: Arc<dyn Store>,
    horizon: SharedHorizon,
}

impl HorizonStore {
    /// Returns this store with nothing remembered.
    pub fn new(store: Arc<dyn Store>) -> Self {
        HorizonStore { store, horizon: SharedHorizon::default() }
    }

    /// Returns a store whose revisions are remembered, and what is remembered: this store if it is one.
    pub fn around(store: Arc<dyn Store>) -> (Arc<dyn Store>, SharedHorizon) {
        if let Some(horizon) = store.horizon().cloned() {
            return (store, horizon);
        }
        let store = HorizonStore::new(store);
        let horizon = store.shared().clone();
        (Arc::new(store), horizon)
    }

    /// Returns what is remembered.
    pub fn shared(&self) -> &SharedHorizon {
        &self.horizon
    }

    async fn seen<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
        revision: impl Fn(&T) -> Revision,
    ) -> Result<T, StoreError> {
        let asked = self.horizon.lock().ask();
        let answer = request.await?;
        self.horizon.answered(asked, revision(&answer));
        Ok(answer)
    }
}

#[async_trait]
impl Store for HorizonStore {
    async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
        self.seen(self.store.snapshot(keys), |snapshot| snapshot.revision).await
    }

    async fn survey(&self, keys: &Keys, since: Revision) -> Result<Survey, StoreError> {
        self.seen(self.store.survey(keys, since), |survey| survey.revision).await
    }

    async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
        let asked = self.horizon.lock().ask();
        Ok(self.store.watch(keys, from).await?.observed(Observer::new(self.horizon.clone(), asked)))
    }

    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        self.seen(self.store.commit(txn), |outcome| outcome.revision).await
    }

    async fn commit_all(&self, txns: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>> {
        let asked = self.horizon.lock().ask();
        let outcomes = self.store.commit_all(txns).await;
        for outcome in outcomes.iter().flatten() {
            self.horizon.answered(asked, outcome.revision);
        }
        outcomes
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.store.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.keep_alive(lease).await
    }

    fn forget_lease(&self, lease: LeaseId) {
        self.store.forget_lease(lease);
    }

    fn horizon(&self) -> Option<&SharedHorizon> {
        Some(&self.horizon)
    }

    async fn usage(&self, key: &str, since: Revision) -> Result<Option<Usage>, StoreError> {
        self.store.usage(key, since).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.revoke(lease).await
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::txn::Op;
    use tokio::sync::oneshot;

    use super::*;
    use crate::store::{Fault, FaultyStore, MemoryStore, StoreCall};

    fn key() -> Keys {
        Keys::One("/a".to_owned())
    }

    fn put() -> Txn {
        Txn::guarded([], [Op::put("/a", Vec::new())])
    }

    #[tokio::test]
    async fn how_full_the_store_is_passes_through() {
        let faulty = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        let usage = Usage { revision: Revision::new(7), bytes: 3, quota: Some(9), is_readable: true };
        faulty.set_usage(usage);
        let store = HorizonStore::new(faulty);
        assert_eq!(store.usage("/a", Revision::ZERO).await.unwrap(), Some(usage));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_later_ones_overtake_does_not_show_that_the_store_went_back() {
        let memory = MemoryStore::new();
        let faulty = Arc::new(FaultyStore::new(Arc::new(memory.clone())));
        let store = Arc::new(HorizonStore::new(faulty.clone()));
        let (release, released) = oneshot::channel::<()>();
        let mut held = Some(Fault::hold_answer(async move { drop(released.await) }));
        faulty.set_rule(move |call| match call {
            StoreCall::Snapshot(_) => held.take().unwrap_or(Fault::Pass),
            _ => Fault::Pass,
        });
        let late = tokio::spawn({
            let store = store.clone();
            async move { store.snapshot(&key()).await.unwrap().revision }
        });
        tokio::task::yield_now().await;
        let newest = store.commit(put()).await.unwrap().revision;
        drop(release);
        assert!(late.await.unwrap() < newest);
        assert_eq!(store.shared().times(), 0);

        let backup = memory.back_up();
        let newest = store.commit(put()).await.unwrap().revision;
        memory.restore(&backup);
        assert!(store.snapshot(&key()).await.unwrap().revision < newest);
        assert_eq!(store.shared().times(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_watch_has_brought_is_remembered_and_a_write_shows_that_the_store_went_back() {
        let memory = MemoryStore::new();
        let backup = memory.back_up();
        let store = HorizonStore::new(Arc::new(memory.clone()));
        let mut watch = store.watch(&key(), Revision::new(1)).await.unwrap();
        for _ in 0..3 {
            memory.commit(put()).await.unwrap();
        }
        while watch.next().await.unwrap().revision < Revision::new(4) {}
        memory.restore(&backup);
        assert_eq!(store.commit_all(vec![put()]).await.len(), 1);
        assert_eq!(store.shared().times(), 1);
    }
}
