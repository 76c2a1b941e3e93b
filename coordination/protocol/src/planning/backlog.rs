//! The moves that a placement left for later, and those of them that begin without another placement.
//!
//! A placement looks at every partition. With tens of thousands of moves and some hundred places, one placement for each
//! place that becomes free would occupy the leader. A move that only waits for a place is therefore remembered with its new
//! owner, and begins when a handoff ends.
//!
//! # Invariants
//!
//! * A remembered move begins only while everything that it was planned from is unchanged: the assignment, the absence of a
//!   handoff, the new owner. A move that has to wait for anything but a place is left to the next placement.
//! * A remembered move for balance begins only while no handoff has failed: a partition that stays where it is changes how
//!   many partitions each pod will have.
//! * A partition without a living owner whose new owner may warm nothing more goes to another pod that may, in a first placement
//!   only if its own makes no progress. Such a move begins only after every urgent move whose own pod has room.
//! * While moves begin, a placement follows within the pause after which they are checked.

use std::collections::BTreeMap;
use std::time::Duration;

use super::actions::PlannedWrite;
use super::budget::{Full, MoveBudget, MoveCause};
use super::context::Context;
use super::creation::{begin, urgent_reason};
use super::held_back::{HeldBack, HeldFor, HeldMove};
use super::notice::Notice;
use super::pins;
use super::placement::is_less_loaded;
use super::waiting_moves::{BeginOutcome, NewOwner, WaitingMove, WaitingMoves};
use crate::ids::{Incarnation, PartitionId};
use crate::records::{HeldMoves, Thousandths};
use crate::view::View;

/// A pod that accepts partitions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Taker {
    pub(super) pod: String,
    pub(super) incarnation: Incarnation,
    pub(super) weight: Thousandths,
    /// How many partitions the pod has, and will have once the moves that have begun are complete.
    pub(super) planned: u32,
}

/// The moves that the last placement left for later.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Backlog {
    /// There is something for the next placement to try.
    open: bool,
    /// A place has become free, so the next placement is due.
    ended: bool,
    /// A handoff has ended before its new owner took over.
    failed: bool,
    /// A move waits until its new owner warms fewer partitions.
    full_pod: bool,
    /// A partition with a handoff is wanted on another pod than that handoff's.
    pinned: bool,
    /// When the next placement is due at the latest.
    retry_at: Option<Duration>,
    /// How many moves are wanted and have not begun.
    waiting: usize,
    /// Some of them are from a dead owner, or may be.
    dead_owners: bool,
    /// The moves that wait for a place, the most urgent first.
    for_a_place: WaitingMoves,
    /// The pods that accept partitions, as of the last placement.
    takers: Vec<Taker>,
    /// The pods that are wanted and not registered, each with the number of partitions.
    absent: BTreeMap<String, usize>,
    /// The moves that wait for anything but the end of a handoff.
    held: HeldBack,
    /// The partitions that cannot move because no epoch is left for their next owner.
    spent: Vec<PartitionId>,
}

impl Backlog {
    /// Returns a backlog without moves. `absent` are the pods that are wanted and not registered.
    pub(super) fn without_moves(absent: BTreeMap<String, usize>) -> Self {
        Backlog { absent, ..Backlog::default() }
    }

    /// Records the partitions that cannot move because no epoch is left for their next owner.
    pub(super) fn set_spent(&mut self, partitions: Vec<PartitionId>) {
        self.spent = partitions;
    }

    /// Records the pods that accept partitions.
    pub(super) fn set_takers(&mut self, takers: Vec<Taker>) {
        self.takers = takers;
    }

    /// Records that a place in the budget is free, or that a partition is no longer pinned.
    pub(super) fn on_handoff_ended(&mut self) {
        self.ended = true;
    }

    /// Records that a partition stays where it is although the last placement counted it at its new owner.
    pub(super) fn on_handoff_failed(&mut self) {
        self.failed = true;
    }

    /// Records that a new owner has warmed a partition.
    pub(super) fn on_handoff_warmed(&mut self) {
        self.ended |= self.full_pod;
    }

    /// Makes the next placement due at this moment, or earlier if a handoff ends.
    pub(super) fn place_by(&mut self, at: Duration) {
        self.open = true;
        self.retry_at = Some(self.retry_at.map_or(at, |retry_at| retry_at.min(at)));
    }

