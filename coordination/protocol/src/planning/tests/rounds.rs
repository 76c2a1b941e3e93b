//! When moves are planned.

use super::world::{World, policy, secs};
use crate::ids::{Epoch, Incarnation, PartitionId};
use crate::planning::{FIRST_BACK_OFF, MoveCause, Notice, Plan, PlannedWrite, Policy, REBIRTH_GRACE, RoundCause};
use crate::records::{Assignment, Handoff, Mode, Phase, PodStatus, encode};

pub(super) const E1: Epoch = Epoch::new(1);
pub(super) const P0: PartitionId = PartitionId::new(0);
pub(super) const P1: PartitionId = PartitionId::new(1);
const P3: PartitionId = PartitionId::new(3);

pub(super) fn begun(plan: &Plan) -> Vec<(&Handoff, MoveCause)> {
    let begun = plan.actions.iter().filter_map(|action| match action {
        PlannedWrite::Create { handoff, cause, .. } => Some((handoff, *cause)),
        _ => None,
    });
    begun.collect()
}

pub(super) fn all_begun(plans: &[Plan]) -> Vec<(&Handoff, MoveCause)> {
    plans.iter().flat_map(begun).collect()
}

#[test]
fn a_new_leader_plans_once_its_first_view_has_settled() {
    let mut world = World::new(policy(4));
    world.join_pod("w-0");
    let first = world.lead();
    assert_eq!(first.round, None);
    assert!(matches!(first.actions[..], [PlannedWrite::WriteConfig { .. }]), "the settings need no round");
    world.lead();
    assert_eq!(world.wake, Some(world.now + secs(1)));
    let seen = world.store.revision;
    let round = world.wait_for_wake();
    assert_eq!((round.round, begun(&round).len()), (Some(RoundCause::Election), 4));
    let first = world.handoff(P0);
    assert_eq!(
        (first.old_owner, first.old_incarnation, first.epoch),
        (None, Incarnation::NONE, Epoch::planned_at(Epoch::default(), seen))
    );
    assert_eq!((first.started_at, first.phase), (1_700_000_000_000, Phase::Warming));
}

#[test]
fn changes_settle_before_one_plan_is_made() {
    let mut world = World::settled(policy(12), &["w-0"]);
    world.wait(secs(10));
    for name in ["w-1", "w-2", "w-3"] {
        world.join_pod(name);
        let plans = world.wait(secs(1) - std::time::Duration::from_millis(1));
        assert!(all_begun(&plans).is_empty(), "{name} has just come");
    }
    let plans = world.wait(secs(1));
    assert_eq!(plans.iter().filter(|plan| plan.round == Some(RoundCause::Membership)).count(), 1);
    assert_eq!(all_begun(&plans).len(), 9);
}

#[test]
fn changes_that_never_end_are_planned_for_after_settle_max() {
    let mut world = World::settled(policy(12), &["w-0"]);
    world.wait(secs(10));
    let start = world.now;
    let mut rounds = Vec::new();
    for turn in 0..24 {
        world.put_pod("w-1", PodStatus::Ready, 1000 + turn, None);
        let plans = world.wait(std::time::Duration::from_millis(500));
        rounds.extend(plans.iter().filter_map(|plan| plan.round).map(|cause| (world.now - start, cause)));
    }
    let at: Vec<u64> = rounds.iter().map(|(at, _)| at.as_secs()).collect();
    assert_eq!(at, [5, 10], "{rounds:?}");
}

#[test]
fn rounds_keep_their_distance() {
    let mut world = World::settled(Policy { min_interval: secs(20), ..policy(12) }, &["w-0"]);
    world.wait(secs(25));
    world.join_pod("w-1");
    let plans = world.wait(secs(1));
    assert_eq!(plans.last().unwrap().round, Some(RoundCause::Membership));
    world.join_pod("w-2");
    assert!(world.wait(secs(18)).iter().all(|plan| plan.round.is_none()));
    assert!(world.wait(secs(2)).iter().any(|plan| plan.round == Some(RoundCause::Membership)));
}

#[test]
fn a_heartbeat_repairs_what_drifted_and_writes_nothing_otherwise() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let before = world.store.revision;
    let plans = world.wait(secs(65));
    assert_eq!(plans.iter().filter(|plan| plan.round == Some(RoundCause::Heartbeat)).count(), 2);
    assert_eq!(world.store.revision, before);
    world.store.delete(world.keys.assignment(P3));
    assert_eq!(all_begun(&world.wait(secs(31))).len(), 1);
}

#[test]
fn a_change_of_load_is_no_change_of_membership() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    world.lead();
    let mut pod = world.view().pods["w-0"].value.clone();
    pod.load = Some(0.7.into());
    pod.last_heartbeat = 5;
    world.store.put_leased(world.keys.pod("w-0"), encode(&pod));
    let wake = world.wake;
    world.lead();
    assert_eq!(world.wake, wake);
}

#[test]
fn partitions_of_a_dead_owner_move_after_a_moment_and_not_after_changes_have_settled() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    world.policy.settle = secs(20);
    world.policy.settle_max = secs(20);
    world.wait(secs(10));
    world.kill_pod("w-1");
    world.join_pod("w-2");
    let almost = world.wait(REBIRTH_GRACE - std::time::Duration::from_millis(1));
    assert!(all_begun(&almost).is_empty(), "a next life of its name would be preferred");
    let plans = world.wait(std::time::Duration::from_millis(1));
    let begun = all_begun(&plans);
    assert_eq!(begun.len(), 4);
    assert!(begun.iter().all(|(_, cause)| *cause == MoveCause::DeadOwner));
    assert!(plans.iter().all(|plan| plan.round.is_none()));
    // Before the partitions leave pods that do not warm them.
    let plans = world.wait(secs(14));
    assert!(all_begun(&plans).is_empty() && plans.len() < 5, "{} plans while changes settle", plans.len());
}

