//! The strategies against brute force on small layouts and against the cheapest flow on larger ones, and their invariants
//! on random layouts.

use proptest::prelude::*;

use crate::ids::{Incarnation, Revision};
use crate::planning::Strategy as Name;
use crate::planning::placement::{Eligibility, Layout, Member, Mobility, PartitionSlot};
use crate::records::Thousandths;

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const ZONES: [Option<&str>; 3] = [None, Some("x"), Some("y")];

pub(super) fn layouts(members: usize, slots: usize, weights: &'static [u32]) -> impl Strategy<Value = Layout<'static>> {
    let eligibility = prop_oneof![4 => Just(Eligibility::Open), 1 => Just(Eligibility::Leaving)];
    layouts_with(members, slots, weights, eligibility)
}

fn layouts_with(
    members: usize,
    slots: usize,
    weights: &'static [u32],
    eligibility: impl Strategy<Value = Eligibility> + Clone,
) -> impl Strategy<Value = Layout<'static>> {
    let member = (prop::sample::select(weights), prop::sample::select(&ZONES[..]), any::<bool>(), eligibility);
    let members = prop::collection::vec(member, 0..=members);
    let mobility = prop_oneof![3 => Just(Mobility::Free), 1 => Just(Mobility::Reluctant), 1 => Just(Mobility::Pinned)];
    let index = || prop::option::of(any::<prop::sample::Index>());
    let slot = (index(), index(), index(), mobility);
    (members, prop::collection::vec(slot, 0..=slots)).prop_map(|(members, slots)| {
        let count = members.len();
        let pick = |index: Option<prop::sample::Index>| index.filter(|_| count > 0).map(|index| index.index(count));
        let slot = |(owner, home, wanted, mobility)| {
            let owner = pick(owner);
            let home = pick(home).filter(|_| owner.is_none());
            PartitionSlot { owner, home, wanted: pick(wanted), mobility }
        };
        let member = |(index, (weight, zone, newest, eligibility)): (usize, (u32, _, _, _))| Member {
            name: NAMES[index],
            incarnation: Incarnation::registered_at(Revision::new(1 + index as u64)),
            weight: Thousandths(weight),
            zone,
            newest,
            eligibility,
        };
        Layout {
            keyspace: "default",
            members: members.into_iter().enumerate().map(member).collect(),
            slots: slots.into_iter().map(slot).collect(),
        }
    })
}

pub(super) fn loads(layout: &Layout<'_>, places: &[Option<usize>]) -> Vec<u32> {
    let mut loads = vec![0; layout.members.len()];
    places.iter().flatten().for_each(|member| loads[*member] += 1);
    loads
}

pub(super) fn moves(layout: &Layout<'_>, places: &[Option<usize>]) -> usize {
    layout.slots.iter().zip(places).filter(|(slot, place)| slot.owner != **place).count()
}

/// Returns whether every partition is with a member that accepts some, and each of those has its share rounded down or
/// up.
pub(super) fn is_balanced(layout: &Layout<'_>, places: &[Option<usize>]) -> bool {
    let takes = |member: &Member<'_>| member.eligibility != Eligibility::Leaving;
    let equal = layout.members.iter().filter(|member| takes(member)).all(|member| member.weight.0 == 0);
    let weight = |member: &Member<'_>| if equal { 1 } else { u64::from(member.weight.0) };
    let sum: u64 = layout.members.iter().filter(|member| takes(member)).map(weight).sum();
    let total = layout.slots.len() as u64;
    let fair = |(member, load): (&Member<'_>, u32)| {
        if !takes(member) {
            return load == 0;
        }
        let share = total * weight(member);
        (share / sum..=share.div_ceil(sum)).contains(&u64::from(load))
    };
    let complete = sum == 0 || places.iter().all(Option::is_some);
    complete && layout.members.iter().zip(loads(layout, places)).all(fair)
}

