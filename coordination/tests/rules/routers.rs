//! The decisions of a router: when it stops, drains, switches and severs, what it serves past its lease clock, and how it maps.

use segue_protocol::handoff::pod::{Duty, duty};
use segue_protocol::handoff::router::{
    DrainTimeout, GateStage, HoldCause, OnDrainTimeout, OnStoreLoss, Route, RouteStep, Trust, drain_timed_out,
    may_stop_later, next_step, route,
};
use segue_protocol::mapping::{Agreement, Replacement, agree, is_shown, replace};
use segue_protocol::records::{Capabilities, Mode, Partitioner, Phase, encode};
use segue_protocol::view::View;

use super::{Fixture, I1, NONE, P0, at};

#[tokio::test]
async fn a_stop_may_wait_only_while_a_living_old_owner_serves_what_this_router_has_to_drain() {
    let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
    fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let view = fixture.view().await;
    let (a, b) = (view.incarnation_of("a"), view.incarnation_of("b"));
    let open = GateStage::Open(at("a", a, 4));
    let since = view.handoffs[&P0].mod_revision;
    assert_eq!(may_stop_later(&view, P0, Trust::Held, &open), Some(since));
    let elsewhere = [
        GateStage::Closed,
        GateStage::Flushing(at("a", a, 4)),
        GateStage::Open(at("a", a, 3)),
        GateStage::Open(at("b", b, 5)),
    ];
    for stage in elsewhere {
        assert_eq!(may_stop_later(&view, P0, Trust::Held, &stage), None, "{stage:?}");
    }
    for trust in [Trust::RunOut(OnStoreLoss::Serve), Trust::Gone] {
        assert_eq!(may_stop_later(&view, P0, trust, &open), None, "{trust:?}");
    }
    fixture.handoff(Phase::Ready, Mode::Independent).await;
    assert_eq!(may_stop_later(&fixture.view().await, P0, Trust::Held, &open), None);
    for phase in [Phase::Warming, Phase::Syncing, Phase::Switching] {
        fixture.handoff(phase, Mode::Barrier).await;
        assert_eq!(may_stop_later(&fixture.view().await, P0, Trust::Held, &open), None, "{phase:?}");
    }
    fixture.handoff(Phase::Ready, Mode::Barrier).await;
    fixture.delete(fixture.keys.pod("a")).await;
    assert_eq!(may_stop_later(&fixture.view().await, P0, Trust::Held, &open), None, "the owner is dead");
}

#[tokio::test]
async fn a_router_stops_drains_acknowledges_and_reopens_when_the_handoff_is_cancelled() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let old = at("a", fixture.view().await.incarnation_of("a"), 4);
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let view = fixture.view().await;
    let step = |view: &View, stage: &GateStage| next_step(view, P0, Trust::Held, stage, false);
    assert_eq!(step(&view, &GateStage::Open(old.clone())), Some(RouteStep::Stop));
    assert_eq!(step(&view, &GateStage::Draining(old.clone())), None, "not before the last exchange has ended");
    assert_eq!(step(&view, &GateStage::Closed), Some(RouteStep::AckDrained(id)));
    fixture.delete(fixture.keys.handoff(P0)).await;
    let view = fixture.view().await;
    assert_eq!(
        step(&view, &GateStage::Draining(old.clone())),
        Some(RouteStep::Switch(old.clone())),
        "a stuck drain is no bar"
    );
    assert_eq!(step(&view, &GateStage::Closed), Some(RouteStep::Switch(old)));
}

#[tokio::test]
async fn a_change_of_owner_learnt_from_a_snapshot_is_a_cutover_too() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let view = fixture.view().await;
    let earlier = at("z", I1, 3);
    let step = |stage: &GateStage| next_step(&view, P0, Trust::Held, stage, false);
    assert_eq!(step(&GateStage::Open(earlier.clone())), Some(RouteStep::Stop));
    assert_eq!(step(&GateStage::Draining(earlier.clone())), None);
    assert_eq!(step(&GateStage::Flushing(earlier)), Some(RouteStep::Stop));
}

#[tokio::test]
async fn a_refusing_pod_is_left_alone_until_the_back_off_is_over() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let view = fixture.view().await;
    let to = at("a", view.incarnation_of("a"), 4);
    assert_eq!(next_step(&view, P0, Trust::Held, &GateStage::Closed, true), None);
    assert_eq!(next_step(&view, P0, Trust::Held, &GateStage::Closed, false), Some(RouteStep::Switch(to)));
}

#[tokio::test]
async fn past_the_lease_clock_only_pods_that_fence_and_drain_are_served() {
    for (capabilities, policy, serves) in [
        (Capabilities::ALL, OnStoreLoss::Auto, true),
        (Capabilities { fence: true, ..NONE }, OnStoreLoss::Auto, false),
        (Capabilities { drained: true, ..NONE }, OnStoreLoss::Auto, false),
        (Capabilities::ALL, OnStoreLoss::Fence, false),
        (NONE, OnStoreLoss::Serve, true),
    ] {
        let fixture = Fixture::new(capabilities, NONE, &["r"]).await;
        let route = route(&fixture.view().await, P0, Trust::RunOut(policy));
        assert_eq!(matches!(route, Route::To(_)), serves, "{capabilities:?} {policy:?}");
    }
    let fixture = Fixture::new(Capabilities::ALL, NONE, &["r"]).await;
    let gone = route(&fixture.view().await, P0, Trust::Gone);
    assert_eq!(gone, Route::Hold(HoldCause::Fenced), "a registration that is seen gone fences at once");
}

