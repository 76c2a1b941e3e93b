//! A store whose calls a test delays, fails or leaves without an answer, and counts.
//!
//! For unit tests of this crate and, with the feature `test-util`, for those of others. A test states a rule, which sees
//! each [`StoreCall`] before the store behind does and gives a [`Fault`]. At first every call passes.
//!
//! Elsewhere: outages of a store for all who use it ([`MemoryStore::set_available`](super::MemoryStore::set_available)), and
//! the faults that a simulation draws from a seed (`tests/simulation`).
//!
//! # Invariants
//!
//! * Each transaction of [`Store::commit_all`] is a call of its own.
//! * A call is counted before its verdict, whatever that is.

use std::fmt;
use std::future::pending;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join_all};
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Keys, Snapshot, Txn, TxnOutcome};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{SharedHorizon, Store, StoreError, Survey, Usage, Watch};

/// A call to a store.
#[derive(Debug, Clone)]
pub enum StoreCall {
    /// A read of these keys.
    Snapshot(Keys),
    /// A look at these keys without their values.
    Survey(Keys),
    /// A watch of these keys.
    Watch(Keys),
    /// A transaction.
    Commit(Txn),
    /// A new lease.
    Grant,
    /// The renewal of a lease.
    KeepAlive,
    /// The end of a lease.
    Revoke,
}

/// The treatment of a call.
pub enum Fault {
    /// It is carried out and answered.
    Pass,
    /// It is carried out once this has completed.
    Hold(BoxFuture<'static, ()>),
    /// It is carried out at once, and answered once this has completed. This begins when the call has been carried out.
    HoldAnswer(BoxFuture<'static, ()>),
    /// It fails with [`StoreError::Unavailable`] and is not carried out.
    Fail,
    /// It fails with [`StoreError::Refused`] and is not carried out.
    Refuse,
    /// It is carried out, and fails with [`StoreError::Unavailable`].
    LoseAnswer,
    /// It is neither carried out nor answered. A watch opens, and brings nothing.
    Silence,
}

impl Fault {
    /// Returns the verdict on a call that is carried out after `until`.
    pub fn hold(until: impl Future<Output = ()> + Send + 'static) -> Self {
        Fault::Hold(Box::pin(until))
    }

    /// Returns the verdict on a call that is carried out at once and answered after `until`.
    pub fn hold_answer(until: impl Future<Output = ()> + Send + 'static) -> Self {
        Fault::HoldAnswer(Box::pin(until))
    }
}

type Rule = Box<dyn FnMut(&StoreCall) -> Fault + Send>;

/// A store that a test puts before another one.
pub struct FaultyStore {
    inner: Mutex<Arc<dyn Store>>,
    rule: Mutex<Rule>,
    calls: Mutex<Vec<StoreCall>>,
    /// Ends the watches that are open.
    watches: Mutex<CancellationToken>,
    usage: Mutex<Option<Usage>>,
    horizon: Option<SharedHorizon>,
}

impl FaultyStore {
    /// Returns a store that passes every call to `inner`.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        FaultyStore {
            inner: Mutex::new(inner),
            rule: Mutex::new(Box::new(|_| Fault::Pass)),
            calls: Mutex::default(),
            watches: Mutex::default(),
            usage: Mutex::default(),
            horizon: None,
        }
    }

    /// Returns a store that is shared in its process, without a memory of its own.
    #[cfg(test)]
    pub(crate) fn shared(inner: Arc<dyn Store>) -> Self {
        FaultyStore { horizon: Some(SharedHorizon::default()), ..Self::new(inner) }
    }

    /// Sends later calls to another store, and ends the watches that are open.
    #[cfg(test)]
    pub(crate) fn replace(&self, inner: Arc<dyn Store>) {
        *lock(&self.inner) = inner;
        self.end_watches();
    }

    /// Lets `rule` decide about later calls, in place of the rule before.
    pub fn set_rule(&self, rule: impl FnMut(&StoreCall) -> Fault + Send + 'static) {
        *lock(&self.rule) = Box::new(rule);
    }

    /// Has the store say from now on that it is this full.
    pub fn set_usage(&self, usage: Usage) {
        *lock(&self.usage) = Some(usage);
    }

