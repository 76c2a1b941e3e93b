//! Which handoffs are cancelled because a phase lasts too long, when, and what follows.

use super::world::{World, policy, secs};
use crate::handoff::advance::{PendingOn, advance_past_bound};
use crate::ids::{HandoffId, PartitionId, Revision};
use crate::planning::{CancelReason, FIRST_BACK_OFF, Notice, Plan, PlannedWrite, Policy};
use crate::records::{Assignment, Mode, Phase, RouterDrainedAck, RouterRecord, encode};

pub(super) const P0: PartitionId = PartitionId::new(0);
pub(super) const P7: PartitionId = PartitionId::new(7);

/// Returns a world in which the one partition moves from w-0 to w-1 and has reached `phase`.
pub(super) fn moving(mode: Mode, phase: Phase) -> World {
    let mut world = World::settled(Policy { mode, ..policy(1) }, &["w-0"]);
    world.join_pod("w-1");
    world.drain_pod("w-0");
    world.wait(secs(3));
    while world.handoff(P0).phase < phase {
        assert!(world.participate(P0));
    }
    assert_eq!(world.handoff(P0).phase, phase);
    world
}

pub(super) fn cancels(plans: &[Plan]) -> Vec<(PartitionId, &CancelReason)> {
    let actions = plans.iter().flat_map(|plan| &plan.actions);
    let cancels = actions.filter_map(|action| match action {
        PlannedWrite::Cancel { observed, reason, .. } => Some((observed.partition(), reason)),
        _ => None,
    });
    cancels.collect()
}

#[test]
fn a_long_warm_is_no_wedge_but_one_without_end_is_planned_around() {
    let mut world = moving(Mode::Barrier, Phase::Warming);
    world.silent.insert("w-1".into());
    world.join_pod("w-2");
    assert!(cancels(&world.wait(secs(290))).is_empty());
    let plans = world.wait(secs(20));
    assert_eq!(cancels(&plans), [(P0, &CancelReason::WarmTimeout)]);
    let shunned = Notice::Shunned { pod: "w-1".into(), failures: 1 };
    assert!(plans.iter().any(|plan| plan.notices.contains(&shunned)));
    assert_eq!(world.handoff(P0).new_owner, "w-2");
    world.run_until_quiet();
    assert_eq!(world.owner(P0), "w-2");
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
                PlannedWrite::Create { handoff, .. } if handoff.new_owner == "w-2" => {
                    waits.extend(cancelled.take().map(|at| (world.now - at).as_secs()));
                    created = Some(world.now);
                }
                PlannedWrite::Cancel { .. } => cancelled = Some(world.now),
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
        if world.memory.backoffs.is_shunned("w-2", world.now) {
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
    assert_eq!(world.owner(P0), "w-0");
}

#[test]
fn a_phase_that_lasts_too_long_is_cancelled_and_names_who_was_waited_for() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.silent.insert("r-0".into());
    world.lead();
    assert!(cancels(&world.wait(secs(59))).is_empty());
    let plans = world.wait(secs(2));
    let reason =
        CancelReason::PhaseTimeout { phase: Phase::Ready, waiting: vec![PendingOn::RouterDrained("r-0".into())] };
    assert_eq!(cancels(&plans), [(P0, &reason)]);
    assert_eq!(reason.to_string(), "Ready lasted too long, waiting for router r-0 to drain");
    assert!(world.wait(FIRST_BACK_OFF - secs(2)).iter().all(|plan| plan.actions.is_empty()));
    world.wait(secs(2));
    assert_eq!(world.handoff(P0).new_owner, "w-1", "a silent router is not the new owner's fault");
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
    assert!(world.participate(P0));
    assert_eq!(world.handoff(P0).phase, Phase::Ready);
    assert!(cancels(&world.wait(secs(59))).is_empty());
    assert_eq!(cancels(&world.wait(secs(2))).len(), 1);
}

