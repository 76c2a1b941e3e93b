//! A participant's pending writes on their way to the store.
//!
//! Writes that are due at the same time share a request, each with its own guards. Only a few requests are in flight at
//! a time, and writes that become due meanwhile share the next one.
//!
//! # Invariants
//!
//! * At most one write per item is in flight.
//! * A store that accepts nothing is asked again by one timer, however many items wait.
//! * A transaction is built from the view at send time.
//! * A committed item is not written again because a stale view does not show it yet.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::Revision;
use segue_protocol::txn::{Txn, TxnOutcome};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use super::{RepeatedLog, StoreRetry};
use crate::store::{Store, StoreError};

/// Most requests in flight. With only one, an item that is due a little after another would wait for that one's whole
/// round trip.
const MAX_REQUESTS: usize = 4;

/// How long an item rests that the store refused while it accepted others.
const REFUSED_ALONE_REST: Duration = Duration::from_secs(30);

/// How many requests the mean time of a request looks back, about.
const REMEMBERED_REQUESTS: u32 = 8;

/// The pending writes of one participant.
pub(crate) struct WriteQueue<W> {
    store: Arc<dyn Store>,
    /// The line that is logged when the store accepts nothing.
    cannot: &'static str,
    /// How long an item rests after a guard of its write failed, because the view was behind.
    rest: Duration,
    retry: StoreRetry,
    /// The end of the pause after a request of which the store accepted nothing.
    not_before: Option<Instant>,
    /// Whether the store refused that request.
    refused: bool,
    log: RepeatedLog,
    states: HashMap<W, ItemState>,
    due: Vec<W>,
    requests: JoinSet<(Duration, WriteResults<W>)>,
    /// How long requests have taken lately; zero before the first.
    round_trip: Duration,
}

/// The results of the items of a request.
pub(crate) type WriteResults<W> = Vec<(W, Result<TxnOutcome, StoreError>)>;

/// The state of an item.
#[derive(Debug, Clone, Copy)]
enum ItemState {
    /// Waiting for a request, or in flight.
    Due,
    /// Committed: visible from this revision on.
    SeenAt(Revision),
    /// Not written. Retried at this time if it is still due.
    RetryAt(Instant),
}

