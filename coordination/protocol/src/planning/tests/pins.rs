//! Operators' pins in planning.

use super::operators::begun;
use super::world::{World, policy, secs};
use crate::ids::{Incarnation, PartitionId};
use crate::planning::placement::{Eligibility, Mobility};
use crate::planning::{MoveCause, Strategy};
use crate::records::*;

const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);

impl World {
    fn owned_by(&self, pod: &str) -> Vec<PartitionId> {
        let view = self.view();
        view.assignments.iter().filter(|(_, it)| it.value.owner == pod).map(|(partition, _)| *partition).collect()
    }
}

#[test]
fn a_moved_partition_stays_until_its_pod_goes() {
    let mut world = World::settled(policy(9), &["w-0", "w-1", "w-2"]);
    let owner = world.owner(P0);
    let to = world.other_than(&owner);
    world.asks_to_move("a", P0, &to, false);
    let plans = world.wait(secs(3));
    let answer = world.answer("a").unwrap();
    assert!(answer.accepted && answer.text.contains("stays there until the pod goes"), "{answer:?}");
    assert!(begun(&plans).contains(&(format!("operator ann moves it to {to}"), MoveCause::Operator)));
    world.run_until_quiet();
    assert_eq!(world.owner(P0), to);
    assert_eq!(world.balance().into_values().collect::<Vec<_>>(), [3, 3, 3], "the others make room");
    world.restart_pod(&to);
    world.run_until_quiet();
    assert!(world.view().intentions.pins.is_empty(), "the wish ended with that life");
}

#[test]
fn a_pin_outlives_its_pod_and_never_leaves_a_partition_without_an_owner() {
    let mut world = World::settled(policy(9), &["w-0", "w-1", "w-2"]);
    let owner = world.owner(P0);
    let to = world.other_than(&owner);
    world.asks_to_move("a", P0, &to, true);
    world.run_until_quiet();
    assert_eq!(world.owner(P0), to);
    world.kill_pod(&to);
    world.run_until_quiet();
    assert_ne!(world.owner(P0), to, "another pod takes over");
    world.join_pod(&to);
    world.run_until_quiet();
    assert_eq!(world.owner(P0), to, "and gives it back");
    world.operator_drains(&to);
    world.run_until_quiet();
    assert!(world.owned_by(&to).is_empty(), "a drain is above a pin");
}

#[test]
fn a_pin_keeps_a_partition_where_it_is_when_others_are_balanced() {
    let mut world = World::settled(policy(8), &["w-0"]);
    for partition in PartitionId::all(8) {
        world.ask(&format!("a-{partition}"), Request::Pin { partition, to: None });
    }
    world.wait(secs(3));
    assert!(world.answer("a-7").unwrap().accepted);
    world.join_pod("w-1");
    assert_eq!(world.run_until_quiet(), 0);
    for partition in PartitionId::all(8) {
        world.store.delete(world.keys.pin(partition));
    }
    world.run_until_quiet();
    assert_eq!(world.balance()["w-1"], 4);
}

#[test]
fn a_pin_of_a_moving_partition_is_refused_if_it_would_be_to_another_pod_than_the_operator_saw() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let from = world.owner(P0);
    let to = world.other_than(&from);
    world.asks_to_move("move", P0, &to, false);
    world.wait(secs(3));
    assert_eq!(world.handoff(P0).new_owner, to);
    world.ask("stale", Request::Pin { partition: P0, to: Some(from.clone()) });
    world.lead();
    let answer = world.answer("stale").unwrap();
    let text = format!("would be pinned to {to} and not to {from}");
    assert!(!answer.accepted && answer.text.contains(&text), "{answer:?}");
    assert!(world.view().intentions.pin(P0).unwrap().value.ends_with_the_pod(), "the pin of the move stands");
    world.ask("seen", Request::Pin { partition: P0, to: Some(to.clone()) });
    world.lead();
    assert!(world.answer("seen").unwrap().accepted);
    assert!(!world.view().intentions.pin(P0).unwrap().value.ends_with_the_pod());
}

#[test]
fn an_unreadable_pin_keeps_its_partition_where_it_is_but_not_without_an_owner() {
    let mut world = World::settled(policy(2), &["w-0"]);
    for partition in [P0, P1] {
        world.store.put(world.keys.pin(partition), b"[]".to_vec());
    }
    world.join_pod("w-1");
    assert_eq!(world.run_until_quiet(), 0);
    world.kill_pod("w-0");
    world.run_until_quiet();
    assert_eq!(world.balance()["w-1"], 2);
}

#[test]
fn pins_beyond_a_pods_share_leave_the_other_pods_even() {
    let mut world = World::settled(policy(24), &["w-0", "w-1", "w-2", "w-3"]);
    for partition in PartitionId::all(15) {
        world.pin(partition, "w-0", Incarnation::NONE);
    }
    world.run_until_quiet();
    assert_eq!(Vec::from_iter(world.balance().into_values()), [15, 3, 3, 3]);
    world.join_pod("w-4");
    world.run_until_quiet();
    assert_eq!(world.balance()["w-0"], 15);
    assert!(world.balance().into_values().filter(|count| *count < 15).all(|count| (2..=3).contains(&count)));
}

#[test]
fn pins_to_two_pods_and_a_shunned_pod_leave_the_rest_even() {
    let mut layout = super::placement::even(5, 40);
    // Twelve are pinned to the first pod and nine to the second; the third is shunned with one.
    for (partition, slot) in layout.slots.iter_mut().enumerate() {
        (slot.owner, slot.mobility) = match partition {
            0..12 => (Some(0), Mobility::Fixed),
            12..21 => (Some(1), Mobility::Fixed),
            21 => (Some(2), Mobility::Free),
            _ => (Some(4), Mobility::Free),
        };
    }
    layout.members[2].eligibility = Eligibility::Shunned;
    let mut counts = [0; 5];
    Strategy::Sticky.placement().place(&layout).into_iter().flatten().for_each(|member| counts[member] += 1);
    assert_eq!(counts, [12, 9, 1, 9, 9]);
}
