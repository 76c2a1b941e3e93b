//! Placement and the coordinator's decisions: which partitions move where, when, and which moves are cancelled.
//!
//! [`plan`] takes a view of the keyspace and returns [`PlannedWrite`]s, each with its reason, and the moment of the next
//! call. [`txn()`] turns an action into a transaction whose guards carry its safety. Rounds ([`round`]) decide *when*
//! moves are planned, strategies ([`placement`], [`sticky`], [`jump`], [`ring`], [`external`]) *where to*, [`budget`]
//! *how many* at a time, `phase_timeouts` which handoffs are cancelled, `operations` and `pins` what operators want.
//! Not here: moving a phase on ([`advance`](crate::handoff::advance)).
//!
//! Pure: no clock, no randomness, no I/O, no log. The same view, policy, memory and moment give the same plan.
//!
//! # How it is driven
//!
//! A leader starts with `Memory::default()`. It calls [`plan`] after every change of its view and at `next_wake`, and
//! carries the actions out in any order, each in a transaction of its own. A participant of an assignment round does the
//! same, and its plan has the actions of its share. It calls again once its view has reached the
//! revision of its last commit: an earlier view would leave moves in flight out of the budget. A failed action is no
//! error: it is returned again while its cause persists.
//!
//! # Invariants
//!
//! * A partition with a handoff is pinned: it counts as moved and gets no second handoff.
//! * The store alone is enough to continue: a new leader with an empty memory only measures its times anew.
//! * Nothing is cancelled past the point of no return (`phase_timeouts`).

use std::collections::BTreeSet;
use std::time::Duration;

use self::context::Context;
use crate::authority::Authority;
use crate::ids::{Incarnation, PartitionId};
use crate::records::{Handoff, HeldMoves};
use crate::view::{PodLife, Versioned, View};

mod actions;
mod answers;
mod assurance;
mod backlog;
mod backoff;
pub mod budget;
mod checkpoints;
mod context;
mod cool_downs;
mod creation;
mod departures;
mod endings;
pub mod external;
mod failures;
mod fixed_number;
mod heartbeats;
mod held_back;
mod in_force;
pub mod jump;
mod moves;
mod notice;
mod notice_pods;
mod notice_settings;
mod operations;
mod patience;
mod phase_timeouts;
mod pins;
pub mod placement;
mod policy;
mod preview;
mod relief;
pub mod ring;
mod rolls;
pub mod round;
mod short_lives;
mod slow_warms;
pub mod sticky;
mod txn;
mod waiting_moves;
mod waits;
mod wishes;

#[cfg(test)]
mod tests;

pub use self::actions::{CancelReason, DecidedBackOff, ObservedHandoff, PlannedWrite};
pub use self::answers::{AnsweredOperation, FailedMove};
pub use self::assurance::Assurance;
pub use self::budget::{MoveCause, moves_go_in_step};
pub use self::departures::REBIRTH_GRACE;
pub use self::failures::{FIRST_BACK_OFF, MAX_BACK_OFF};
pub use self::heartbeats::{HEARTBEAT_INTERVAL, OVERLOADS_BEFORE_MOVE, uses_load};
pub use self::in_force::{SettingError, differences, in_force, stored, stored_names, with_setting};
pub use self::notice::{Notice, or_none, repair};
pub use self::operations::KEPT_OPERATIONS;
pub use self::patience::{MISSED_BEFORE_SUSPECTED, SLOW_WARM};
pub use self::policy::{Coordination, Policy, Strategy};
pub use self::preview::preview;
pub use self::rolls::ROLL_PATIENCE;
pub use self::round::RoundCause;
pub use self::txn::txn;
pub use self::wishes::refusal;

/// Shortest pause before an action that may have failed is retried.
const MIN_RETRY: Duration = Duration::from_millis(100);

/// The planner's memory between calls: when it first saw what it times, how often which moves failed, and which
/// partitions have just moved. It may be lost at any moment. The times then begin anew, failed moves are retried
/// sooner, and partitions that have just moved may move for balance.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Memory {
    rounds: round::RoundTimers,
    departures: departures::Departures,
    phase_timeouts: phase_timeouts::PhaseTimeouts,
    backoffs: backoff::BackOffs,
    cool_downs: cool_downs::CoolDowns,
    rolls: rolls::Rolls,
    heartbeats: heartbeats::Heartbeats,
    slow_warms: slow_warms::SlowWarms,
    backlog: backlog::Backlog,
    number: fixed_number::FixedNumber,
    store_refuses: bool,
}

