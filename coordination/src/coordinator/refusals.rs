//! What a coordinator remembers of a store that refuses writes: whether it may write, and which entries the history still
//! lacks.
//!
//! A refusal may be about one transaction or about all. A [question](Txn::question) tells the two apart. Until the store accepts
//! that, nothing is put, so that no move begins which could not be ended, and handoffs are cancelled by deletions alone
//! ([`deletions_alone`](segue_protocol::handoff::history::deletions_alone)). The store is asked as well while nothing is written,
//! so that its operators learn of it before a pod fails.
//!
//! # Invariants
//!
//! * While an entry is missing its partition is not planned: without it the store would accept a write that is still on its
//!   way, and begin a handoff with an epoch that was given before.
//! * What is missing is forgotten with the authority. Its guards refuse such a write then.

use std::collections::BTreeMap;
use std::time::Duration;

use segue_protocol::handoff::history::LateEntry;
use segue_protocol::ids::PartitionId;
#[cfg(doc)]
use segue_protocol::txn::Txn;
use segue_protocol::txn::TxnOutcome;
use tokio::time::Instant;

use crate::session::StoreRetry;
use crate::store::StoreError;

/// Time between two questions to a store that has refused nothing. Together with the time of a call, less than half a minute.
const ASK_INTERVAL: Duration = Duration::from_secs(20);

/// The refusals of a store, as one coordinator has met them.
#[derive(Debug)]
pub(super) struct StoreRefusals {
    standing: Option<StandingRefusal>,
    /// When the store is asked next. `None` while it is being asked.
    ask_at: Option<Instant>,
    retry: StoreRetry,
    late: BTreeMap<PartitionId, (LateEntry, EntryProgress)>,
}

/// A refusal that may be about all writes.
#[derive(Debug)]
struct StandingRefusal {
    why: String,
    /// Whether the store has refused a write that cannot be at fault itself.
    is_certain: bool,
}

/// How far a late entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryProgress {
    /// Its handoff is being cancelled.
    Cancelling,
    Due,
    UnderWay,
}

/// The news in the store's answer to the question whether it accepts writes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Learnt {
    Nothing,
    /// The store refuses all writes.
    RefusesAll,
    /// The store accepts writes again.
    AcceptsAgain,
}

impl StoreRefusals {
    /// Returns what is known of a store that has refused nothing as of `now`.
    pub(super) fn new(now: Instant) -> Self {
        let ask_at = Some(now + ASK_INTERVAL);
        StoreRefusals { standing: None, ask_at, retry: StoreRetry::default(), late: BTreeMap::new() }
    }

    /// Returns whether nothing may be put.
    pub(super) fn stand(&self) -> bool {
        self.standing.is_some()
    }

    /// Returns in which words the store refuses all writes, if it does.
    pub(super) fn why(&self) -> Option<&str> {
        self.standing.as_ref().filter(|standing| standing.is_certain).map(|standing| standing.why.as_str())
    }

    /// Notes that the store has refused a write.
    pub(super) fn refused(&mut self, error: &StoreError) {
        if self.standing.is_none() {
            self.standing = Some(StandingRefusal { why: error.to_string(), is_certain: false });
            self.ask_at = self.ask_at.map(|_| Instant::now());
        }
    }

    /// Returns when to ask the store next. `None` while it is being asked.
    pub(super) fn ask_at(&self) -> Option<Instant> {
        self.ask_at
    }

    /// Notes that the store is being asked.
    pub(super) fn asks(&mut self) {
        self.ask_at = None;
    }

    /// Notes the answer.
    pub(super) fn answered(&mut self, answer: &Result<TxnOutcome, StoreError>) -> Learnt {
        let now = Instant::now();
        let error = match answer {
            Ok(_) => {
                self.ask_at = Some(now + ASK_INTERVAL);
                self.retry = StoreRetry::default();
                let stood = self.standing.take();
                return if stood.is_some_and(|stood| stood.is_certain) {
                    Learnt::AcceptsAgain
                } else {
                    Learnt::Nothing
                };
            }
            Err(error) => error,
        };
        if !matches!(error, StoreError::Refused(_)) {
            let pause = if self.stand() { self.retry.next_after(error) } else { ASK_INTERVAL };
            self.ask_at = Some(now + pause);
            return Learnt::Nothing;
        }
        self.ask_at = Some(now + self.retry.next_after(error));
        let known = self.why().is_some();
        self.standing = Some(StandingRefusal { why: error.to_string(), is_certain: true });
        if known { Learnt::Nothing } else { Learnt::RefusesAll }
    }

    /// Notes that a handoff is being cancelled without its entry.
    pub(super) fn cancels(&mut self, partition: PartitionId, entry: LateEntry) {
        self.late.insert(partition, (entry, EntryProgress::Cancelling));
    }

    /// Returns whether the history lacks an entry of this partition.
    pub(super) fn lack(&self, partition: PartitionId) -> bool {
        self.late.contains_key(&partition)
    }

    /// Returns the entries that are to be put.
    pub(super) fn due(&self) -> Vec<(PartitionId, LateEntry)> {
        let due = self.late.iter().filter(|(_, (_, progress))| *progress == EntryProgress::Due);
        due.map(|(partition, (entry, _))| (*partition, entry.clone())).collect()
    }

    /// Notes that the entry of this partition is being put.
    pub(super) fn puts(&mut self, partition: PartitionId) {
        if let Some((_, progress)) = self.late.get_mut(&partition) {
            *progress = EntryProgress::UnderWay;
        }
    }