    /// Makes a placement due now. The moves that are left were those of an earlier authority.
    pub(super) fn place_now(&mut self) {
        self.place_by(Duration::ZERO);
    }

    /// Records a move that waits until this moment.
    pub(super) fn add_until(&mut self, until: Duration, held: HeldMove) {
        self.place_by(until);
        self.waiting += 1;
        self.held.add(held);
    }

    /// Records a move that waits for a place.
    pub(super) fn add_for_place(&mut self, waiting: WaitingMove, full: Full) {
        self.open = true;
        self.full_pod |= full == Full::NewOwner;
        self.waiting += 1;
        self.held.add(HeldMove::new(&waiting.to.pod, waiting.to.incarnation, HeldFor::Place));
        self.for_a_place.add(waiting);
    }

    /// Makes the next placement due when moves that wait for places may find some although no handoff has ended.
    pub(super) fn look_again(&mut self, budget: &MoveBudget<'_>, now: Duration) {
        if let Some(at) = budget.free_again_at(now).filter(|_| !self.for_a_place.is_empty()) {
            self.place_by(at);
        }
    }

    /// Records a move that waits for the end of its partition's present handoff.
    pub(super) fn add_for_handoff(&mut self, has_dead_owner: bool) {
        (self.open, self.pinned) = (true, true);
        self.waiting += 1;
        self.dead_owners |= has_dead_owner;
    }

    /// Records that a move is wanted for this cause.
    pub(super) fn add_wanted(&mut self, cause: MoveCause) {
        self.dead_owners |= cause == MoveCause::DeadOwner;
    }

    /// Returns whether moves of the backlog may begin.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.open && (self.ended || self.retry_at.is_some_and(|at| at <= now))
    }

    /// Returns when the next placement is due if nothing changes.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.retry_at.filter(|_| self.open)
    }

    /// Returns whether a move from a dead owner was left for later, or has to be checked.
    pub(super) fn has_dead_owners(&self) -> bool {
        self.dead_owners
    }

    /// Returns the moves that wait for anything but the end of a handoff.
    pub(super) fn held(&self) -> Vec<HeldMoves> {
        self.held.moves()
    }

    /// Returns the number of moves that are wanted but have not begun.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the notices about wanted owners that are not registered, and about partitions that cannot move.
    pub(super) fn notices(&self, view: &View) -> impl Iterator<Item = Notice> {
        let absent = (!self.absent.is_empty()).then(|| Notice::WantedAbsent { pods: self.absent.clone() });
        let spent = self.spent.iter().filter_map(|partition| {
            let assignment = &view.assignments.get(partition)?.value;
            Some(Notice::EpochsSpent {
                partition: *partition,
                owner: assignment.owner.clone(),
                epoch: assignment.epoch,
                key: view.keys().assignment(*partition),
            })
        });
        absent.into_iter().chain(spent)
    }

    /// Begins moves that were waiting for places which are free now. Returns `None` if a placement is due instead.
    pub(super) fn resume(mut self, context: &Context<'_>, actions: &mut Vec<PlannedWrite>) -> Option<Self> {
        let placement_is_due = self.retry_at.is_some_and(|at| at <= context.now);
        if placement_is_due || self.pinned || self.for_a_place.is_empty() {
            return None;
        }
        let mut begun = Vec::new();
        let mut budget = context.budget(self.takers.len(), context.authority.sharers());
        // In the first pass the urgent moves go to their own pods. In the second those whose pod is full go to another one, and
        // the moves for balance follow.
        for goes_elsewhere in [false, true] {
            self.for_a_place.try_in_order(|next| {
                // Once a move finds no place at all, those behind it find none either.
                if budget.is_spent(next.cause) || (!goes_elsewhere && !next.cause.is_urgent()) {
                    return Some(BeginOutcome::NoPlace);
                }
                // The name as the view has it, because the budget keeps it for longer than this move lives.
                let (pod, _) = context.view.pods.get_key_value(&next.to.pod)?;
                match context.readiness(next) {
                    MoveReadiness::Ready => {}
                    MoveReadiness::Rests => return Some(BeginOutcome::Rests),
                    MoveReadiness::Outdated => return None,
                }
                if self.failed && next.cause.is_balance() {
                    return None;
                }
                match budget.take(next.cause, pod, next.to.incarnation) {
                    Ok(()) => {
                        if let Some(taker) = self.takers.iter_mut().find(|taker| taker.pod == *pod) {
                            taker.planned += 1;
                        }
                        begun.push(begin(context.view, context.policy, next)?);
                        return Some(BeginOutcome::Begun);
                    }
                    Err(Full::InAll) => return Some(BeginOutcome::NoPlace),
                    Err(Full::NewOwner) => self.full_pod = true,
                }
                let may_go = goes_elsewhere && context.has_second_choice(next.cause, next.to.incarnation);
                let other = Some(next).filter(|_| may_go);
                let Some(taker) = other.and_then(|next| context.second_choice_of(next, &mut self.takers, &budget))
                else {
                    return Some(BeginOutcome::PodIsFull);
                };
                let (pod, _) = context.view.pods.get_key_value(&taker.pod)?;
                budget.take(next.cause, pod, taker.incarnation).ok()?;
                taker.planned += 1;
                let to = NewOwner { pod: pod.clone(), incarnation: taker.incarnation };
                let reason = urgent_reason(context, next.cause, next.partition, pod);
                begun.push(begin(context.view, context.policy, &WaitingMove { to, reason, ..next.clone() })?);
                Some(BeginOutcome::Begun)
            })?;
        }
        (self.ended, self.waiting) = (false, self.waiting.saturating_sub(begun.len()));
        self.held.begin(&begun);
        self.look_again(&budget, context.now);
        if !begun.is_empty() {
            self.place_by(context.retry_at);
        }
        actions.append(&mut begun);
        Some(self)
    }
}

