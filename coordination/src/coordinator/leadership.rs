//! The work of a leading coordinator: it follows the store, plans, moves phases on, and writes what was decided.
//!
//! # Invariants
//!
//! * At most one write is in flight for each partition.
//! * Nothing is decided on a view that lacks this leader's own writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::advance::{advance, advance_past_bound};
use segue_protocol::ids::{HandoffId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{Action, Assurance, Memory, MoveCause, Notice, Policy, in_force, plan, txn};
use segue_protocol::records::{Handoff, Phase};
use segue_protocol::txn::{Compare, Txn, TxnOutcome};
use segue_protocol::view::{Versioned, View, ViewDelta};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::history::HistoryPruner;
use super::{CoordinatorObserver, CoordinatorSettings, CoordinatorStatus, EndedPhase, HandoffResult};
use crate::session::{OwnKey, Registration, Update, Watcher, unix_millis};
use crate::store::{Store, StoreError};

/// How long the subject of a refused write rests, unless the view changes it before.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Most partitions with a write in flight.
const MAX_WRITES: usize = 1024;
/// Most writes in one request.
const MAX_WRITES_PER_REQUEST: usize = 64;
/// Shortest time between two plans, or two calls of the observer, while partitions move.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(10);

/// The subject of a write. At most one write is in flight for each partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Subject {
    Config,
    Partition(PartitionId),
}

/// One term of a leader, from its election to its end.
pub(super) struct Leadership<'a> {
    store: &'a Arc<dyn Store>,
    keys: &'a Keyspace,
    policy: Policy,
    observer: &'a dyn CoordinatorObserver,
    status: &'a watch::Sender<CoordinatorStatus>,
    leader: (String, Revision),
    view: View,
    memory: Memory,
    began: Instant,
    writes: JoinSet<Vec<(Subject, Result<TxnOutcome, StoreError>)>>,
    /// Decided writes that go to the store together.
    decided: Vec<(Subject, Txn)>,
    under_way: BTreeSet<PartitionId>,
    /// Partitions whose last write was refused, and until when they rest.
    resting: BTreeMap<PartitionId, Instant>,
    /// The revision from which on the view contains all of this leader's writes.
    seen_at: Revision,
    /// The end of the pause after a failed write.
    not_before: Instant,
    next_wake: Option<Instant>,
    /// When the view was last shown to the observer.
    shown: Option<Instant>,
    /// When the view is shown next, if it has changed since.
    show_at: Option<Instant>,
    /// When the view was last planned with.
    planned: Option<Instant>,
    /// A pod, a router or the settings have changed since then.
    membership: bool,
    /// More than heartbeats has changed since the view was shown to the observer.
    unshown: bool,
    /// Partitions that have changed since they were last observed.
    changed: BTreeSet<PartitionId>,
    /// Partitions whose phase may be able to move on.
    pending: BTreeSet<PartitionId>,
    handoffs: BTreeMap<PartitionId, SeenHandoff>,
    /// Why this leader has decided to cancel a handoff.
    cancels: BTreeMap<PartitionId, (HandoffId, &'static str)>,
    notices: Vec<Notice>,
    history: HistoryPruner,
}

/// A handoff as last observed.
#[derive(Debug, Clone)]
struct SeenHandoff {
    id: HandoffId,
    /// The record, as first observed.
    record: Arc<Handoff>,
    began: Instant,
    phase: Phase,
    since: Instant,
    /// Why it was planned, as of when it was first observed.
    cause: MoveCause,
}

impl SeenHandoff {
    fn new(handoff: &Versioned<Handoff>, cause: MoveCause, now: Instant) -> Self {
        let record = Arc::new(handoff.value.clone());
        SeenHandoff { id: handoff.id(), began: now, phase: record.phase, since: now, record, cause }
    }

    fn in_phase(&self, phase: Phase, now: Instant) -> Self {
        let since = if phase == self.phase { self.since } else { now };
        SeenHandoff { phase, since, ..self.clone() }
    }
}