#[test]
fn a_move_whose_old_owner_cannot_be_read_stays_in_its_phase_and_is_cancelled_in_time() {
    let own = encode(&moving(Mode::Barrier, Phase::Ready).view().pods["w-0"].value);
    for by_hand in [b"{".to_vec(), own] {
        let mut world = moving(Mode::Barrier, Phase::Ready);
        world.store.put(world.keys.pod("w-0"), by_hand);
        while world.participate(P0) {}
        assert_eq!(world.handoff(P0).phase, Phase::Ready, "also when it only lacks its lease");
        let plans = world.wait(secs(61));
        let waiting = vec![PendingOn::Repair(world.keys.pod("w-0"))];
        assert_eq!(cancels(&plans), [(P0, &CancelReason::PhaseTimeout { phase: Phase::Ready, waiting })]);
        let named = |notice: &Notice| notice.to_string().ends_with("segue forget pod w-0");
        assert!(plans.last().unwrap().notices.iter().any(named));
        world.wait(secs(100));
        world.drain_pod("w-0");
        world.run_until_quiet();
        assert_eq!(world.owner(P0), "w-1", "it goes on once the registration is repaired");
    }
}

#[test]
fn a_handoff_has_so_much_more_time_as_a_router_may_go_on_routing_while_the_old_owner_lives() {
    for (old_dies, limit) in [(false, 67), (true, 60)] {
        let mut world = moving(Mode::Barrier, Phase::Ready);
        for (name, patience_ms) in [("r-1", 7_000), ("r-2", 5_000)] {
            let patient = RouterRecord { patience_ms, ..RouterRecord::new(name) };
            world.store.put_leased(world.keys.router(name), encode(&patient));
        }
        world.silent.extend(["r-0", "r-1", "r-2"].map(str::to_owned));
        world.lead();
        if old_dies {
            world.kill_pod("w-0");
        }
        assert!(cancels(&world.wait(secs(limit - 1))).is_empty(), "{old_dies}");
        let plans = world.wait(secs(2));
        assert!(matches!(cancels(&plans)[..], [(P0, CancelReason::PhaseTimeout { .. })]), "{old_dies}");
    }
}

#[test]
fn the_time_that_no_router_went_on_routing_is_not_added() {
    for (ready_for, limit) in [(0, 60), (3, 63), (20, 67)] {
        let mut world = moving(Mode::Barrier, Phase::Ready);
        let patient = RouterRecord { patience_ms: 7_000, ..RouterRecord::new("r-0") };
        world.store.put_leased(world.keys.router("r-0"), encode(&patient));
        world.silent.insert("w-1".into());
        world.lead();
        assert!(cancels(&world.wait(secs(ready_for))).is_empty());
        assert!(world.participate(P0));
        assert_eq!(world.handoff(P0).phase, Phase::Syncing);
        world.lead();
        assert!(cancels(&world.wait(secs(limit - ready_for - 1))).is_empty(), "{ready_for}");
        let plans = world.wait(secs(2));
        assert!(matches!(cancels(&plans)[..], [(P0, CancelReason::PhaseTimeout { .. })]), "{ready_for}");
    }
}

#[test]
fn ready_and_syncing_share_their_time() {
    let mut world = moving(Mode::Barrier, Phase::Ready);
    world.silent.insert("w-1".into());
    world.lead();
    assert!(cancels(&world.wait(secs(40))).is_empty());
    assert!(world.participate(P0));
    assert_eq!(world.handoff(P0).phase, Phase::Syncing);
    assert!(cancels(&world.wait(secs(19))).is_empty());
    let plans = world.wait(secs(2));
    assert!(matches!(cancels(&plans)[..], [(P0, CancelReason::PhaseTimeout { phase: Phase::Syncing, .. })]));
}

#[test]
fn a_dead_owners_bound_takes_none_of_the_time_of_a_phase_and_counts_from_when_it_was_seen_gone() {
    let mut world = moving(Mode::Barrier, Phase::Warming);
    let bounded = Assignment { work_ends_within_ms: Some(90_000), ..world.view().assignments[&P0].value.clone() };
    world.store.put(world.keys.assignment(P0), encode(&bounded));
    world.lead();
    world.kill_pod("w-0");
    world.lead();
    let gone = world.now;
    world.wait(secs(30));
    while world.participate(P0) {}
    assert_eq!(
        world.handoff(P0).phase,
        Phase::Ready,
        "all routers have drained, and nobody who acknowledges may go on"
    );
    assert_eq!(world.memory.bound_ends(&world.view(), P0), Some(gone + secs(90)));
    assert!(cancels(&world.wait(secs(100))).is_empty());
    world.lead();
    let step = advance_past_bound(&world.view(), P0, 0).unwrap();
    assert!(world.store.commit(&step.txn));
    assert_eq!((world.handoff(P0).phase, world.handoff(P0).work_has_ended), (Phase::Syncing, true));
    world.silent.insert("w-1".into());
    assert!(cancels(&world.wait(secs(59))).is_empty(), "from here on the time counts");
    assert_eq!(cancels(&world.wait(secs(2))).len(), 1);
}

