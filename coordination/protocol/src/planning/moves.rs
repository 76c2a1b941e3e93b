//! Turns a placement into the handoffs that begin now, and remembers those that have to wait.
//!
//! # Invariants
//!
//! * A partition with a handoff, or with records that cannot be read, gets no handoff.
//! * A draining pod is never a new owner, whether it drains by itself or an operator drains it.
//! * A pod that is barred from a partition does not become its new owner, whatever the strategy wants.
//! * A partition without a living owner waits for a busy pod only if no other pod may warm one more.
//! * A move that has to wait for a place in the budget, a back-off or a cool-down is left in the [`Backlog`]. It begins when
//!   the wait ends, without another round.

use std::collections::BTreeMap;
use std::time::Duration;

use super::actions::{CancelReason, ObservedHandoff, PlannedWrite};
use super::backlog::{Backlog, Taker};
use super::budget::{Full, MoveBudget, MoveCause, is_planned, make_room};
use super::context::Context;
use super::creation::{assign_at_once, begin, beside_wanted, next_epoch, urgent_reason};
use super::held_back::HeldMove;
use super::pins;
use super::placement::{Eligibility, Layout, Mobility, is_less_loaded, layout};
use super::relief;
use super::waiting_moves::{NewOwner, WaitingMove};
use super::{Policy, Strategy};
use crate::ids::PartitionId;
use crate::view::View;

/// A move that the strategy wants.
#[derive(Clone, Copy)]
struct ProposedMove {
    cause: MoveCause,
    partition: PartitionId,
    to: usize,
}

/// The moves that begin now, and what is left for later.
struct MovesDraft<'a> {
    /// How many partitions each member has.
    counts: Vec<u32>,
    /// How many each member will have.
    planned: Vec<u32>,
    budget: MoveBudget<'a>,
    /// Number of urgent moves that found no place.
    needed: usize,
    actions: &'a mut Vec<PlannedWrite>,
    backlog: Backlog,
}

