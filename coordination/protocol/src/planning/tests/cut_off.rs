//! Owners that were cut off from the store together, and come back one after the other.

use std::collections::BTreeMap;

use super::phase_timeouts::P0;
use super::short_lives::{owned_by, run};
use super::world::{World, policy, secs};
use crate::planning::{Notice, PlannedWrite, REBIRTH_GRACE};

const PODS: [&str; 3] = ["w-0", "w-1", "w-2"];

fn balance(of: [usize; 3]) -> BTreeMap<String, usize> {
    PODS.iter().zip(of).map(|(pod, owns)| ((*pod).to_owned(), owns)).collect()
}

/// Ends the lives of all pods while the leader does not see the store.
fn outage(world: &mut World) {
    PODS.iter().for_each(|pod| world.kill_pod(pod));
    world.now += secs(30);
    world.memory.regained_sight();
}

#[test]
fn pods_that_come_back_after_an_outage_get_what_they_had_and_the_first_one_not_all() {
    for new_leader in [false, true] {
        let mut world = World::settled(policy(12), &PODS);
        let had = PODS.map(|pod| owned_by(&world, pod));
        outage(&mut world);
        if new_leader {
            world.elect();
        }
        for pod in PODS {
            world.join_pod(pod);
            run(&mut world, secs(1) - REBIRTH_GRACE);
        }
        run(&mut world, secs(10));
        assert_eq!(PODS.map(|pod| owned_by(&world, pod)), had, "with a new leader: {new_leader}");
    }
}

#[test]
fn what_pods_had_that_stay_away_goes_to_those_that_are_back_in_proportion() {
    let mut world = World::settled(policy(12), &PODS);
    outage(&mut world);
    world.join_pod("w-2");
    run(&mut world, secs(1) / 2);
    let away = Notice::CutOff { pods: ["w-0", "w-1"].map(str::to_owned).into() };
    assert!(world.plan().notices.contains(&away), "{:?}", world.plan().notices);
    assert_eq!(world.balance()["w-2"], 4, "what it had");
    world.join_pod("w-1");
    run(&mut world, secs(3));
    assert_eq!(world.balance(), BTreeMap::from([("w-1".to_owned(), 6), ("w-2".to_owned(), 6)]));
    assert!(!world.plan().notices.iter().any(|notice| matches!(notice, Notice::CutOff { .. })));
}

#[test]
fn most_pods_that_go_together_are_waited_for_and_a_single_one_is_not() {
    for (gone, waits) in [(&PODS[..1], false), (&PODS[..2], true)] {
        let mut world = World::settled(policy(12), &PODS);
        for pod in gone {
            world.kill_pod(pod);
        }
        let begins = |world: &mut World, span| {
            let plans = world.wait(span);
            plans.iter().flat_map(|plan| &plan.actions).any(|action| matches!(action, PlannedWrite::Create { .. }))
        };
        assert_eq!(begins(&mut world, secs(1) / 2), !waits, "{gone:?}");
        if waits {
            assert!(begins(&mut world, secs(1)), "{gone:?}");
        }
    }
}

#[test]
fn pods_that_come_back_for_ever_delay_nothing_beyond_the_longest_settling() {
    let mut world = World::settled(policy(12), &PODS);
    outage(&mut world);
    world.join_pod("w-2");
    let began = world.now;
    while world.balance()["w-2"] < 12 {
        run(&mut world, secs(1) / 2);
        assert!(world.now - began <= policy(12).settle_max);
        world.restart_pod("w-9");
        world.drain_pod("w-9");
    }
}

#[test]
fn no_pod_is_blamed_for_having_been_cut_off_soon_after_a_flip_or_while_it_warmed() {
    let mut world = World::settled(policy(12), &PODS);
    world.restart_pod("w-0");
    run(&mut world, secs(1));
    world.drain_pod("w-1");
    world.wait(secs(3));
    assert!(!world.view().handoffs.is_empty());
    outage(&mut world);
    PODS.iter().for_each(|pod| world.join_pod(pod));
    run(&mut world, secs(5));
    let notices = world.plan().notices;
    assert!(!notices.iter().any(|it| matches!(it, Notice::DiesEarly { .. } | Notice::OwnersDie { .. })), "{notices:?}");
    assert_eq!(world.balance(), balance([4, 4, 4]));
    assert!(world.view().live_owner(P0).is_some());
}

#[test]
fn pods_that_die_one_after_the_other_are_blamed_although_they_are_most() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    for _ in 0..3 {
        for pod in ["w-0", "w-1"] {
            world.restart_pod(pod);
            run(&mut world, secs(1));
        }
    }
    let notices = world.plan().notices;
    assert!(notices.iter().any(|it| matches!(it, Notice::DiesEarly { .. } | Notice::OwnersDie { .. })), "{notices:?}");
}
