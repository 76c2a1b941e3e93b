//! How many partitions move at a time, and which first.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use super::rounds::{E1, all_begun, begun};
use super::world::{World, policy, secs};
use crate::ids::{Incarnation, PartitionId};
use crate::planning::budget::MoveBudget;
use crate::planning::placement::{Custom, Layout, Placement};
use crate::planning::sticky::Sticky;
use crate::planning::{CancelReason, MoveCause, PlannedWrite, Policy, Strategy};
use crate::records::{Assignment, Phase, PodStatus, RouterRecord, encode};

#[test]
fn the_rest_of_a_round_is_begun_as_handoffs_end() {
    let mut world = World::settled(policy(12), &["w-0"]);
    world.policy.max_concurrent_handoffs = 4;
    world.wait(secs(10));
    world.join_pod("w-1");
    let plans = world.wait(secs(1));
    assert_eq!((all_begun(&plans).len(), plans.last().unwrap().waiting), (2, 4));
    assert!(all_begun(&world.wait(secs(20))).is_empty());
    let first = *world.view().handoffs.keys().next().unwrap();
    while world.participate(first) {}
    let plan = world.lead();
    assert_eq!((plan.round, begun(&plan).len(), plan.waiting), (None, 1, 3));
}

/// Adds routers until there are so many.
fn join_routers(world: &mut World, routers: usize) {
    for number in world.view().routers.len()..routers {
        let name = format!("r-{number}");
        let key = world.keys.router(&name);
        world.store.put_leased(key, encode(&RouterRecord::new(&name)));
    }
}

/// Returns how many handoffs stand soon after this pod has come, and later. It warms nothing.
fn standing_after(world: &mut World, pod: &str) -> [usize; 2] {
    world.policy.max_warming_per_pod = 64;
    world.silent.insert(pod.to_owned());
    world.join_pod(pod);
    [secs(2), secs(40)].map(|span| {
        world.wait(span);
        world.view().handoffs.len()
    })
}

#[test]
fn the_more_routers_the_fewer_partitions_are_about_to_move_and_those_that_warm_for_long_do_not_count() {
    let settled = World::settled(policy(128), &["w-0"]);
    for (routers, at_once) in [(1, 32), (128, 32), (512, 16), (2_048, 4), (8_192, 2)] {
        let mut world = settled.clone();
        join_routers(&mut world, routers);
        assert_eq!(standing_after(&mut world, "w-1"), [at_once, 32], "{routers} routers");
    }
}

#[test]
fn with_many_routers_moves_begin_once_half_of_their_places_are_free() {
    for (routers, begun_after_each) in [(1, [1, 1, 1, 1]), (1_024, [0, 2, 0, 2])] {
        let mut world = World::settled(policy(32), &["w-0"]);
        join_routers(&mut world, routers);
        (world.policy.max_concurrent_handoffs, world.policy.max_warming_per_pod) = (8, 64);
        world.join_pod("w-1");
        assert_eq!(all_begun(&world.wait(secs(2))).len(), 4, "{routers} routers");
        while world.view().handoffs.values().any(|handoff| handoff.value.phase == Phase::Warming) {
            world.participate_all();
        }
        world.lead();
        let moving: Vec<PartitionId> = world.view().handoffs.keys().copied().collect();
        let after_each = moving.into_iter().map(|partition| {
            while world.participate(partition) {}
            begun(&world.lead()).len()
        });
        assert_eq!(after_each.collect::<Vec<_>>(), begun_after_each, "{routers} routers");
    }
}

#[test]
fn first_placements_take_all_places_however_many_routers_there_are() {
    let mut world = World::new(policy(128));
    world.join_router("r-0");
    join_routers(&mut world, 1_024);
    assert_eq!(standing_after(&mut world, "w-0"), [64, 64]);
}

#[test]
fn of_a_dead_owner_twice_as_many_partitions_are_about_to_move() {
    let mut world = World::settled(policy(128), &["w-0", "w-1"]);
    join_routers(&mut world, 2_048);
    world.policy.max_warming_per_pod = 64;
    world.silent.insert("w-0".to_owned());
    world.kill_pod("w-1");
    let plans = world.wait(secs(5));
    let first = plans.iter().map(begun).find(|begun| !begun.is_empty()).unwrap();
    assert_eq!(first.len(), 8);
    assert!(first.iter().all(|(_, cause)| *cause == MoveCause::DeadOwner));
}

