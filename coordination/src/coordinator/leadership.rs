//! The work of a coordinator in its seat: it follows the store, plans, moves phases on, and writes what was decided. A
//! leader decides about everything, a participant of an assignment round about its share.
//!
//! # Invariants
//!
//! * At most one write is in flight for each partition.
//! * Nothing is decided on a view that lacks this process's own writes, or does not show its authority.

mod clocks;
mod lost_pods;
mod observing;
mod phase_clock;
mod summary;
mod writing;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::authority::Authority;
use segue_protocol::handoff::advance::{advance, advance_past_bound};
use segue_protocol::handoff::history::deletions_alone;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{Coordination, Memory, Notice, PlannedWrite, Policy, in_force, plan, txn};
use segue_protocol::txn::{Keys, Op, Txn};
use segue_protocol::view::{View, ViewDelta};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::clocks::Clocks;
use self::lost_pods::SeenPods;
use self::observing::{HandoffObservation, ViewShowing};
use self::writing::{HeldMovesNotice, LeaderWrites, Subject};
use super::history::HistoryPruner;
use super::seat::Seat;
use super::upkeep::Upkeep;
use super::{CoordinatorObserver, CoordinatorSettings, CoordinatorStatus};
use crate::session::{Event, LifeEnd, Participant, Registration, unix_millis};
use crate::store::{Store, StoreError};

/// Shortest time between two plans, or two calls of the observer, while partitions move.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(10);

/// Why a coordinator leaves its seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeatEnd {
    /// Its registration is over, or it shuts down.
    Over,
    /// The keyspace is coordinated in this way.
    Changed(Coordination),
}

/// One life of a coordinator in its seat.
pub(super) struct Leadership<'a> {
    store: &'a Arc<dyn Store>,
    keys: &'a Keyspace,
    policy: Policy,
    observer: &'a dyn CoordinatorObserver,
    status: &'a watch::Sender<CoordinatorStatus>,
    /// `None` while no round has this process.
    authority: Option<Authority>,
    view: View,
    memory: Memory,
    began: Instant,
    writes: LeaderWrites,
    next_wake: Option<Instant>,
    /// When the next step of the assignment round is due.
    step_at: Option<Instant>,
    planning: Throttle,
    /// A pod, a router or the settings have changed since the last plan.
    membership: bool,
    showing: ViewShowing,
    handoffs: HandoffObservation,
    pods: SeenPods,
    clocks: Clocks,
    /// Partitions whose phase may be able to move on.
    pending: BTreeSet<PartitionId>,
    notices: Vec<Notice>,
    held: HeldMovesNotice,
    /// While this process acts for the keyspace as a whole.
    duties: Option<KeyspaceDuties>,
}

/// The work of the process that acts for the keyspace as a whole.
struct KeyspaceDuties {
    history: HistoryPruner,
    upkeep: Upkeep,
}

/// A turn that comes at most once in [`MIN_REFRESH_INTERVAL`], unless it is urgent.
#[derive(Default)]
struct Throttle {
    last: Option<Instant>,
}

impl Throttle {
    /// Takes the turn. Returns when it comes instead, if it is too early for it.
    fn take(&mut self, now: Instant, is_urgent: bool) -> Option<Instant> {
        let due = self.last.map(|last| last + MIN_REFRESH_INTERVAL).filter(|due| now < *due && !is_urgent);
        if due.is_none() {
            self.last = Some(now);
        }
        due
    }
}

impl<'a> Leadership<'a> {
    pub(super) fn new(
        store: &'a Arc<dyn Store>,
        keys: &'a Keyspace,
        settings: &CoordinatorSettings,
        observer: &'a dyn CoordinatorObserver,
        status: &'a watch::Sender<CoordinatorStatus>,
    ) -> Self {
        let now = Instant::now();
        Leadership {
            store,
            keys,
            policy: settings.policy.clone(),
            observer,
            status,
            authority: None,
            view: View::empty(keys.clone()),
            memory: Memory::default(),
            began: now,
            writes: LeaderWrites::new(now),
            next_wake: None,
            step_at: None,
            planning: Throttle::default(),
            membership: false,
            showing: ViewShowing::default(),
            handoffs: HandoffObservation::default(),
            pods: SeenPods::default(),
            clocks: Clocks::default(),
            pending: BTreeSet::new(),
            notices: Vec::new(),
            held: HeldMovesNotice::default(),
            duties: None,
        }
    }

