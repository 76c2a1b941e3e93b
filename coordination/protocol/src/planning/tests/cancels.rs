//! Which handoffs are cancelled at once, and which go on whatever happens.

use super::phase_timeouts::{P0, P7, cancels, moving};
use super::world::{World, policy, secs};
use crate::handoff::advance::PendingOn;
use crate::handoff::pod::{Duty, duty};
use crate::ids::Epoch;
use crate::planning::{CancelReason, Notice, PlannedWrite, Policy};
use crate::records::{Assignment, Mode, Phase, Request, encode};

#[test]
fn a_move_whose_new_owner_dies_before_switching_is_cancelled_at_once() {
    for phase in [Phase::Warming, Phase::Ready, Phase::Syncing] {
        let mut world = moving(Mode::Barrier, phase);
        world.kill_pod("w-1");
        let plan = world.lead();
        assert_eq!(cancels(&[plan]), [(P0, &CancelReason::NewOwnerDead)], "in {phase:?}");
        let view = world.view();
        assert!(view.handoffs.is_empty() && view.acks.is_empty());
        assert_eq!(world.owner(P0), "w-0");
    }
}

#[test]
fn a_move_whose_new_owner_dies_after_the_flip_starts_anew_from_the_dead_owner() {
    for phase in [Phase::Switching, Phase::Complete] {
        let mut world = moving(Mode::Barrier, phase);
        let epoch = world.handoff(P0).epoch;
        let dead = world.view().incarnation_of("w-1");
        world.join_pod("w-2");
        world.restart_pod("w-1");
        let flipped = world.view().assignments[&P0].clone();
        let plan = world.lead();
        assert!(matches!(plan.actions[..], [PlannedWrite::Abandon { .. }]), "in {phase:?}: {:?}", plan.actions);
        assert_eq!(world.view().assignments[&P0], flipped, "it is a dead owner already");
        world.wait(secs(5));
        let next = world.handoff(P0);
        assert_eq!((next.old_owner.as_deref(), next.old_incarnation), (Some("w-1"), dead));
        assert!(next.epoch > epoch);
    }
}

#[test]
fn no_move_ends_over_an_assignment_that_cannot_be_read_once_it_may_be_another_owners() {
    for (mode, phase) in
        [(Mode::Barrier, Phase::Switching), (Mode::Barrier, Phase::Complete), (Mode::Independent, Phase::Ready)]
    {
        let mut world = moving(mode, phase);
        world.silent.insert("r-0".into());
        world.store.put(world.keys.assignment(P0), b"{".to_vec());
        world.kill_pod("w-1");
        let actions: Vec<_> = world.wait(secs(200)).into_iter().flat_map(|plan| plan.actions).collect();
        assert!(actions.iter().all(|action| action.partition() != Some(P0)), "{mode:?}, {phase:?}: {actions:?}");
    }
}

#[test]
fn in_independent_ready_is_the_point_of_no_return() {
    let mut world = moving(Mode::Independent, Phase::Ready);
    assert_eq!(world.owner(P0), "w-0", "the flip comes last");
    let (incarnation, epoch) = (world.view().incarnation_of("w-1"), world.handoff(P0).epoch);
    world.silent.insert("r-0".into());
    let plans = world.wait(secs(200));
    assert!(cancels(&plans).is_empty());
    let overdue =
        Notice::Overdue { partition: P0, phase: Phase::Ready, waiting: vec![PendingOn::RouterCutover("r-0".into())] };
    assert!(plans.last().unwrap().notices.contains(&overdue));

    world.kill_pod("w-1");
    world.lead();
    let view = world.view();
    assert!(view.handoffs.is_empty() && view.acks.is_empty());
    let assignment = &view.assignments[&P0].value;
    assert_eq!((assignment.owner.as_str(), assignment.incarnation, assignment.epoch), ("w-1", incarnation, epoch));
    world.join_pod("w-2");
    world.wait(secs(5));
    assert!(world.handoff(P0).epoch > epoch, "requests may have been taken under it");
}

#[test]
fn an_independent_move_is_cancelled_while_it_warms_if_a_second_router_comes() {
    let mut world = moving(Mode::Independent, Phase::Warming);
    world.join_router("r-1");
    assert_eq!(cancels(&[world.lead()]), [(P0, &CancelReason::SecondRouter)]);
    world.lead();
    assert_eq!(world.handoff(P0).mode, Mode::Barrier);
}

#[test]
fn an_independent_move_is_cancelled_while_it_warms_if_another_router_takes_the_place_of_the_first() {
    let mut world = moving(Mode::Independent, Phase::Warming);
    world.kill_router("r-0");
    world.join_router("r-1");
    assert!(!world.participate(P0), "the new owner cannot say that it is warm");
    assert_eq!(cancels(&[world.lead()]), [(P0, &CancelReason::SecondRouter)]);
    world.run_until_quiet();
    assert_eq!(world.owner(P0), "w-1");
}