/// Returns the fewest moves of any balanced placement, found by trying them all.
fn fewest_moves(layout: &Layout<'_>) -> usize {
    let (members, slots) = (layout.members.len(), layout.slots.len());
    let placement = |number: usize| -> Vec<Option<usize>> {
        let digit = |slot: usize| number / members.pow(slot as u32) % members;
        (0..slots).map(|slot| Some(digit(slot))).collect()
    };
    let all = (0..members.pow(slots as u32)).map(placement);
    let balanced = all.filter(|places| is_balanced(layout, places));
    balanced.map(|places| moves(layout, &places)).min().expect("a balanced placement exists")
}

/// Returns the fewest moves of any balanced placement, as the minimum cost of a flow: from each owner's partitions to
/// members, at a cost of one unless they stay, within each member's share rounded down and up. Successive shortest paths
/// are exact, so this is right for any size.
fn fewest_moves_by_flow(layout: &Layout<'_>) -> usize {
    let members = layout.members.len();
    let takes = |member: usize| layout.members[member].eligibility != Eligibility::Leaving;
    let equal = (0..members).filter(|member| takes(*member)).all(|member| layout.members[member].weight.0 == 0);
    let weight = |member: usize| match takes(member) {
        false => 0,
        true if equal => 1,
        true => u64::from(layout.members[member].weight.0),
    };
    let sum: u64 = (0..members).map(weight).sum();
    // Partitions of one owner are alike. The last group has no owner.
    let mut groups = vec![0i64; members + 1];
    layout.slots.iter().for_each(|slot| groups[slot.owner.unwrap_or(members)] += 1);
    // Nodes: 0 the source, then the groups, the members, and the sink.
    let (first_member, sink) = (members + 2, 2 * members + 2);
    let mut flow = Flow { edges: Vec::new(), nodes: sink + 1 };
    // More than all moves together, so that every member gets its share rounded down first.
    let prize = layout.slots.len() as i64 + 1;
    for (group, size) in groups.into_iter().enumerate() {
        flow.edge(0, 1 + group, size, 0);
        for member in (0..members).filter(|member| takes(*member)) {
            flow.edge(1 + group, first_member + member, size, i64::from(group != member));
        }
    }
    let mut prizes = 0;
    for member in 0..members {
        let share = layout.slots.len() as u64 * weight(member);
        let (least, most) = ((share / sum) as i64, share.div_ceil(sum) as i64);
        flow.edge(first_member + member, sink, least, -prize);
        flow.edge(first_member + member, sink, most - least, 0);
        prizes += prize * least;
    }
    let (sent, cost) = flow.cheapest(0, sink);
    assert_eq!(sent, layout.slots.len() as i64, "every partition has a place");
    usize::try_from(cost + prizes).expect("a number of moves")
}

/// A network with costs. Each edge is followed by its reverse.
struct Flow {
    edges: Vec<Edge>,
    nodes: usize,
}

struct Edge {
    from: usize,
    to: usize,
    room: i64,
    cost: i64,
}

impl Flow {
    fn edge(&mut self, from: usize, to: usize, room: i64, cost: i64) {
        self.edges.push(Edge { from, to, room, cost });
        self.edges.push(Edge { from: to, to: from, room: 0, cost: -cost });
    }

    /// Sends as much as possible as cheaply as possible. Returns how much, and its cost.
    fn cheapest(&mut self, source: usize, sink: usize) -> (i64, i64) {
        let (mut sent, mut paid) = (0, 0);
        loop {
            let mut best: Vec<Option<(i64, usize)>> = vec![None; self.nodes];
            best[source] = Some((0, usize::MAX));
            let mut improved = true;
            while improved {
                improved = false;
                for (index, edge) in self.edges.iter().enumerate().filter(|(_, edge)| edge.room > 0) {
                    let Some((cost, _)) = best[edge.from] else { continue };
                    if best[edge.to].is_none_or(|(known, _)| cost + edge.cost < known) {
                        best[edge.to] = Some((cost + edge.cost, index));
                        improved = true;
                    }
                }
            }
            let Some((cost, _)) = best[sink] else { return (sent, paid) };
            let mut path = Vec::new();
            let mut node = sink;
            while node != source {
                let (_, edge) = best[node].expect("on the path");
                path.push(edge);
                node = self.edges[edge].from;
            }
            let amount = path.iter().map(|edge| self.edges[*edge].room).min().expect("an edge");
            for edge in path {
                self.edges[edge].room -= amount;
                self.edges[edge ^ 1].room += amount;
            }
            sent += amount;
            paid += amount * cost;
        }
    }
}