#[test]
fn a_next_life_that_comes_within_that_moment_gets_its_partitions_at_once() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    world.wait(secs(10));
    world.kill_pod("w-1");
    world.lead();
    world.now += REBIRTH_GRACE / 2;
    world.join_pod("w-1");
    let plan = world.lead();
    let begun = begun(&plan);
    assert_eq!(begun.len(), 4);
    assert!(begun.iter().all(|(handoff, _)| handoff.new_owner == "w-1"));
}

#[test]
fn without_a_pod_nothing_is_planned_and_assignments_stay() {
    let mut world = World::settled(policy(4), &["w-0"]);
    world.kill_pod("w-0");
    let plans = world.wait(secs(120));
    assert!(all_begun(&plans).is_empty());
    assert!(plans.last().unwrap().notices.contains(&Notice::NoPod));
    assert_eq!(world.view().assignments.len(), 4);
    world.join_pod("w-1");
    world.run_until_quiet();
    assert_eq!(world.balance()["w-1"], 4);
}

#[test]
fn a_pod_that_comes_back_owns_nothing_until_warmed_again() {
    let mut world = World::settled(policy(6), &["w-0", "w-1"]);
    let dead = world.view().incarnation_of("w-0");
    let epoch = world.view().assignments.values().map(|it| it.value.epoch).max().unwrap();
    let owned: Vec<PartitionId> = PartitionId::all(6).filter(|partition| world.owner(*partition) == "w-0").collect();
    world.restart_pod("w-0");
    let plans = world.wait(secs(3));
    let begun = all_begun(&plans);
    assert_eq!(begun.iter().map(|(handoff, _)| handoff.partition).collect::<Vec<_>>(), owned);
    for (handoff, cause) in begun {
        assert!(handoff.epoch > epoch);
        assert_eq!(
            (cause, handoff.old_owner.as_deref(), handoff.old_incarnation),
            (MoveCause::DeadOwner, Some("w-0"), dead)
        );
        assert_eq!(handoff.new_owner, "w-0", "it may still have the state");
        assert_ne!(handoff.new_incarnation, dead);
    }
}

#[test]
fn independent_is_not_used_while_two_routers_are_registered() {
    let mut world = World::settled(policy(4), &["w-0"]);
    world.policy = Policy { mode: Mode::Independent, ..world.policy };
    world.join_pod("w-1");
    let mut two = world.clone();
    two.join_router("r-1");
    let plans = two.wait(secs(3));
    assert!(all_begun(&plans).iter().all(|(handoff, _)| handoff.mode == Mode::Barrier));
    assert!(plans[0].notices.contains(&Notice::IndependentImpossible { routers: 2 }));
    assert!(all_begun(&world.wait(secs(3))).iter().all(|(handoff, _)| handoff.mode == Mode::Independent));
}

#[test]
fn independent_is_not_used_towards_a_pod_that_reads_the_tail_when_told_to() {
    let mut world = World::settled(policy(4), &["w-0"]);
    world.join_pod("w-1");
    world.policy = Policy { mode: Mode::Independent, ..world.policy };
    let plans = world.wait(secs(3));
    let begun = all_begun(&plans);
    assert!(!begun.is_empty() && begun.iter().all(|(handoff, _)| handoff.mode == Mode::Barrier));
    let pods = vec!["w-0".to_owned(), "w-1".to_owned()];
    assert!(plans[0].notices.contains(&Notice::IndependentNotTo { pods }));
}

#[test]
fn independent_is_not_used_from_an_owner_with_a_bound() {
    let mut world = World::settled(policy(4), &["w-0"]);
    world.policy = Policy { mode: Mode::Independent, ..world.policy };
    for partition in PartitionId::all(4) {
        let owned = world.view().assignments[&partition].value.clone();
        let bounded = Assignment { work_ends_within_ms: Some(1000), ..owned };
        world.store.put(world.keys.assignment(partition), encode(&bounded));
    }
    world.join_pod("w-1");
    let plans = world.wait(secs(3));
    let begun = all_begun(&plans);
    assert!(!begun.is_empty() && begun.iter().all(|(handoff, _)| handoff.mode == Mode::Barrier));
}

#[test]
fn a_create_that_did_not_happen_is_tried_again_without_a_round() {
    let mut world = World::settled(policy(6), &["w-0"]);
    world.join_pod("w-1");
    world.plan();
    world.now = world.wake.unwrap();
    assert_eq!(begun(&world.plan()).len(), 3, "and nothing of it is carried out");
    let again = world.wait_for_wake();
    assert_eq!((again.round, begun(&again).len()), (None, 3));
    assert!(world.now < secs(100) + FIRST_BACK_OFF + secs(100));
}

#[test]
fn while_changes_settle_nothing_is_begun_and_nobody_is_woken_for_nothing() {
    let mut world = World::settled(policy(12), &["w-0"]);
    world.policy.max_concurrent_handoffs = 4;
    world.policy.settle = secs(30);
    world.policy.settle_max = secs(30);
    world.wait(secs(10));
    world.join_pod("w-1");
    world.lead();
    assert_eq!(begun(&world.wait_for_wake()).len(), 2);
    world.lead();
    let first = *world.view().handoffs.keys().next().unwrap();
    world.join_pod("w-2");
    while world.participate(first) {}
    let plans = world.wait(secs(29));
    assert!(all_begun(&plans).is_empty(), "a place is free, but what it would be used for may be out of date");
    assert!(plans.len() < 5, "{} plans", plans.len());
    assert_eq!(all_begun(&world.wait(secs(1))).len(), 1);
}
