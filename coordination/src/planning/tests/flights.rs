//! Which handoffs are given up, when, and what follows.

use super::world::{World, policy, secs};
use crate::planning::{Action, CancelReason, FIRST_BACK_OFF, Notice, Plan, Policy};
use crate::protocol::advance::Waiting;
use crate::protocol::records::{Assignment, Mode, Phase, RouterDrainedAck, encode};
use crate::store::keys::Partition;

/// A world in which the one partition moves from w-0 to w-1 and has come to `phase`.
fn moving(mode: Mode, phase: Phase) -> World {
    let mut world = World::settled(Policy { mode, ..policy(1) }, &["w-0"]);
    world.join_pod("w-1");
    world.drain_pod("w-0");
    world.wait(secs(3));
    while world.handoff(0).phase < phase {
        assert!(world.participate(0));
    }
    assert_eq!(world.handoff(0).phase, phase);
    world
}

fn cancels(plans: &[Plan]) -> Vec<(Partition, &CancelReason)> {
    let actions = plans.iter().flat_map(|plan| &plan.actions);
    let cancels = actions.filter_map(|action| match action {
        Action::Cancel { standing, reason } => Some((standing.partition(), reason)),
        _ => None,
    });
    cancels.collect()
}

#[test]
fn a_move_whose_new_owner_dies_before_switching_is_cancelled_at_once() {
    for phase in [Phase::Warming, Phase::Ready, Phase::Syncing] {
        let mut world = moving(Mode::Barrier, phase);
        world.kill_pod("w-1");
        let plan = world.lead();
        assert_eq!(cancels(&[plan]), [(0, &CancelReason::NewOwnerDead)], "in {phase:?}");
        let view = world.view();
        assert!(view.handoffs.is_empty() && view.acks.is_empty());
        assert_eq!(world.owner(0), "w-0");
    }
}

#[test]
fn a_move_whose_new_owner_dies_after_the_flip_starts_anew_from_the_dead_owner() {
    for phase in [Phase::Switching, Phase::Complete] {
        let mut world = moving(Mode::Barrier, phase);
        let dead = world.view().incarnation_of("w-1");
        world.join_pod("w-2");
        world.restart_pod("w-1");
        let flipped = world.view().assignments[&0].clone();
        let plan = world.lead();
        assert!(matches!(plan.actions[..], [Action::Abandon { .. }]), "in {phase:?}: {:?}", plan.actions);
        assert_eq!(world.view().assignments[&0], flipped, "it is a dead owner already");
        world.wait(secs(5));
        let next = world.handoff(0);
        assert_eq!((next.old_owner.as_deref(), next.old_incarnation, next.epoch), (Some("w-1"), dead, 3));
    }
}

#[test]
fn in_independent_ready_is_the_point_of_no_return() {
    let mut world = moving(Mode::Independent, Phase::Ready);
    assert_eq!(world.owner(0), "w-0", "the flip comes last");
    let incarnation = world.view().incarnation_of("w-1");
    world.silent.insert("r-0".into());
    let plans = world.wait(secs(200));
    assert!(cancels(&plans).is_empty());
    let overdue =
        Notice::Overdue { partition: 0, phase: Phase::Ready, waiting: vec![Waiting::RouterCutover("r-0".into())] };
    assert!(plans.last().unwrap().notices.contains(&overdue));

    world.kill_pod("w-1");
    world.lead();
    let view = world.view();
    assert!(view.handoffs.is_empty() && view.acks.is_empty());
    let assignment = &view.assignments[&0].value;
    assert_eq!((assignment.owner.as_str(), assignment.incarnation, assignment.epoch), ("w-1", incarnation, 2));
    world.join_pod("w-2");
    world.wait(secs(5));
    assert_eq!(world.handoff(0).epoch, 3, "requests may have been taken under epoch 2");
}