    /// Passes later calls.
    pub fn pass(&self) {
        self.set_rule(|_| Fault::Pass);
    }

    /// Gives this verdict on as many of the later calls as `is_meant` holds for, and passes all others.
    pub fn next(
        &self,
        mut times: usize,
        is_meant: impl Fn(&StoreCall) -> bool + Send + 'static,
        verdict: impl Fn() -> Fault + Send + 'static,
    ) {
        self.set_rule(move |call| {
            if times == 0 || !is_meant(call) {
                return Fault::Pass;
            }
            times -= 1;
            verdict()
        });
    }

    /// Fails later reads and watches, and ends the watches that are open. Writes and leases go on.
    pub fn blind(&self) {
        self.set_rule(|call| match call {
            StoreCall::Snapshot(_) | StoreCall::Survey(_) | StoreCall::Watch(_) => Fault::Fail,
            StoreCall::Commit(_) | StoreCall::Grant | StoreCall::KeepAlive | StoreCall::Revoke => Fault::Pass,
        });
        self.end_watches();
    }

    /// Refuses later puts and leases as an etcd does that has run out of space: it counts the puts of each branch.
    pub fn refuse_puts(&self) {
        self.set_rule(|call| match call {
            StoreCall::Commit(txn) if txn.puts() => Fault::Refuse,
            StoreCall::Grant => Fault::Refuse,
            _ => Fault::Pass,
        });
    }

    /// Returns the number of calls so far that `is_meant` holds for.
    pub fn count(&self, is_meant: impl Fn(&StoreCall) -> bool) -> usize {
        lock(&self.calls).iter().filter(|call| is_meant(call)).count()
    }

    fn end_watches(&self) {
        take(&mut *lock(&self.watches)).cancel();
    }

    fn inner(&self) -> Arc<dyn Store> {
        lock(&self.inner).clone()
    }

