//! Limits how many moves are in flight at a time, and decides which go first.
//!
//! `max_concurrent_handoffs` limits all of them together. Planned moves, whose partitions are served meanwhile, take at
//! most half of the places. A long rebalance therefore leaves room for partitions without a live owner, whose clients
//! are waiting. `max_warming_per_pod` limits how many partitions one pod warms at a time, because the pod serves other
//! partitions meanwhile. Urgent moves may exceed it: a pod warms at least its even share of the places in all, so that a
//! failover to few pods uses all places. If urgent moves still find no place, `make_room` cancels planned moves that are
//! warming.
//!
//! A handoff waits twice for all routers, and each of its changes goes to all of them. With hundreds of routers, tens of moves at
//! once are more than a store carries, and leases end. The more routers there are, the fewer moves are about to cut over at a
//! time. One that warms for longer than a moment is not about to, nor is a first placement, which waits for no router. These few
//! go in step: they begin once half of their places are free, as the acknowledgements of moves that begin together share requests.
//!
//! The processes of an assignment round decide at the same time. Each of them takes at most its share of the free places,
//! rounded up, and none keeps places for moves that another one may never begin.
//!
//! # Invariants
//!
//! * A move is counted by whether its old owner lives *now*, so a new leader counts the same.
//! * `n` processes that decide on one view exceed a limit by less than `n`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Policy, Strategy, is_dead};
use crate::authority::Authority;
use crate::ids::{Incarnation, PartitionId};
use crate::records::{Handoff, Phase};
use crate::view::{Versioned, View};

/// With no more routers as many handoffs cut over at a time as there are places.
const FEW_ROUTERS: usize = 128;
/// With more, the routers of all handoffs that are about to cut over at a time. With 1,000 routers an etcd 3.4 beside them on two
/// cores spends 0.3 to 0.8 s of CPU on a move, and one of two runs with 32 moves at a time took more than twice as long.
const MOST_CUTOVERS: usize = 16_384;
/// How many handoffs are about to cut over at a time, however many routers there are.
const LEAST_CUTOVERS: usize = 4;
/// A move that has begun to warm so long ago warms for longer than a moment.
const MOMENT: Duration = Duration::from_secs(1);

/// The name of the cause, and the beginning of the reason, of a move for load.
const LOAD: &str = "load";

/// The cause of a move, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MoveCause {
    /// The owner is dead.
    DeadOwner,
    /// The partition never had an owner.
    FirstPlacement,
    /// The owner is draining.
    DrainingOwner,
    /// An operator wants the partition elsewhere.
    Operator,
    /// The key `wanted` names another owner.
    Wanted,
    /// The owner has more partitions than its share.
    Balance,
    /// The owner has more load than its share, or takes part in the exchange that relieves another pod.
    Load,
}

impl MoveCause {
    /// All causes.
    pub const ALL: [MoveCause; 7] = [
        MoveCause::DeadOwner,
        MoveCause::FirstPlacement,
        MoveCause::DrainingOwner,
        MoveCause::Operator,
        MoveCause::Wanted,
        MoveCause::Balance,
        MoveCause::Load,
    ];

    /// Returns why a standing handoff was planned, as far as the view shows it. What has happened to the old owner
    /// since looks like the cause.
    pub fn of(view: &View, strategy: Strategy, handoff: &Handoff) -> Self {
        let Some(owner) = &handoff.old_owner else { return MoveCause::FirstPlacement };
        match view.live_pod(owner, handoff.old_incarnation) {
            None => MoveCause::DeadOwner,
            Some(_) if view.is_draining(owner) => MoveCause::DrainingOwner,
            Some(_) if view.is_pinned_to(handoff.partition, &handoff.new_owner) => MoveCause::Operator,
            Some(_) if strategy == Strategy::External => MoveCause::Wanted,
            Some(_) if handoff.reason.starts_with(LOAD) => MoveCause::Load,
            Some(_) => MoveCause::Balance,
        }
    }

    /// Returns whether no live pod serves the partition meanwhile.
    pub fn is_urgent(self) -> bool {
        matches!(self, MoveCause::DeadOwner | MoveCause::FirstPlacement)
    }

    /// Returns whether only the balance between pods improves, which can wait.
    pub fn is_balance(self) -> bool {
        matches!(self, MoveCause::Balance | MoveCause::Load)
    }