#[test]
fn an_independent_move_is_cancelled_while_it_warms_if_a_second_router_comes() {
    let mut world = moving(Mode::Independent, Phase::Warming);
    world.join_router("r-1");
    assert_eq!(cancels(&[world.lead()]), [(0, &CancelReason::SecondRouter)]);
    world.lead();
    assert_eq!(world.handoff(0).mode, Mode::Barrier);
}

#[test]
fn a_warming_move_to_a_pod_that_begins_to_drain_is_cancelled_and_a_later_one_finishes() {
    let mut world = moving(Mode::Barrier, Phase::Warming);
    world.drain_pod("w-1");
    assert_eq!(cancels(&[world.lead()]), [(0, &CancelReason::NewOwnerDraining)]);

    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.drain_pod("w-1");
    world.join_pod("w-2");
    assert!(cancels(&world.wait(secs(10))).is_empty());
    while world.participate(0) {}
    assert!(!world.view().handoffs.contains_key(&0));
    let plan = world.lead();
    assert_eq!(plan.round, None, "what waited for the end of a handoff needs no round");
    assert_eq!(world.handoff(0).new_owner, "w-2");
}

#[test]
fn the_death_of_the_old_owner_changes_nothing() {
    let mut world = moving(Mode::Barrier, Phase::Warming);
    world.kill_pod("w-0");
    assert!(world.wait(secs(100)).iter().all(|plan| plan.actions.is_empty()));
    world.run_until_quiet();
    assert_eq!(world.owner(0), "w-1");
}

#[test]
fn a_long_warm_is_no_wedge_but_one_without_end_is_planned_around() {
    let mut world = moving(Mode::Barrier, Phase::Warming);
    world.silent.insert("w-1".into());
    world.join_pod("w-2");
    assert!(cancels(&world.wait(secs(290))).is_empty());
    let plans = world.wait(secs(20));
    assert_eq!(cancels(&plans), [(0, &CancelReason::WarmTimeout)]);
    let shunned = Notice::Shunned { pod: "w-1".into(), failures: 1 };
    assert!(plans.iter().any(|plan| plan.notices.contains(&shunned)));
    assert_eq!(world.handoff(0).new_owner, "w-2");
    world.run_until_quiet();
    assert_eq!(world.owner(0), "w-2");
}

#[test]
fn a_pod_that_never_gets_ready_is_left_alone_for_longer_each_time() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    world.policy.warm_timeout = secs(10);
    world.silent.insert("w-2".into());
    world.join_pod("w-2");
    let (mut created, mut cancelled, mut waits) = (None, None, Vec::new());
    for _ in 0..400 {
        let plan = world.lead();
        for action in &plan.actions {
            match action {
                Action::Create { handoff, .. } if handoff.new_owner == "w-2" => {
                    waits.extend(cancelled.take().map(|at| (world.now - at).as_secs()));
                    created = Some(world.now);
                }
                Action::Cancel { .. } => cancelled = Some(world.now),
                _ => {}
            }
        }
        world.now = world.wake.unwrap();
    }
    assert!(created.is_some());
    assert_eq!(waits[..6], [10, 20, 40, 80, 160, 320]);
    assert_eq!(world.balance()["w-0"], 2, "the others serve meanwhile");
}

#[test]
fn a_shunned_pod_keeps_what_it_has_and_the_others_share_the_rest() {
    let mut world = World::settled(policy(12), &["w-0", "w-1"]);
    world.policy.warm_timeout = secs(10);
    world.kill_pod("w-1");
    world.run_until_quiet();
    world.silent.insert("w-2".into());
    world.join_pod("w-1");
    world.join_pod("w-2");
    for _ in 0..100 {
        world.participate_all();
        world.lead();
        world.now += std::time::Duration::from_millis(250);
        if world.memory.backoffs.is_shunned("w-2", world.view().incarnation_of("w-2"), world.now) {
            break;
        }
    }
    for _ in 0..12 {
        world.participate_all();
        world.lead();
        world.now += std::time::Duration::from_millis(250);
    }
    assert_eq!(Vec::from_iter(world.balance().into_values()), [6, 6, 0]);
}

