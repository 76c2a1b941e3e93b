//! Records that cannot be read.

use super::rounds::{P0, P1, all_begun};
use super::world::{World, policy, secs};
use crate::planning::{MoveCause, Notice, REBIRTH_GRACE};

#[test]
fn records_that_cannot_be_read_are_left_alone_and_named() {
    let mut world = World::settled(policy(6), &["w-0", "w-1"]);
    world.store.put(world.keys.assignment(P0), b"{".to_vec());
    world.store.put(world.keys.handoff(P1), b"{".to_vec());
    world.kill_pod("w-1");
    let plans = world.wait(secs(70));
    assert!(!all_begun(&plans).is_empty());
    assert!(all_begun(&plans).iter().all(|(handoff, _)| handoff.partition > P1));
    for key in [world.keys.assignment(P0), world.keys.handoff(P1)] {
        let named = |notice: &Notice| matches!(notice, Notice::Malformed { key: named, .. } if *named == key);
        assert!(plans.last().unwrap().notices.iter().any(named), "{key}");
    }
}

#[test]
fn what_is_promised_with_a_pod_that_cannot_be_read_is_unknown() {
    let said = |world: &mut World| {
        let notices = world.plan().notices;
        notices.iter().find(|it| matches!(it, Notice::Assurance(_))).unwrap().to_string()
    };
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let before = said(&mut world);
    world.store.put(world.keys.pod("w-1"), b"{".to_vec());
    let after = said(&mut world);
    assert_ne!(before, after);
    assert!(after.contains("cannot be read") && after.contains("unknown"), "{after}");
}

#[test]
fn a_pod_whose_registration_cannot_be_read_is_not_taken_for_dead() {
    let mut world = World::settled(policy(6), &["w-0", "w-1"]);
    world.store.put(world.keys.pod("w-1"), b"{".to_vec());
    assert!(all_begun(&world.wait(secs(70))).is_empty());
}

#[test]
fn partitions_of_an_unreadable_pod_that_is_forgotten_move_as_those_of_any_dead_owner() {
    let mut world = World::settled(policy(6), &["w-0", "w-1"]);
    world.store.put(world.keys.pod("w-1"), b"{".to_vec());
    world.wait(secs(70));
    world.kill_pod("w-1");
    let plans = world.wait(REBIRTH_GRACE);
    assert!(plans.iter().all(|plan| plan.round.is_none()), "no heartbeat finds them");
    let begun = all_begun(&plans);
    assert_eq!(begun.len(), 3);
    assert!(begun.iter().all(|(_, cause)| *cause == MoveCause::DeadOwner));
}
