//! Pods that die soon after partitions were flipped to them, and partitions whose owners die.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::phase_timeouts::moving;
use super::world::{World, policy, secs};
use crate::ids::PartitionId;
use crate::planning::{Notice, PlannedWrite, Policy};
use crate::records::{Mode, Operation, Origin, Phase, PodRecord, Request, encode};

const P0: PartitionId = PartitionId::new(0);
const P5: PartitionId = PartitionId::new(5);
/// The lease of a pod that does not tell it.
const LEASE: Duration = secs(15);

/// Lets leader and participants act until nothing happens any more, without a wait.
pub(super) fn act(world: &mut World) {
    loop {
        let before = world.store.revision;
        world.lead();
        while world.participate_all() {}
        if world.store.revision == before {
            return;
        }
    }
}

/// Lets leader and participants act for a while.
pub(super) fn run(world: &mut World, span: Duration) {
    let end = world.now + span;
    act(world);
    while let Some(wake) = world.wake.filter(|wake| *wake <= end) {
        world.now = wake;
        act(world);
    }
    world.now = end;
    act(world);
}

pub(super) fn owned_by(world: &World, pod: &str) -> BTreeSet<PartitionId> {
    let view = world.view();
    let owner = |partition: &PartitionId| view.live_owner(*partition).map(|(assignment, _)| assignment.owner.clone());
    view.assignments.keys().copied().filter(|partition| owner(partition).as_deref() == Some(pod)).collect()
}

/// Returns the world in which w-0 has come back to its partitions for the first time, and dies of it a second later.
fn died_once(policy: Policy, pods: &[&str]) -> World {
    let mut world = World::settled(policy, pods);
    let had = owned_by(&world, "w-0");
    world.restart_pod("w-0");
    run(&mut world, secs(1));
    assert_eq!(owned_by(&world, "w-0"), had, "nothing speaks against a name that is back at once");
    world.now += LEASE;
    world.restart_pod("w-0");
    world
}

#[test]
fn a_pod_that_dies_soon_after_a_flip_loses_its_partitions_to_another() {
    let mut world = died_once(policy(8), &["w-0", "w-1"]);
    run(&mut world, secs(1));
    assert_eq!(owned_by(&world, "w-1").len(), 8);
    assert!(world.plan().notices.contains(&Notice::DiesEarly { pod: "w-0".into(), failures: 1 }));
}

#[test]
fn a_pod_in_a_crash_loop_gets_partitions_ever_more_seldom() {
    let mut world = died_once(policy(8), &["w-0", "w-1"]);
    let mut lives_with_partitions = Vec::new();
    for life in 0..20 {
        run(&mut world, secs(1));
        if !owned_by(&world, "w-0").is_empty() {
            lives_with_partitions.push(life);
        }
        // Dead, with its lease still alive: whatever leads to it gets no further.
        world.silent.insert("w-0".into());
        run(&mut world, LEASE);
        world.silent.clear();
        world.restart_pod("w-0");
    }
    let ends = lives_with_partitions.len();
    assert!(ends <= 3, "it owned partitions in the lives {lives_with_partitions:?} of 20");
    run(&mut world, secs(1_500));
    assert_eq!(world.balance(), BTreeMap::from([("w-0".to_owned(), 4), ("w-1".to_owned(), 4)]), "once it lives on");
}

#[test]
fn an_order_to_move_to_a_pod_in_a_crash_loop_is_carried_out_once_for_each_life() {
    let mut world = died_once(policy(8), &["w-0", "w-1"]);
    run(&mut world, secs(1));
    assert_eq!(owned_by(&world, "w-0"), BTreeSet::new(), "it is shunned");
    world.asks_to_move("a", P0, "w-0", false);
    run(&mut world, secs(1));
    assert_eq!(owned_by(&world, "w-0"), BTreeSet::from([P0]), "it gets what the operator orders, and nothing else");
    world.restart_pod("w-0");
    run(&mut world, secs(1));
    assert_eq!(owned_by(&world, "w-0"), BTreeSet::new(), "the order ended with that life");
    assert!(world.view().intentions.pins.is_empty());
    world.asks_to_move("b", P0, "w-0", false);
    run(&mut world, secs(1));
    assert_eq!(owned_by(&world, "w-0"), BTreeSet::from([P0]));
}

#[test]
fn a_pin_to_a_pod_in_a_crash_loop_waits_until_the_pod_has_lived() {
    let mut world = died_once(policy(8), &["w-0", "w-1"]);
    world.asks_to_move("a", P0, "w-0", true);
    run(&mut world, secs(1));
    assert_eq!(owned_by(&world, "w-0"), BTreeSet::new());
    run(&mut world, secs(60));
    assert!(owned_by(&world, "w-0").contains(&P0));
}

