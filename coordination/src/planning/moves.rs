//! From where partitions belong to the handoffs that are begun now, and what is left for later.
//!
//! Must stay true: a partition with a handoff, or with records that cannot be read, gets no handoff; a draining pod is
//! never a new owner; what is not begun for want of a place or because of a back-off is remembered as [`Rest`] and begun
//! when that ends, without another round.

use std::time::Duration;

use super::Policy;
use super::actions::Action;
use super::backoff::BackOffs;
use super::budget::{Budget, MoveCause};
use super::placement::{Hold, Intake, Layout, Member, layout};
use crate::protocol::records::{Epoch, Handoff, Mode, Phase};
use crate::protocol::view::View;
use crate::store::keys::Partition;

/// What the last look at the placement left undone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Rest {
    open: bool,
    ended: bool,
    retry_at: Option<Duration>,
    waiting: usize,
}

impl Rest {
    /// A place in the budget is free, or a pin is gone.
    pub(super) fn a_handoff_ended(&mut self) {
        self.ended = true;
    }

    /// Look again at this moment at the latest, or when a handoff has ended.
    pub(super) fn try_again_at(&mut self, at: Duration) {
        self.open = true;
        self.retry_at = Some(self.retry_at.map_or(at, |retry_at| retry_at.min(at)));
    }

    /// Whether to look again now.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.open && (self.ended || self.retry_at.is_some_and(|at| at <= now))
    }

    /// When to look again although nothing has changed.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.retry_at.filter(|_| self.open)
    }

    /// How many moves are wanted but not begun.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }
}

/// A move that the strategy wants.
struct Wanted {
    cause: MoveCause,
    partition: Partition,
    to: usize,
}

/// Begins the moves that the budget has room for. At `retry_at` it is checked whether they stand.
pub(super) fn create(
    view: &View,
    policy: &Policy,
    partitions: u32,
    backoffs: &BackOffs,
    now: Duration,
    retry_at: Duration,
    actions: &mut Vec<Action>,
) -> Rest {
    let shunned = |pod: &str, incarnation| backoffs.is_shunned(pod, incarnation, now);
    let waits = |partition| backoffs.partition_waits(partition, false, now).is_some();
    let layout = layout(view, partitions, shunned, waits);
    let mut rest = Rest::default();
    let mut wanted = wanted(view, policy, &layout, &mut rest);
    wanted.sort_unstable_by_key(|wanted| (wanted.cause, wanted.partition));

    let counts = layout.counts();
    let mut budget = Budget::left(view, policy);
    for Wanted { cause, partition, to } in wanted {
        if let Some(until) = backoffs.partition_waits(partition, cause.is_urgent(), now) {
            rest.try_again_at(until);
            rest.waiting += 1;
        } else if budget.take(cause) {
            let reason = reason(&layout, &counts, cause, partition, to, view);
            actions.push(begin(view, policy, partition, &layout.members[to], cause, reason));
            rest.try_again_at(retry_at);
        } else {
            rest.open = true;
            rest.waiting += 1;
        }
    }
    // A pod that may be given partitions again changes where partitions belong.
    if let Some(until) = backoffs.next_pod(now) {
        rest.try_again_at(until);
    }
    rest
}

fn wanted(view: &View, policy: &Policy, layout: &Layout<'_>, rest: &mut Rest) -> Vec<Wanted> {
    let places = policy.strategy.placement().place(layout);
    let mut wanted = Vec::new();
    for ((partition, slot), place) in (0..).zip(&layout.slots).zip(places) {
        let Some(to) = place.filter(|to| slot.owner != Some(*to)) else {
            continue;
        };
        if slot.hold == Hold::Pinned {
            let in_flight = view.handoffs.contains_key(&partition);
            rest.open |= in_flight;
            rest.waiting += usize::from(in_flight);
            continue;
        }
        let cause = match slot.owner {
            Some(owner) if layout.members[owner].intake == Intake::Leaving => MoveCause::DrainingOwner,
            Some(_) => MoveCause::Balance,
            None if view.assignments.contains_key(&partition) => MoveCause::DeadOwner,
            None => MoveCause::FirstPlacement,
        };
        wanted.push(Wanted { cause, partition, to });
    }
    wanted
}

fn begin(
    view: &View,
    policy: &Policy,
    partition: Partition,
    to: &Member<'_>,
    cause: MoveCause,
    reason: String,
) -> Action {
    let assignment = view.assignments.get(&partition);
    let mode = if may_be_independent(view, to.name) { policy.mode } else { Mode::Barrier };
    let handoff = Handoff {
        partition,
        old_owner: assignment.map(|assignment| assignment.value.owner.clone()),
        old_incarnation: assignment.map_or(0, |assignment| assignment.value.incarnation),
        new_owner: to.name.to_owned(),
        new_incarnation: to.incarnation,
        phase: Phase::Warming,
        epoch: next_epoch(assignment.map(|assignment| assignment.value.epoch)),
        mode,
        started_at: 0,
        phase_entered_at: 0,
        reason,
    };
    Action::Create {
        handoff,
        cause,
        assignment: assignment.map_or(0, |assignment| assignment.mod_revision),
        seen: view.revision,
    }
}

/// Whether a move to this pod is safe without the barrier: there is a single router, and the pod does not read the tail
/// when it is told to. It would be told in `Ready`, while the router may still send to the old owner: what the old
/// owner writes after that would be missing.
fn may_be_independent(view: &View, to: &str) -> bool {
    view.routers.len() < 2 && view.pods.get(to).is_some_and(|pod| !pod.value.capabilities.sync)
}

/// The epoch of the next ownership, given that of the last.
///
/// "Never reused" is true of epochs that anyone may have accepted a request under, not of the number in a record. The
/// epoch of a handoff that was cancelled is named again by the next one: a handoff can only be cancelled while its
/// epoch is no more than announced, since in `barrier` a pod serves under the assignment's epoch alone and in
/// `independent` the announced one counts from `Ready` on, after which it always reaches the assignment, by the flip or by
/// [`Action::Abandon`]. So a pod must not use an announced epoch as a token of authority (to write to the log,
/// say) before it is told to serve. An assignment that is deleted by hand takes the memory of its epochs with it.
fn next_epoch(last: Option<Epoch>) -> Epoch {
    last.map_or(1, |last| last + 1)
}

fn reason(
    layout: &Layout<'_>,
    counts: &[u32],
    cause: MoveCause,
    partition: Partition,
    to: usize,
    view: &View,
) -> String {
    let slot = &layout.slots[partition as usize];
    let assignment = view.assignments.get(&partition);
    let owner = assignment.map_or("nobody", |assignment| assignment.value.owner.as_str());
    match cause {
        MoveCause::FirstPlacement => "first placement".to_owned(),
        MoveCause::DeadOwner if slot.home == Some(to) => format!("its owner {owner} came back in a new life"),
        MoveCause::DeadOwner => format!("its owner {owner} is dead"),
        MoveCause::DrainingOwner => format!("its owner {owner} is draining"),
        MoveCause::Balance => {
            let (from_has, to_has) = (slot.owner.map_or(0, |owner| counts[owner]), counts[to]);
            let name = layout.members[to].name;
            format!("balance: {owner} has {from_has} partitions, {name} has {to_has}")
        }
    }
}