#[test]
fn a_dead_owners_partitions_are_looked_at_again_although_planned_moves_have_all_their_places() {
    let mut world = World::new(policy(8));
    join_routers(&mut world, 4_096);
    world.policy.max_concurrent_handoffs = 5;
    let view = world.view();
    let mut budget = MoveBudget::left(&view, &world.policy, |_| secs(0), 1, 1);
    for cause in [MoveCause::Balance, MoveCause::Balance, MoveCause::DeadOwner] {
        budget.take(cause, "w-0", Incarnation::NONE).unwrap();
        assert_eq!(budget.free_again_at(secs(7)), None, "there are places for partitions of dead owners");
    }
    budget.take(MoveCause::DeadOwner, "w-0", Incarnation::NONE).unwrap();
    assert!(budget.is_spent(MoveCause::DeadOwner) && !budget.is_spent(MoveCause::FirstPlacement));
    assert_eq!(budget.free_again_at(secs(7)), Some(secs(8)));
}

#[test]
fn a_handoff_that_no_view_has_shown_frees_its_place_when_it_ends() {
    let mut world = World::new(policy(3));
    world.policy.max_concurrent_handoffs = 1;
    world.join_pod("w-0");
    let mut left = 3;
    while left > 0 {
        let plans = if left == 3 { world.wait(secs(2)) } else { vec![world.lead()] };
        assert_eq!((all_begun(&plans).len(), plans.last().unwrap().waiting), (1, left - 1));
        let gone = world.view().handoffs.values().next().unwrap().clone();
        while world.participate_all() {}
        world.memory.handoff_ended(&gone);
        left -= 1;
    }
}

#[test]
fn first_placements_wait_for_their_own_pod_while_it_makes_progress_and_nothing_moves_afterwards() {
    let mut world = World::new(policy(40));
    world.policy.max_concurrent_handoffs = 12;
    world.policy.max_warming_per_pod = 4;
    world.join_pod("w-0");
    world.join_pod("w-1");
    world.wait(secs(2));
    while !world.view().handoffs.is_empty() {
        // The first pod warms all that it has been given while the second warms one partition.
        let of = |world: &World, pod: &str| -> Vec<PartitionId> {
            let handoffs = world.view().handoffs;
            let of_pod = handoffs.iter().filter(|(_, handoff)| handoff.value.new_owner == pod);
            of_pod.map(|(partition, _)| *partition).collect()
        };
        for partition in of(&world, "w-0").into_iter().chain(of(&world, "w-1").into_iter().take(1)) {
            while world.participate(partition) {}
        }
        let plan = world.lead();
        assert!(begun(&plan).iter().all(|(_, cause)| *cause == MoveCause::FirstPlacement), "{plan:?}");
    }
    assert_eq!((world.view().assignments.len(), world.run_until_quiet()), (40, 0));
}

#[test]
fn a_rebalance_under_a_budget_moves_no_more_than_one_without() {
    let mut world = World::settled(policy(40), &["w-0", "w-1", "w-2"]);
    world.join_pod("w-3");
    let mut narrow = world.clone();
    narrow.policy.max_concurrent_handoffs = 1;
    assert_eq!((world.run_until_quiet(), narrow.run_until_quiet()), (10, 10));
    assert_eq!(narrow.balance(), world.balance());
}

#[test]
fn dead_owners_go_before_balance_and_do_not_wait_for_it() {
    let mut world = World::settled(policy(24), &["w-0", "w-1"]);
    world.policy.max_concurrent_handoffs = 4;
    world.join_pod("w-2");
    world.silent.insert("w-2".into());
    let plans = world.wait(secs(5));
    assert!(all_begun(&plans).iter().all(|(_, cause)| *cause == MoveCause::Balance));
    assert_eq!(world.view().handoffs.len(), 2, "half of the places, and they never end");
    let of_the_living =
        world.view().handoffs.values().filter(|it| it.value.old_owner.as_deref() == Some("w-0")).count();
    world.kill_pod("w-1");
    let plans = world.wait(secs(5));
    let begun = all_begun(&plans);
    assert_eq!(begun.len(), 2 + of_the_living);
    assert!(begun.iter().all(|(_, cause)| *cause == MoveCause::DeadOwner));
    let cancels = plans.iter().flat_map(|plan| &plan.actions).filter_map(|action| match action {
        PlannedWrite::Cancel { reason, .. } => Some(reason),
        _ => None,
    });
    assert!(cancels.eq(vec![&CancelReason::MoreUrgent; of_the_living]), "what still warms makes room");
    assert_eq!(world.view().handoffs.len(), 4);
    assert!(begun.iter().all(|(handoff, _)| handoff.reason == "its owner w-1 is dead"));
}