impl<'a> Leadership<'a> {
    pub(super) fn new(
        store: &'a Arc<dyn Store>,
        keys: &'a Keyspace,
        settings: &CoordinatorSettings,
        observer: &'a dyn CoordinatorObserver,
        status: &'a watch::Sender<CoordinatorStatus>,
        elected: &Registration,
    ) -> Self {
        let now = Instant::now();
        Leadership {
            store,
            keys,
            policy: settings.policy.clone(),
            observer,
            status,
            leader: (elected.key.clone(), elected.incarnation.revision()),
            view: View::empty(keys.clone()),
            memory: Memory::default(),
            began: now,
            writes: JoinSet::new(),
            decided: Vec::new(),
            under_way: BTreeSet::new(),
            resting: BTreeMap::new(),
            seen_at: Revision::ZERO,
            not_before: now,
            next_wake: None,
            shown: None,
            show_at: None,
            planned: None,
            membership: false,
            unshown: true,
            changed: BTreeSet::new(),
            pending: BTreeSet::new(),
            handoffs: BTreeMap::new(),
            cancels: BTreeMap::new(),
            notices: Vec::new(),
            history: HistoryPruner::start(store.clone(), keys.clone(), elected.incarnation.revision()),
        }
    }

    /// Leads until the term ends. `value` is the value of the leader's key.
    pub(super) async fn run(&mut self, elected: &Registration, value: Vec<u8>, shutdown: &CancellationToken) {
        let mut own_key = OwnKey::of(self.store.clone(), elected);
        let mut lease = elected.lease.state();
        let mut watcher = Watcher::start(self.store.clone(), self.keys.clone());
        let mut synced = false;
        let mut sighted = true;
        loop {
            // A leader without sight of the store does not act, and must make room for one that has it.
            if sighted {
                elected.lease.made_progress();
            }
            let state = *lease.borrow_and_update();
            if state.lost {
                warn!("leader lease lost; resigning");
                return;
            }
            self.status.send_if_modified(|status| {
                status.trusted_until.replace(state.trusted_until) != Some(state.trusted_until)
            });
            let now = Instant::now();
            let tick = now + (state.stands_until - state.trusted_until) / 2;
            let wake = self.next_wake.unwrap_or(tick).max(self.not_before).min(tick).min(self.show_at.unwrap_or(tick));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                update = watcher.next() => match update {
                    Update::Snapshot(view) => {
                        self.view.resync(*view);
                        self.resting.clear();
                        self.all_changed();
                        (synced, sighted) = (true, true);
                        self.status.send_modify(|status| (status.leads, status.not_ready) = (true, None));
                    }
                    Update::Batch(batch) if synced => {
                        let delta = watcher.apply(&mut self.view, batch);
                        self.applied(delta);
                    }
                    Update::Batch(_) => {}
                    Update::Lost(error) => {
                        warn!(%error, "store watch lost; resyncing");
                        sighted = false;
                        self.observer.resync(&error);
                        self.status.send_modify(|status| status.not_ready = Some(error.to_string()));
                        continue;
                    }
                },
                Some(written) = self.writes.join_next(), if !self.writes.is_empty() => {
                    for (subject, result) in written.unwrap_or_default() {
                        self.written(subject, result);
                    }
                }
                () = own_key.written() => {}
                // The wake-up has been handled: the new plan, or the write or view that is waited for, schedules the
                // next one. A past moment would keep the loop spinning.
                () = sleep_until(wake) => self.next_wake = self.next_wake.filter(|due| *due > Instant::now()),
                changed = lease.changed() => if changed.is_err() { return },
            }
            if !synced {
                continue;
            }
            let (seen, revision) = (self.view.leader.as_ref(), self.view.revision);
            let intact = seen.is_some_and(|leader| leader.value.lease_id == elected.lease.id());
            if !own_key.keep(seen, intact, revision, || value.clone()) {
                warn!("another coordinator leads; resigning");
                return;
            }
            self.observe();
            self.act();
        }
    }

    /// Drops the writes in flight. They may still be committed while the leader's lease is valid.
    pub(super) async fn stop_writes(&mut self) {
        self.writes.shutdown().await;
    }

    /// Notes what batches have changed in the view.
    fn applied(&mut self, delta: ViewDelta) {
        self.unshown |= delta.intentions || !delta.partitions.is_empty();
        for partition in delta.partitions {
            self.resting.remove(&partition);
            self.changed.insert(partition);
        }
        if delta.membership {
            self.all_changed();
        }
    }

    fn all_changed(&mut self) {
        (self.membership, self.unshown) = (true, true);
        self.changed.extend(self.view.handoffs.keys().chain(self.handoffs.keys()));
    }

    fn observe(&mut self) {
        let now = Instant::now();
        let recently = self.shown.map(|shown| shown + MIN_REFRESH_INTERVAL).filter(|due| now < *due);
        match recently.filter(|_| !self.membership) {
            _ if !self.unshown => {}
            Some(due) => self.show_at = Some(due),
            None => {
                (self.shown, self.show_at, self.unshown) = (Some(now), None, false);
                self.observer.view_changed(&self.view);
            }
        }
        let strategy = in_force(&self.view, &self.policy).strategy;
        for partition in std::mem::take(&mut self.changed) {
            let known = self.handoffs.remove(&partition);
            let seen = self.view.handoffs.get(&partition).map(|handoff| match &known {
                Some(known) if known.id == handoff.id() => known.in_phase(handoff.value.phase, now),
                _ => SeenHandoff::new(handoff, MoveCause::of(&self.view, strategy, &handoff.value), now),
            });
            if let Some(known) = known {
                let same = seen.as_ref().filter(|seen| seen.id == known.id);
                let result = same.is_none().then(|| self.result(partition, &known));
                if same.is_none_or(|seen| seen.phase != known.phase) {
                    let SeenHandoff { id, phase, ref record, .. } = known;
                    let (lasted, age) = (now - known.since, now - known.began);
                    self.observer.phase_ended(phase, lasted);
                    self.observer.traced_phase(&EndedPhase { handoff: id, record, phase, lasted, age, result });
                }
                if let Some(result) = result {
                    self.observer.handoff_ended(partition, result);
                    self.history.handoff_ended();
                }
            }
            if let Some(seen) = seen {
                self.handoffs.insert(partition, seen);
            }
            self.pending.insert(partition);
        }
    }

    /// Returns how a handoff that is gone has ended.
    fn result(&mut self, partition: PartitionId, ended: &SeenHandoff) -> HandoffResult {
        let moved = self.view.assignments.get(&partition).is_some_and(|at| at.value.epoch >= ended.record.epoch);
        let cancelled = self.cancels.remove(&partition).filter(|(id, _)| *id == ended.id);
        match cancelled {
            _ if moved => HandoffResult::Completed(ended.cause),
            Some((_, cause)) => HandoffResult::Cancelled(cause),
            None => HandoffResult::Cancelled(HandoffResult::NOT_HERE),
        }
    }

    fn act(&mut self) {
        let now = Instant::now();
        // A view without this leader's own writes would show moves in flight as not begun.
        if now < self.not_before || self.view.revision < self.seen_at {
            return;
        }
        let millis = unix_millis();
        if self.writes.is_empty() {
            match self
                .planned
                .map(|planned| planned + MIN_REFRESH_INTERVAL)
                .filter(|due| now < *due && !self.membership)
            {
                Some(due) => self.wake_at(due),
                None => {
                    (self.planned, self.membership) = (Some(now), false);
                    self.plan(now, millis);
                }
            }
        }
        self.advance(millis);
        self.send();
    }

    fn wake_at(&mut self, at: Instant) {
        self.next_wake = Some(self.next_wake.map_or(at, |wake| wake.min(at)));
    }

    fn plan(&mut self, now: Instant, millis: u64) {
        let plan = plan(&self.view, &self.policy, &mut self.memory, now - self.began);
        self.next_wake = plan.next_wake.map(|wake| self.began + wake);
        if let Some(cause) = plan.round {
            debug!(?cause, actions = plan.actions.len(), "round");
            self.observer.round(cause);
        }
        self.tell(plan.notices);
        for action in &plan.actions {
            info!("{action}");
            if let Action::Cancel { observed, reason } = action {
                self.cancels.insert(observed.partition(), (observed.handoff.id(), reason.as_str()));
            }
            let subject = action.partition().map_or(Subject::Config, Subject::Partition);
            if let Some(txn) = txn(&self.view, action, self.leader.1, millis) {
                self.write(subject, txn);
            }
        }
    }

    /// Moves on the phases that no participant has moved on: the fallback of the fast commit.
    fn advance(&mut self, millis: u64) {
        let idle = |partition: &&PartitionId| !self.under_way.contains(*partition);
        let partitions: Vec<PartitionId> = self.pending.iter().filter(idle).copied().collect();
        for partition in partitions {
            let step = match self.memory.bound_ends(&self.view, partition).map(|ends| self.began.checked_add(ends)) {
                None => advance(&self.view, partition, millis),
                Some(Some(ends)) if ends <= Instant::now() => advance_past_bound(&self.view, partition, millis),
                Some(ends) => {
                    self.wake_at(ends.unwrap_or(Instant::now() + MIN_REFRESH_INTERVAL));
                    continue;
                }
            };
            let decided = match step {
                Some(step) => {
                    let mut guarded = step.txn;
                    guarded.when.push(Compare::created_at(self.leader.0.clone(), self.leader.1));
                    self.write(Subject::Partition(partition), guarded)
                }
                None => true,
            };
            if decided {
                self.pending.remove(&partition);
            }
        }
    }

    fn tell(&mut self, notices: Vec<Notice>) {
        if notices == self.notices {
            return;
        }
        for notice in notices.iter().filter(|notice| !self.notices.contains(notice)) {
            match notice {
                Notice::Assurance(Assurance::Full) | Notice::Roll { .. } => info!("{notice}"),
                _ => warn!("{notice}"),
            }
        }
        self.status.send_modify(|status| status.notices = notices.iter().map(ToString::to_string).collect());
        self.notices = notices;
    }

    /// Queues a write. Returns `false` if it has to be decided again, once other writes are done or its subject has
    /// rested.
    fn write(&mut self, subject: Subject, txn: Txn) -> bool {
        if self.under_way.len() >= MAX_WRITES {
            return false;
        }
        if let Subject::Partition(partition) = subject {
            if let Some(until) = self.resting.get(&partition).copied() {
                if Instant::now() < until {
                    self.wake_at(until);
                    return false;
                }
                self.resting.remove(&partition);
            }
            if !self.under_way.insert(partition) {
                return false;
            }
        }
        self.decided.push((subject, txn));
        true
    }

    fn send(&mut self) {
        let mut decided = std::mem::take(&mut self.decided).into_iter().peekable();
        while decided.peek().is_some() {
            let (subjects, txns): (Vec<_>, Vec<_>) = decided.by_ref().take(MAX_WRITES_PER_REQUEST).unzip();
            let store = self.store.clone();
            self.writes.spawn(async move { subjects.into_iter().zip(store.commit_all(txns).await).collect() });
        }
    }

    fn written(&mut self, subject: Subject, result: Result<TxnOutcome, StoreError>) {
        if let Subject::Partition(partition) = subject {
            self.under_way.remove(&partition);
            self.pending.insert(partition);
        }
        match result {
            Ok(outcome) if outcome.committed() => self.seen_at = self.seen_at.max(outcome.revision),
            // The view was behind. The revision may come from another keyspace's write, so this view may never reach
            // it.
            Ok(_) => {
                let rested = Instant::now() + REFUSED_PAUSE;
                if let Subject::Partition(partition) = subject {
                    self.resting.insert(partition, rested);
                }
                self.wake_at(rested);
            }
            Err(error) => {
                warn!(%error, ?subject, "store write failed; retrying");
                self.not_before = Instant::now() + Duration::from_millis(250);
            }
        }
    }
}
