//! Relieves an overloaded pod: it exchanges one of its partitions for a less loaded one of another pod.
//!
//! The last goal of the strategy [`sticky`](super::sticky), once partitions are balanced and nothing moves. An exchange
//! leaves the number of partitions of each pod as it is, so that balance never undoes it.
//!
//! # Invariants
//!
//! * Only a pod that was overloaded for several heartbeats gives up load, and only one exchange is made at a time. The
//!   heartbeats before it do not count for the next one.
//! * The other pod does not get more than [`RECEIVED_PERCENT`] of its share, well below an overload, so that load never
//!   goes back and forth.
//! * A partition that has just moved, is pinned or cannot move is not exchanged.
//! * One process decides about both partitions, so that both move or none does.

use super::heartbeats::{Heartbeats, LoadTotal};
use super::placement::{Eligibility, Layout, Mobility};
use crate::authority::Authority;
use crate::ids::PartitionId;
use crate::view::View;

/// Most load of the pod that receives some, as a percentage of its share.
const RECEIVED_PERCENT: u64 = 110;
/// Least load that an exchange moves, as a fraction of the share of the pod that gives it up.
const WORTH: u32 = 20;

/// Returns the two moves of an exchange: each partition with the member that gets it.
pub(super) fn exchange(
    view: &View,
    layout: &Layout<'_>,
    heartbeats: &Heartbeats,
    authority: &Authority,
) -> Option<[(PartitionId, usize); 2]> {
    let share = LoadTotal::of(view);
    let total = |member: usize| Some(view.load(layout.members[member].name)?.total.0);
    let due = |member: usize| share.due(layout.members[member].weight.0);
    let open = || (0..layout.members.len()).filter(|member| layout.members[*member].eligibility == Eligibility::Open);
    let overloaded = open().filter(|member| heartbeats.is_overloaded(layout.members[*member].name));
    let excess = |member: usize| Some(total(member)?.saturating_sub(due(member)));
    let from = overloaded.max_by_key(|member| excess(*member))?;
    let room = |member: usize| {
        let most = u64::from(due(member)) * RECEIVED_PERCENT / 100;
        Some(u32::try_from(most).unwrap_or(u32::MAX).saturating_sub(total(member)?))
    };
    let to = open().filter(|member| *member != from).max_by_key(|member| room(*member))?;
    let most = excess(from)?.min(room(to)?);
    let least = (due(from) / WORTH).max(1);
    let (hot, cool) = (movable(view, layout, from)?, movable(view, layout, to)?);
    let mut best: Option<(u32, PartitionId, PartitionId)> = None;
    for (load, partition) in hot {
        // The least loaded partition in exchange for which no more than `most` moves.
        let at = cool.partition_point(|(other, _)| *other < load.saturating_sub(most));
        let mut less = cool[at..].iter().take_while(|(other, _)| *other < load);
        let Some((other, in_exchange)) = less.find(|(_, cool)| authority.have_one_actor(partition, *cool)) else {
            continue;
        };
        let moved = load - other;
        if moved >= least && best.is_none_or(|(known, ..)| moved > known) {
            best = Some((moved, partition, *in_exchange));
        }
    }
    best.map(|(_, partition, in_exchange)| [(partition, to), (in_exchange, from)])
}

/// Returns the partitions of a member that may move and their load, the least loaded first.
fn movable(view: &View, layout: &Layout<'_>, member: usize) -> Option<Vec<(u32, PartitionId)>> {
    let load = view.load(layout.members[member].name)?;
    let is_movable = |partition: &PartitionId| {
        let slot = layout.slots.get(partition.index());
        let pinned = view.intentions.pins.contains_key(partition);
        !pinned && slot.is_some_and(|slot| slot.owner == Some(member) && slot.mobility == Mobility::Free)
    };
    let listed = load.partitions.iter().filter(|(partition, _)| is_movable(partition));
    let mut movable: Vec<_> = listed.map(|(partition, it)| (it.load.0, *partition)).collect();
    movable.sort_unstable();
    Some(movable)
}