#[test]
fn of_the_moves_that_make_room_the_youngest_goes_first() {
    let mut world = World::settled(policy(9), &["w-0", "w-1", "w-2"]);
    world.policy.max_concurrent_handoffs = 4;
    world.join_pod("w-3");
    world.silent.insert("w-3".into());
    world.wait(secs(5));
    let planned = world.view().handoffs;
    assert_eq!(planned.len(), 2, "half of the places");
    let gives = |pod: &&str| planned.values().any(|it| it.value.old_owner.as_deref() == Some(*pod));
    world.kill_pod(["w-0", "w-1", "w-2"].iter().find(|pod| !gives(pod)).unwrap());
    let plans = world.wait(secs(5));
    let cancelled: Vec<_> = plans
        .iter()
        .flat_map(|plan| &plan.actions)
        .filter_map(|action| match action {
            PlannedWrite::Cancel { observed, .. } => Some(observed.handoff.create_revision),
            _ => None,
        })
        .collect();
    let youngest = planned.values().map(|it| it.create_revision).max().unwrap();
    assert_eq!(cancelled, [youngest], "three urgent moves, and two places");
    assert_eq!(all_begun(&plans).len(), 3);
}

#[test]
fn a_pod_warms_no_more_partitions_at_a_time_than_it_may() {
    let mut world = World::settled(policy(40), &["w-0", "w-1"]);
    world.policy.max_warming_per_pod = 3;
    world.join_pod("w-2");
    world.join_pod("w-3");
    let plans = world.wait(secs(2));
    let to = |pod: &str| all_begun(&plans).iter().filter(|(handoff, _)| handoff.new_owner == pod).count();
    assert_eq!((to("w-2"), to("w-3"), plans.last().unwrap().waiting), (3, 3, 14));
    assert!(all_begun(&world.wait(secs(60))).is_empty());
    let warming = world.view().handoffs.values().find(|it| it.value.new_owner == "w-3").unwrap().value.partition;
    while world.handoff(warming).phase == Phase::Warming {
        world.participate(warming);
    }
    let plan = world.lead();
    assert_eq!(plan.round, None, "a place is free as soon as the pod has warmed a partition");
    assert_eq!(begun(&plan).iter().map(|(handoff, _)| handoff.new_owner.as_str()).collect::<Vec<_>>(), ["w-3"]);
    world.run_until_quiet();
    assert!(world.balance().into_values().all(|count| count == 10));
}

#[test]
fn a_failover_to_the_only_pod_uses_all_places() {
    let mut world = World::settled(policy(40), &["w-0", "w-1"]);
    (world.policy.max_concurrent_handoffs, world.policy.max_warming_per_pod) = (12, 2);
    world.kill_pod("w-1");
    let plans = world.wait(secs(3));
    assert_eq!((all_begun(&plans).len(), plans.last().unwrap().waiting), (12, 8));
    world.run_until_quiet();
    assert_eq!(world.balance()["w-0"], 40);
}

#[test]
fn a_failover_goes_around_a_pod_that_hangs_in_its_warm_ups() {
    let mut world = World::settled(policy(48), &["w-0", "w-1", "w-2"]);
    (world.policy.max_concurrent_handoffs, world.policy.max_warming_per_pod) = (12, 2);
    world.kill_pod("w-2");
    world.silent.insert("w-0".to_owned());
    let plans = world.wait(secs(3));
    let begun = all_begun(&plans);
    let to = |pod: &str| begun.iter().filter(|(handoff, _)| handoff.new_owner == pod).count();
    assert_eq!((to("w-0"), to("w-1")), (6, 6), "the places are split evenly");
    for _ in 0..20 {
        world.lead();
        while world.participate_all() {}
    }
    let view = world.view();
    assert_eq!(view.handoffs.len(), 6, "those to w-0 hang");
    assert_eq!(world.balance()["w-1"], 26, "all others went to w-1");
}

