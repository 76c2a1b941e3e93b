//! What a participant has to say, on its way to the store: due, sent, said, refused.
//!
//! Words that are due at the same time go in one request, each with its own guards; only a few requests are under way at
//! a time, and what becomes due meanwhile goes together with the next one. What must stay true: a word is under way at
//! most once; its transaction is made when it is sent, from what is seen then; and one that was said is not said again
//! by a view that lacks it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::Revision;
use segue_protocol::txn::{Txn, TxnOutcome};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::store::{Store, StoreError};

/// Most requests under way. With one, a word that is due a little after another would wait for all of that one's way.
const MOST_REQUESTS: usize = 4;

/// The words of one participant.
pub(crate) struct Outbox<W> {
    store: Arc<dyn Store>,
    /// How long a word that was refused or failed waits for its next try.
    rest: Duration,
    states: HashMap<W, State>,
    due: Vec<W>,
    requests: JoinSet<Answers<W>>,
}

/// What became of the words of a request.
pub(crate) type Answers<W> = Vec<(W, Result<TxnOutcome, StoreError>)>;

/// Where a word is.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Waits for a request or is on its way.
    Due,
    /// Said: seen from this revision on.
    SeenAt(Revision),
    /// Failed, or refused because the view was behind: to be tried again then, if it is due yet.
    RetryAt(Instant),
}

impl<W: Copy + Eq + Hash + Send + 'static> Outbox<W> {
    pub(crate) fn new(store: Arc<dyn Store>, rest: Duration) -> Self {
        Outbox { store, rest, states: HashMap::new(), due: Vec::new(), requests: JoinSet::new() }
    }

    /// This is to be said, as far as a view of revision `seen` can tell. Returns when to ask again, if that is not known
    /// to be seen to otherwise.
    pub(crate) fn want(&mut self, word: W, seen: Revision) -> Option<Instant> {
        match self.states.get(&word) {
            Some(State::Due) => return None,
            Some(State::SeenAt(revision)) if seen < *revision => return None,
            Some(State::RetryAt(at)) if Instant::now() < *at => return Some(*at),
            _ => {}
        }
        self.states.insert(word, State::Due);
        self.due.push(word);
        None
    }

    /// What is to be sent now.
    pub(crate) fn take_due(&mut self) -> Vec<W> {
        if self.requests.len() < MOST_REQUESTS { std::mem::take(&mut self.due) } else { Vec::new() }
    }

    /// Sends these, by these transactions. A word without one is not due any more.
    pub(crate) fn send(&mut self, words: impl IntoIterator<Item = (W, Option<Txn>)>) {
        let (mut sent, mut txns) = (Vec::new(), Vec::new());
        for (word, txn) in words {
            match txn {
                Some(txn) => {
                    sent.push(word);
                    txns.push(txn);
                }
                None => drop(self.states.remove(&word)),
            }
        }
        if !sent.is_empty() {
            let store = self.store.clone();
            self.requests.spawn(async move { sent.into_iter().zip(store.commit_all(txns).await).collect() });
        }
    }

    /// The next request that is answered. Never, if none is under way. Cancel-safe.
    pub(crate) async fn answered(&mut self) -> Answers<W> {
        let Some(answers) = self.requests.join_next().await else {
            return std::future::pending().await;
        };
        let answers = answers.unwrap_or_default();
        let again = Instant::now() + self.rest;
        for (word, result) in &answers {
            let state = match result {
                Ok(outcome) if outcome.committed() => State::SeenAt(outcome.revision),
                // Refused at a revision that may be another keyspace's, so that this view never reaches it.
                Ok(_) | Err(_) => State::RetryAt(again),
            };
            self.states.insert(*word, state);
        }
        answers
    }

    /// Forgets what was said and is of no interest any more: handoffs end.
    pub(crate) fn forget(&mut self, is_over: impl Fn(&W) -> bool) {
        self.states.retain(|word, state| matches!(state, State::Due) || !is_over(word));
    }

    /// Nothing is due, and nothing under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty() && self.requests.is_empty()
    }

    /// Forgets everything, also what is under way.
    pub(crate) fn clear(&mut self) {
        self.states.clear();
        self.due.clear();
        self.requests = JoinSet::new();
    }
}