#[tokio::test]
async fn a_partition_is_held_from_the_moment_its_pod_is_gone() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let old = at("a", fixture.view().await.incarnation_of("a"), 4);
    fixture.delete(fixture.keys.pod("a")).await;
    fixture.pod("a", NONE).await;
    let view = fixture.view().await;
    assert_eq!(route(&view, P0, Trust::Held), Route::Hold(HoldCause::NoOwner), "its namesake owns nothing");
    assert_eq!(next_step(&view, P0, Trust::Held, &GateStage::Open(old), false), Some(RouteStep::Stop));
    assert_eq!(duty(&view, "a", view.incarnation_of("a"), P0), Duty::Idle);
}

#[tokio::test]
async fn severing_is_left_to_where_it_is_safe() {
    let auto = OnDrainTimeout::Auto;
    for (capabilities, expected) in [(Capabilities::ALL, DrainTimeout::Sever), (NONE, DrainTimeout::GiveUp)] {
        let fixture = Fixture::new(capabilities, NONE, &["r"]).await;
        fixture.handoff(Phase::Ready, Mode::Barrier).await;
        assert_eq!(drain_timed_out(&fixture.view().await, P0, auto, false), expected);
        fixture.delete(fixture.keys.pod("a")).await;
        let view = fixture.view().await;
        assert_eq!(drain_timed_out(&view, P0, auto, true), DrainTimeout::Sever, "it had fenced itself");
        assert_eq!(drain_timed_out(&view, P0, auto, false), DrainTimeout::Wait);
    }
}

#[tokio::test]
async fn a_router_maps_as_the_keyspace_does_or_keeps_its_routes_shut() {
    let own = Partitioner::Key { key: "header:x-key".into(), hash: "murmur2".into() };
    let fixture = Fixture::new(NONE, NONE, &[]).await;
    let Agreement::Write(first) = agree(&fixture.view().await, &Partitioner::NUMBER, None, None) else {
        panic!("nobody has said")
    };
    let Agreement::Write(second) = agree(&fixture.view().await, &own, None, None) else { panic!("nobody has said") };
    fixture.commit(first).await.unwrap();
    assert_eq!(fixture.commit(second).await, None, "the first one has said it");

    fixture.router("r").await;
    let view = fixture.view().await;
    assert!(is_shown(&view, &Partitioner::NUMBER, None) && !is_shown(&view, &own, None));
    assert_eq!(agree(&view, &Partitioner::NUMBER, None, None), Agreement::Same);
    let other =
        |view: &View| matches!(agree(view, &own, None, None), Agreement::Wait(why) if why.contains("segue remap"));
    assert!(other(&view));
    let refused = replace(&view, &own).unwrap_err().to_string();
    assert!(refused.contains("stop r and try again"), "{refused}");
    fixture.delete(fixture.keys.router("r")).await;
    let view = fixture.view().await;
    assert!(other(&view), "no router replaces a mapping, registered routers or none");
    let mut deleted = view.clone();
    deleted.config.as_mut().unwrap().value.partitioner = None;
    let after = |mapping: &Partitioner| agree(&deleted, &own, None, Some(mapping).filter(|mapping| **mapping != own));
    assert!(
        matches!(after(&Partitioner::NUMBER), Agreement::Wait(why) if why.contains("segue remap")),
        "nor one that is gone"
    );
    assert!(matches!(after(&own), Agreement::Write(_)), "its own comes back");

    // The operator does.
    let Replacement { standing, owned, txn } = replace(&view, &own).unwrap();
    assert_eq!((standing, owned), (Some(Partitioner::NUMBER), view.assignments.len()));
    fixture.router("late").await;
    assert_eq!(fixture.commit(txn).await, None, "a router has registered meanwhile");
    fixture.delete(fixture.keys.router("late")).await;
    let txn = replace(&fixture.view().await, &own).unwrap().txn;
    let config = fixture.view().await.config.unwrap();
    fixture.put(fixture.keys.config(), encode(&config.value)).await;
    assert_eq!(fixture.commit(txn).await, None, "the settings have been written meanwhile");
    fixture.commit(replace(&fixture.view().await, &own).unwrap().txn).await.unwrap();
    let mut view = fixture.view().await;
    assert!(is_shown(&view, &own, None) && view.partitions() == 1);

    // Under a key hash the number belongs to the mapping.
    assert!(is_shown(&view, &own, Some(1)) && !is_shown(&view, &own, Some(2)));
    assert!(matches!(agree(&view, &own, Some(2), None), Agreement::Wait(_)));

    fixture.put(fixture.keys.config(), b"{".to_vec()).await;
    assert!(
        matches!(agree(&fixture.view().await, &own, None, None), Agreement::Wait(_)),
        "one that has never read it waits"
    );
    view.resync(fixture.view().await);
    assert_eq!(agree(&view, &own, None, None), Agreement::Same, "one that has read it goes on");
}