impl Memory {
    /// Returns when the partition's handoff has waited out its dead owner's bound, by this process's own clock
    /// ([`pending_bound`](crate::handoff::advance::pending_bound)). `None` if it waits for none.
    pub fn bound_ends(&self, view: &View, partition: PartitionId) -> Option<Duration> {
        self.departures.bound_ends(view, partition)
    }

    /// Records that this process did not see the store for a while. Lives that ended meanwhile may have been cut off like it.
    pub fn regained_sight(&mut self) {
        self.departures.regained_sight();
    }

    /// Takes in a handoff that has ended, whether or not a view has shown it.
    pub fn handoff_ended(&mut self, handoff: &Versioned<Handoff>) {
        self.phase_timeouts.has_ended(handoff);
    }

    /// Records whether the store refuses writes, as far as this process knows.
    pub fn store_refuses(&mut self, refuses: bool) {
        self.store_refuses = refuses;
    }

    /// Records that this process has another authority: moves that nobody has begun may be its own from now on.
    pub fn acts_anew(&mut self) {
        self.backlog.place_now();
    }

    /// Returns the notices about what is remembered.
    fn notices(&self, view: &View, policy: &Policy, now: Duration) -> impl Iterator<Item = Notice> {
        let newest = || rolls::newest(view).map(str::to_owned);
        let rolls = self.rolls.balance_waits_until(now).map(|_| Notice::Roll { newest: newest() });
        let moves = self.number.notice(view).into_iter().chain(self.backlog.notices(view));
        let pods = self.backoffs.notices(now).chain(self.heartbeats.notices(policy, now));
        let lives = self.slow_warms.notices(view).chain(self.departures.notices(view, now));
        moves.chain(pods).chain(lives).chain(rolls)
    }

    /// Takes in what this view shows.
    fn observe(&mut self, view: &View, policy: &Policy, now: Duration) {
        self.number.observe(view);
        self.rounds.observe(view, policy, now);
        self.departures.observe(view, policy, now);
        self.backoffs.observe(view, self.departures.are_blameless(now), now);
        self.rolls.observe(view, now);
        self.heartbeats.observe(view, policy, now);
        let progress = self.phase_timeouts.observe(view, &mut self.backoffs, now);
        if progress.ended {
            self.backlog.on_handoff_ended();
        }
        if progress.failed {
            self.backlog.on_handoff_failed();
        }
        if !progress.warmed.is_empty() {
            self.backlog.on_handoff_warmed();
        }
        if self.store_refuses {
            self.phase_timeouts.store_refuses(view, &mut self.backoffs, now);
            self.slow_warms.restart(now);
        }
        // Whether a pod is slow decides which pods get partitions.
        if self.slow_warms.observe(view, &progress.warmed, now) {
            self.backlog.place_now();
        }
        for partition in progress.moved {
            self.heartbeats.count_anew();
            self.cool_downs.moved(partition, now);
        }
        self.cool_downs.observe(view, now);
        self.backoffs.forget_old(now);
        self.cool_downs.forget_old(policy, now);
    }
}

/// What to write now, and when to call again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The writes that the authority covers, each in a transaction of its own ([`txn()`]). Actions that end handoffs come before those that begin
    /// them.
    pub actions: Vec<PlannedWrite>,
    /// When to call again if nothing changes, on the clock of `now`. Always later than `now`.
    pub next_wake: Option<Duration>,
    /// The round that closed with this plan, if one did.
    pub round: Option<RoundCause>,
    /// Number of moves that are wanted but wait for a place in the budget, a back-off, or the end of a handoff. As of
    /// the last time that moves were computed.
    pub waiting: usize,
    /// The same without those that wait for the end of a handoff, by new owner and reason.
    pub held: Vec<HeldMoves>,
    /// What an operator should know. A notice is in every plan while it applies.
    pub notices: Vec<Notice>,
}

/// Decides what the holder of `authority` with the policy `own` does about this view. `now` is the time since a fixed
/// moment of this process.
pub fn plan(view: &View, own: &Policy, authority: &Authority, memory: &mut Memory, now: Duration) -> Plan {
    let in_force::InForce { policy, write, notices } = in_force::of(view, own);
    let (action, notice) = in_force::write_config(view, own, write);
    let mut plan = Plan { notices, actions: action.into_iter().collect(), ..Plan::default() };
    plan.notices.extend(notice);
    decide(view, &policy, authority, memory, now, plan)
}