    fn verdict(&self, call: StoreCall) -> Fault {
        let verdict = lock(&self.rule)(&call);
        lock(&self.calls).push(call);
        verdict
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("the test wants it".into())
}

async fn carry_out<T>(verdict: Fault, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    match verdict {
        Fault::Pass => request.await,
        Fault::Hold(until) => {
            until.await;
            request.await
        }
        Fault::HoldAnswer(until) => {
            let answer = request.await;
            until.await;
            answer
        }
        Fault::Fail => Err(unavailable()),
        Fault::Refuse => Err(StoreError::Refused("the test wants it".into())),
        Fault::LoseAnswer => {
            request.await?;
            Err(unavailable())
        }
        Fault::Silence => pending().await,
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
        carry_out(self.verdict(StoreCall::Snapshot(keys.clone())), self.inner().snapshot(keys)).await
    }

    async fn survey(&self, keys: &Keys, since: Revision) -> Result<Survey, StoreError> {
        carry_out(self.verdict(StoreCall::Survey(keys.clone())), self.inner().survey(keys, since)).await
    }

    async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
        let end = lock(&self.watches).clone();
        let mut open = match self.verdict(StoreCall::Watch(keys.clone())) {
            Fault::Silence => None,
            verdict => Some(carry_out(verdict, self.inner().watch(keys, from)).await?),
        };
        let (batches, watch) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let next = async {
                    match &mut open {
                        Some(watch) => watch.next().await,
                        None => pending().await,
                    }
                };
                let batch = tokio::select! {
                    biased;
                    () = batches.closed() => return,
                    () = end.cancelled() => Err(unavailable()),
                    batch = next => batch,
                };
                let is_last = batch.is_err();
                if batches.send(batch).await.is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Watch::new(watch))
    }

    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        carry_out(self.verdict(StoreCall::Commit(txn.clone())), self.inner().commit(txn)).await
    }

    async fn commit_all(&self, txns: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>> {
        join_all(txns.into_iter().map(|txn| self.commit(txn))).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        carry_out(self.verdict(StoreCall::Grant), self.inner().grant(ttl)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        carry_out(self.verdict(StoreCall::KeepAlive), self.inner().keep_alive(lease)).await
    }

    fn forget_lease(&self, lease: LeaseId) {
        self.inner().forget_lease(lease);
    }

    fn horizon(&self) -> Option<&SharedHorizon> {
        self.horizon.as_ref()
    }

    async fn usage(&self, _key: &str, _since: Revision) -> Result<Option<Usage>, StoreError> {
        Ok(*lock(&self.usage))
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        carry_out(self.verdict(StoreCall::Revoke), self.inner().revoke(lease)).await
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::txn::Op;
    use tokio::sync::oneshot;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;
    use crate::store::MemoryStore;

    const SOON: Duration = Duration::from_secs(1);

    fn faulty() -> (FaultyStore, MemoryStore) {
        let memory = MemoryStore::new();
        (FaultyStore::new(Arc::new(memory.clone())), memory)
    }

    fn key() -> Keys {
        Keys::One("a".to_owned())
    }

    fn put() -> Txn {
        Txn::guarded([], [Op::put("a", Vec::new())])
    }

    fn is_commit(call: &StoreCall) -> bool {
        matches!(call, StoreCall::Commit(_))
    }

    async fn is_put(memory: &MemoryStore) -> bool {
        !memory.snapshot(&key()).await.unwrap().entries.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_call_is_carried_out_only_if_its_answer_alone_is_lost() {
        let (faulty, memory) = faulty();
        faulty.next(1, is_commit, || Fault::Fail);
        assert!(matches!(faulty.commit(put()).await, Err(StoreError::Unavailable(_))));
        assert!(!is_put(&memory).await);
        faulty.next(1, is_commit, || Fault::LoseAnswer);
        assert!(matches!(faulty.commit(put()).await, Err(StoreError::Unavailable(_))));
        assert!(is_put(&memory).await);
        faulty.commit(put()).await.expect("only the next one fails");
        faulty.snapshot(&key()).await.unwrap();
        assert_eq!((faulty.count(is_commit), faulty.count(|_| true)), (3, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_before_or_after_it_is_carried_out() {
        let (faulty, memory) = faulty();
        faulty.next(1, is_commit, || Fault::hold(sleep(2 * SOON)));
        let began = Instant::now();
        let wait = async {
            sleep(SOON).await;
            assert!(!is_put(&memory).await);
        };
        let (outcome, ()) = tokio::join!(faulty.commit(put()), wait);
        assert!(outcome.is_ok() && began.elapsed() == 2 * SOON && is_put(&memory).await);

        let (read, release) = oneshot::channel();
        let mut released = Some(release);
        faulty.set_rule(move |_| {
            let released = released.take();
            Fault::hold_answer(async move { drop(released.unwrap().await) })
        });
        let write = memory.commit(Txn::guarded([], [Op::Delete(key())]));
        let delete = async {
            write.await.unwrap();
            read.send(()).unwrap();
        };
        let key = key();
        let (snapshot, ()) = tokio::join!(faulty.snapshot(&key), delete);
        assert_eq!(snapshot.unwrap().entries.len(), 1, "it was read before the deletion");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_store_answers_nothing_and_its_watches_bring_nothing() {
        let (faulty, memory) = faulty();
        faulty.set_rule(|_| Fault::Silence);
        assert!(timeout(SOON, faulty.commit(put())).await.is_err());
        assert!(!is_put(&memory).await);
        let mut watch = faulty.watch(&key(), Revision::new(1)).await.unwrap();
        memory.commit(put()).await.unwrap();
        assert!(timeout(SOON, watch.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_blind_participant_writes_and_sees_nothing_until_calls_pass_again() {
        let (faulty, _memory) = faulty();
        let from = faulty.commit(put()).await.unwrap().revision;
        let mut watch = faulty.watch(&key(), from).await.unwrap();
        assert_eq!(watch.next().await.unwrap().revision, from);
        faulty.blind();
        assert!(matches!(watch.next().await, Err(StoreError::Unavailable(_))), "its watch ends");
        assert!(faulty.snapshot(&key()).await.is_err() && faulty.watch(&key(), from).await.is_err());
        let unseen = faulty.commit(put()).await.unwrap().revision;
        faulty.pass();
        let mut watch = faulty.watch(&key(), unseen).await.unwrap();
        assert_eq!(watch.next().await.unwrap().revision, unseen);
    }
}
