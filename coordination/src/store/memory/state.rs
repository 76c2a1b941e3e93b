//! The embedded store's state: keys, leases, and the history that watches read.
//!
//! Pure: no lock, no clock, no task; time is an argument. The semantics are etcd's; `tests/store_conformance` compares
//! the two.
//!
//! # Invariants
//!
//! * `revision` grows by one exactly when a transaction or the end of a lease changes something.
//! * `history` contains the changes of every revision from `oldest` on, without a gap.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Batch, Compare, Event, KeyValue, Keys, Op, Snapshot, Txn, TxnOutcome};
use tokio::time::Instant;

use super::super::StoreError;
use super::check::check;

/// How much history is kept without a compaction: this many revisions, or this many bytes.
const MAX_HISTORY_REVISIONS: usize = 10_000;
const MAX_HISTORY_BYTES: usize = 64 * 1024 * 1024;

/// etcd's limit.
const MAX_TTL: Duration = Duration::from_secs(9_000_000_000);

/// Most revisions that one read of the history visits, so that a watch far behind does not hold the lock for long.
const MAX_READ_REVISIONS: usize = 1_000;

#[derive(Debug, Clone)]
pub(super) struct StoreState {
    revision: Revision,
    keys: BTreeMap<String, KeyValue>,
    leases: BTreeMap<LeaseId, StoredLease>,
    /// The end of each lease, soonest first.
    deadlines: BTreeSet<(Instant, LeaseId)>,
    last_lease: LeaseId,
    history: VecDeque<Vec<Event>>,
    history_bytes: usize,
    oldest: Revision,
    compacted: Revision,
}

#[derive(Debug, Clone)]
struct StoredLease {
    ttl: Duration,
    deadline: Instant,
    keys: BTreeSet<String>,
}

/// The result of a read of the history.
#[derive(Debug)]
pub(super) struct HistoryRead {
    /// The changes. `None` if none of the visited revisions had any.
    pub(super) batch: Option<Batch>,
    /// The revision to continue at.
    pub(super) next: Revision,
    /// Whether the read reached the end of the history.
    pub(super) at_end: bool,
}

