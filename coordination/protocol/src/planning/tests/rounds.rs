//! When moves are planned, how many at a time, and which first.

use super::world::{World, policy, secs};
use crate::ids::{Epoch, Incarnation, PartitionId, Revision};
use crate::planning::{
    Action, CancelReason, FIRST_BACK_OFF, MoveCause, Notice, Plan, Policy, REBIRTH_GRACE, RoundCause, Strategy,
};
use crate::records::{Assignment, Handoff, KeyspaceConfig, Mode, Partitioner, Phase, PodStatus, encode};

const E1: Epoch = Epoch::new(1);
const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);
const P3: PartitionId = PartitionId::new(3);

fn begun(plan: &Plan) -> Vec<(&Handoff, MoveCause)> {
    let begun = plan.actions.iter().filter_map(|action| match action {
        Action::Create { handoff, cause, .. } => Some((handoff, *cause)),
        _ => None,
    });
    begun.collect()
}

fn all_begun(plans: &[Plan]) -> Vec<(&Handoff, MoveCause)> {
    plans.iter().flat_map(begun).collect()
}

#[test]
fn a_new_leader_plans_once_its_first_view_has_settled() {
    let mut world = World::new(policy(4));
    world.join_pod("w-0");
    let first = world.lead();
    assert_eq!(first.round, None);
    assert!(matches!(first.actions[..], [Action::WriteConfig { .. }]), "the settings need no round");
    world.lead();
    assert_eq!(world.wake, Some(world.now + secs(1)));
    let seen = world.store.revision;
    let round = world.wait_for_wake();
    assert_eq!((round.round, begun(&round).len()), (Some(RoundCause::Election), 4));
    let first = world.handoff(P0);
    assert_eq!(
        (first.old_owner, first.old_incarnation, first.epoch),
        (None, Incarnation::NONE, Epoch::planned_at(seen))
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
fn growing_the_keyspace_and_changing_the_strategy_are_rounds() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    world.policy.partitions = 8;
    let plans = world.wait(secs(5));
    assert!(plans.iter().any(|plan| plan.round == Some(RoundCause::Config)));
    assert_eq!(all_begun(&plans).len(), 4);
    world.run_until_quiet();
    world.policy.strategy = Strategy::Jump;
    let plans = world.wait(secs(5));
    assert!(plans.iter().any(|plan| plan.round == Some(RoundCause::Config)));
}

#[test]
fn a_shrink_is_refused() {
    let mut world = World::settled(policy(8), &["w-0"]);
    world.policy.partitions = 4;
    let plan = world.lead();
    assert!(plan.notices.contains(&Notice::ShrinkRefused { wanted: 4, kept: 8 }));
    world.run_until_quiet();
    assert_eq!(world.view().partitions(), 8);
    assert_eq!(world.balance()["w-0"], 8);
}

#[test]
fn a_keyspace_whose_keys_are_hashed_does_not_grow() {
    let hashed = Partitioner::Key { key: "header:x-key".into(), hash: "murmur2".into() };
    for partitioner in [Some(hashed), None] {
        let mut world = World::settled(policy(8), &["w-0"]);
        let config = KeyspaceConfig { partitioner: partitioner.clone(), ..KeyspaceConfig::new(8) };
        world.kill_router("r-0");
        world.store.put(world.keys.config(), encode(&config));
        world.policy.partitions = 16;
        let plan = world.lead();
        assert!(plan.actions.is_empty());
        assert!(plan.notices.contains(&Notice::GrowthRefused { wanted: 16, kept: 8, partitioner }));
    }
}

#[test]
fn settings_deleted_by_hand_come_back_as_they_were() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    let mut config = world.view().config.unwrap().value;
    config.unknown.insert("of_a_later_version".into(), true.into());
    world.store.put(world.keys.config(), encode(&config));
    world.put_pod("w-2", PodStatus::Ready, 1000, None);
    world.wait(secs(3));
    assert!(!world.view().handoffs.is_empty());
    for partitions in [4, 16] {
        world.store.delete(world.keys.config());
        world.policy.partitions = partitions;
        let plan = world.plan();
        let back = Action::WriteConfig { config: config.clone(), seen: Revision::ZERO };
        assert_eq!(plan.actions, [back], "whatever the file says, and no handoff is cancelled as beyond it");
    }
    world.policy.partitions = 8;
    world.run_until_quiet();
    assert_eq!(world.balance()["w-2"], 2);
}

#[test]
fn a_leader_that_has_read_no_settings_writes_none_that_the_assignments_deny() {
    for partitions in [4, 16] {
        let mut world = World::settled(policy(8), &["w-0", "w-1"]);
        world.store.delete(world.keys.config());
        world.elect();
        world.policy.partitions = partitions;
        let plan = world.lead();
        assert!(plan.actions.is_empty());
        let missing = plan.notices.iter().find(|it| matches!(it, Notice::ConfigMissing { shown: 8, .. })).unwrap();
        // Partitions that had no owner yet left no trace, so the configuration file may be right.
        let command = format!("etcdctl put {} '{{\"partitions\":N}}'", world.keys.config());
        assert!(missing.to_string().contains(&command), "{missing}");
        world.policy.partitions = 8;
        world.lead();
        assert_eq!(world.view().partitions(), 8);
    }
}

#[test]
fn without_readable_settings_planning_goes_on_by_those_that_were_read_last() {
    let mut world = World::settled(policy(8), &["w-0", "w-1"]);
    world.store.put(world.keys.config(), b"{".to_vec());
    world.kill_pod("w-1");
    world.run_until_quiet();
    assert_eq!(world.balance()["w-0"], 8);
    assert_eq!(world.store.entries[&world.keys.config()].value, b"{", "only an operator can say what it was");
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
    let plans = world.wait(secs(19));
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
        Action::Cancel { reason, .. } => Some(reason),
        _ => None,
    });
    assert!(cancels.eq(vec![&CancelReason::MoreUrgent; of_the_living]), "what still warms makes room");
    assert_eq!(world.view().handoffs.len(), 4);
    assert!(begun.iter().all(|(handoff, _)| handoff.reason == "its owner w-1 is dead"));
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
