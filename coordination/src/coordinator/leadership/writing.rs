//! Sends what was decided to the store, and draws the consequences of its answers.
//!
//! # Invariants
//!
//! * Nothing is put while the store refuses writes ([`refusals`](super::super::refusals)).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use segue_protocol::authority::Authority;
use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::records::HeldMoves;
use segue_protocol::txn::{Txn, TxnOutcome};
use segue_protocol::view::View;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::refusals::{Learnt, StoreRefusals};
use super::super::seat::Seat;
use super::Leadership;
use crate::session::{RepeatedLog, StoreRetry};
use crate::store::StoreError;

/// How long a subject rests after a guard of its write failed, unless the view changes it before.
const BEHIND_PAUSE: Duration = Duration::from_millis(50);
/// How long a subject rests whose write the store refused while it accepted others.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// How long other moves than others know of are held back before they are told. A pod that comes back at once costs no
/// write. The participants of a round wait for as many of these pauses as there are of them, up to the maximum, because
/// all of them tell.
const HELD_PAUSE: Duration = Duration::from_millis(500);
const MAX_HELD_PAUSES: u32 = 10;
/// Most partitions with a write in flight.
const MAX_WRITES: usize = 1024;
/// Most writes in one request.
const MAX_WRITES_PER_REQUEST: usize = 64;

/// The subject of a write. At most one write is in flight for each partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Keyspace,
    /// Whether the store accepts writes.
    Question,
    /// The moves that are held back, in the key of the seat.
    Held,
    Partition(PartitionId),
}

impl fmt::Display for Subject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Keyspace => out.write_str("the keyspace"),
            Subject::Question => out.write_str("whether the store accepts writes"),
            Subject::Held => out.write_str("the moves that are held back"),
            Subject::Partition(partition) => write!(out, "partition {partition}"),
        }
    }
}

/// The writes of a leader: decided, in flight, and put off.
pub(super) struct LeaderWrites {
    pub(super) in_flight: JoinSet<Vec<(Subject, Result<TxnOutcome, StoreError>)>>,
    /// Decided writes that go to the store together.
    decided: Vec<(Subject, Txn)>,
    /// Writes that were decided together and are too many to be in flight together. Nothing else is decided meanwhile.
    queued: VecDeque<(Subject, Txn)>,
    /// Partitions with a write that is decided or in flight.
    pub(super) under_way: BTreeSet<PartitionId>,
    /// Subjects whose writes are put off, and until when.
    pub(super) resting: BTreeMap<Subject, Instant>,
    pub(super) refusals: StoreRefusals,
    /// A refused write that has not been told: the store may refuse all of them.
    suspect: Option<(Subject, StoreError)>,
    /// The revision from which on the view contains all of this leader's writes.
    seen_at: Revision,
    /// The end of the pause after a write whose result is not known.
    pub(super) not_before: Instant,
    retry: StoreRetry,
    log: RepeatedLog,
}

impl LeaderWrites {
    pub(super) fn new(now: Instant) -> Self {
        LeaderWrites {
            in_flight: JoinSet::new(),
            decided: Vec::new(),
            queued: VecDeque::new(),
            under_way: BTreeSet::new(),
            resting: BTreeMap::new(),
            refusals: StoreRefusals::new(now),
            suspect: None,
            seen_at: Revision::ZERO,
            not_before: now,
            retry: StoreRetry::default(),
            log: RepeatedLog::default(),
        }
    }

    /// Returns whether nothing that was decided is left.
    pub(super) fn are_done(&self) -> bool {
        self.in_flight.is_empty() && self.queued.is_empty()
    }

    /// Forgets what was decided under an earlier authority and has not been sent.
    pub(super) fn forget_queued(&mut self) {
        self.queued.clear();
    }

    /// Returns whether nothing may be decided now. A view without this process's own writes would show moves in flight as
    /// not begun.
    pub(super) fn is_pausing(&self, view: &View, now: Instant) -> bool {
        now < self.not_before || view.revision < self.seen_at
    }
}

/// The moves that are held back.
#[derive(Default)]
pub(super) struct HeldMovesNotice {
    pub(super) moves: Vec<HeldMoves>,
    /// When others are told, if they do not know these moves.
    tell_at: Option<Instant>,
}