impl<W: Copy + Eq + Hash + Send + 'static> WriteQueue<W> {
    pub(crate) fn new(store: Arc<dyn Store>, cannot: &'static str, rest: Duration) -> Self {
        let (states, due, requests) = (HashMap::new(), Vec::new(), JoinSet::new());
        let (retry, not_before, refused, log) = (StoreRetry::default(), None, false, RepeatedLog::default());
        let round_trip = Duration::ZERO;
        WriteQueue { store, cannot, rest, retry, not_before, refused, log, states, due, requests, round_trip }
    }

    /// Queues an item that is due according to a view of revision `seen`, or of revision 0 if no view shows that it is written.
    /// Returns when to call again, if no result will trigger that.
    pub(crate) fn want(&mut self, item: W, seen: Revision) -> Option<Instant> {
        match self.states.get(&item) {
            Some(ItemState::Due) => return None,
            Some(ItemState::SeenAt(revision)) if seen < *revision => return None,
            Some(ItemState::RetryAt(at)) if Instant::now() < *at => return Some(*at),
            _ => {}
        }
        if let Some(at) = self.pauses_until() {
            return Some(at);
        }
        self.states.insert(item, ItemState::Due);
        self.due.push(item);
        None
    }

    /// Returns whether the item has been written since it was last forgotten.
    pub(crate) fn has_written(&self, item: W) -> bool {
        matches!(self.states.get(&item), Some(ItemState::SeenAt(_)))
    }

    /// Takes the items to send now.
    pub(crate) fn take_due(&mut self) -> Vec<W> {
        if self.requests.len() < MAX_REQUESTS { std::mem::take(&mut self.due) } else { Vec::new() }
    }

    /// Sends these items with these transactions. An item without one is no longer due.
    pub(crate) fn send(&mut self, items: impl IntoIterator<Item = (W, Option<Txn>)>) {
        let (mut sent, mut txns) = (Vec::new(), Vec::new());
        for (item, txn) in items {
            match txn {
                Some(txn) => {
                    sent.push(item);
                    txns.push(txn);
                }
                None => drop(self.states.remove(&item)),
            }
        }
        if !sent.is_empty() {
            let store = self.store.clone();
            self.requests.spawn(async move {
                let begun = Instant::now();
                let results = sent.into_iter().zip(store.commit_all(txns).await).collect();
                (begun.elapsed(), results)
            });
        }
    }

    /// Returns the results of the next request that completes. Pending while none is in flight. Cancel-safe.
    pub(crate) async fn next_results(&mut self) -> WriteResults<W> {
        let Some(results) = self.requests.join_next().await else {
            return std::future::pending().await;
        };
        let (took, results) = results.unwrap_or_default();
        self.round_trip = match self.round_trip {
            Duration::ZERO => took,
            mean => (mean * (REMEMBERED_REQUESTS - 1) + took) / REMEMBERED_REQUESTS,
        };
        let results = self.answered(results);
        let now = Instant::now();
        for (item, result) in &results {
            let state = match result {
                Ok(outcome) if outcome.committed() => ItemState::SeenAt(outcome.revision),
                // The revision of this answer may come from another keyspace's write, so this view may never reach it.
                Ok(_) => ItemState::RetryAt(now + self.rest),
                Err(StoreError::Refused(_)) if self.not_before.is_none() => {
                    ItemState::RetryAt(now + REFUSED_ALONE_REST)
                }
                Err(_) => ItemState::RetryAt(self.not_before.unwrap_or(now + self.rest)),
            };
            self.states.insert(*item, state);
        }
        results
    }

    /// Draws the consequences of the store's answer for the whole queue. What waits shares the fate of a request of which
    /// the store accepted nothing.
    fn answered(&mut self, mut results: WriteResults<W>) -> WriteResults<W> {
        let Some(error) = results.iter().find_map(|(_, result)| result.as_ref().err().cloned()) else {
            if !results.is_empty() {
                self.accepted();
            }
            return results;
        };
        if results.iter().any(|(_, result)| result.is_ok()) {
            self.accepted();
        } else {
            // The requests in flight fail together, which is one failure.
            if self.pauses_until().is_none() {
                self.not_before = Some(Instant::now() + self.retry.next_after(&error));
            }
            self.refused = matches!(error, StoreError::Refused(_));
            results.extend(std::mem::take(&mut self.due).into_iter().map(|item| (item, Err(error.clone()))));
        }
        if let Some(times) = self.log.note(&error) {
            warn!(%error, times, "{}", self.cannot);
        }
        results
    }

    fn accepted(&mut self) {
        self.retry.reset();
        (self.not_before, self.refused) = (None, false);
    }

    fn pauses_until(&self) -> Option<Instant> {
        self.not_before.filter(|at| Instant::now() < *at)
    }

    /// Returns until when nothing is written, because the store refuses writes.
    pub(crate) fn refused_until(&self) -> Option<Instant> {
        self.pauses_until().filter(|_| self.refused)
    }

    /// Returns how long requests have taken lately; zero before the first.
    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Forgets the items for which `is_over` holds, unless they are due: their handoffs have ended.
    pub(crate) fn forget(&mut self, is_over: impl Fn(&W) -> bool) {
        self.states.retain(|item, state| matches!(state, ItemState::Due) || !is_over(item));
    }

    /// Returns whether nothing is due and nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty() && self.requests.is_empty()
    }

    /// Forgets everything, including what is in flight.
    pub(crate) fn clear(&mut self) {
        self.states.clear();
        self.due.clear();
        self.requests = JoinSet::new();
        self.accepted();
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::txn::Op;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::store::{Fault, FaultyStore, MemoryStore, StoreCall};

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_request_is_that_of_the_last_few() {
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        let mut queue = WriteQueue::new(store.clone(), "nothing", Duration::ZERO);
        assert_eq!(queue.round_trip(), Duration::ZERO);
        let mut times = Vec::new();
        for (item, millis) in [8, 16, 16].into_iter().enumerate() {
            store.set_rule(move |_| Fault::hold(sleep(Duration::from_millis(millis))));
            let put = Op::put("k", Vec::new());
            queue.send([(item, Some(Txn::guarded([], [put])))]);
            queue.next_results().await;
            times.push(queue.round_trip().as_micros());
        }
        assert_eq!(times, [8_000, 9_000, 9_875]);
    }

    fn write(number: usize) -> (usize, Option<Txn>) {
        let put = Op::put(number.to_string(), Vec::new());
        (number, Some(Txn::guarded([], [put])))
    }

    fn is_commit(call: &StoreCall) -> bool {
        matches!(call, StoreCall::Commit(_))
    }

    /// Offers these writes for ever, as a shell does.
    async fn offer(queue: &mut WriteQueue<usize>, items: std::ops::Range<usize>) {
        loop {
            let again = items.clone().filter_map(|item| queue.want(item, Revision::ZERO)).min();
            let due = queue.take_due();
            queue.send(due.into_iter().map(write));
            let again = again.unwrap_or(Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                _ = queue.next_results() => {}
                () = tokio::time::sleep_until(again) => {}
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_refuses_writes_is_asked_less_and_less_however_much_waits() {
        let memory = MemoryStore::new();
        let store = Arc::new(FaultyStore::new(Arc::new(memory.clone())));
        let mut queue = WriteQueue::new(store.clone(), "nothing", Duration::from_millis(50));
        store.refuse_puts();
        let refused = async |queue: &mut _, span| {
            let before = store.count(is_commit);
            timeout(span, offer(queue, 0..10)).await.unwrap_err();
            (store.count(is_commit) - before) / 10
        };
        let first = refused(&mut queue, Duration::from_secs(1)).await;
        assert!((3..=10).contains(&first), "{first} requests in the first second");
        refused(&mut queue, Duration::from_secs(120)).await;
        let late = refused(&mut queue, Duration::from_secs(600)).await;
        assert!((15..=45).contains(&late), "{late} requests in ten minutes");
        assert!(queue.refused_until().is_some());
        store.pass();
        timeout(Duration::from_secs(31), offer(&mut queue, 0..10)).await.unwrap_err();
        assert!(queue.refused_until().is_none());
        let all = segue_protocol::txn::Keys::Prefix(String::new());
        assert_eq!(memory.snapshot(&all).await.unwrap().entries.len(), 10, "nothing is left out");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_alone_is_refused_holds_up_no_other() {
        let memory = MemoryStore::new();
        let store = Arc::new(FaultyStore::new(Arc::new(memory.clone())));
        let is_poison =
            |call: &StoreCall| matches!(call, StoreCall::Commit(Txn { then, .. }) if *then == write(0).1.unwrap().then);
        store.set_rule(move |call| if is_poison(call) { Fault::Refuse } else { Fault::Pass });
        let mut queue = WriteQueue::new(store.clone(), "nothing", Duration::from_millis(50));
        timeout(Duration::from_secs(1), offer(&mut queue, 0..10)).await.unwrap_err();
        let all = segue_protocol::txn::Keys::Prefix(String::new());
        assert_eq!(memory.snapshot(&all).await.unwrap().entries.len(), 9);
        timeout(Duration::from_secs(300), offer(&mut queue, 0..10)).await.unwrap_err();
        let tries = store.count(is_poison);
        assert!((2..=30).contains(&tries), "{tries} tries in five minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_behind_a_refused_request_is_reported_with_it() {
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        store.refuse_puts();
        let mut queue = WriteQueue::new(store, "nothing", Duration::from_millis(50));
        queue.send([write(0)]);
        assert_eq!(queue.want(1, Revision::ZERO), None, "it waits for a request");
        let results = queue.next_results().await;
        let items: Vec<_> = results.iter().map(|(item, _)| *item).collect();
        assert_eq!(items, [0, 1]);
        assert!(queue.take_due().is_empty());
        assert!(queue.want(1, Revision::ZERO).is_some(), "it is offered again once the pause is over");
    }
}