#[test]
fn a_first_placement_goes_on_whichever_routers_come() {
    for mode in [Mode::Barrier, Mode::Independent] {
        let mut world = World::new(Policy { mode, ..policy(1) });
        world.join_pod("w-0");
        world.wait(secs(3));
        world.join_router("r-0");
        world.join_router("r-1");
        assert!(world.participate(P0), "{mode:?}");
        assert!(cancels(&[world.lead()]).is_empty());
        world.run_until_quiet();
        assert_eq!(world.owner(P0), "w-0");
    }
}

#[test]
fn a_warming_move_to_a_pod_that_begins_to_drain_is_cancelled_and_a_later_one_finishes() {
    let mut world = moving(Mode::Barrier, Phase::Warming);
    world.drain_pod("w-1");
    assert_eq!(cancels(&[world.lead()]), [(P0, &CancelReason::NewOwnerDraining)]);

    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.drain_pod("w-1");
    world.join_pod("w-2");
    assert!(cancels(&world.wait(secs(10))).is_empty());
    while world.participate(P0) {}
    assert!(!world.view().handoffs.contains_key(&P0));
    let plan = world.lead();
    assert_eq!(plan.round, None, "what waited for the end of a handoff needs no round");
    assert_eq!(world.handoff(P0).new_owner, "w-2");
}

#[test]
fn a_new_order_after_an_operators_cancel_waits_for_the_partitions_rest_alone() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    let from = world.owner(P0);
    let to = world.other_than(&from);
    // The pair of partition and pod rests for 40 s after three cancels, the partition for 20 s.
    for (turn, rest) in [0, 5, 10, 20].into_iter().enumerate() {
        world.now += secs(rest);
        world.asks_to_move(&format!("move-{turn}"), P0, &to, false);
        world.wait(secs(3));
        assert_eq!(world.handoff(P0).new_owner, to, "after {rest} s");
        let handoff = world.handoff_id(P0);
        world.ask(&format!("cancel-{turn}"), Request::Cancel { partition: P0, handoff });
        world.lead();
        assert!(!world.view().handoffs.contains_key(&P0));
    }
}

#[test]
fn the_death_of_the_old_owner_changes_nothing() {
    let mut world = moving(Mode::Barrier, Phase::Warming);
    world.kill_pod("w-0");
    assert!(world.wait(secs(100)).iter().all(|plan| plan.actions.is_empty()));
    world.run_until_quiet();
    assert_eq!(world.owner(P0), "w-1");
}

#[test]
fn a_move_whose_assignment_cannot_be_read_can_be_cancelled_and_nothing_else() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.store.put(world.keys.assignment(P0), b"{".to_vec());
    let before = world.store.revision;
    world.participate(P0);
    assert!(
        world.handoff(P0).phase == Phase::Ready && world.store.revision == before.next(),
        "nothing but the drained ack"
    );
    world.kill_pod("w-1");
    assert_eq!(cancels(&[world.lead()]), [(P0, &CancelReason::NewOwnerDead)]);
    assert!(world.view().handoffs.is_empty());
    world.join_pod("w-2");
    assert!(world.wait(secs(100)).iter().all(|plan| plan.actions.is_empty()), "what cannot be read is owned");

    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.store.put(world.keys.handoff(P0), b"{".to_vec());
    world.kill_pod("w-1");
    assert!(world.wait(secs(100)).iter().all(|plan| plan.actions.is_empty()));
}

#[test]
fn a_new_owner_whose_registration_cannot_be_read_is_not_taken_for_dead() {
    for phase in [Phase::Warming, Phase::Switching] {
        let mut world = moving(Mode::Barrier, phase);
        world.store.put(world.keys.pod("w-1"), b"{".to_vec());
        assert!(world.wait(secs(50)).iter().all(|plan| plan.actions.is_empty()), "in {phase:?}");
    }
}

#[test]
fn a_move_beyond_the_keyspace_is_cancelled() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    let mut handoff = world.handoff(P0);
    handoff.partition = P7;
    world.store.put(world.keys.handoff(P7), encode(&handoff));
    assert_eq!(cancels(&[world.lead()]), [(P7, &CancelReason::BeyondConfig)]);
}

#[test]
fn a_move_whose_assignment_was_written_by_hand_is_cancelled() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    let epoch = world.handoff(P0).epoch;
    let assignment = Assignment { epoch, ..world.view().assignments[&P0].value.clone() };
    world.store.put(world.keys.assignment(P0), encode(&assignment));
    assert_eq!(cancels(&[world.lead()]), [(P0, &CancelReason::AssignmentChanged)]);
    world.run_until_quiet();
    assert!(world.view().assignments[&P0].value.epoch > epoch);
}