    /// Notes the result of a write about this partition. Returns whether it was a late entry.
    pub(super) fn written(&mut self, partition: PartitionId, result: &Result<TxnOutcome, StoreError>) -> bool {
        let Some((_, progress)) = self.late.get_mut(&partition) else { return false };
        let is_entry = *progress == EntryProgress::UnderWay;
        let is_over = match (*progress, result) {
            (EntryProgress::Due, _) => false,
            // If it was refused, the handoff goes on.
            (EntryProgress::Cancelling, Ok(outcome)) => !outcome.committed(),
            (EntryProgress::Cancelling, Err(StoreError::Refused(_))) => true,
            // If a guard has failed, there is an entry already.
            (EntryProgress::UnderWay, Ok(_)) => true,
            (_, Err(_)) => false,
        };
        match is_over {
            true => drop(self.late.remove(&partition)),
            false => *progress = EntryProgress::Due,
        }
        is_entry
    }

    /// Forgets the missing entries: the authority has ended.
    pub(super) fn forget_entries(&mut self) {
        self.late.clear();
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::authority::Authority;
    use segue_protocol::handoff::history::deletions_alone;
    use segue_protocol::ids::{HandoffId, Revision};
    use segue_protocol::keys::Keyspace;
    use segue_protocol::txn::{Keys, Op, Txn};

    use super::*;

    const P0: PartitionId = PartitionId::new(0);

    fn answer(branch: Option<usize>) -> Result<TxnOutcome, StoreError> {
        Ok(TxnOutcome { revision: Revision::new(9), branch })
    }

    fn refused() -> Result<TxnOutcome, StoreError> {
        Err(StoreError::Refused("no space".into()))
    }

    fn unknown() -> Result<TxnOutcome, StoreError> {
        Err(StoreError::Unavailable("no answer".into()))
    }

    /// Returns the entry of a cancel, and what is left of it.
    fn cancel() -> (LateEntry, Txn) {
        let (keys, handoff) = (Keyspace::new("/segue/", "test"), HandoffId::created_at(Revision::new(5)));
        let put = |key: String| Op::put(key, Vec::new());
        let record = Op::Delete(Keys::One(keys.handoff(P0)));
        let then = vec![record.clone(), put(keys.history_entry(P0, handoff)), put(keys.operation("x"))];
        let mut txn = Txn::guarded([], then);
        let entry = deletions_alone(&keys, P0, handoff, &mut txn).unwrap();
        assert_eq!(txn.then, [record]);
        let late = entry.txn(&keys, &Authority::Leader { term: Revision::new(1) });
        assert_eq!(late.then, [put(keys.history_entry(P0, handoff))]);
        (entry, txn)
    }

    #[test]
    fn a_partition_lacks_its_entry_from_the_cancel_until_it_is_put() {
        for outcome in [answer(Some(0)), unknown()] {
            let mut refusals = StoreRefusals::new(Instant::now());
            refusals.cancels(P0, cancel().0);
            assert!(refusals.lack(P0) && refusals.due().is_empty());
            assert!(!refusals.written(P0, &outcome));
            for failure in [refused(), unknown()] {
                assert_eq!(refusals.due().len(), 1);
                refusals.puts(P0);
                assert!(refusals.due().is_empty());
                assert!(refusals.written(P0, &failure) && refusals.lack(P0));
            }
            refusals.puts(P0);
            assert!(refusals.written(P0, &answer(Some(0))) && !refusals.lack(P0));
        }
    }

    #[test]
    fn nothing_is_missing_if_the_handoff_goes_on_or_the_authority_has_ended() {
        let mut refusals = StoreRefusals::new(Instant::now());
        for outcome in [answer(None), refused()] {
            refusals.cancels(P0, cancel().0);
            refusals.written(P0, &outcome);
            assert!(!refusals.lack(P0), "{outcome:?}");
        }
        refusals.cancels(P0, cancel().0);
        refusals.forget_entries();
        assert!(!refusals.lack(P0));
    }

    #[test]
    fn one_refused_write_is_told_from_a_store_that_refuses_all() {
        let mut refusals = StoreRefusals::new(Instant::now());
        refusals.refused(&refused().unwrap_err());
        assert!(refusals.stand() && refusals.why().is_none());
        refusals.asks();
        assert_eq!(refusals.ask_at(), None);
        assert_eq!(refusals.answered(&answer(None)), Learnt::Nothing);
        assert!(!refusals.stand());

        refusals.refused(&refused().unwrap_err());
        assert_eq!(refusals.answered(&refused()), Learnt::RefusesAll);
        assert!(refusals.why().is_some_and(|why| why.contains("no space")) && refusals.ask_at().is_some());
        assert_eq!(refusals.answered(&unknown()), Learnt::Nothing);
        assert!(refusals.stand());
        assert_eq!(refusals.answered(&answer(None)), Learnt::AcceptsAgain);
        assert!(!refusals.stand());
    }

    #[test]
    fn a_store_that_has_refused_nothing_is_asked_too() {
        let mut refusals = StoreRefusals::new(Instant::now());
        for outcome in [answer(None), unknown()] {
            assert!(refusals.ask_at().is_some_and(|at| at > Instant::now()));
            refusals.asks();
            assert_eq!(refusals.answered(&outcome), Learnt::Nothing);
            assert!(!refusals.stand());
        }
        refusals.asks();
        assert_eq!(refusals.answered(&refused()), Learnt::RefusesAll);
        assert!(refusals.stand() && refusals.why().is_some());
    }
}
