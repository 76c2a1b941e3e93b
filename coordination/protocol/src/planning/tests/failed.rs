//! New owners that report that they cannot take a partition.

use super::world::{World, policy, secs};
use crate::handoff::advance::{Ack, acknowledge};
use crate::ids::PartitionId;
use crate::planning::{CancelReason, FIRST_BACK_OFF, PlannedWrite};
use crate::records::{Phase, PodAck, PodAckKind};

const P0: PartitionId = PartitionId::new(0);

/// Lets the new owner of partition 0 report that it cannot take it. Returns the pod's name.
pub(super) fn fail(world: &mut World, reason: Option<&str>) -> String {
    fail_at(world, P0, reason)
}

fn fail_at(world: &mut World, partition: PartitionId, reason: Option<&str>) -> String {
    let (view, handoff) = (world.view(), world.handoff(partition));
    let ack = PodAck {
        reason: reason.map(str::to_owned),
        ..PodAck::new(handoff.new_owner.clone(), partition, world.handoff_id(partition), PodAckKind::Failed)
    };
    let key = world.keys.pod(&handoff.new_owner);
    let txn = acknowledge(&view, &Ack::Pod(ack), key, handoff.new_incarnation, 0);
    assert!(world.store.commit(&txn));
    handoff.new_owner
}

fn is_cancelled_for(action: &PlannedWrite, why: &str) -> bool {
    matches!(action, PlannedWrite::Cancel { reason: CancelReason::NewOwnerFailed { reason, .. }, .. } if reason == why)
}

#[test]
fn a_pod_that_cannot_take_a_partition_is_planned_around_at_once() {
    let mut world = World::settled(policy(1), &["w-0", "w-1", "w-2"]);
    let owner = world.owner(P0);
    world.kill_pod(&owner);
    world.wait(secs(1));
    let first = fail(&mut world, Some("no disk"));
    let plan = world.lead();
    assert!(plan.actions.iter().any(|action| is_cancelled_for(action, "no disk")), "{:?}", plan.actions);
    world.wait(secs(0));
    let second = world.handoff(P0).new_owner;
    assert!(second != first, "planned again to {second}");
    world.run_until_quiet();
    assert_eq!(world.owner(P0), second);
}

#[test]
fn the_only_pod_gets_a_partition_again_that_it_could_not_take() {
    let mut world = World::new(policy(1));
    world.join_router("r-0");
    world.join_pod("w-0");
    world.wait(secs(2));
    fail(&mut world, None);
    let plan = world.lead();
    assert!(plan.actions.iter().any(|action| is_cancelled_for(action, "it gave no reason")), "{:?}", plan.actions);
    world.wait(FIRST_BACK_OFF - secs(1));
    assert!(world.view().handoffs.is_empty(), "it has just failed");
    world.wait(secs(2));
    assert_eq!(world.handoff(P0).new_owner, "w-0");
}

#[test]
fn a_pod_that_cannot_take_several_partitions_is_shunned() {
    let mut world = World::settled(policy(8), &["w-0"]);
    world.join_pod("w-1");
    world.wait(secs(2));
    let mut refused = 0;
    while refused < 4 {
        let handoffs: Vec<PartitionId> = world.view().handoffs.keys().copied().collect();
        assert!(!handoffs.is_empty(), "no move after {refused}");
        for partition in handoffs {
            assert_eq!(fail_at(&mut world, partition, Some("wrong volume")), "w-1");
            refused += 1;
        }
        world.lead();
        world.wait(secs(0));
    }
    world.wait(secs(1));
    assert!(world.view().handoffs.is_empty(), "{:?}", world.view().handoffs);
}

#[test]
fn a_partition_without_an_owner_goes_to_a_shunned_pod_if_no_other_can_take_it() {
    let mut world = World::settled(policy(1), &["w-0"]);
    world.join_pod("w-1");
    world.join_pod("w-2");
    world.kill_pod("w-0");
    // Without a router no request waits, so the partition leaves no pod sooner.
    world.kill_router("r-0");
    world.wait(secs(1));
    let slow = world.handoff(P0).new_owner;
    // It is not warm in time, and shunned for it.
    world.wait(policy(1).warm_timeout + FIRST_BACK_OFF + secs(1));
    let other = world.handoff(P0).new_owner;
    assert_ne!(other, slow);
    fail(&mut world, Some("no disk"));
    world.lead();
    world.wait(secs(0));
    assert_eq!(world.handoff(P0).new_owner, slow);
}

#[test]
fn a_failure_past_the_point_of_no_return_cancels_nothing() {
    let mut world = World::settled(policy(1), &["w-0", "w-1"]);
    world.join_router("r-0");
    let owner = world.owner(P0);
    world.kill_pod(&owner);
    world.wait(secs(1));
    while world.handoff(P0).phase < Phase::Switching {
        assert!(world.participate(P0));
    }
    world.silent.insert("r-0".to_owned());
    fail(&mut world, Some("too late"));
    assert!(
        !world
            .wait(secs(600))
            .iter()
            .flat_map(|plan| &plan.actions)
            .any(|it| matches!(it, PlannedWrite::Cancel { .. }))
    );
}