/// Adds what the holder of `authority` does about this view by the policy that is in force.
fn decide(
    view: &View,
    policy: &Policy,
    authority: &Authority,
    memory: &mut Memory,
    now: Duration,
    mut plan: Plan,
) -> Plan {
    plan.notices.extend(notice::about(view, policy));
    memory.observe(view, policy, now);

    operations::answer(view, memory, now, &mut plan.actions);
    let ending = endings::end_handoffs(view, policy, memory, now, &mut plan);

    let retry_at = now + retry_pause(policy);
    plan.round = memory.rounds.close(policy, now);
    let is_settling = memory.rounds.is_settling();
    // Partitions of dead owners do not wait for changes to settle.
    let owners_died = memory.departures.take_due(view, now);
    let backlog_is_due = memory.backlog.is_due(now) && (!is_settling || memory.backlog.has_dead_owners());
    if plan.round.is_some() || owners_died || backlog_is_due {
        let backlog = Some(std::mem::take(&mut memory.backlog)).filter(|_| plan.round.is_none() && !owners_died);
        memory.backlog = match memory.number.of(view) {
            Some(count) => {
                let context = Context {
                    view,
                    policy,
                    authority,
                    backoffs: &memory.backoffs,
                    cool_downs: &memory.cool_downs,
                    roll_ends: memory.rolls.balance_waits_until(now),
                    departures: &memory.departures,
                    heartbeats: &memory.heartbeats,
                    slow_warms: &memory.slow_warms,
                    phase_timeouts: &memory.phase_timeouts,
                    only_dead_owners: is_settling,
                    now,
                    retry_at,
                };
                let resumed = backlog.and_then(|backlog| backlog.resume(&context, &mut plan.actions));
                resumed.unwrap_or_else(|| context.create(count, &mut plan.actions))
            }
            None => backlog::Backlog::default(),
        };
        // An exchange may be over before it is seen in progress.
        if plan.actions.iter().any(|action| matches!(action, PlannedWrite::Create { cause: MoveCause::Load, .. })) {
            memory.heartbeats.count_anew();
        }
    }
    if ending {
        memory.backlog.place_by(retry_at);
    }
    // A move that begins matters more than the deletion of a pin that has no effect any more.
    let busy: BTreeSet<_> = plan.actions.iter().filter_map(PlannedWrite::partition).collect();
    let is_free = |action: &PlannedWrite| action.partition().is_none_or(|partition| !busy.contains(&partition));
    plan.actions.extend(operations::void_pins(view).filter(is_free));
    // Operations may come faster than rounds.
    let at_least = if plan.round.is_some() { 1 } else { operations::DELETED_TOGETHER };
    plan.actions.extend(operations::old_operations(view, at_least));
    if plan.round == Some(RoundCause::Heartbeat) {
        plan.actions.extend(phase_timeouts::sweep(view));
        plan.actions.extend(checkpoints::beyond_config(view));
    }
    plan.actions.retain(|action| authority.acts_for(action.partition()));
    for action in &plan.actions {
        if let PlannedWrite::Create { handoff, .. } = action {
            memory.cool_downs.begins(policy, handoff);
        }
    }
    (plan.waiting, plan.held) = (memory.backlog.waiting(), memory.backlog.held());
    plan.notices.extend(memory.notices(view, policy, now));
    plan.next_wake = next_wake(view, policy, memory, now, !plan.actions.is_empty());
    plan
}

fn retry_pause(policy: &Policy) -> Duration {
    policy.min_interval.max(MIN_RETRY)
}

fn next_wake(view: &View, policy: &Policy, memory: &Memory, now: Duration, acted: bool) -> Option<Duration> {
    let retry = acted.then(|| now + retry_pause(policy));
    [
        memory.rounds.next_wake(policy),
        memory.phase_timeouts.next_wake(view, policy, now),
        memory.slow_warms.next_wake(view, |partition| memory.phase_timeouts.begun(partition), now),
        // While changes settle only the partitions of dead owners move; the round of those changes comes first.
        memory.backlog.next_wake().filter(|_| !memory.rounds.is_settling() || memory.backlog.has_dead_owners()),
        memory.departures.next_wake(),
        memory.heartbeats.next_wake(now),
        retry,
    ]
    .into_iter()
    .flatten()
    .map(|wake| wake.max(now + Duration::from_millis(1)))
    .min()
}

/// Returns whether this life of a pod is over. A pod whose registration cannot be read is not considered dead: it may
/// well serve.
fn is_dead(view: &View, pod: &str, incarnation: Incarnation) -> bool {
    view.life(pod, incarnation) == PodLife::Over
}
