//! Applies operators' intentions to placement: pins override the strategy, and a pause stops planned moves.
//!
//! A pin applies while its pod accepts partitions. While that pod is gone, drains or is shunned, the strategy decides,
//! so that a pin never leaves a partition without an owner. For the strategy, a pinned partition is already on its pod
//! and never moves; it balances the other partitions around it.
//!
//! A pin that ends with its pod's present life is an order to move now, from an operator who knows that pod. It applies to
//! a shunned pod too, while the present owner serves: it cannot feed a crash loop, because it ends with that life.

use super::Strategy;
use super::budget::MoveCause;
use super::external::Stay;
use super::placement::{Eligibility, Layout, Mobility, PartitionSlot, Placement as _};
use crate::ids::PartitionId;
use crate::records::Pin;
use crate::view::{Versioned, View};

/// Returns the place that the strategy and the pins give each partition.
pub(super) fn place(view: &View, strategy: Strategy, layout: &Layout<'_>) -> Vec<Option<usize>> {
    let pinned = pinned(view, layout);
    if pinned.is_empty() {
        return by_strategy(strategy, layout);
    }
    let mut as_pinned = layout.clone();
    for &(index, to) in &pinned {
        let slot = &mut as_pinned.slots[index];
        (slot.owner, slot.mobility) = (Some(to), Mobility::Fixed);
    }
    let mut places = by_strategy(strategy, &as_pinned);
    for (index, to) in pinned {
        places[index] = Some(to);
    }
    places
}

fn by_strategy(strategy: Strategy, layout: &Layout<'_>) -> Vec<Option<usize>> {
    let mut places = strategy.placement().place(layout);
    if matches!(strategy, Strategy::Custom(_)) {
        places.resize(layout.slots.len(), None);
        let allowed =
            |(slot, place): (&PartitionSlot, &Option<usize>)| place.is_some_and(|at| layout.may_be_on(slot, at));
        if !layout.slots.iter().zip(&places).all(allowed) {
            let stays = Stay.place(layout);
            for (place, (slot, stays)) in places.iter_mut().zip(layout.slots.iter().zip(stays)) {
                *place = place.filter(|at| layout.may_be_on(slot, *at)).or(stays);
            }
        }
    }
    places
}

/// Returns the pinned partitions whose pod accepts partitions or has them already, each with its pod.
fn pinned(view: &View, layout: &Layout<'_>) -> Vec<(usize, usize)> {
    let place = |(partition, pin): (&PartitionId, &Option<Versioned<Pin>>)| {
        let slot = layout.slots.get(partition.index())?;
        let to = match pin {
            Some(pin) if view.is_pinned_to(*partition, &pin.value.to) => {
                layout.members.binary_search_by(|member| member.name.cmp(&pin.value.to)).ok()?
            }
            Some(_) => return None,
            // The pin cannot be read: the partition stays where it is.
            None => slot.owner?,
        };
        let may_be_there = match layout.members[to].eligibility {
            Eligibility::Open => true,
            Eligibility::Shunned => {
                slot.owner == Some(to)
                    || (slot.owner.is_some() && is_ordered(view, *partition, layout.members[to].name))
            }
            Eligibility::Leaving => false,
        };
        may_be_there.then_some((partition.index(), to))
    };
    view.intentions.pins.iter().filter_map(place).collect()
}

/// Returns whether an operator has ordered the partition to the present life of this pod, whose registration has a lease.
pub(super) fn is_ordered(view: &View, partition: PartitionId, to: &str) -> bool {
    let is_order = view.intentions.pin(partition).is_some_and(|pin| pin.value.ends_with_the_pod());
    let has_lease = || view.pods.get(to).is_some_and(|pod| pod.lease.is_some());
    is_order && view.is_pinned_to(partition, to) && has_lease()
}

/// Returns the reason for the move of a pinned partition.
pub(super) fn reason(view: &View, partition: PartitionId) -> String {
    let Some(pin) = view.intentions.pin(partition).map(|pin| &pin.value) else {
        return "an operator wants it".to_owned();
    };
    let does = if pin.ends_with_the_pod() { "moves" } else { "pins" };
    let origin = &pin.origin;
    match origin.why.as_str() {
        "" => format!("operator {} {does} it to {}", origin.who, pin.to),
        why => format!("operator {} {does} it to {}: {why}", origin.who, pin.to),
    }
}

/// Returns whether a pause holds this move back. A pause never holds back partitions without a living owner, nor those
/// of a pod that shuts down, because they would soon have none.
pub(super) fn is_paused(view: &View, partition: PartitionId, cause: MoveCause) -> bool {
    let shuts_down = || {
        let assignment = view.assignments.get(&partition);
        assignment.is_some_and(|assignment| view.leaves_by_itself(&assignment.value.owner))
    };
    view.intentions.pause.is_some() && !cause.is_urgent() && !(cause == MoveCause::DrainingOwner && shuts_down())
}