pub(super) fn has_takers(layout: &Layout<'_>) -> bool {
    layout.members.iter().any(|member| member.eligibility != Eligibility::Leaving)
}

/// Returns the layout once every partition is in its place.
fn placed<'a>(layout: &Layout<'a>, places: &[Option<usize>]) -> Layout<'a> {
    let slots = layout.slots.iter().zip(places);
    let slots = slots.map(|(slot, place)| PartitionSlot { owner: *place, home: None, ..*slot });
    Layout { keyspace: layout.keyspace, members: layout.members.clone(), slots: slots.collect() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn sticky_is_balanced_and_no_balanced_placement_moves_fewer(layout in layouts(4, 6, &[0, 500, 1000, 3000])) {
        if !has_takers(&layout) {
            return Ok(());
        }
        let places = Name::Sticky.placement().place(&layout);
        prop_assert!(is_balanced(&layout, &places), "{places:?}");
        prop_assert_eq!(moves(&layout, &places), fewest_moves(&layout), "{:?}", places);
    }

    #[test]
    fn sticky_is_balanced_for_any_weights(layout in layouts(8, 60, &[0, 1, 333, 1000, 1700, u32::MAX])) {
        if !has_takers(&layout) {
            return Ok(());
        }
        let places = Name::Sticky.placement().place(&layout);
        prop_assert!(is_balanced(&layout, &places), "{places:?}");
    }

    #[test]
    fn a_pinned_partition_moves_only_if_all_of_its_pods_have_to(layout in layouts(5, 30, &[1000, 2000])) {
        if !has_takers(&layout) {
            return Ok(());
        }
        let places = Name::Sticky.placement().place(&layout);
        for (slot, place) in layout.slots.iter().zip(&places) {
            let Some(owner) = slot.owner.filter(|owner| *place != Some(*owner)) else { continue };
            let stays_freer = |(other, place): (&PartitionSlot, &Option<usize>)| {
                other.owner == Some(owner) && *place == Some(owner) && other.mobility > slot.mobility
            };
            prop_assert!(!layout.slots.iter().zip(&places).any(stays_freer));
        }
    }

    #[test]
    fn placing_again_what_was_placed_moves_nothing(
        layout in layouts_with(6, 40, &[0, 1000, 1500], prop_oneof![
            4 => Just(Eligibility::Open), 1 => Just(Eligibility::Leaving), 1 => Just(Eligibility::Shunned),
        ]),
        (_, strategy) in prop::sample::select(Name::NAMES),
    ) {
        let places = strategy.placement().place(&layout);
        let again = strategy.placement().place(&placed(&layout, &places));
        prop_assert_eq!(again, places);
    }

    #[test]
    fn pods_that_leave_get_nothing_and_shunned_ones_no_more(
        layout in layouts_with(6, 40, &[0, 1000, 1500], prop_oneof![
            3 => Just(Eligibility::Open), 1 => Just(Eligibility::Leaving), 1 => Just(Eligibility::Shunned),
        ]),
        (_, strategy) in prop::sample::select(Name::NAMES),
    ) {
        let places = strategy.placement().place(&layout);
        prop_assert_eq!(places.iter().all(Option::is_some), has_takers(&layout) || layout.slots.is_empty());
        for (slot, place) in layout.slots.iter().zip(&places) {
            let eligibility = place.map(|member| layout.members[member].eligibility);
            prop_assert_ne!(eligibility, Some(Eligibility::Leaving));
            if eligibility == Some(Eligibility::Shunned) && *place != slot.owner {
                prop_assert!(layout.has_no_other_choice());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_flow_finds_what_brute_force_finds(layout in layouts(3, 5, &[0, 500, 1000, 3000])) {
        if has_takers(&layout) {
            prop_assert_eq!(fewest_moves_by_flow(&layout), fewest_moves(&layout));
        }
    }

    #[test]
    fn sticky_moves_no_more_than_the_cheapest_flow(
        layout in layouts(8, 300, &[0, 1, 333, 1000, 1700, u32::MAX]),
    ) {
        if has_takers(&layout) {
            let places = Name::Sticky.placement().place(&layout);
            prop_assert!(is_balanced(&layout, &places), "{places:?}");
            prop_assert_eq!(moves(&layout, &places), fewest_moves_by_flow(&layout));
        }
    }
}

/// Returns the layout with this eligibility of the member at `index`.
fn with_eligibility<'a>(layout: &Layout<'a>, index: usize, eligibility: Eligibility) -> Layout<'a> {
    let mut changed = layout.clone();
    changed.members[index].eligibility = eligibility;
    changed
}

/// Returns the layout after all moves have been made.
fn settled<'a>(layout: &Layout<'a>) -> Layout<'a> {
    placed(layout, &Name::Sticky.placement().place(layout))
}