#[test]
fn a_partition_that_has_moved_rests_before_it_moves_for_balance() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    world.join_pod("w-2");
    world.drain_pod("w-1");
    assert_eq!(all_begun(&world.wait(secs(2))).len(), 4);
    world.lead();
    while world.participate_all() {}
    assert_eq!(Vec::from_iter(world.balance().into_values()), [4, 0, 4]);
    world.join_pod("w-1");
    // Of w-0's partitions none has moved since its first placement, and all of w-2's have.
    let plans = world.wait(secs(5));
    assert!(all_begun(&plans).iter().all(|(handoff, _)| handoff.old_owner.as_deref() == Some("w-0")));
    assert_eq!((all_begun(&plans).len(), plans.last().unwrap().waiting), (1, 1));
    let plans = world.wait(secs(6));
    let begun = all_begun(&plans);
    assert_eq!(begun[0].0.old_owner.as_deref(), Some("w-2"));
    assert!(plans.iter().all(|plan| plan.round.is_none()), "it moves when its rest is over, without a round");
}

/// A planner that waits for its own writes, or that is cut off from the store, sees nothing of such a move.
#[test]
fn a_partition_rests_after_a_move_that_is_over_before_it_is_seen() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    world.join_pod("w-2");
    world.drain_pod("w-1");
    while all_begun(&[world.lead()]).is_empty() {
        world.now = world.wake.expect("a leader always wakes again");
    }
    while world.participate_all() {}
    assert!(world.view().handoffs.is_empty());
    assert_eq!(Vec::from_iter(world.balance().into_values()), [4, 0, 4]);
    world.join_pod("w-1");
    let plans = world.wait(secs(5));
    assert!(all_begun(&plans).iter().all(|(handoff, _)| handoff.old_owner.as_deref() == Some("w-0")));
    assert_eq!((all_begun(&plans).len(), plans.last().unwrap().waiting), (1, 1));
}

#[test]
fn a_partition_that_has_moved_does_not_rest_when_its_owner_dies_or_drains() {
    for drains in [false, true] {
        let mut world = World::settled(policy(8), &["w-0", "w-1"]);
        world.policy.cool_down = secs(3600);
        world.join_pod("w-2");
        world.drain_pod("w-1");
        assert_eq!(all_begun(&world.wait(secs(2))).len(), 4);
        world.lead();
        while world.participate_all() {}
        assert_eq!(world.balance()["w-2"], 4);
        if drains {
            world.drain_pod("w-2")
        } else {
            world.kill_pod("w-2")
        }
        assert_eq!(all_begun(&world.wait(secs(3))).len(), 4);
    }
}

#[test]
fn draining_pods_give_up_before_the_rest_is_balanced() {
    let mut world = World::settled(policy(24), &["w-0", "w-1", "w-2"]);
    world.policy.max_concurrent_handoffs = 8;
    world.drain_pod("w-2");
    world.put_pod("w-1", PodStatus::Ready, 3000, None);
    let plans = world.wait(secs(2));
    let begun = all_begun(&plans);
    assert_eq!(begun.len(), 4);
    assert!(begun.iter().all(|(_, cause)| *cause == MoveCause::DrainingOwner));
    world.run_until_quiet();
    assert_eq!(Vec::from_iter(world.balance().into_values()), [6, 18, 0]);
}

#[test]
fn a_draining_pod_goes_before_balance_whatever_its_partitions_are_called() {
    let mut world = World::new(policy(8));
    world.policy.max_concurrent_handoffs = 4;
    for pod in ["w-0", "w-1", "w-2"] {
        world.join_pod(pod);
    }
    let view = world.view();
    for partition in PartitionId::all(8) {
        let owner = if partition.get() < 6 { "w-0" } else { "w-1" };
        let assignment = Assignment::new(partition, owner, view.incarnation_of(owner), E1);
        world.store.put(world.keys.assignment(partition), encode(&assignment));
    }
    world.drain_pod("w-1");
    let plans = world.wait(secs(5));
    let partitions: Vec<PartitionId> = all_begun(&plans).iter().map(|(handoff, _)| handoff.partition).collect();
    assert_eq!(partitions, [6, 7].map(PartitionId::new));
}

/// Counts the placements of one test's keyspace.
#[derive(Debug)]
struct Counting(AtomicU32);

impl Placement for Counting {
    fn place(&self, layout: &Layout<'_>) -> Vec<Option<usize>> {
        self.0.fetch_add(1, SeqCst);
        Sticky.place(layout)
    }
}