#[test]
fn an_owner_that_dies_while_its_drain_is_awaited_takes_none_of_the_time_and_its_heir_is_not_shunned() {
    let mut world = moving(Mode::Barrier, Phase::Syncing);
    let bounded = Assignment { work_ends_within_ms: Some(90_000), ..world.view().assignments[&P0].value.clone() };
    world.store.put(world.keys.assignment(P0), encode(&bounded));
    world.lead();
    world.kill_pod("w-0");
    // The new owner reads the tail only once the log is at rest.
    world.silent.insert("w-1".into());
    let plans = world.wait(secs(100));
    assert!(cancels(&plans).is_empty(), "{:?}", cancels(&plans));
    let step = advance_past_bound(&world.view(), P0, 0).unwrap();
    assert!(world.store.commit(&step.txn));
    world.silent.clear();
    world.run_until_quiet();
    assert_eq!(world.owner(P0), "w-1");
}

#[test]
fn a_pod_that_dies_each_time_it_warms_is_left_alone_for_longer_each_time() {
    let mut world = World::settled(policy(4), &["w-0", "w-1"]);
    world.silent.insert("w-2".into());
    let mut begun = Vec::new();
    for _ in 0..400 {
        world.join_pod("w-2");
        let plans = world.wait(secs(3));
        let to_it = |action: &&PlannedWrite| matches!(action, PlannedWrite::Create { handoff, .. } if handoff.new_owner == "w-2");
        if plans.iter().flat_map(|plan| &plan.actions).any(|action| to_it(&action)) {
            begun.push(world.now);
        }
        world.kill_pod("w-2");
        world.wait(secs(1));
    }
    let waits: Vec<u64> = begun.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert!(waits.len() >= 5 && waits.is_sorted(), "{waits:?}");
    for (wait, least) in waits.iter().zip([10, 20, 40, 80, 160, 320]) {
        assert!((least..least + 8).contains(wait), "{waits:?}");
    }
    assert_eq!(world.balance()["w-0"], 2, "the others serve meanwhile");
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
                PlannedWrite::Create { .. } => waits.extend(cancelled.take().map(|at| (world.now - at).as_secs())),
                PlannedWrite::Cancel { reason, .. } => {
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
    assert_eq!(world.owner(P0), "w-1");
    assert!(world.memory.backoffs.is_clear(), "a success ends the row");
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
    assert_eq!(world.handoff(P0).phase, Phase::Warming, "the one back-off is over by then");
}

#[test]
fn a_gave_up_of_a_router_that_is_gone_or_of_another_handoff_is_nothing() {
    for (router, off) in [("r-9", 0), ("r-0", 1)] {
        let mut world = moving(Mode::Barrier, Phase::Ready);
        let ack = RouterDrainedAck {
            gave_up: true,
            ..RouterDrainedAck::new(router, P0, HandoffId::created_at(Revision::new(world.handoff_id(P0).get() - off)))
        };
        world.store.put(world.keys.router_drained(P0, router), encode(&ack));
        assert!(cancels(&[world.lead()]).is_empty());
    }
}

#[test]
fn past_the_flip_nothing_is_cancelled_and_the_silent_one_is_named() {
    let mut world = moving(Mode::Barrier, Phase::Switching);
    world.silent.insert("r-0".into());
    let plans = world.wait(secs(3600));
    assert!(plans.iter().all(|plan| plan.actions.is_empty()));
    let notice = Notice::Overdue {
        partition: P0,
        phase: Phase::Switching,
        waiting: vec![PendingOn::RouterCutover("r-0".into())],
    };
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
    assert!(matches!(deleted[..], [PlannedWrite::Delete { .. }]), "{deleted:?}");
    assert!(world.view().handoffs.is_empty() && world.view().acks.is_empty());
    assert_eq!(world.owner(P0), "w-1");
}