#[test]
fn an_epoch_that_was_announced_never_comes_back() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    let announced = world.handoff(P0).epoch;
    world.kill_pod("w-1");
    world.lead();
    assert!(world.view().handoffs.is_empty());
    world.join_pod("w-2");
    world.wait(secs(5));
    assert!(world.handoff(P0).epoch > announced, "not after a cancel");

    let mut world = World::settled(policy(1), &["w-0"]);
    let owned = world.view().assignments[&P0].value.epoch;
    world.store.delete(world.keys.assignment(P0));
    world.wait(secs(31));
    assert_eq!(world.handoff(P0).old_owner, None);
    assert!(world.handoff(P0).epoch > owned, "not after the assignment was deleted by hand");
}

#[test]
fn an_epoch_above_the_revision_is_given_once_as_well() {
    let mut world = World::settled(policy(1), &["w-0"]);
    // As an operator writes it, or as a store shows it that has gone back in revisions.
    let mut last = Epoch::new(1_000_000);
    let assignment = Assignment { epoch: last, ..world.view().assignments[&P0].value.clone() };
    world.store.put(world.keys.assignment(P0), encode(&assignment));
    world.silent.extend(["w-1".to_owned(), "w-2".to_owned()]);
    for next in ["w-1", "w-2"] {
        world.drain_pod("w-0");
        world.join_pod(next);
        world.wait(secs(5));
        let handoff = world.handoff(P0);
        assert!(handoff.epoch > last, "{} to {next} after {last}", handoff.epoch);
        last = handoff.epoch;
        world.kill_pod(next);
        world.lead();
        assert!(world.view().handoffs.is_empty());
    }
    world.silent.clear();
    world.join_pod("w-3");
    world.run_until_quiet();
    let owned = &world.view().assignments[&P0].value;
    assert!(owned.owner == "w-3" && owned.epoch > last, "{owned:?} after {last}");
}

#[test]
fn no_flip_overwrites_an_assignment_that_somebody_wrote_or_deleted_meanwhile() {
    for (mode, phase) in [(Mode::Barrier, Phase::Syncing), (Mode::Independent, Phase::Ready)] {
        let mut world = moving(mode, phase);
        world.join_pod("w-2");
        let (life, epoch) = (world.view().incarnation_of("w-2"), Epoch::new(world.handoff(P0).epoch.get() + 4));
        let by_hand = Assignment::new(P0, "w-2", life, epoch);
        world.store.put(world.keys.assignment(P0), encode(&by_hand));
        let duty = |world: &World, pod: &str| duty(&world.view(), pod, world.view().incarnation_of(pod), P0);
        assert_eq!(duty(&world, "w-2"), Duty::Serve { epoch });
        assert!(matches!(duty(&world, "w-1"), Duty::Stand { .. }), "{:?}", duty(&world, "w-1"));
        // All acknowledge before the leader looks.
        while world.participate(P0) {}
        assert_eq!(world.view().assignments[&P0].value, by_hand, "{mode:?}");
        assert_eq!(cancels(&[world.lead()]), [(P0, &CancelReason::AssignmentChanged)], "{mode:?}");
        assert_eq!(world.view().assignments[&P0].value, by_hand);
    }
    let mut world = moving(Mode::Barrier, Phase::Syncing);
    world.store.delete(world.keys.assignment(P0));
    while world.participate(P0) {}
    assert!(world.view().assignments.is_empty());
    assert_eq!(cancels(&[world.lead()]), [(P0, &CancelReason::AssignmentChanged)]);
    world.run_until_quiet();
    assert_eq!(world.owner(P0), "w-1");
}

#[test]
fn a_move_whose_assignment_somebody_wrote_or_deleted_after_the_flip_ends_at_once() {
    for deletes in [false, true] {
        let mut world = moving(Mode::Barrier, Phase::Switching);
        world.join_pod("w-2");
        let announced = world.handoff(P0).epoch;
        let (life, epoch) = (world.view().incarnation_of("w-2"), Epoch::new(announced.get() + 4));
        let by_hand = Assignment::new(P0, "w-2", life, epoch);
        match deletes {
            true => world.store.delete(world.keys.assignment(P0)),
            false => world.store.put(world.keys.assignment(P0), encode(&by_hand)),
        }
        // A router follows the assignment, and never says that it has switched to the handoff's owner.
        world.silent.insert("r-0".into());
        assert_eq!(cancels(&[world.lead()]), [(P0, &CancelReason::AssignmentChanged)], "deletes: {deletes}");
        world.silent.clear();
        world.run_until_quiet();
        let owned = world.view().assignments[&P0].value.clone();
        match deletes {
            true => assert!(owned.epoch > announced && owned.owner != "w-0", "{owned:?}"),
            false => assert_eq!(owned, by_hand),
        }
    }
}

#[test]
fn a_move_whose_assignment_cannot_be_read_after_the_flip_goes_on() {
    let mut world = moving(Mode::Barrier, Phase::Switching);
    world.store.put(world.keys.assignment(P0), b"[]".to_vec());
    world.silent.insert("r-0".into());
    assert!(cancels(&[world.lead()]).is_empty());
}