#[test]
fn one_placement_serves_all_moves_that_wait_for_a_place() {
    static COUNTING: Counting = Counting(AtomicU32::new(0));
    let strategy = Strategy::Custom(Custom::new("counting", &COUNTING));
    let few = Policy { strategy, max_concurrent_handoffs: 8, ..policy(80) };
    let mut world = World::settled(few, &["w-0"]);
    for pod in ["w-1", "w-2", "w-3"] {
        world.join_pod(pod);
    }
    world.wait(secs(2));
    let placements = || COUNTING.0.load(SeqCst);
    let (before, mut moves) = (placements(), 0);
    // The clock stands still: nothing but handoffs that end makes moves begin.
    while moves < 40 {
        let moving: Vec<PartitionId> = world.view().handoffs.keys().copied().collect();
        assert!(!moving.is_empty(), "moves go on after {moves}");
        moves += moving.len();
        world.lead();
        moving.into_iter().for_each(|partition| while world.participate(partition) {});
        world.lead();
    }
    assert_eq!(placements(), before, "{moves} moves");
    world.run_until_quiet();
    assert_eq!(Vec::from_iter(world.balance().into_values()), [20; 4]);
}

#[test]
fn a_failover_needs_no_placement_for_each_place_although_a_pod_hangs_in_its_warm_ups() {
    static COUNTING: Counting = Counting(AtomicU32::new(0));
    let strategy = Strategy::Custom(Custom::new("counting", &COUNTING));
    let few = Policy { strategy, max_concurrent_handoffs: 12, max_warming_per_pod: 2, ..policy(120) };
    let mut world = World::settled(few, &["w-0", "w-1", "w-2", "w-3"]);
    world.kill_pod("w-3");
    world.silent.insert("w-0".to_owned());
    world.wait(secs(3));
    let to = |world: &World, pod: &str| {
        world.view().handoffs.values().filter(|handoff| handoff.value.new_owner == pod).count()
    };
    assert_eq!(["w-0", "w-1", "w-2"].map(|pod| to(&world, pod)), [4; 3]);
    let before = COUNTING.0.load(SeqCst);
    let mut most = 0;
    // The clock stands still: nothing but handoffs that end makes moves begin.
    for _ in 0..8 {
        let plan = world.lead();
        assert!(begun(&plan).iter().all(|(handoff, _)| handoff.reason == "its owner w-3 is dead"));
        most = most.max(to(&world, "w-1")).max(to(&world, "w-2"));
        // Sees the handoffs before they end.
        world.lead();
        while world.participate_all() {}
    }
    // The last one finds that nothing waits any more.
    assert_eq!(COUNTING.0.load(SeqCst), before + 1, "each place is taken without a placement");
    assert_eq!((to(&world, "w-0"), most), (4, 4), "no pod warms more than it may");
    assert_eq!(world.view().handoffs.len(), 4, "those to w-0 hang");
    let balance = world.balance();
    assert_eq!((balance["w-1"], balance["w-2"]), (43, 43), "all others were shared by the other pods");
}

#[test]
fn a_waiting_move_whose_new_owner_has_gone_is_planned_anew() {
    let few = Policy { max_concurrent_handoffs: 4, ..policy(60) };
    let mut world = World::settled(few, &["w-0", "w-1", "w-2"]);
    world.kill_pod("w-0");
    world.wait(secs(1));
    assert_eq!(world.view().handoffs.len(), 4, "the others wait for a place");
    world.kill_pod("w-2");
    for _ in 0..5 {
        let moving: Vec<PartitionId> = world.view().handoffs.keys().copied().collect();
        moving.into_iter().for_each(|partition| while world.participate(partition) {});
        let plan = world.lead();
        let begun = begun(&plan);
        assert!(begun.iter().all(|(handoff, _)| handoff.new_owner == "w-1"), "{begun:?}");
    }
    world.run_until_quiet();
    assert_eq!(Vec::from_iter(world.balance().into_values()), [60]);
}

#[test]
fn a_waiting_move_for_balance_is_planned_anew_when_a_handoff_fails() {
    let few = Policy { max_concurrent_handoffs: 4, ..policy(3) };
    let mut world = World::settled(few, &["w-0", "w-1"]);
    let (from, _) = world.balance().into_iter().max_by_key(|(_, count)| *count).unwrap();
    world.drain_pod(&from);
    world.wait(secs(2));
    world.join_pod(&from);
    let plans = world.wait(secs(2));
    assert_eq!(world.view().handoffs.len(), 2, "all places of planned moves are taken");
    assert_eq!(plans.last().unwrap().waiting, 1, "the pod that drained would have no partition");
    let fails = *world.view().handoffs.keys().next().unwrap();
    world.store.delete(world.keys.handoff(fails));
    assert!(all_begun(&world.wait(secs(2))).is_empty(), "it keeps one partition, and the other pod has two");
}