    /// Returns the cause's name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            MoveCause::DeadOwner => "dead_owner",
            MoveCause::FirstPlacement => "first_placement",
            MoveCause::DrainingOwner => "draining_owner",
            MoveCause::Operator => "operator",
            MoveCause::Wanted => "wanted",
            MoveCause::Balance => "balance",
            MoveCause::Load => LOAD,
        }
    }
}

/// Returns whether there are so many routers that moves go in step: several begin together, so that their writes share requests.
pub fn moves_go_in_step(view: &View) -> bool {
    view.routers.len() > FEW_ROUTERS
}

/// Free places of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Places {
    free: usize,
    /// How many of them planned moves may take.
    planned: usize,
}

impl Places {
    /// Returns the share of each of `sharers` processes if moves in flight have taken some of `limit` places.
    fn left(limit: usize, taken: usize, taken_by_planned: usize, sharers: usize) -> Self {
        Places {
            free: limit.saturating_sub(taken).div_ceil(sharers),
            planned: most_planned(limit).saturating_sub(taken_by_planned).div_ceil(sharers),
        }
    }

    /// Returns no places of a kind of which less than half are free.
    fn in_step(self, limit: usize, sharers: usize) -> Self {
        let from_half = |free: usize, limit: usize| if 2 * free * sharers >= limit { free } else { 0 };
        Places { free: from_half(self.free, limit), planned: from_half(self.planned, most_planned(limit)) }
    }

    fn are_spent(self, cause: MoveCause) -> bool {
        self.free == 0 || (!cause.is_urgent() && self.planned == 0)
    }

    fn take(&mut self, cause: MoveCause) {
        self.free -= 1;
        self.planned -= usize::from(!cause.is_urgent());
    }
}

/// The free places of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MoveBudget<'a> {
    /// Number of processes that take places at the same time.
    sharers: usize,
    /// Places that no handoff has taken.
    all_free: usize,
    /// This process's share of them.
    places: Places,
    /// Its share of the moves that may be about to cut over.
    cutovers: Places,
    /// Some of those that are have begun to warm less than a moment ago.
    has_new: bool,
    /// Warming handoffs to each incarnation of a pod.
    warming: BTreeMap<(&'a str, Incarnation), WarmingCount>,
    /// Most partitions that a pod warms at a time before a planned move waits, and before an urgent one does.
    most_warming: usize,
    most_urgent: usize,
}

/// Warming handoffs to one incarnation of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct WarmingCount {
    in_flight: usize,
    /// Moves that this process begins now.
    begun: usize,
}

/// The limit that a move has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The limit on all moves, on all planned ones, or on those that are about to cut over.
    InAll,
    /// The limit on warming moves to the new owner.
    NewOwner,
}

impl<'a> MoveBudget<'a> {
    /// Returns the places that the handoffs in flight leave to each of `sharers` processes. `takers` is the number of
    /// pods that accept partitions. `age` tells how long a handoff has been in its phase.
    pub(super) fn left(
        view: &'a View,
        policy: &Policy,
        age: impl Fn(PartitionId) -> Duration,
        takers: usize,
        sharers: usize,
    ) -> Self {
        let warms = |handoff: &Versioned<Handoff>| handoff.value.phase == Phase::Warming;
        let is_new = |handoff: &Versioned<Handoff>| age(handoff.value.partition) < MOMENT;
        let about_to_cut_over =
            |handoff: &&Versioned<Handoff>| handoff.value.old_owner.is_some() && (!warms(handoff) || is_new(handoff));
        let cutovers = view.handoffs.values().filter(about_to_cut_over);
        let has_new = cutovers.clone().any(warms);
        let planned = |handoff: &&Versioned<Handoff>| is_planned(view, handoff);
        let limit = policy.max_concurrent_handoffs;
        let all_free = limit.saturating_sub(view.handoffs.len());
        let mut warming: BTreeMap<_, WarmingCount> = BTreeMap::new();
        for handoff in view.handoffs.values().map(|handoff| &handoff.value) {
            if handoff.phase == Phase::Warming {
                warming.entry((handoff.new_owner.as_str(), handoff.new_incarnation)).or_default().in_flight += 1;
            }
        }
        let places = Places::left(limit, view.handoffs.len(), view.handoffs.values().filter(planned).count(), sharers);
        // A preview has no limits.
        let in_step = moves_go_in_step(view) && limit != usize::MAX;
        let most = if in_step { (MOST_CUTOVERS / view.routers.len()).max(LEAST_CUTOVERS).min(limit) } else { limit };
        let left = Places::left(most, cutovers.clone().count(), cutovers.filter(planned).count(), sharers);
        let cutovers = if in_step { left.in_step(most, sharers) } else { left };
        let most_warming = policy.max_warming_per_pod;
        let most_urgent = most_warming.max(limit.div_ceil(takers.max(1)));
        MoveBudget { sharers, all_free, places, cutovers, has_new, warming, most_warming, most_urgent }
    }

