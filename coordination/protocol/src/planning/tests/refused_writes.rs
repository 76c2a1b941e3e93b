//! Handoffs whose time passes while the store refuses writes.

use super::phase_timeouts::{P0, cancels, moving};
use super::world::{World, secs};
use crate::planning::{CancelReason, FIRST_BACK_OFF, Notice, Plan};
use crate::records::{Mode, Phase, RouterRecord, encode};

/// Returns a world in which the new owner of the one partition does not report that it has read the tail.
fn waits_for_the_tail() -> World {
    let mut world = moving(Mode::Barrier, Phase::Syncing);
    world.silent.insert("w-1".into());
    world.lead();
    world
}

fn blames(plan: &Plan) -> bool {
    plan.notices.iter().any(|notice| matches!(notice, Notice::Shunned { .. }))
}

#[test]
fn no_pod_is_blamed_for_a_phase_in_which_the_store_refused_writes() {
    let mut world = waits_for_the_tail();
    world.memory.store_refuses(true);
    world.lead();
    world.memory.store_refuses(false);
    let plans = world.wait(secs(61));
    assert_eq!(cancels(&plans), [(P0, &CancelReason::StoreRefused { phase: Phase::Syncing })]);
    assert!(!plans.iter().any(blames));
    world.silent.clear();
    world.wait(FIRST_BACK_OFF + secs(1));
    assert_eq!(world.handoff(P0).new_owner, "w-1");
}

#[test]
fn a_phase_that_begins_once_refused_writes_have_been_repeated_counts_as_any() {
    for (after, is_blamed) in [(secs(29), false), (secs(31), true)] {
        let mut world = moving(Mode::Barrier, Phase::Warming);
        world.memory.store_refuses(true);
        world.lead();
        world.memory.store_refuses(false);
        world.wait(after);
        while world.handoff(P0).phase < Phase::Syncing {
            assert!(world.participate(P0));
        }
        world.silent.insert("w-1".into());
        world.lead();
        let plans = world.wait(secs(61));
        assert_eq!(cancels(&plans).len(), 1);
        assert_eq!(plans.iter().any(blames), is_blamed, "{after:?}");
    }
}

#[test]
fn the_blame_for_a_cancel_that_the_store_refused_is_taken_back() {
    let mut world = waits_for_the_tail();
    world.now += secs(61);
    let first = world.plan();
    assert!(matches!(cancels(std::slice::from_ref(&first))[..], [(_, CancelReason::PhaseTimeout { .. })]));
    assert!(blames(&first), "nothing is known of the store");
    world.memory.store_refuses(true);
    let plan = world.plan();
    assert_eq!(cancels(std::slice::from_ref(&plan)), [(P0, &CancelReason::StoreRefused { phase: Phase::Syncing })]);
    assert!(!blames(&plan));
}

#[test]
fn a_warm_up_may_take_the_time_anew_for_which_the_store_refused_writes() {
    let mut world = moving(Mode::Barrier, Phase::Warming);
    world.silent.insert("w-1".into());
    world.memory.store_refuses(true);
    assert!(cancels(&world.wait(secs(700))).is_empty());
    world.lead();
    world.memory.store_refuses(false);
    assert!(cancels(&world.wait(secs(290))).is_empty());
    assert_eq!(cancels(&world.wait(secs(310))), [(P0, &CancelReason::WarmTimeout)]);
}

#[test]
fn routers_are_not_waited_for_as_if_they_went_on_routing_when_the_store_refuses_their_acks() {
    for (refuses, limit) in [(false, 67), (true, 60)] {
        let mut world = moving(Mode::Barrier, Phase::Ready);
        let patient = RouterRecord { patience_ms: 7_000, ..RouterRecord::new("r-0") };
        world.store.put_leased(world.keys.router("r-0"), encode(&patient));
        world.silent.insert("r-0".into());
        world.lead();
        world.memory.store_refuses(refuses);
        assert!(cancels(&world.wait(secs(limit - 1))).is_empty(), "{refuses}");
        assert_eq!(cancels(&world.wait(secs(2))).len(), 1, "{refuses}");
    }
}
