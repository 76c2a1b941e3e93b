//! What a strategy is given and what it answers, and how a view becomes that.
//!
//! A strategy sees members, slots and who has what; it knows nothing of handoffs, time or budgets. Must stay true: a
//! strategy's answer depends on the layout alone, not on the order in which anything was learnt, and asking again about
//! its own answer changes nothing.

use crate::ids::{Incarnation, PartitionId};
use crate::records::{PodStatus, Thousandths};
use crate::view::{PodLife, View};

/// Whether a pod may be given partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Intake {
    /// It may.
    Open,
    /// It keeps what it has but gets no more for now: it did not get ready lately.
    Shunned,
    /// It gives up all that it has.
    Leaving,
}

/// A pod as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member<'a> {
    /// Its name. Members are in the order of their names.
    pub name: &'a str,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its share relative to the others'.
    pub weight: Thousandths,
    /// Where it runs.
    pub zone: Option<&'a str>,
    /// Whether it may be given partitions.
    pub intake: Intake,
}

/// How much a partition clings to its place, when some partition of its owner has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hold {
    /// It cannot move now: its handoff is in flight, or its records cannot be read.
    Pinned,
    /// Its last move failed; others go first.
    Reluctant,
    /// As good as any.
    Free,
}

/// A partition as placement sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The member that has it; with a handoff in flight the one that will. `None`: nobody alive.
    pub owner: Option<usize>,
    /// The member of the dead owner's name, in a new life. Preferred when the partition needs a place anyway.
    pub home: Option<usize>,
    /// How much it clings to its place.
    pub hold: Hold,
}

/// Members and partitions, all that a strategy knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout<'a> {
    /// In the order of their names.
    pub members: Vec<Member<'a>>,
    /// By partition.
    pub slots: Vec<Slot>,
}

impl Layout<'_> {
    /// How many partitions each member has.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.members.len()];
        for owner in self.slots.iter().filter_map(|slot| slot.owner) {
            counts[owner] += 1;
        }
        counts
    }

    /// Whether shunned members have to be taken after all, since nobody else is left.
    pub fn has_no_other_choice(&self) -> bool {
        !self.members.iter().any(|member| member.intake == Intake::Open)
    }
}

/// A strategy.
pub trait Placement {
    /// Where each partition belongs, by partition: an index of `layout.members`. `None` if no member takes any.
    /// A pinned partition's answer says where it would go once it can.
    fn place(&self, layout: &Layout<'_>) -> Vec<Option<usize>>;
}

/// The layout that a view shows. `shunned` and `reluctant` come from earlier failures.
pub(super) fn layout<'a>(
    view: &'a View,
    partitions: u32,
    shunned: impl Fn(&str) -> bool,
    reluctant: impl Fn(PartitionId) -> bool,
) -> Layout<'a> {
    let members: Vec<Member<'a>> = view
        .pods
        .iter()
        .map(|(name, pod)| Member {
            name,
            incarnation: pod.incarnation(),
            weight: pod.value.weight,
            zone: pod.value.zone.as_deref(),
            intake: match pod.value.status {
                PodStatus::Draining => Intake::Leaving,
                // Another hand wrote a registration that stands without its lease.
                PodStatus::Ready if shunned(name) || pod.lease.is_none() => Intake::Shunned,
                PodStatus::Ready => Intake::Open,
            },
        })
        .collect();
    let named = |name: &str| members.binary_search_by(|member| member.name.cmp(name)).ok();
    let slot = |partition| {
        let handoff = view.handoffs.get(&partition).map(|handoff| &handoff.value);
        let assignment = view.assignments.get(&partition).map(|assignment| &assignment.value);
        let of_handoff = handoff.map(|handoff| (handoff.new_owner.as_str(), handoff.new_incarnation));
        let of_assignment = assignment.map(|assignment| (assignment.owner.as_str(), assignment.incarnation));
        let Some((name, incarnation)) = of_handoff.or(of_assignment) else {
            let hold = hold(view.is_malformed(partition), false);
            return Slot { owner: None, home: None, hold };
        };
        let same_name = named(name);
        let owner = same_name.filter(|index| members[*index].incarnation == incarnation);
        // Its key stands, so its partitions are not a dead owner's, and no handoff would get on.
        let unclear = matches!(view.life(name, incarnation), PodLife::Unreadable | PodLife::Leaseless(_));
        let pinned = handoff.is_some() || unclear || view.is_malformed(partition);
        Slot { owner, home: if owner.is_some() { None } else { same_name }, hold: hold(pinned, reluctant(partition)) }
    };
    let slots = PartitionId::all(partitions).map(slot).collect();
    Layout { members, slots }
}

fn hold(pinned: bool, reluctant: bool) -> Hold {
    match (pinned, reluctant) {
        (true, _) => Hold::Pinned,
        (false, true) => Hold::Reluctant,
        (false, false) => Hold::Free,
    }
}