impl Context<'_> {
    /// Begins the moves that the budget has room for, and makes room for urgent ones.
    pub(super) fn create(&self, partitions: u32, actions: &mut Vec<PlannedWrite>) -> Backlog {
        let Context { view, policy, authority, backoffs, cool_downs, now, .. } = *self;
        let shunned = |pod: &str, life| self.is_shunned(pod, life);
        let rests = |partition| {
            let until = backoffs.partition_waits(partition, false, now);
            until.or_else(|| cool_downs.ends(policy, partition, now)).is_some() || backoffs.avoids_any(partition, now)
        };
        let avoids = |partition, pod: &str| backoffs.avoids(partition, pod, now).is_some();
        let layout = layout(view, partitions, shunned, rests, avoids);
        let takers = layout.members.iter().filter(|member| member.eligibility == Eligibility::Open).count();
        let mut backlog = Backlog::without_moves(self.absent());
        let mut wanted = wanted(view, policy, &layout, &mut backlog);
        let mut sharers = authority.sharers();
        // Both moves of an exchange begin at once, or none does. Nobody else begins any meanwhile.
        let has_room = policy.max_concurrent_handoffs >= 4 && view.handoffs.is_empty();
        if wanted.is_empty() && has_room && policy.balance_load && policy.strategy == Strategy::Sticky {
            let moves = relief::exchange(view, &layout, self.heartbeats, authority).into_iter().flatten();
            wanted.extend(moves.map(|(partition, to)| ProposedMove { cause: MoveCause::Load, partition, to }));
            sharers = 1;
        }
        wanted.retain(|wanted| authority.acts_for(Some(wanted.partition)));
        wanted.retain(|wanted| !self.only_dead_owners || wanted.cause == MoveCause::DeadOwner);
        wanted.retain(|wanted| !pins::is_paused(view, wanted.partition, wanted.cause));
        // The partition stays where it is: an epoch that nobody can read would leave it without an owner.
        let spent = wanted.extract_if(.., |wanted| next_epoch(view, wanted.partition).is_none());
        backlog.set_spent(spent.map(|wanted| wanted.partition).collect());
        wanted.sort_unstable_by_key(|wanted| (wanted.cause, wanted.partition));

        let counts = layout.counts();
        let mut draft = MovesDraft {
            planned: counts.clone(),
            counts,
            budget: self.budget(takers, sharers),
            needed: 0,
            actions,
            backlog,
        };
        let others = wanted.split_off(wanted.partition_point(|wanted| wanted.cause.is_urgent()));
        let mut crowded = Vec::new();
        for wanted in wanted {
            crowded.extend(self.begin_or_wait(&layout, &mut draft, wanted));
        }
        // A second choice takes only a place that is no urgent move's first choice.
        for ProposedMove { cause, partition, to } in crowded {
            let goes = self.has_second_choice(cause, layout.members[to].incarnation);
            let to = goes.then(|| self.second_choice(&layout, &draft, partition)).flatten().unwrap_or(to);
            self.begin_or_leave(&layout, &mut draft, ProposedMove { cause, partition, to });
        }
        for wanted in others {
            self.begin_or_wait(&layout, &mut draft, wanted);
        }
        let MovesDraft { needed, budget, mut backlog, actions, planned, .. } = draft;
        let open = layout.members.iter().zip(planned).filter(|(member, _)| member.eligibility == Eligibility::Open);
        let takers = open.map(|(member, planned)| Taker {
            pod: member.name.to_owned(),
            incarnation: member.incarnation,
            weight: member.weight,
            planned,
        });
        backlog.set_takers(takers.collect());
        backlog.look_again(&budget, now);
        // Places that this process leaves to others are still free.
        for handoff in make_room(view, authority, needed.saturating_sub(budget.all_free())) {
            let partition = handoff.value.partition;
            // A handoff that ends anyway makes room as well.
            if !actions.iter().any(|action| action.partition() == Some(partition)) {
                let assignment = view.assignment_revision(partition);
                let observed = ObservedHandoff { handoff: handoff.clone(), assignment };
                let (reason, back_offs) = (CancelReason::MoreUrgent, Vec::new());
                actions.push(PlannedWrite::Cancel { observed, reason, back_offs });
                backlog.place_by(self.retry_at);
            }
        }
        // A pod that may be given partitions again changes the placement.
        if let Some(until) = backoffs.next_pod(now) {
            backlog.place_by(until);
        }
        backlog
    }

    /// Returns the pods that the strategy `external` follows and that are not registered, each with how many partitions
    /// are wanted there.
    fn absent(&self) -> BTreeMap<String, usize> {
        let followed = self.view.wanted.iter().filter(|_| self.policy.strategy == Strategy::External);
        let mut absent = BTreeMap::new();
        for pod in followed.flat_map(|wanted| wanted.value.owners.values()) {
            if self.view.pod_key(pod).is_none() {
                *absent.entry(pod.clone()).or_default() += 1;
            }
        }
        absent
    }

    /// Begins a move unless it has to wait for a back-off, a grace period or a cool-down. Returns an urgent move whose pod
    /// warms too many partitions.
    fn begin_or_wait<'a>(
        &'a self,
        layout: &Layout<'a>,
        draft: &mut MovesDraft<'a>,
        ProposedMove { cause, partition, to }: ProposedMove,
    ) -> Option<ProposedMove> {
        draft.backlog.add_wanted(cause);
        let (to, barred_until) = self.around_barred(layout, &draft.planned, cause, partition, to);
        let member = &layout.members[to];
        let has_come_back = layout.slots[partition.index()].home.is_some();
        if let Some((until, what_for)) = self.waits(cause, partition, (member.name, has_come_back), barred_until) {
            draft.backlog.add_until(until, HeldMove::new(member.name, member.incarnation, what_for));
            return None;
        }
        if cause == MoveCause::FirstPlacement
            && let Some(assigned) = assign_at_once(self.view, partition, member.name)
        {
            draft.planned[to] += 1;
            draft.actions.push(assigned);
            draft.backlog.place_by(self.retry_at);
            return None;
        }
        let wanted = ProposedMove { cause, partition, to };
        if cause.is_urgent() && !draft.budget.has_room(member.name, member.incarnation) {
            return Some(wanted);
        }
        self.begin_or_leave(layout, draft, wanted);
        None
    }

    /// Begins a move if the budget has a place for it.
    fn begin_or_leave<'a>(&'a self, layout: &Layout<'a>, draft: &mut MovesDraft<'a>, wanted: ProposedMove) {
        let ProposedMove { cause, partition, to } = wanted;
        let member = &layout.members[to];
        let planned = WaitingMove {
            cause,
            partition,
            to: NewOwner { pod: member.name.to_owned(), incarnation: member.incarnation },
            assignment: self.view.assignment_revision(partition),
            reason: reason(self, layout, &draft.counts, &wanted),
        };
        match draft.budget.take(cause, member.name, member.incarnation) {
            Ok(()) => {
                draft.planned[to] += 1;
                draft.actions.extend(begin(self.view, self.policy, &planned));
                draft.backlog.place_by(self.retry_at);
            }
            Err(full) => {
                draft.backlog.add_for_place(planned, full);
                draft.needed += usize::from(full == Full::InAll && cause.is_urgent());
            }
        }
    }

    /// Returns the pod with the fewest partitions for its weight among those that may warm one more.
    fn second_choice(&self, layout: &Layout<'_>, draft: &MovesDraft<'_>, partition: PartitionId) -> Option<usize> {
        least_loaded(layout, &draft.planned, |other| {
            let member = &layout.members[other];
            member.eligibility == Eligibility::Open
                && draft.budget.has_room(member.name, member.incarnation)
                && self.backoffs.avoids(partition, member.name, self.now).is_none()
        })
    }

    /// Returns the pod to move the partition to, and until when the move waits if no pod can take it. The pod is `to`
    /// or, if another one is preferred, the pod with the fewest partitions for its weight. A partition without a living
    /// owner goes to a shunned pod if no other one can take it, and even to the pod that died with it. A partition whose
    /// owner serves it stays there: a move for balance, by an operator or by the key `wanted` has no second choice. An order
    /// to move it now is carried out whatever went wrong before, and waits for the rest of the partition alone.
    fn around_barred(
        &self,
        layout: &Layout<'_>,
        counts: &[u32],
        cause: MoveCause,
        partition: PartitionId,
        to: usize,
    ) -> (usize, Option<Duration>) {
        let urgent = cause.is_urgent();
        let bars = |to: usize| self.backoffs.pair_waits(partition, layout.members[to].name, urgent, self.now);
        let waits = |to: usize| match self.view.is_pinned_to(partition, layout.members[to].name) {
            true => bars(to),
            false => self.backoffs.avoids(partition, layout.members[to].name, self.now),
        };
        let Some(until) = waits(to) else { return (to, None) };
        if cause == MoveCause::Operator && pins::is_ordered(self.view, partition, layout.members[to].name) {
            return (to, None);
        }
        if cause.is_balance() || matches!(cause, MoveCause::Operator | MoveCause::Wanted) {
            return (to, Some(until));
        }
        let least = |eligibility: Eligibility| {
            least_loaded(layout, counts, |other| {
                layout.members[other].eligibility == eligibility && waits(other).is_none()
            })
        };
        let shunned = || urgent.then(|| least(Eligibility::Shunned)).flatten();
        let until = if urgent { bars(to) } else { Some(until) };
        least(Eligibility::Open).or_else(shunned).map_or((to, until), |other| (other, None))
    }
}

