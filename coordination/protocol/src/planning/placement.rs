//! The interface of a placement strategy, and the layout that a view gives it.
//!
//! A strategy sees members, slots and their current owners. It knows nothing of handoffs, time or budgets.
//!
//! # Invariants
//!
//! * A strategy's result depends on the layout alone, not on the order of events.
//! * Placing a layout that already matches the result changes nothing.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::rolls;
use crate::ids::{Incarnation, PartitionId};
use crate::records::Thousandths;
use crate::view::{PodLife, View};

/// A pod's readiness for more partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Eligibility {
    /// The pod may be given partitions.
    Open,
    /// The pod keeps its partitions but gets no more for now: it recently failed to become ready.
    Shunned,
    /// The pod gives up all of its partitions.
    Leaving,
}

/// A pod as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member<'a> {
    /// The pod's name. Members are ordered by name.
    pub name: &'a str,
    /// The life of the pod.
    pub incarnation: Incarnation,
    /// The pod's share relative to the others'.
    pub weight: Thousandths,
    /// The zone that the pod runs in.
    pub zone: Option<&'a str>,
    /// The pod has the version of the pod that registered last.
    pub newest: bool,
    /// The pod's readiness for more partitions.
    pub eligibility: Eligibility,
}

/// How readily a partition moves when one of its owner's partitions has to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mobility {
    /// An operator has placed the partition: it never moves.
    Fixed,
    /// The partition cannot move now: its handoff is in flight, or its records cannot be read.
    Pinned,
    /// The partition's last move failed, or the partition has just moved. Other partitions move first.
    Reluctant,
    /// The partition moves as readily as any.
    Free,
}

/// Returns whether a pod with so many partitions and this weight should be given one before `other`.
pub(super) fn is_less_loaded(pod: (u32, Thousandths), other: (u32, Thousandths)) -> bool {
    // Compares counts / weights without dividing; a weight of 0 takes partitions last.
    let times = |count: u32, weight: Thousandths| (u64::from(count) + 1).saturating_mul(u64::from(weight.0));
    times(pod.0, other.1) < times(other.0, pod.1)
}

/// A partition as placement sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PartitionSlot {
    /// The member that owns the partition or, with a handoff in flight, will own it. `None` if no live pod does.
    pub owner: Option<usize>,
    /// The member with the dead owner's name, in a new life. Preferred when the partition needs a place anyway. `None` if
    /// that name rests after earlier deaths and another member may take the partition.
    pub home: Option<usize>,
    /// The member that the key `wanted` names. Only the strategy `external` follows it.
    pub wanted: Option<usize>,
    /// How readily the partition moves.
    pub mobility: Mobility,
}

/// Members and partitions: a strategy's only input.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout<'a> {
    /// The name of the keyspace. A strategy that breaks ties by it spreads what is odd in many keyspaces over all pods.
    pub keyspace: &'a str,
    /// The members, ordered by name.
    pub members: Vec<Member<'a>>,
    /// The slots, by partition.
    pub slots: Vec<PartitionSlot>,
}

impl Layout<'_> {
    /// Returns how many partitions each member has.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.members.len()];
        for owner in self.slots.iter().filter_map(|slot| slot.owner) {
            counts[owner] += 1;
        }
        counts
    }

    /// Returns whether the partition may be placed on this member.
    pub fn may_be_on(&self, slot: &PartitionSlot, member: usize) -> bool {
        match self.members.get(member).map(|member| member.eligibility) {
            Some(Eligibility::Open) => true,
            Some(Eligibility::Shunned) => slot.owner == Some(member) || self.has_no_other_choice(),
            Some(Eligibility::Leaving) | None => false,
        }
    }

    /// Returns whether shunned members have to be given partitions because there is no other.
    pub fn has_no_other_choice(&self) -> bool {
        !self.members.iter().any(|member| member.eligibility == Eligibility::Open)
    }
}