impl StoreState {
    pub(super) fn new() -> Self {
        StoreState {
            // An etcd that has never been written to is at revision 1.
            revision: Revision::new(1),
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            last_lease: LeaseId::NONE,
            history: VecDeque::new(),
            history_bytes: 0,
            oldest: Revision::new(2),
            compacted: Revision::ZERO,
        }
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns when the next lease ends if it is not renewed.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    pub(super) fn snapshot(&self, keys: &Keys) -> Snapshot {
        Snapshot { revision: self.revision, entries: self.range(keys).cloned().collect() }
    }

    pub(super) fn commit(&mut self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let (ops, branch) = self.chosen(txn)?;
        self.apply(ops);
        Ok(TxnOutcome { revision: self.revision, branch })
    }

    /// Commits transactions in one request, as etcd does: all guards are evaluated before anything is applied, and all writes
    /// have one revision. If one is refused, nothing is applied.
    pub(super) fn commit_together(&mut self, txns: Vec<Txn>) -> Result<Vec<TxnOutcome>, StoreError> {
        let chosen = txns.into_iter().map(|txn| self.chosen(txn)).collect::<Result<Vec<_>, _>>()?;
        let (ops, branches): (Vec<_>, Vec<_>) = chosen.into_iter().unzip();
        self.apply(ops.into_iter().flatten());
        Ok(branches.into_iter().map(|branch| TxnOutcome { revision: self.revision, branch }).collect())
    }

    /// Returns the writes of the branch whose guards hold, and which one it is.
    fn chosen(&self, txn: Txn) -> Result<(Vec<Op>, Option<usize>), StoreError> {
        check(&txn)?;
        let mut branch = 0;
        let mut candidate = txn;
        let ops = loop {
            if candidate.when.iter().all(|compare| self.holds(compare)) {
                break candidate.then;
            }
            let Some(next) = candidate.otherwise else { return Ok((Vec::new(), None)) };
            candidate = *next;
            branch += 1;
        };
        // Before anything is written, and only for the branch that is applied, as in etcd.
        for op in &ops {
            if let Op::Put { lease: Some(lease), .. } = op
                && !self.leases.contains_key(lease)
            {
                return Err(StoreError::LeaseNotFound);
            }
        }
        Ok((ops, Some(branch)))
    }

    pub(super) fn grant(&mut self, ttl: Duration, now: Instant) -> Result<LeaseId, StoreError> {
        if ttl > MAX_TTL {
            return Err(StoreError::Refused("etcdserver: too large lease TTL".into()));
        }
        self.last_lease = LeaseId::new(self.last_lease.get() + 1);
        // Tokio's timers have a resolution of a millisecond.
        let ttl = ttl.max(Duration::from_millis(1));
        let lease = StoredLease { ttl, deadline: now + ttl, keys: BTreeSet::new() };
        self.deadlines.insert((lease.deadline, self.last_lease));
        self.leases.insert(self.last_lease, lease);
        Ok(self.last_lease)
    }

    pub(super) fn keep_alive(&mut self, id: LeaseId, now: Instant) -> Result<(), StoreError> {
        let lease = self.leases.get_mut(&id).ok_or(StoreError::LeaseNotFound)?;
        self.deadlines.remove(&(lease.deadline, id));
        lease.deadline = now + lease.ttl;
        self.deadlines.insert((lease.deadline, id));
        Ok(())
    }

    /// Continues as an earlier state. Its leases last for their whole TTL again, and new ones have ids that none had.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn restore(&mut self, earlier: StoreState, now: Instant) {
        let last_lease = self.last_lease;
        *self = earlier;
        self.last_lease = last_lease;
        self.deadlines.clear();
        for (id, lease) in &mut self.leases {
            lease.deadline = now + lease.ttl;
            self.deadlines.insert((lease.deadline, *id));
        }
    }

    /// Ends a lease: all its keys are deleted at one revision.
    pub(super) fn revoke(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.remove(&id) {
            self.deadlines.remove(&(lease.deadline, id));
            self.apply(lease.keys.into_iter().map(|key| Op::Delete(Keys::One(key))));
        }
    }