#[test]
fn an_order_moves_no_partition_to_a_registration_without_a_lease() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let to = world.other_than(&world.owner(P0));
    world.pin(P0, &to, world.view().incarnation_of(&to));
    let pod = encode(&world.view().pods[&to].value);
    world.store.put(world.keys.pod(&to), pod);
    assert_eq!(world.run_until_quiet(), 0);
}

#[test]
fn the_only_pod_gets_its_partitions_back_at_once_however_often_it_dies() {
    let mut world = died_once(policy(4), &["w-0"]);
    for _ in 0..6 {
        run(&mut world, secs(1));
        assert_eq!(owned_by(&world, "w-0").len(), 4);
        world.now += LEASE;
        world.restart_pod("w-0");
    }
}

#[test]
fn a_key_that_outlasts_three_lease_times_is_no_failure() {
    for (ttl, lives_for, is_failure) in
        [(None, secs(44), true), (None, secs(46), false), (Some(2_000), secs(5), true), (Some(2_000), secs(7), false)]
    {
        let mut world = World::settled(policy(2), &["w-0", "w-1"]);
        let had = owned_by(&world, "w-0");
        let join = |world: &mut World| {
            world.restart_pod("w-0");
            let record = PodRecord { lease_ttl_ms: ttl, ..world.view().pods["w-0"].value.clone() };
            world.store.put_leased(world.keys.pod("w-0"), encode(&record));
        };
        join(&mut world);
        run(&mut world, secs(0));
        assert_eq!(owned_by(&world, "w-0"), had);
        run(&mut world, lives_for);
        join(&mut world);
        run(&mut world, secs(0));
        let comes_back = owned_by(&world, "w-0") == had;
        assert_eq!(comes_back, !is_failure, "{ttl:?}, {lives_for:?}");
    }
}

#[test]
fn a_new_leader_does_not_count_flips_before_its_first_view() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    world.restart_pod("w-0");
    run(&mut world, secs(1));
    world.elect();
    run(&mut world, secs(10));
    world.restart_pod("w-0");
    run(&mut world, secs(1));
    assert_eq!(owned_by(&world, "w-0").len(), 4);
    // From here on it counts.
    world.restart_pod("w-0");
    run(&mut world, secs(1));
    assert_eq!(owned_by(&world, "w-0").len(), 0);
}

#[test]
fn a_new_owner_that_dies_past_the_point_of_no_return_has_failed() {
    for (mode, phase) in
        [(Mode::Barrier, Phase::Switching), (Mode::Barrier, Phase::Complete), (Mode::Independent, Phase::Ready)]
    {
        let mut world = moving(mode, phase);
        world.join_pod("w-2");
        world.silent.insert("r-0".into());
        world.restart_pod("w-1");
        let plans = world.wait(secs(5));
        let abandoned = |action: &PlannedWrite| matches!(action, PlannedWrite::Abandon { .. });
        assert!(plans.iter().flat_map(|plan| &plan.actions).any(abandoned));
        let notices = &plans.last().unwrap().notices;
        assert!(
            notices.contains(&Notice::DiesEarly { pod: "w-1".into(), failures: 1 }),
            "{mode:?} {phase:?} {notices:?}"
        );
        let next = world.handoff(P0);
        assert_ne!(next.new_owner, "w-1", "{mode:?} {phase:?}");
    }
}

/// Lets whoever takes partition 5 over die of it a second later and come back when its lease has ended, this many times.
/// Returns how long the partition had no owner each time, and the partitions that rested.
fn deaths(world: &mut World, times: usize) -> (Vec<Duration>, BTreeSet<PartitionId>) {
    let (mut pauses, mut resting) = (Vec::new(), BTreeSet::new());
    for _ in 0..times {
        let since = world.now;
        let owner = loop {
            act(world);
            resting.extend(world.plan().notices.iter().filter_map(|notice| match notice {
                Notice::OwnersDie { partition, .. } => Some(*partition),
                _ => None,
            }));
            if let Some((assignment, _)) = world.view().live_owner(P5) {
                break assignment.owner.clone();
            }
            world.now = world.wake.expect("a leader always wakes again");
            assert!(world.now < since + secs(300), "partition 5 never gets an owner");
        };
        pauses.push(world.now - since);
        run(world, secs(1));
        world.silent.insert(owner.clone());
        run(world, LEASE);
        world.silent.clear();
        world.restart_pod(&owner);
    }
    (pauses, resting)
}