/// Whether a move that has waited for a place may begin.
enum MoveReadiness {
    Ready,
    /// It has to wait for another reason than its place.
    Rests,
    /// What it was planned from has changed.
    Outdated,
}

impl Context<'_> {
    fn readiness(&self, waiting: &WaitingMove) -> MoveReadiness {
        let WaitingMove { cause, partition, to: NewOwner { ref pod, incarnation }, assignment, .. } = *waiting;
        let Context { view, backoffs, now, .. } = *self;
        let unchanged = view.assignment_revision(partition) == assignment && !view.handoffs.contains_key(&partition);
        let is_ordered = cause == MoveCause::Operator && pins::is_ordered(view, partition, pod);
        let accepts = self.accepts(pod, incarnation) && (is_ordered || !self.is_shunned(pod, incarnation));
        if !accepts || !unchanged || view.is_malformed(partition) {
            return MoveReadiness::Outdated;
        }
        let is_barred = !is_ordered && backoffs.pair_waits(partition, pod, cause.is_urgent(), now).is_some();
        let waits = self.backs_off(cause, partition, pod).or_else(|| self.balance_waits(cause, partition));
        let rests = is_barred || waits.is_some();
        let too_early = self.only_dead_owners && cause != MoveCause::DeadOwner;
        match rests || too_early || pins::is_paused(view, partition, cause) {
            true => MoveReadiness::Rests,
            false => MoveReadiness::Ready,
        }
    }

    /// Returns whether this incarnation of a pod is registered and does not drain.
    fn accepts(&self, pod: &str, incarnation: Incarnation) -> bool {
        self.view.pods.get(pod).is_some_and(|record| {
            record.incarnation() == incarnation && record.lease.is_some() && !self.view.is_draining(pod)
        })
    }

    /// Returns the pod with the fewest partitions for its weight among those that may warm one more.
    fn second_choice_of<'t>(
        &self,
        waiting: &WaitingMove,
        takers: &'t mut [Taker],
        budget: &MoveBudget<'_>,
    ) -> Option<&'t mut Taker> {
        let barred = |pod: &str| self.backoffs.avoids(waiting.partition, pod, self.now).is_some();
        let may_take = |taker: &&mut Taker| {
            let (pod, incarnation) = (taker.pod.as_str(), taker.incarnation);
            budget.has_room(pod, incarnation) && self.accepts(pod, incarnation) && !barred(pod)
        };
        takers.iter_mut().filter(may_take).reduce(|best, other| {
            let is_less = is_less_loaded((other.planned, other.weight), (best.planned, best.weight));
            if is_less { other } else { best }
        })
    }
}
