//! A participant's pending writes on their way to the store.
//!
//! Writes that are due at the same time share a request, each with its own guards. Only a few requests are in flight at
//! a time, and writes that become due meanwhile share the next one.
//!
//! # Invariants
//!
//! * At most one write per item is in flight.
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

use crate::store::{Store, StoreError};

/// Most requests in flight. With only one, an item that is due a little after another would wait for that one's whole
/// round trip.
const MAX_REQUESTS: usize = 4;

/// How many requests the mean time of a request looks back, about.
const REMEMBERED_REQUESTS: u32 = 8;

/// The pending writes of one participant.
pub(crate) struct WriteQueue<W> {
    store: Arc<dyn Store>,
    /// How long an item rests after its write was refused or failed.
    rest: Duration,
    states: HashMap<W, State>,
    due: Vec<W>,
    requests: JoinSet<(Duration, WriteResults<W>)>,
    /// How long requests have taken lately; zero before the first.
    round_trip: Duration,
}

/// The results of the items of a request.
pub(crate) type WriteResults<W> = Vec<(W, Result<TxnOutcome, StoreError>)>;

/// The state of an item.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Waiting for a request, or in flight.
    Due,
    /// Committed: visible from this revision on.
    SeenAt(Revision),
    /// Failed, or refused because the view was behind. Retried at this time if it is still due.
    RetryAt(Instant),
}

impl<W: Copy + Eq + Hash + Send + 'static> WriteQueue<W> {
    pub(crate) fn new(store: Arc<dyn Store>, rest: Duration) -> Self {
        let (states, due, requests) = (HashMap::new(), Vec::new(), JoinSet::new());
        WriteQueue { store, rest, states, due, requests, round_trip: Duration::ZERO }
    }

    /// Queues an item that is due according to a view of revision `seen`. Returns when to call again, if no result will
    /// trigger that.
    pub(crate) fn want(&mut self, item: W, seen: Revision) -> Option<Instant> {
        match self.states.get(&item) {
            Some(State::Due) => return None,
            Some(State::SeenAt(revision)) if seen < *revision => return None,
            Some(State::RetryAt(at)) if Instant::now() < *at => return Some(*at),
            _ => {}
        }
        self.states.insert(item, State::Due);
        self.due.push(item);
        None
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
        let again = Instant::now() + self.rest;
        for (item, result) in &results {
            let state = match result {
                Ok(outcome) if outcome.committed() => State::SeenAt(outcome.revision),
                // The revision of a refusal may come from another keyspace's write, so this view may never reach it.
                Ok(_) | Err(_) => State::RetryAt(again),
            };
            self.states.insert(*item, state);
        }
        results
    }

    /// Returns how long requests have taken lately; zero before the first.
    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Forgets the items for which `is_over` holds, unless they are due: their handoffs have ended.
    pub(crate) fn forget(&mut self, is_over: impl Fn(&W) -> bool) {
        self.states.retain(|item, state| matches!(state, State::Due) || !is_over(item));
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
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::txn::Op;
    use tokio::time::sleep;

    use super::*;
    use crate::store::{FaultyStore, MemoryStore, Verdict};

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_request_is_that_of_the_last_few() {
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        let mut queue = WriteQueue::new(store.clone(), Duration::ZERO);
        assert_eq!(queue.round_trip(), Duration::ZERO);
        let mut times = Vec::new();
        for (item, millis) in [8, 16, 16].into_iter().enumerate() {
            store.set_rule(move |_| Verdict::hold(sleep(Duration::from_millis(millis))));
            let put = Op::Put { key: "k".to_owned(), value: Vec::new(), lease: None };
            queue.send([(item, Some(Txn { then: vec![put], ..Txn::default() }))]);
            queue.next_results().await;
            times.push(queue.round_trip().as_micros());
        }
        assert_eq!(times, [8_000, 9_000, 9_875]);
    }
}