proptest! {
    #[test]
    fn a_pod_that_joins_only_gets_and_one_that_leaves_only_gives(
        // A single weight: with several, the largest remainders may pass an odd partition between two other members
        // (the paradox of every such apportionment).
        layout in layouts_with(6, 40, &[1000], Just(Eligibility::Open)),
        who: prop::sample::Index,
    ) {
        prop_assume!(layout.members.len() > 1);
        let who = who.index(layout.members.len());
        let without = settled(&with_eligibility(&layout, who, Eligibility::Leaving));
        // Shares depend on the total, so another pod may be due one partition more or less. Each such move is to or
        // from the pod that came or went.
        let with = with_eligibility(&without, who, Eligibility::Open);
        for (slot, place) in with.slots.iter().zip(Name::Sticky.placement().place(&with)) {
            prop_assert!(place == slot.owner || place == Some(who), "{:?} went to {place:?}", slot.owner);
        }
        let there = settled(&with);
        let leaving = with_eligibility(&there, who, Eligibility::Leaving);
        for (slot, place) in leaving.slots.iter().zip(Name::Sticky.placement().place(&leaving)) {
            prop_assert!(place == slot.owner || slot.owner == Some(who), "{:?} went to {place:?}", slot.owner);
            prop_assert_ne!(place, Some(who));
        }
    }

    #[test]
    fn names_decide_nothing_but_ties(layout in layouts(5, 30, &[500, 1000, 1700])) {
        // The same pods in the opposite order: loads are the same except for the odd partitions.
        if !has_takers(&layout) {
            return Ok(());
        }
        let last = layout.members.len().saturating_sub(1);
        let turned = |member: Option<usize>| member.map(|member| last - member);
        let mut mirrored = layout.clone();
        mirrored.members.reverse();
        for slot in &mut mirrored.slots {
            (slot.owner, slot.home) = (turned(slot.owner), turned(slot.home));
        }
        let (places, mirror) = (Name::Sticky.placement().place(&layout), Name::Sticky.placement().place(&mirrored));
        prop_assert_eq!(moves(&layout, &places), moves(&mirrored, &mirror));
        let mut other = loads(&mirrored, &mirror);
        other.reverse();
        for (one, other) in loads(&layout, &places).into_iter().zip(other) {
            prop_assert!(one.abs_diff(other) <= 1);
        }
    }
}

/// Returns a layout of members that differ only in their name, and of slots that have no owner.
pub(super) fn even(members: usize, slots: usize) -> Layout<'static> {
    let member = |index: usize| Member {
        name: NAMES[index],
        incarnation: Incarnation::registered_at(Revision::new(1)),
        weight: Thousandths(1000),
        zone: None,
        newest: true,
        eligibility: Eligibility::Open,
    };
    let slot = PartitionSlot { owner: None, home: None, wanted: None, mobility: Mobility::Free };
    Layout { keyspace: "default", members: (0..members).map(member).collect(), slots: vec![slot; slots] }
}