/// Returns the member with the fewest partitions for its weight among those that `takes` names.
fn least_loaded(layout: &Layout<'_>, counts: &[u32], takes: impl Fn(usize) -> bool) -> Option<usize> {
    let load = |other: usize| (counts[other], layout.members[other].weight);
    (0..layout.members.len())
        .filter(|other| takes(*other))
        .reduce(|best, other| if is_less_loaded(load(other), load(best)) { other } else { best })
}

fn wanted(view: &View, policy: &Policy, layout: &Layout<'_>, backlog: &mut Backlog) -> Vec<ProposedMove> {
    let places = pins::place(view, policy.strategy, layout);
    let mut wanted = Vec::new();
    for ((partition, slot), place) in (0..).map(PartitionId::new).zip(&layout.slots).zip(places) {
        let Some(to) = place.filter(|to| slot.owner != Some(*to)) else {
            continue;
        };
        if slot.mobility == Mobility::Pinned {
            if let Some(handoff) = view.handoffs.get(&partition) {
                backlog.add_for_handoff(handoff.value.old_owner.is_some() && !is_planned(view, handoff));
            }
            continue;
        }
        let cause = match slot.owner {
            Some(owner) if layout.members[owner].eligibility == Eligibility::Leaving => MoveCause::DrainingOwner,
            Some(_) if view.is_pinned_to(partition, layout.members[to].name) => MoveCause::Operator,
            Some(_) if policy.strategy == Strategy::External => MoveCause::Wanted,
            Some(_) => MoveCause::Balance,
            None if view.assignments.contains_key(&partition) => MoveCause::DeadOwner,
            None => MoveCause::FirstPlacement,
        };
        // Strategies place what has to move on shunned pods if there are no others. What is served well stays.
        let is_optional = matches!(cause, MoveCause::Balance | MoveCause::Wanted);
        if is_optional && layout.members[to].eligibility == Eligibility::Shunned {
            continue;
        }
        wanted.push(ProposedMove { cause, partition, to });
    }
    wanted
}

/// Returns the reason for a move in words.
fn reason(context: &Context<'_>, layout: &Layout<'_>, counts: &[u32], wanted: &ProposedMove) -> String {
    let (view, ProposedMove { cause, partition, to }) = (context.view, *wanted);
    let slot = &layout.slots[partition.index()];
    let assignment = view.assignments.get(&partition);
    let owner = assignment.map_or("nobody", |assignment| assignment.value.owner.as_str());
    let name = layout.members[to].name;
    let reason = match cause {
        MoveCause::FirstPlacement | MoveCause::DeadOwner => return urgent_reason(context, cause, partition, name),
        MoveCause::DrainingOwner => match view.intentions.drains.get(owner) {
            Some(drain) => format!("its owner {owner} is drained by {}", drain.value.origin),
            None => format!("its owner {owner} is draining"),
        },
        MoveCause::Operator => pins::reason(view, partition),
        MoveCause::Wanted => format!("it is wanted elsewhere than on {owner}"),
        MoveCause::Balance => {
            let (from_has, to_has) = (slot.owner.map_or(0, |owner| counts[owner]), counts[to]);
            format!("balance: {owner} has {from_has} partitions, {name} has {to_has}")
        }
        MoveCause::Load => {
            let load = |pod: &str| view.load(pod).map_or(0.0, |load| f64::from(load.total));
            format!("load: {owner} has {:.1}, {name} has {:.1}", load(owner), load(name))
        }
    };
    beside_wanted(context, partition, name, reason)
}