    /// Acts from the seat until it is lost or left.
    pub(super) async fn run(
        &mut self,
        elected: &Registration,
        seat: &mut Seat,
        shutdown: &CancellationToken,
    ) -> SeatEnd {
        self.take(seat.authority(&self.view));
        let mut participant = Participant::start_planner(self.store, self.keys, elected);
        loop {
            let lease = match participant.turn() {
                Ok(lease) => lease,
                Err(end) => {
                    match (end, seat.coordination()) {
                        (LifeEnd::OtherProtocol(why), _) => warn!(why, "coordinator fenced; registering again"),
                        (LifeEnd::LeaseLost, Coordination::Leader) => warn!("leader lease lost; resigning"),
                        (LifeEnd::LeaseLost, Coordination::Rounds) => {
                            warn!("participant's lease lost; registering again");
                        }
                    }
                    return SeatEnd::Over;
                }
            };
            self.status.send_if_modified(|status| {
                status.trusted_until.replace(lease.trusted_until) != Some(lease.trusted_until)
            });
            let now = Instant::now();
            let tick = now + (lease.stands_until - lease.trusted_until) / 2;
            let wake = self.next_wake.unwrap_or(tick).max(self.writes.not_before).min(tick);
            let wake = self.showing.due_at().into_iter().chain(self.step_at).fold(wake, Instant::min);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return SeatEnd::Over,
                event = participant.next(&mut self.view) => match event {
                    Event::Synced { was_blind } => self.synced(was_blind),
                    Event::Changed(delta) => self.applied(delta),
                    Event::Blind { error, is_new } => {
                        self.blinded(&error, is_new);
                        continue;
                    }
                    Event::Turn => {}
                },
                Some(written) = self.writes.in_flight.join_next(), if !self.writes.in_flight.is_empty() => {
                    for (subject, result) in written.unwrap_or_default() {
                        self.written(subject, result);
                    }
                }
                () = seat.stepped() => {}
                // The wake-up has been handled: the new plan, or the write or view that is waited for, schedules the
                // next one. A past moment would keep the loop spinning.
                () = sleep_until(wake) => self.next_wake = self.next_wake.filter(|due| *due > Instant::now()),
            }
            if !participant.is_synced() {
                continue;
            }
            if let Some(end) = self.turn(seat, &mut participant) {
                return end;
            }
        }
    }

    /// Notes that a snapshot has replaced the view.
    fn synced(&mut self, was_blind: bool) {
        if was_blind {
            self.memory.regained_sight();
        }
        self.writes.resting.clear();
        self.pods.may_have_missed(was_blind);
        self.clocks.resync(&self.view);
        self.all_changed();
        self.status.send_modify(|status| status.not_ready = None);
    }

    /// Notes that the watch was lost. `is_new`: by this kind of error for the first time.
    fn blinded(&mut self, error: &StoreError, is_new: bool) {
        if is_new {
            self.observer.resync(error);
        }
        self.status.send_modify(|status| status.not_ready = Some(error.to_string()));
    }

    /// Does what is due in the seat. Returns why it has to be left, if it has.
    fn turn(&mut self, seat: &mut Seat, participant: &mut Participant<'_>) -> Option<SeatEnd> {
        if !seat.keep(&self.view, participant) {
            match seat.coordination() {
                Coordination::Leader => match &self.view.leader {
                    Some(leader) => warn!(holder = leader.value.holder, "another coordinator leads; resigning"),
                    None => warn!("the leader's key is gone; resigning"),
                },
                Coordination::Rounds => warn!("registration as a participant lost; registering again"),
            }
            return Some(SeatEnd::Over);
        }
        let policy = in_force(&self.view, &self.policy);
        if policy.coordination != seat.coordination() {
            return Some(SeatEnd::Changed(policy.coordination));
        }
        self.step_at = seat.step(&self.view, &policy);
        self.take(seat.authority(&self.view));
        let speaks = self.speaks();
        self.status.send_if_modified(|status| std::mem::replace(&mut status.leads, speaks) != speaks);
        self.observe(policy.strategy);
        self.act();
        self.tell_held(seat);
        self.ask();
        None
    }

    /// Continues with this authority.
    fn take(&mut self, authority: Option<Authority>) {
        if authority == self.authority {
            return;
        }
        let speaks = authority.as_ref().is_some_and(|authority| authority.acts_for(None));
        debug!(?authority, "authority");
        if speaks != self.speaks() {
            self.observer.leads(speaks);
        }
        let duties = self.duties.take();
        self.duties = authority.clone().filter(|_| speaks).map(|authority| match duties {
            Some(duties) => {
                duties.history.continue_by(authority);
                duties
            }
            None => KeyspaceDuties {
                history: HistoryPruner::start(self.store.clone(), self.keys.clone(), authority),
                upkeep: Upkeep::start(self.store.clone(), self.keys),
            },
        });
        self.authority = authority;
        self.writes.forget_queued();
        self.writes.refusals.forget_entries();
        self.memory.acts_anew();
        self.all_changed();
    }

    /// Returns whether this process acts for the keyspace as a whole.
    pub(super) fn speaks(&self) -> bool {
        self.acts_for(None)
    }

    fn acts_for(&self, partition: Option<PartitionId>) -> bool {
        self.authority.as_ref().is_some_and(|authority| authority.acts_for(partition))
    }

    /// Drops the writes in flight. They may still be committed while the authority stands.
    pub(super) async fn stop_writes(&mut self) {
        self.writes.in_flight.shutdown().await;
    }

    /// Notes what batches have changed in the view.
    fn applied(&mut self, delta: ViewDelta) {
        self.clocks.compare(&self.view, &delta, unix_millis());
        self.showing.has_news |= delta.intentions || !delta.partitions.is_empty();
        for partition in delta.partitions {
            self.writes.resting.remove(&Subject::Partition(partition));
            self.handoffs.changed.insert(partition);
        }
        delta.ended.iter().for_each(|ended| self.memory.handoff_ended(ended));
        self.handoffs.gone.extend(delta.ended);
        if delta.membership {
            self.all_changed();
        }
    }

    fn all_changed(&mut self) {
        (self.membership, self.showing.has_news) = (true, true);
        self.handoffs.all_changed(&self.view);
    }

    fn act(&mut self) {
        let now = Instant::now();
        if self.authority.is_none() || self.writes.is_pausing(&self.view, now) {
            return;
        }
        let millis = unix_millis();
        if self.ends_rounds() {
            return;
        }
        self.put_late_entries();
        if self.writes.are_done() {
            match self.planning.take(now, self.membership) {
                Some(due) => self.wake_at(due),
                None => {
                    self.membership = false;
                    self.plan(now, millis);
                }
            }
        }
        self.advance(millis);
        self.send();
    }

    /// Returns whether this is a leader that ends the rounds before it does anything else. Otherwise a write of a round
    /// that is still on its way could be accepted once this leader has gone.
    fn ends_rounds(&mut self) -> bool {
        let is_due = self.view.rounds.current.is_some();
        let Some(authority @ Authority::Leader { .. }) = self.authority.clone().filter(|_| is_due) else {
            return false;
        };
        if self.writes.in_flight.is_empty() {
            let then = vec![Op::Delete(Keys::One(self.keys.round()))];
            self.write(Subject::Keyspace, Txn::guarded(authority.guards(self.keys), then));
            self.send();
        }
        true
    }

    fn wake_at(&mut self, at: Instant) {
        self.next_wake = Some(self.next_wake.map_or(at, |wake| wake.min(at)));
    }

    fn plan(&mut self, now: Instant, millis: u64) {
        let Some(authority) = self.authority.clone() else { return };
        self.memory.store_refuses(self.writes.refusals.why().is_some());
        let plan = plan(&self.view, &self.policy, &authority, &mut self.memory, now - self.began);
        self.next_wake = plan.next_wake.map(|wake| self.began + wake);
        self.held.moves = plan.held;
        if let Some(cause) = plan.round {
            debug!(?cause, actions = plan.actions.len(), "round");
            if self.speaks() {
                self.observer.round(cause);
            }
        }
        let refused = self.writes.refusals.why().map(|why| Notice::WritesRefused { why: why.to_owned() });
        let upkeep = self.duties.as_ref().and_then(|duties| duties.upkeep.notice());
        if self.speaks() {
            self.observer.store_fills_up(upkeep.is_some());
        }
        let clocks = self.clocks.wrong().into_iter().map(Notice::ClockDiffers);
        self.tell(refused.into_iter().chain(upkeep).chain(clocks).chain(plan.notices).collect());
        let mut decided = Vec::new();
        for action in &plan.actions {
            if let Some(txn) = txn(&self.view, action, &authority, millis)
                && self.carry_out(action, txn)
            {
                decided.push(action);
            }
        }
        if let Some(planned) = summary::planned(&decided) {
            info!("{planned}");
        }
    }

    /// Writes what was decided. Returns whether it is on its way.
    fn carry_out(&mut self, action: &PlannedWrite, mut txn: Txn) -> bool {
        let partition = action.partition();
        if matches!(action, PlannedWrite::Create { .. })
            && partition.is_some_and(|partition| self.writes.refusals.lack(partition))
        {
            return false;
        }
        if let (PlannedWrite::Assign { .. }, Some(partition)) = (action, partition) {
            self.write_in_turn(Subject::Partition(partition), txn);
            return true;
        }
        let mut late = None;
        if let PlannedWrite::Cancel { observed, reason, .. } = action {
            let (partition, handoff) = (observed.partition(), observed.handoff.id());
            self.handoffs.cancels.insert(partition, (handoff, reason.as_str()));
            if self.writes.refusals.why().is_some() {
                late = deletions_alone(self.keys, partition, handoff, &mut txn).map(|entry| (partition, entry));
            }
        }
        if !self.write(partition.map_or(Subject::Keyspace, Subject::Partition), txn) {
            return false;
        }
        match summary::stands_alone(action) {
            true => info!("{action}"),
            false => debug!("{action}"),
        }
        if let Some((partition, entry)) = late {
            self.writes.refusals.cancels(partition, entry);
        }
        true
    }

    /// Moves on the phases that no participant has moved on: the fallback of the fast commit.
    fn advance(&mut self, millis: u64) {
        let Some(authority) = self.authority.clone() else { return };
        self.pending.retain(|partition| authority.acts_for(Some(*partition)));
        let idle = |partition: &&PartitionId| !self.writes.under_way.contains(*partition);
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
                    guarded.when.extend(authority.guards(self.keys));
                    self.write(Subject::Partition(partition), guarded)
                }
                None => true,
            };
            if decided {
                self.pending.remove(&partition);
            }
        }
    }
}
