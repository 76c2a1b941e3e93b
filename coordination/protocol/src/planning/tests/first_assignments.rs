//! First placements without handoffs: of a new keyspace, on pods that have nothing to warm.

use super::world::{World, policy, secs};
use crate::ids::PartitionId;
use crate::planning::PlannedWrite;
use crate::records::{PodRecord, encode};

fn join_light(world: &mut World, name: &str) {
    world.join_pod(name);
    let record = PodRecord { nothing_to_warm: true, ..world.view().pods[name].value.clone() };
    world.store.put_leased(world.keys.pod(name), encode(&record));
}

/// Returns how many partitions are assigned at once, and how many moves begin.
fn counts(plans: &[crate::planning::Plan]) -> (usize, usize) {
    let actions = || plans.iter().flat_map(|plan| &plan.actions);
    (
        actions().filter(|action| matches!(action, PlannedWrite::Assign { .. })).count(),
        actions().filter(|action| matches!(action, PlannedWrite::Create { .. })).count(),
    )
}

#[test]
fn a_new_keyspace_is_assigned_at_once_to_pods_that_have_nothing_to_warm() {
    let mut world = World::new(policy(200));
    world.join_router("r-0");
    ["w-0", "w-1"].iter().for_each(|name| join_light(&mut world, name));
    let plans = world.wait(secs(3));
    assert_eq!(counts(&plans), (200, 0), "whatever may move at a time");
    let view = world.view();
    assert!(view.handoffs.is_empty() && view.assignments.len() == 200);
    assert_eq!(world.balance().into_values().collect::<Vec<_>>(), [100, 100]);
}

#[test]
fn a_pod_that_has_something_to_warm_gets_its_first_partitions_by_handoffs() {
    let mut world = World::new(policy(8));
    world.join_router("r-0");
    join_light(&mut world, "w-0");
    world.join_pod("w-1");
    let (assigned, begun) = counts(&world.wait(secs(3)));
    assert_eq!(assigned, 4);
    assert!(begun > 0 && world.view().handoffs.values().all(|handoff| handoff.value.new_owner == "w-1"));
}

#[test]
fn a_keyspace_with_an_assignment_or_a_record_that_cannot_be_read_is_not_new() {
    for unreadable in [false, true] {
        let mut world = World::new(policy(4));
        world.join_router("r-0");
        join_light(&mut world, "w-0");
        world.run_until_quiet();
        let last = world.keys.assignment(PartitionId::new(3));
        for number in 0..3 {
            world.store.delete(world.keys.assignment(PartitionId::new(number)));
        }
        if unreadable {
            world.store.put(last, b"{".to_vec());
        }
        let (assigned, begun) = counts(&world.wait(secs(90)));
        assert!(assigned == 0 && begun > 0, "{assigned}, {begun}");
    }
}

#[test]
fn an_assignment_at_once_fails_when_anything_else_has_happened_to_the_partition_or_its_owner() {
    let mut world = World::new(policy(1));
    world.join_router("r-0");
    join_light(&mut world, "w-0");
    let action = std::iter::repeat_with(|| {
        let plan = world.plan();
        for action in plan.actions.iter().filter(|action| !matches!(action, PlannedWrite::Assign { .. })) {
            world.carry_out(action);
        }
        world.say_mapping();
        world.now = world.wake.unwrap_or(world.now);
        plan.actions.into_iter().find(|action| matches!(action, PlannedWrite::Assign { .. }))
    });
    let action = action.take(10).flatten().next().unwrap();
    let mut restarted = world.clone();
    restarted.kill_pod("w-0");
    join_light(&mut restarted, "w-0");
    assert!(!restarted.carry_out(&action), "another life");
    let mut deposed = world.clone();
    deposed.elect();
    let (authority, view) = (world.authority(), deposed.view());
    assert!(crate::planning::txn(&view, &action, &authority, 0).is_none());
    assert!(world.carry_out(&action));
    assert!(!world.carry_out(&action), "it has an owner");
}