#[test]
fn if_every_pod_is_shunned_a_partition_without_owner_is_placed_all_the_same() {
    let mut world = World::new(policy(1));
    world.policy.warm_timeout = secs(10);
    world.silent.insert("w-0".into());
    world.join_pod("w-0");
    let plans = world.wait(secs(60));
    assert!(cancels(&plans).len() >= 3, "it is tried again and again: {}", cancels(&plans).len());
    world.silent.clear();
    world.run_until_quiet();
    assert_eq!(world.owner(0), "w-0");
}

#[test]
fn a_phase_that_lasts_too_long_is_cancelled_and_names_who_was_waited_for() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.silent.insert("r-0".into());
    world.lead();
    assert!(cancels(&world.wait(secs(59))).is_empty());
    let plans = world.wait(secs(2));
    let reason =
        CancelReason::PhaseTimeout { phase: Phase::Ready, waiting: vec![Waiting::RouterDrained("r-0".into())] };
    assert_eq!(cancels(&plans), [(0, &reason)]);
    assert_eq!(reason.to_string(), "Ready lasted too long, waiting for router r-0 to drain");
    assert!(world.wait(FIRST_BACK_OFF - secs(2)).iter().all(|plan| plan.actions.is_empty()));
    world.wait(secs(2));
    assert_eq!(world.handoff(0).new_owner, "w-1", "a silent router is not the new owner's fault");
}

#[test]
fn time_in_a_phase_counts_from_the_planners_own_sight_of_it() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.silent.insert("r-0".into());
    world.lead();
    world.wait(secs(50));
    world.elect();
    assert!(cancels(&world.wait(secs(59))).is_empty(), "a new leader measures anew");
    assert_eq!(cancels(&world.wait(secs(2))).len(), 1);
}

#[test]
fn each_phase_has_its_own_time() {
    let mut world = moving(Mode::Barrier, Phase::Warming);
    world.silent.insert("r-0".into());
    world.wait(secs(200));
    assert!(world.participate(0));
    assert_eq!(world.handoff(0).phase, Phase::Ready);
    assert!(cancels(&world.wait(secs(59))).is_empty());
    assert_eq!(cancels(&world.wait(secs(2))).len(), 1);
}

#[test]
fn nothing_is_decided_about_a_partition_whose_records_cannot_be_read() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.store.put(world.keys.assignment(0), b"{".to_vec());
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
fn a_completed_move_that_waits_for_nobody_is_left_to_its_next_step() {
    let mut world = moving(Mode::Barrier, Phase::Complete);
    world.silent.insert("w-0".into());
    world.lead();
    world.kill_pod("w-0");
    world.now += secs(100);
    assert!(world.lead().actions.is_empty());
}

#[test]
fn a_timeout_does_not_race_a_phase_that_is_about_to_move_on() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.silent.insert("r-0".into());
    world.lead();
    world.kill_router("r-0");
    world.now += secs(100);
    assert!(cancels(&[world.lead()]).is_empty(), "nobody is waited for any more");
}

#[test]
fn a_router_that_cannot_drain_gets_its_cancel_and_each_retry_waits_longer() {
    let mut world = moving(Mode::Barrier, Phase::Warming);
    world.stuck.insert("r-0".into());
    let (mut cancelled, mut waits) = (None, Vec::new());
    for _ in 0..600 {
        for action in world.lead().actions {
            match action {
                Action::Create { .. } => waits.extend(cancelled.take().map(|at| (world.now - at).as_secs())),
                Action::Cancel { reason, .. } => {
                    assert_eq!(reason, CancelReason::GaveUp { router: "r-0".into() });
                    cancelled = Some(world.now);
                }
                other => panic!("{other:?}"),
            }
        }
        if !world.participate_all() {
            world.now = world.wake.unwrap();
        }
    }
    assert_eq!(waits[..9], [5, 10, 20, 40, 80, 160, 320, 600, 600]);
    world.stuck.clear();
    world.run_until_quiet();
    assert_eq!(world.owner(0), "w-1");
    assert_eq!(world.memory.backoffs, Default::default(), "a success ends the row");
}