    /// Returns whether this incarnation of a pod may warm one more urgent partition.
    pub(super) fn has_room(&self, pod: &'a str, life: Incarnation) -> bool {
        self.may_warm(self.most_urgent, self.warming.get(&(pod, life)).copied().unwrap_or_default())
    }

    fn may_warm(&self, most: usize, warming: WarmingCount) -> bool {
        warming.begun < most.saturating_sub(warming.in_flight).div_ceil(self.sharers)
    }

    /// Returns the number of places that nobody has taken, as far as this process knows.
    pub(super) fn all_free(&self) -> usize {
        self.all_free
    }

    /// Returns whether no move of this cause can begin, wherever it leads.
    pub(super) fn is_spent(&self, cause: MoveCause) -> bool {
        self.places.are_spent(cause) || (cuts_over(cause) && self.cutovers.are_spent(cause))
    }

    /// Takes a place for a move to this incarnation of a pod.
    pub(super) fn take(&mut self, cause: MoveCause, to: &'a str, life: Incarnation) -> Result<(), Full> {
        if self.is_spent(cause) {
            return Err(Full::InAll);
        }
        let most_warming = if cause.is_urgent() { self.most_urgent } else { self.most_warming };
        let warming = self.warming.get(&(to, life)).copied().unwrap_or_default();
        if !self.may_warm(most_warming, warming) {
            return Err(Full::NewOwner);
        }
        self.warming.insert((to, life), WarmingCount { begun: warming.begun + 1, ..warming });
        self.all_free -= 1;
        self.places.take(cause);
        if cuts_over(cause) {
            self.cutovers.take(cause);
            self.has_new = true;
        }
        Ok(())
    }

    /// Returns when moves that wait may find places although no handoff has ended: some may turn out to warm for longer.
    pub(super) fn free_again_at(&self, now: Duration) -> Option<Duration> {
        let waits = |cause| self.cutovers.are_spent(cause) && !self.places.are_spent(cause);
        let any_waits = waits(MoveCause::DeadOwner) || waits(MoveCause::Balance);
        (any_waits && self.has_new).then_some(now + MOMENT)
    }
}

/// Returns how many of `limit` places planned moves may take.
fn most_planned(limit: usize) -> usize {
    (limit / 2).max(1)
}

/// Returns whether routers drain and switch in such a move.
fn cuts_over(cause: MoveCause) -> bool {
    cause != MoveCause::FirstPlacement
}

/// Returns the planned moves that the holder of `authority` cancels in favour of `needed` urgent ones: those of its own
/// that are still warming, the youngest first.
pub(super) fn make_room<'a>(
    view: &'a View,
    authority: &Authority,
    needed: usize,
) -> impl Iterator<Item = &'a Versioned<Handoff>> + use<'a> {
    let own = |handoff: &Versioned<Handoff>| authority.acts_for(Some(handoff.value.partition));
    let warms = |handoff: &&Versioned<Handoff>| {
        handoff.value.phase == Phase::Warming && is_planned(view, handoff) && own(handoff)
    };
    let mut warming: Vec<_> = view.handoffs.values().filter(warms).collect();
    warming.sort_unstable_by_key(|handoff| std::cmp::Reverse(handoff.create_revision));
    warming.into_iter().take(needed)
}

/// Returns whether a live pod serves the partition meanwhile.
pub(super) fn is_planned(view: &View, handoff: &Versioned<Handoff>) -> bool {
    let record = &handoff.value;
    record.old_owner.as_deref().is_some_and(|old| !is_dead(view, old, record.old_incarnation))
}