    /// Ends the leases whose time is over, in the order of their ends.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            if let Some((_, lease)) = self.deadlines.pop_first() {
                self.revoke(lease);
            }
        }
    }

    pub(super) fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        if revision > self.revision {
            return Err(StoreError::Refused("etcdserver: mvcc: required revision is a future revision".into()));
        }
        if revision <= self.compacted {
            return Err(self.compaction_error(revision));
        }
        self.compacted = revision;
        while self.oldest < revision {
            self.forget_oldest();
        }
        Ok(())
    }

    /// Checks that a watch can begin at `from`.
    pub(super) fn check_start(&self, from: Revision) -> Result<(), StoreError> {
        if from < self.compacted {
            return Err(self.compaction_error(from));
        }
        Ok(())
    }

    /// Returns the changes of `keys` at `from` and later, as many whole revisions as one read visits.
    pub(super) fn read(&self, keys: &Keys, from: Revision) -> Result<HistoryRead, StoreError> {
        self.check_start(from)?;
        // The history begins at the oldest revision: the store's first, or the compacted one.
        let start = from.max(self.oldest);
        if start > self.revision {
            return Ok(HistoryRead { batch: None, next: from, at_end: true });
        }
        let skip = (start.get() - self.oldest.get()) as usize;
        let mut batch: Option<Batch> = None;
        let mut next = start;
        for events in self.history.iter().skip(skip).take(MAX_READ_REVISIONS) {
            let mut matching = events.iter().filter(|event| keys.contains(key_of(event))).cloned().peekable();
            if matching.peek().is_some() {
                let batch = batch.get_or_insert_with(|| Batch { revision: next, events: Vec::new() });
                batch.revision = next;
                batch.events.extend(matching);
            }
            next = next.next();
        }
        Ok(HistoryRead { batch, next, at_end: next > self.revision })
    }

    fn range<'a>(&'a self, keys: &'a Keys) -> Box<dyn Iterator<Item = &'a KeyValue> + 'a> {
        match keys {
            Keys::One(key) => Box::new(self.keys.get(key).into_iter()),
            Keys::Prefix(prefix) => Box::new(
                self.keys
                    .range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded))
                    .take_while(move |(key, _)| key.starts_with(prefix.as_str()))
                    .map(|(_, entry)| entry),
            ),
            Keys::Between(from, to) if from < to => Box::new(
                self.keys
                    .range::<str, _>((Bound::Included(from.as_str()), Bound::Excluded(to.as_str())))
                    .map(|(_, entry)| entry),
            ),
            Keys::Between(..) => Box::new(std::iter::empty()),
        }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let mut entries = self.range(&compare.keys).peekable();
        match entries.peek() {
            None => compare.holds_for(None),
            Some(_) => entries.all(|entry| compare.holds_for(Some(entry))),
        }
    }

    /// Applies `ops` at the next revision. Without a change there is none.
    fn apply(&mut self, ops: impl IntoIterator<Item = Op>) {
        let revision = self.revision.next();
        let mut events = Vec::new();
        for op in ops {
            match op {
                Op::Put { key, value, lease } => events.push(self.put(revision, key, value, lease)),
                Op::Delete(keys) => self.delete(revision, &keys, &mut events),
            }
        }
        if events.is_empty() {
            return;
        }
        self.revision = revision;
        self.history_bytes += events.iter().map(bytes_of).sum::<usize>();
        self.history.push_back(events);
        // The newest revision stays, however large: a watch must be able to report it.
        while self.history.len() > MAX_HISTORY_REVISIONS
            || (self.history_bytes > MAX_HISTORY_BYTES && self.history.len() > 1)
        {
            self.forget_oldest();
            self.compacted = self.oldest;
        }
    }

    fn put(&mut self, revision: Revision, key: String, value: Vec<u8>, lease: Option<LeaseId>) -> Event {
        let previous = self.keys.get(&key);
        let create_revision = previous.map_or(revision, |previous| previous.create_revision);
        if let Some(old) = previous.and_then(|previous| previous.lease) {
            self.detach(old, &key);
        }
        if let Some(new) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
            new.keys.insert(key.clone());
        }
        let entry = KeyValue { key: key.clone(), value, create_revision, mod_revision: revision, lease };
        self.keys.insert(key, entry.clone());
        Event::Put(entry)
    }

    fn delete(&mut self, revision: Revision, keys: &Keys, events: &mut Vec<Event>) {
        let doomed: Vec<String> = self.range(keys).map(|entry| entry.key.clone()).collect();
        for key in doomed {
            if let Some(lease) = self.keys.remove(&key).and_then(|entry| entry.lease) {
                self.detach(lease, &key);
            }
            events.push(Event::Delete { key, mod_revision: revision });
        }
    }

    fn detach(&mut self, lease: LeaseId, key: &str) {
        if let Some(lease) = self.leases.get_mut(&lease) {
            lease.keys.remove(key);
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(events) = self.history.pop_front() {
            self.history_bytes -= events.iter().map(bytes_of).sum::<usize>();
            self.oldest = self.oldest.next();
        }
    }

    fn compaction_error(&self, requested: Revision) -> StoreError {
        StoreError::Compacted { requested, oldest: self.compacted }
    }
}

fn key_of(event: &Event) -> &str {
    match event {
        Event::Put(entry) => &entry.key,
        Event::Delete { key, .. } => key,
    }
}

fn bytes_of(event: &Event) -> usize {
    match event {
        Event::Put(entry) => entry.key.len() + entry.value.len(),
        Event::Delete { key, .. } => key.len(),
    }
}
