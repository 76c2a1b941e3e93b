//! A store that records the owner of each partition, and when it became the owner: the checks' own record of the
//! handoffs.
//!
//! It forwards everything unchanged. Every participant of the demo writes through one of these stores, in one process
//! and under one clock. That gives both bounds that the checks need: an ownership cannot have begun before its
//! transaction was sent, and has begun once its response has arrived.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use segue_coordination::store::{SharedHorizon, Store, StoreError, Survey, Usage, Watch};
use segue_protocol::ids::{Epoch, Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::keys::{KeyName, Keyspace};
use segue_protocol::records::{Assignment, Handoff, PodRecord};
use segue_protocol::txn::{Keys, Op, Snapshot, Txn, TxnOutcome};

use super::check::{OwnerSpan, Owners};
use super::clock::{self, Nanos};

/// The observed store. Clones share it and the record.
#[derive(Debug, Clone)]
pub struct History {
    store: Arc<dyn Store>,
    keys: Keyspace,
    seen: Arc<Mutex<WriteRecord>>,
}

/// The writes so far.
#[derive(Debug, Default)]
pub struct WriteRecord {
    /// The owners.
    pub owners: Owners,
    /// The latest assignment of each partition.
    pub assignments: HashMap<PartitionId, Assignment>,
    /// The last record of each partition's handoff, unless a later deletion was seen.
    pub handoffs: HashMap<PartitionId, Handoff>,
    /// The last registration under each name.
    pub pods: HashMap<String, PodRecord>,
    /// The number of partitions that have changed their owner.
    pub moved: u64,
    /// The previous owner, by partition and epoch.
    pub before: HashMap<(PartitionId, Epoch), (String, Incarnation)>,
}

impl History {
    /// Observes the writes to `store` below `keys`.
    pub fn new(store: Arc<dyn Store>, keys: Keyspace) -> Self {
        History { store, keys, seen: Arc::default() }
    }

    /// Returns a way to another store with the same content, or to the same one, whose writes are recorded here too.
    pub(super) fn over(&self, store: Arc<dyn Store>) -> Self {
        History { store, ..self.clone() }
    }

    /// Returns what was observed.
    pub fn seen(&self) -> MutexGuard<'_, WriteRecord> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_outcome(&self, txn: &Txn, sent: Nanos, outcome: &Result<TxnOutcome, StoreError>) {
        match outcome {
            Ok(TxnOutcome { branch: Some(taken), .. }) => self.note(branch(txn, *taken), sent, Some(clock::now())),
            Ok(TxnOutcome { branch: None, .. }) => {}
            // The store may have carried out any of its branches, so an owner that one of them names may be one.
            Err(_) => {
                let mut next = Some(txn);
                while let Some(txn) = next {
                    self.note(&txn.then, sent, None);
                    next = txn.otherwise.as_deref();
                }
            }
        }
    }

    /// Records writes. Without `answered`, nobody knows whether they were carried out: only owners are noted then.
    fn note(&self, writes: &[Op], sent: Nanos, answered: Option<Nanos>) {
        let mut seen = self.seen();
        for write in writes {
            match write {
                Op::Put { key, value, .. } => match self.keys.parse(key) {
                    Some(KeyName::Assignment(_)) => seen.assigned(value, sent, answered),
                    Some(KeyName::Handoff(partition)) if answered.is_some() => {
                        seen.handoffs.extend(serde_json::from_slice(value).ok().map(|handoff| (partition, handoff)));
                    }
                    Some(KeyName::Pod(pod)) if answered.is_some() => {
                        seen.pods.extend(serde_json::from_slice(value).ok().map(|record| (pod, record)));
                    }
                    _ => {}
                },
                Op::Delete(Keys::One(key)) if answered.is_some() => {
                    if let Some(KeyName::Handoff(partition)) = self.keys.parse(key) {
                        seen.handoffs.remove(&partition);
                    }
                }
                Op::Delete(_) => {}
            }
        }
    }
}

impl WriteRecord {
    fn assigned(&mut self, value: &[u8], sent: Nanos, answered: Option<Nanos>) {
        let Ok(assignment) = serde_json::from_slice::<Assignment>(value) else { return };
        let Assignment { partition, epoch, incarnation, .. } = assignment;
        let ownership = OwnerSpan { pod: assignment.owner.clone(), incarnation, not_before: sent };
        self.owners.note(partition, epoch, ownership);
        let Some(answered) = answered else { return };
        self.owners.begun(partition, epoch, answered);
        // Responses may arrive in another order than the writes were made.
        if self.assignments.get(&partition).is_some_and(|known| known.epoch >= epoch) {
            return;
        }
        if let Some(before) = self.assignments.insert(partition, assignment) {
            self.moved += 1;
            self.before.insert((partition, epoch), (before.owner, before.incarnation));
        }
    }
}

/// Returns the writes of the branch that was carried out.
fn branch(txn: &Txn, mut branch: usize) -> &[Op] {
    let mut txn = txn;
    while branch > 0 {
        let Some(otherwise) = txn.otherwise.as_deref() else { return &[] };
        (txn, branch) = (otherwise, branch - 1);
    }
    &txn.then
}

#[async_trait]
impl Store for History {
    async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
        self.store.snapshot(keys).await
    }

    async fn survey(&self, keys: &Keys, since: Revision) -> Result<Survey, StoreError> {
        self.store.survey(keys, since).await
    }

    async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
        self.store.watch(keys, from).await
    }

    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let sent = clock::now();
        let outcome = self.store.commit(txn.clone()).await;
        self.note_outcome(&txn, sent, &outcome);
        outcome
    }

    async fn commit_all(&self, txns: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>> {
        let sent = clock::now();
        let outcomes = self.store.commit_all(txns.clone()).await;
        for (txn, outcome) in txns.iter().zip(&outcomes) {
            self.note_outcome(txn, sent, outcome);
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
        self.store.horizon()
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
    use segue_coordination::store::MemoryStore;
    use segue_protocol::records::encode;
    use segue_protocol::txn::Compare;

    use super::*;

    const I10: Incarnation = Incarnation::registered_at(Revision::new(10));
    const P4: PartitionId = PartitionId::new(4);

    fn life(number: u64) -> Incarnation {
        Incarnation::registered_at(Revision::new(number))
    }

    fn flip(keys: &Keyspace, owner: &str, epoch: u64, guard: Compare) -> Txn {
        let (partition, incarnation) = (P4, life(epoch * 10));
        let assignment = Assignment::new(partition, owner, incarnation, epoch.into());
        let put = Op::put(keys.assignment(partition), encode(&assignment));
        Txn::guarded([guard], [put])
    }

    #[tokio::test]
    async fn only_flips_that_took_place_are_owners() {
        let keys = Keyspace::new("/segue/", "default");
        let history = History::new(Arc::new(MemoryStore::new()), keys.clone());
        let absent = || Compare::created_at(keys.assignment(P4), Revision::ZERO);
        let present = || Compare::not_created_at(keys.assignment(P4), Revision::ZERO);
        history.commit(flip(&keys, "a", 1, absent())).await.unwrap();
        history.commit(flip(&keys, "never", 2, absent())).await.unwrap();
        let fallback =
            Txn { otherwise: Some(Box::new(flip(&keys, "b", 2, present()))), ..flip(&keys, "x", 3, absent()) };
        history.commit(fallback).await.unwrap();

        let seen = history.seen();
        assert_eq!(seen.assignments[&P4].owner, "b");
        assert_eq!(seen.before[&(P4, Epoch::new(2))], ("a".to_owned(), I10));
        assert_eq!(seen.moved, 1);
    }
}