impl Leadership<'_> {
    /// Queues a write. Returns `false` if it has to be decided again, once other writes are done, its subject has rested or
    /// the store accepts writes.
    pub(super) fn write(&mut self, subject: Subject, txn: Txn) -> bool {
        if self.writes.under_way.len() >= MAX_WRITES || (self.writes.refusals.stand() && txn.puts()) {
            return false;
        }
        if let Some(until) = self.writes.resting.get(&subject).copied() {
            if Instant::now() < until {
                self.wake_at(until);
                return false;
            }
            self.writes.resting.remove(&subject);
        }
        if let Subject::Partition(partition) = subject
            && !self.writes.under_way.insert(partition)
        {
            return false;
        }
        self.writes.decided.push((subject, txn));
        true
    }

    /// Queues a write that is sent once there is room, or is to be decided again.
    pub(super) fn write_in_turn(&mut self, subject: Subject, txn: Txn) {
        self.writes.queued.push_back((subject, txn));
    }

    pub(super) fn send(&mut self) {
        while self.writes.under_way.len() < MAX_WRITES
            && let Some((subject, txn)) = self.writes.queued.pop_front()
        {
            self.write(subject, txn);
        }
        let mut decided = std::mem::take(&mut self.writes.decided).into_iter().peekable();
        while decided.peek().is_some() {
            let (subjects, txns): (Vec<_>, Vec<_>) = decided.by_ref().take(MAX_WRITES_PER_REQUEST).unzip();
            let store = self.store.clone();
            self.writes
                .in_flight
                .spawn(async move { subjects.into_iter().zip(store.commit_all(txns).await).collect() });
        }
    }

    pub(super) fn written(&mut self, subject: Subject, result: Result<TxnOutcome, StoreError>) {
        let mut is_entry = false;
        if let Subject::Partition(partition) = subject {
            self.writes.under_way.remove(&partition);
            self.pending.insert(partition);
            is_entry = self.writes.refusals.written(partition, &result);
        }
        if subject == Subject::Question {
            self.learn(&result);
        }
        if let Err(error) = &result
            && !matches!(error, StoreError::Refused(_))
            && let Some(times) = self.writes.log.note(error)
        {
            warn!(%error, %subject, times, "store write failed; retrying");
        }
        let now = Instant::now();
        match result {
            // It changes nothing, and says nothing about a single write.
            _ if subject == Subject::Question => {}
            Ok(outcome) if outcome.committed() => {
                self.writes.retry.reset();
                // A view does not contain the history, so it never reaches the revision of an entry.
                if !is_entry {
                    self.writes.seen_at = self.writes.seen_at.max(outcome.revision);
                }
            }
            // The view was behind. The revision may come from another keyspace's write, so this view may never reach
            // it.
            Ok(_) => {
                if let Subject::Partition(_) = subject {
                    self.writes.resting.insert(subject, now + BEHIND_PAUSE);
                }
                self.wake_at(now + BEHIND_PAUSE);
            }
            Err(error @ StoreError::Refused(_)) => {
                self.writes.resting.insert(subject, now + REFUSED_PAUSE);
                self.writes.refusals.refused(&error);
                if self.writes.refusals.why().is_none() {
                    self.writes.suspect.get_or_insert((subject, error));
                }
            }
            Err(error) => {
                if let (Subject::Partition(partition), Some(duties)) = (subject, &self.duties) {
                    duties.history.keep_evidence(partition);
                }
                // The writes in flight fail together, which is one failure.
                if self.writes.not_before <= now {
                    self.writes.not_before = now + self.writes.retry.next_after(&error);
                }
            }
        }
    }

    /// Notes whether the store accepts writes.
    fn learn(&mut self, answer: &Result<TxnOutcome, StoreError>) {
        let learnt = self.writes.refusals.answered(answer);
        // A store that refuses all is told once. Otherwise that write was at fault.
        if let Some((subject, error)) =
            self.writes.suspect.take_if(|_| self.writes.refusals.why().is_some() || !self.writes.refusals.stand())
            && !self.writes.refusals.stand()
            && let Some(times) = self.writes.log.note(&error)
        {
            warn!(%error, %subject, times, "store write failed; retrying");
        }
        match learnt {
            Learnt::Nothing => return,
            Learnt::RefusesAll => warn!(why = self.writes.refusals.why(), "the store refuses writes; no move begins"),
            Learnt::AcceptsAgain => info!("the store accepts writes again"),
        }
        // The store was at fault, and no single write.
        self.writes.resting.clear();
    }

    /// Puts the entries that the history lacks.
    pub(super) fn put_late_entries(&mut self) {
        let Some(authority) = self.authority.clone() else { return };
        for (partition, entry) in self.writes.refusals.due() {
            let goes_on = self.view.handoffs.get(&partition).is_some_and(|it| it.id() == entry.handoff());
            if !goes_on && self.write(Subject::Partition(partition), entry.txn(self.keys, &authority)) {
                self.writes.refusals.puts(partition);
            }
        }
    }

    /// Tells others in the key of the seat which moves are held back.
    pub(super) fn tell_held(&mut self, seat: &Seat) {
        let now = Instant::now();
        if self.authority.is_none() || self.writes.is_pausing(&self.view, now) {
            return;
        }
        let Some(txn) = seat.tell(&self.view, &self.held.moves, &self.clocks.wrong()) else {
            self.held.tell_at = None;
            return;
        };
        let sharers = self.authority.as_ref().map_or(1, Authority::sharers);
        let pause = HELD_PAUSE * u32::try_from(sharers).unwrap_or(u32::MAX).min(MAX_HELD_PAUSES);
        let at = *self.held.tell_at.get_or_insert(now + pause);
        if now < at {
            return self.wake_at(at);
        }
        if self.write(Subject::Held, txn) {
            self.held.tell_at = None;
            self.send();
        }
    }

    /// Asks the store whether it accepts writes, if that is due. With nothing refused, one process asks for all.
    pub(super) fn ask(&mut self) {
        let Some(at) = self.writes.refusals.ask_at().filter(|_| self.writes.refusals.stand() || self.speaks()) else {
            return;
        };
        if Instant::now() < at {
            return self.wake_at(at);
        }
        self.writes.refusals.asks();
        let (store, question) = (self.store.clone(), Txn::question(&self.keys.leader()));
        self.writes.in_flight.spawn(async move { vec![(Subject::Question, store.commit(question).await)] });
    }
}