#[test]
fn a_partition_whose_owners_die_rests_longer_each_time() {
    let mut world = World::settled(policy(9), &["w-0", "w-1", "w-2"]);
    let (pauses, _) = deaths(&mut world, 12);
    let rests: Vec<u64> = pauses.iter().map(Duration::as_secs).collect();
    assert!(rests.is_sorted(), "{rests:?}");
    assert_eq!(rests[rests.len() - 2..], [60, 60], "{rests:?}");
}

#[test]
fn a_partition_whose_owners_die_does_not_make_others_rest_with_it() {
    for pods in [&["w-0", "w-1"][..], &["w-0", "w-1", "w-2"]] {
        let mut world = World::settled(policy(24), pods);
        deaths(&mut world, 8);
        let (_, resting) = deaths(&mut world, 6);
        assert_eq!(resting, BTreeSet::from([P5]), "after some deaths it is known which one it is, with {pods:?}");
        act(&mut world);
        let view = world.view();
        let unserved: Vec<&PartitionId> =
            view.assignments.keys().filter(|it| view.live_owner(**it).is_none()).collect();
        assert_eq!(unserved, [&P5], "with {pods:?}");
    }
}

#[test]
fn a_partition_that_its_owner_survives_rests_no_more() {
    let mut world = World::settled(policy(9), &["w-0", "w-1", "w-2"]);
    deaths(&mut world, 8);
    run(&mut world, secs(200));
    let notices = world.plan().notices;
    assert!(!notices.iter().any(|it| matches!(it, Notice::OwnersDie { .. } | Notice::DiesEarly { .. })), "{notices:?}");
    assert!(world.balance().values().all(|count| *count == 3), "{:?}", world.balance());
    let owner = world.owner(P5);
    world.restart_pod(&owner);
    run(&mut world, secs(0));
    assert_eq!(world.owner(P5), owner);
}

#[test]
fn a_partition_that_a_living_owner_has_handed_over_is_not_the_cause_of_deaths_before() {
    for hands_over in [false, true] {
        let mut world = World::settled(policy(3), &["w-0", "w-1", "w-2"]);
        let first = world.owner(P0);
        world.restart_pod(&first);
        run(&mut world, secs(1));
        world.restart_pod(&first);
        run(&mut world, secs(1));
        let second = world.owner(P0);
        assert_ne!(second, first, "the first owner died with it");
        if hands_over {
            let third = ["w-0", "w-1", "w-2"].into_iter().find(|pod| **pod != *first && **pod != *second).unwrap();
            world.asks_to_move("a", P0, third, false);
            run(&mut world, secs(5));
            assert_eq!(world.owner(P0), third);
        }
        let last = world.owner(P0);
        world.restart_pod(&last);
        world.lead();
        let rests = |notice: &Notice| matches!(notice, Notice::OwnersDie { partition: P0, .. });
        let notices = world.plan().notices;
        assert_eq!(notices.iter().any(rests), !hands_over, "{last} died with it: {notices:?}");
    }
}

#[test]
fn pods_that_die_one_after_the_other_are_the_cause_unless_it_was_within_a_lease_time_of_the_flip() {
    for (key_lasts, is_partition) in [(2 * LEASE - secs(1), true), (2 * LEASE + secs(1), false)] {
        let mut world = World::settled(policy(3), &["w-0", "w-1", "w-2"]);
        let mut dead = Vec::new();
        for _ in 0..3 {
            run(&mut world, key_lasts);
            let owner = world.owner(P0);
            world.restart_pod(&owner);
            world.lead();
            dead.push(owner);
        }
        let notices = world.plan().notices;
        let rests = |notice: &Notice| matches!(notice, Notice::OwnersDie { partition: P0, .. });
        assert_eq!(notices.iter().any(rests), is_partition, "{dead:?} died with it: {notices:?}");
        let dies = |notice: &Notice| matches!(notice, Notice::DiesEarly { .. });
        assert_eq!(notices.iter().any(dies), !is_partition, "{notices:?}");
    }
}

#[test]
fn an_operator_ends_the_rest_of_a_partition_whose_owners_die() {
    let mut world = World::settled(policy(9), &["w-0", "w-1", "w-2"]);
    deaths(&mut world, 8);
    act(&mut world);
    assert!(world.view().live_owner(P5).is_none());
    let origin = Origin { who: "ann".into(), why: String::new(), at: 0 };
    let request = Request::Move { partition: P5, to: "w-1".into(), pin: false };
    let operation = Operation { request, origin, answer: None };
    world.store.put(world.keys.operation("o-1"), encode(&operation));
    run(&mut world, secs(5));
    assert_eq!(world.view().live_owner(P5).map(|(assignment, _)| assignment.owner.clone()).as_deref(), Some("w-1"));
}
