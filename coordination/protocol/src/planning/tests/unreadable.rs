//! Records that cannot be read.

use super::rounds::{P0, P1, all_begun};
use super::world::{World, policy, secs};
use crate::ids::Epoch;
use crate::planning::{MoveCause, Notice, REBIRTH_GRACE};
use crate::records::{Assignment, encode};

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

#[test]
fn no_handoff_begins_whose_epoch_nobody_could_read() {
    for (epoch, may_move) in [((1 << 53) - 100_000, true), ((1 << 53) - 1, false), (1 << 53, false)] {
        let mut world = World::settled(policy(1), &["w-0"]);
        let owned = world.view().assignments[&P0].value.clone();
        world.store.put(world.keys.assignment(P0), encode(&Assignment { epoch: Epoch::new(epoch), ..owned }));
        world.join_pod("w-1");
        for drains in [true, false] {
            match drains {
                true => world.drain_pod("w-0"),
                false => world.kill_pod("w-0"),
            }
            let plans = world.wait(secs(70));
            let named =
                |notice: &Notice| matches!(notice, Notice::EpochsSpent { partition: P0, owner, .. } if owner == "w-0");
            assert_eq!(plans.last().unwrap().notices.iter().any(named), !may_move, "{epoch}");
            assert_eq!(!all_begun(&plans).is_empty(), may_move && drains, "{epoch}");
        }
        assert_eq!(world.view().handoffs.is_empty(), !may_move);
    }
}

#[test]
fn an_epoch_above_the_last_one_is_named_with_the_command_that_removes_it() {
    let mut world = World::settled(policy(1), &["w-0", "w-1"]);
    let owned = world.view().assignments[&P0].value.clone();
    let key = world.keys.assignment(P0);
    world.store.put(key.clone(), encode(&Assignment { epoch: Epoch::new(18_446_744_073_709_551_600), ..owned }));
    let notices = world.wait(secs(70)).pop().unwrap().notices;
    let text = notices.iter().find(|it| matches!(it, Notice::Malformed { .. })).unwrap().to_string();
    assert!(text.contains("above 9007199254740992") && text.contains(&format!("etcdctl del {key}")), "{text}");
    world.store.delete(key);
    world.run_until_quiet();
    assert!(world.view().live_owner(P0).is_some());
}
