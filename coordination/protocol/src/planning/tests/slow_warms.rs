//! Pods that warm partitions without getting anywhere, and partitions without a living owner that wait for them.

use super::phase_timeouts::{P0, cancels};
use super::short_lives::{act, owned_by, run};
use super::world::{World, policy, secs};
use crate::ids::{Incarnation, PartitionId};
use crate::planning::{CancelReason, FIRST_BACK_OFF, Notice, SLOW_WARM};
use crate::records::{Operation, Origin, Phase, Pin, Request, RouterRecord, encode};

/// Returns a world in which the owner of partition 0 has died and the pod to which it goes does not warm it. That pod's name.
fn waits_for_a_pod_that_hangs(partitions: u32) -> (World, String) {
    let mut world = World::settled(policy(partitions), &["w-0", "w-1", "w-2"]);
    let owner = world.owner(P0);
    world.kill_pod(&owner);
    world.wait(secs(1));
    let pod = world.handoff(P0).new_owner;
    world.silent.insert(pod.clone());
    (world, pod)
}

#[test]
fn a_pod_that_hangs_while_it_warms_gets_nothing_more_while_there_is_another() {
    let mut world = World::settled(policy(8), &["w-0", "w-2"]);
    world.policy.max_warming_per_pod = 1;
    world.silent.insert("w-1".into());
    world.join_pod("w-1");
    run(&mut world, SLOW_WARM + secs(5));
    let moving = world.view().handoffs.into_keys().collect::<Vec<_>>();
    assert_eq!(moving.len(), 1, "a planned move is waited for: its partition is served");
    let slow = Notice::WarmsSlowly { pod: "w-1".into() };
    assert!(world.plan().notices.contains(&slow));
    let other = if world.owner(moving[0]) == "w-0" { "w-2" } else { "w-0" };
    world.kill_pod(other);
    run(&mut world, secs(2));
    let view = world.view();
    let to_slow = |partition: &&PartitionId| view.handoffs[*partition].value.new_owner == "w-1";
    assert_eq!(Vec::from_iter(view.handoffs.keys().filter(to_slow)), [&moving[0]]);
    assert!(view.assignments.keys().all(|partition| view.live_owner(*partition).is_some()));
    // It is mended, and gets its share.
    world.silent.clear();
    run(&mut world, secs(120));
    assert!(!world.plan().notices.contains(&slow));
    assert_eq!(Vec::from_iter(world.balance().into_values()), [4, 4]);
}

#[test]
fn the_only_pod_gets_partitions_although_it_warms_slowly() {
    let mut world = World::new(policy(4));
    world.policy.max_warming_per_pod = 2;
    world.policy.max_concurrent_handoffs = 2;
    world.silent.insert("w-0".into());
    world.join_router("r-0");
    world.join_pod("w-0");
    assert!(cancels(&world.wait(SLOW_WARM + secs(10))).is_empty());
    world.silent.clear();
    run(&mut world, secs(10));
    assert_eq!(owned_by(&world, "w-0").len(), 4);
}

#[test]
fn a_partition_without_a_living_owner_leaves_a_pod_without_progress_in_half_of_the_time_that_requests_wait() {
    for (max_wait_ms, half) in [(30_000, secs(15)), (8_000, secs(4))] {
        let (mut world, first) = waits_for_a_pod_that_hangs(3);
        let router = RouterRecord { max_wait_ms, ..RouterRecord::new("r-0") };
        world.store.put_leased(world.keys.router("r-0"), encode(&router));
        assert!(cancels(&world.wait(half - secs(2))).is_empty(), "{max_wait_ms}");
        let plans = world.wait(secs(2));
        assert_eq!(cancels(&plans), [(P0, &CancelReason::NewOwnerSlow)], "{max_wait_ms}");
        act(&mut world);
        assert!(world.view().live_owner(P0).is_some_and(|(owner, _)| owner.owner != first), "{max_wait_ms}");
    }
}