/// A placement strategy. [`Custom`] makes one of a program's own available to its coordinator.
pub trait Placement: Send + Sync {
    /// Returns the place of each partition, as an index of `layout.members`. `None` if no member accepts any. For a
    /// pinned partition it is the place that the partition would move to once it can.
    fn place(&self, layout: &Layout<'_>) -> Vec<Option<usize>>;
}

/// A strategy of the program that runs the coordinator. All coordinators of a keyspace have to know it: under a leader
/// that does not, partitions stay where they are.
///
/// A place that [`Placement`] does not allow is ignored: one that is no member, a member that leaves, or a shunned member
/// that does not have the partition. That partition stays where it is unless it has to move.
#[derive(Clone, Copy)]
pub struct Custom {
    name: &'static str,
    placement: &'static dyn Placement,
}

impl Custom {
    /// Creates a strategy. The name is stored in the keyspace's settings and must differ from those of
    /// [`Strategy::NAMES`](super::Strategy::NAMES).
    pub const fn new(name: &'static str, placement: &'static dyn Placement) -> Self {
        Custom { name, placement }
    }

    /// Returns the strategy's name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns the function that places partitions.
    pub fn placement(self) -> &'static dyn Placement {
        self.placement
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Custom").field(&self.name).finish()
    }
}

/// Two strategies of one name are the same.
impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Custom {}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// Returns the layout of a view. `shunned`, `reluctant` and `avoids` come from earlier moves.
pub(super) fn layout<'a>(
    view: &'a View,
    partitions: u32,
    shunned: impl Fn(&str, Incarnation) -> bool,
    reluctant: impl Fn(PartitionId) -> bool,
    avoids: impl Fn(PartitionId, &str) -> bool,
) -> Layout<'a> {
    let newest = rolls::newest(view);
    let members: Vec<Member<'a>> = view
        .pods
        .iter()
        .map(|(name, pod)| Member {
            name,
            incarnation: pod.incarnation(),
            weight: pod.value.weight,
            zone: pod.value.zone.as_deref(),
            newest: pod.value.version.as_deref() == newest,
            eligibility: match view.is_draining(name) {
                true => Eligibility::Leaving,
                // A registration without its lease was not put by its owner.
                false if shunned(name, pod.incarnation()) || pod.lease.is_none() => Eligibility::Shunned,
                false => Eligibility::Open,
            },
        })
        .collect();
    let has_choice = members.iter().any(|member| member.eligibility == Eligibility::Open);
    let named = |name: &str| members.binary_search_by(|member| member.name.cmp(name)).ok();
    let slot = |partition| {
        let wanted = view.wanted.as_ref().and_then(|wanted| named(wanted.value.owners.get(&partition)?));
        let handoff = view.handoffs.get(&partition).map(|handoff| &handoff.value);
        let assignment = view.assignments.get(&partition).map(|assignment| &assignment.value);
        let of_handoff = handoff.map(|handoff| (handoff.new_owner.as_str(), handoff.new_incarnation));
        let of_assignment = assignment.map(|assignment| (assignment.owner.as_str(), assignment.incarnation));
        let Some((name, incarnation)) = of_handoff.or(of_assignment) else {
            let mobility = mobility(view.is_malformed(partition), false);
            return PartitionSlot { owner: None, home: None, wanted, mobility };
        };
        let same_name = named(name);
        let owner = same_name.filter(|index| members[*index].incarnation == incarnation);
        // The owner's key exists, so it is not a dead owner, and a handoff would make no progress.
        let unclear = matches!(view.life(name, incarnation), PodLife::Unreadable | PodLife::Leaseless(_));
        let pinned = handoff.is_some() || unclear || view.is_malformed(partition);
        PartitionSlot {
            owner,
            home: same_name.filter(|_| owner.is_none() && !(has_choice && avoids(partition, name))),
            wanted,
            mobility: mobility(pinned, reluctant(partition)),
        }
    };
    let slots = PartitionId::all(partitions).map(slot).collect();
    Layout { keyspace: view.keys().name(), members, slots }
}

fn mobility(pinned: bool, reluctant: bool) -> Mobility {
    match (pinned, reluctant) {
        (true, _) => Mobility::Pinned,
        (false, true) => Mobility::Reluctant,
        (false, false) => Mobility::Free,
    }
}