/// Each has a partition more than its pods can share evenly.
#[test]
fn the_odd_partitions_of_many_small_keyspaces_are_spread_over_all_pods() {
    let names: Vec<String> = (0..300).map(|number| format!("topic-{number}")).collect();
    let mut total = [0u32; 3];
    for name in &names {
        let layout = Layout { keyspace: name, ..even(3, 4) };
        let loads = loads(&layout, &Name::Sticky.placement().place(&layout));
        total.iter_mut().zip(loads).for_each(|(total, load)| *total += load);
    }
    assert!(total.iter().all(|load| (375..=425).contains(load)), "{total:?}");
}

#[test]
fn the_name_of_a_keyspace_moves_no_partition_that_is_placed() {
    for odd in 0..3 {
        for keyspace in ["a", "b", "c", "d", "e", "f"] {
            let mut layout = Layout { keyspace, ..even(3, 4) };
            let owners = [0, 1, 2, odd];
            layout.slots.iter_mut().zip(owners).for_each(|(slot, owner)| slot.owner = Some(owner));
            assert_eq!(moves(&layout, &Name::Sticky.placement().place(&layout)), 0, "{keyspace}, {odd}");
        }
    }
}

#[test]
fn odd_partitions_are_spread_over_zones() {
    let mut layout = even(6, 8);
    for (member, zone) in layout.members.iter_mut().zip(["x", "x", "x", "y", "y", "y"]) {
        member.zone = Some(zone);
    }
    let loads = loads(&layout, &Name::Sticky.placement().place(&layout));
    assert_eq!((loads[..3].iter().sum::<u32>(), loads[3..].iter().sum::<u32>()), (4, 4), "{loads:?}");
}

#[test]
fn a_restarted_pod_gets_its_own_partitions_back() {
    let mut layout = even(3, 9);
    for (partition, slot) in layout.slots.iter_mut().enumerate() {
        let member = partition / 3;
        (slot.owner, slot.home) = if member == 2 { (Some(member), None) } else { (None, Some(member)) };
    }
    let places = Name::Sticky.placement().place(&layout);
    assert!(places.iter().enumerate().all(|(partition, place)| *place == Some(partition / 3)));
}

#[test]
fn jump_spreads_partitions_evenly_enough() {
    let layout = even(8, 1024);
    let loads = loads(&layout, &Name::Jump.placement().place(&layout));
    assert!(loads.iter().all(|load| (90..=170).contains(load)), "{loads:?}");
}

#[test]
fn an_odd_partition_goes_to_the_largest_remainder() {
    let mut layout = even(2, 1);
    layout.members[1].weight = Thousandths(1700);
    assert_eq!(Name::Sticky.placement().place(&layout), [Some(1)]);
}

#[test]
fn under_jump_a_partition_whose_pod_is_shunned_stays_where_it_is() {
    let mut layout = even(5, 64);
    for (partition, slot) in layout.slots.iter_mut().enumerate() {
        slot.owner = Some(1 + partition % 4);
    }
    let meant = Name::Jump.placement().place(&layout);
    layout.members[0].eligibility = Eligibility::Shunned;
    let places = Name::Jump.placement().place(&layout);
    for (slot, (meant, place)) in layout.slots.iter().zip(meant.iter().zip(places)) {
        assert_eq!(place, if *meant == Some(0) { slot.owner } else { *meant });
    }
}

#[test]
fn a_partition_that_has_to_move_goes_to_a_pod_of_the_newest_version() {
    let mut layout = even(4, 9);
    layout.members[1].newest = false;
    layout.members[3].newest = false;
    layout.members[0].eligibility = Eligibility::Leaving;
    // The second pod has two too many, and the last two have room for three together.
    for (slot, owner) in layout.slots.iter_mut().zip([1, 1, 1, 1, 1, 0, 2, 3, 3]) {
        slot.owner = Some(owner);
    }
    let places = Name::Sticky.placement().place(&layout);
    assert_eq!(places[5], Some(2), "{places:?}");
    assert_eq!(moves(&layout, &places), 3);
}