#[test]
fn a_partition_without_a_living_owner_leaves_a_pod_that_does_not_read_the_tail() {
    let (mut world, first) = waits_for_a_pod_that_hangs(3);
    world.silent.clear();
    while world.handoff(P0).phase < Phase::Syncing {
        assert!(world.participate(P0));
    }
    world.silent.insert(first.clone());
    // Half of 30 s.
    assert!(cancels(&world.wait(secs(14))).is_empty());
    let plans = world.wait(secs(2));
    assert_eq!(cancels(&plans), [(P0, &CancelReason::NewOwnerSlow)]);
    act(&mut world);
    assert!(world.view().live_owner(P0).is_some_and(|(owner, _)| owner.owner != first), "it does not rest");
}

#[test]
fn warm_ups_that_take_long_everywhere_end_all_the_same() {
    let (mut world, _) = waits_for_a_pod_that_hangs(3);
    world.silent.extend(["w-0", "w-1", "w-2"].map(str::to_owned));
    let plans = world.wait(secs(250));
    assert_eq!(cancels(&plans).len(), 2, "after 15 s and after 60 s more");
    world.silent.clear();
    run(&mut world, secs(5));
    assert!(world.view().live_owner(P0).is_some());
}

#[test]
fn a_pod_that_completes_warm_ups_or_reads_tails_is_waited_for() {
    for phase in [Phase::Warming, Phase::Syncing] {
        let (mut world, pod) = waits_for_a_pod_that_hangs(12);
        let handoffs = world.view().handoffs;
        let of_pod: Vec<PartitionId> =
            handoffs.values().filter(|it| it.value.new_owner == pod).map(|it| it.value.partition).collect();
        assert_eq!(of_pod.len(), 2);
        act(&mut world);
        world.silent.clear();
        for partition in &of_pod {
            while world.handoff(*partition).phase < phase {
                assert!(world.participate(*partition));
            }
        }
        world.silent.insert(pod.clone());
        assert!(cancels(&world.wait(secs(8))).is_empty(), "{phase:?}");
        world.silent.clear();
        while world.view().handoffs.contains_key(&of_pod[1]) {
            world.participate(of_pod[1]);
            world.lead();
        }
        world.silent.insert(pod);
        let plans = world.wait(secs(14));
        assert_eq!(cancels(&plans), [], "{phase:?}: the other one has waited for more than 20 s");
        assert_eq!(cancels(&world.wait(secs(2))), [(of_pod[0], &CancelReason::NewOwnerSlow)], "{phase:?}");
    }
}

#[test]
fn an_operators_cancel_excludes_its_pod_from_the_next_plan() {
    let (mut world, pod) = waits_for_a_pod_that_hangs(3);
    let request = Request::Cancel { partition: P0, handoff: world.handoff_id(P0) };
    let origin = Origin { who: "ann".into(), why: String::new(), at: 0 };
    world.store.put(world.keys.operation("a"), encode(&Operation { request, origin, answer: None }));
    world.lead();
    let answer = world.view().intentions.operations["a"].value.answer.clone().unwrap();
    assert!(answer.accepted && !answer.text.contains("segue pin"), "{}", answer.text);
    assert!(world.view().handoffs.is_empty());
    run(&mut world, FIRST_BACK_OFF + secs(1));
    assert!(world.view().live_owner(P0).is_some_and(|(owner, _)| owner.owner != pod));
}

#[test]
fn a_partition_that_is_pinned_to_a_slow_pod_stays_with_it() {
    let (mut world, pod) = waits_for_a_pod_that_hangs(3);
    let origin = Origin { who: "ann".into(), why: String::new(), at: 0 };
    let pin = Pin { to: pod, incarnation: Incarnation::NONE, origin };
    world.store.put(world.keys.pin(P0), encode(&pin));
    assert!(cancels(&world.wait(secs(100))).is_empty());
}