#[test]
fn a_cancel_that_cannot_be_written_counts_as_one_failure() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.silent.insert("r-0".into());
    world.lead();
    world.now += secs(61);
    for _ in 0..100 {
        assert_eq!(cancels(&[world.plan()]).len(), 1, "it is asked for until it is done");
        world.now = world.wake.unwrap();
    }
    world.lead();
    let cancelled = world.now;
    world.lead();
    assert!(world.now < cancelled + FIRST_BACK_OFF);
    assert_eq!(world.handoff(0).phase, Phase::Warming, "the one back-off is over by then");
}

#[test]
fn a_gave_up_of_a_router_that_is_gone_or_of_another_handoff_is_nothing() {
    for (router, off) in [("r-9", 0), ("r-0", 1)] {
        let mut world = moving(Mode::Barrier, Phase::Ready);
        let ack = RouterDrainedAck {
            router_name: router.into(),
            partition: 0,
            handoff: world.view().handoffs[&0].create_revision - off,
            acked_at: 0,
            severed: 0,
            gave_up: true,
        };
        world.store.put(world.keys.router_drained(0, router), encode(&ack));
        assert!(cancels(&[world.lead()]).is_empty());
    }
}

#[test]
fn past_the_flip_nothing_is_cancelled_and_the_silent_one_is_named() {
    let mut world = moving(Mode::Barrier, Phase::Switching);
    world.silent.insert("r-0".into());
    let plans = world.wait(secs(3600));
    assert!(plans.iter().all(|plan| plan.actions.is_empty()));
    let notice =
        Notice::Overdue { partition: 0, phase: Phase::Switching, waiting: vec![Waiting::RouterCutover("r-0".into())] };
    assert!(plans.last().unwrap().notices.contains(&notice));
}

#[test]
fn a_completed_move_waits_for_released_no_longer_than_phase_timeout() {
    let mut world = moving(Mode::Barrier, Phase::Complete);
    world.silent.insert("w-0".into());
    world.lead();
    assert!(world.wait(secs(59)).iter().all(|plan| plan.actions.is_empty()));
    let plans = world.wait(secs(2));
    let deleted = plans.iter().flat_map(|plan| &plan.actions).collect::<Vec<_>>();
    assert!(matches!(deleted[..], [Action::Delete { .. }]), "{deleted:?}");
    assert!(world.view().handoffs.is_empty() && world.view().acks.is_empty());
    assert_eq!(world.owner(0), "w-1");
}

#[test]
fn a_move_beyond_the_keyspace_is_cancelled() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    let mut handoff = world.handoff(0);
    handoff.partition = 7;
    world.store.put(world.keys.handoff(7), encode(&handoff));
    assert_eq!(cancels(&[world.lead()]), [(7, &CancelReason::BeyondConfig)]);
}

#[test]
fn a_move_whose_assignment_was_written_by_hand_is_cancelled() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    let assignment = Assignment { epoch: 9, ..world.view().assignments[&0].value.clone() };
    world.store.put(world.keys.assignment(0), encode(&assignment));
    assert_eq!(cancels(&[world.lead()]), [(0, &CancelReason::AssignmentChanged)]);
    world.run_until_quiet();
    assert_eq!(world.view().assignments[&0].value.epoch, 10);
}

#[test]
fn acks_whose_handoff_is_gone_are_swept_by_the_next_heartbeat_and_not_before() {
    let mut world = moving(Mode::Barrier, Phase::Syncing);
    world.drain_pod("w-1");
    world.lead();
    world.store.delete(world.keys.handoff(0));
    let swept = |plan: &Plan| plan.actions.contains(&Action::Sweep { partition: 0 });
    assert!(!world.wait(secs(20)).iter().any(swept));
    assert!(world.wait(secs(20)).iter().any(swept));
    assert!(world.view().acks.is_empty());
}
