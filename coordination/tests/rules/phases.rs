//! A handoff from phase to phase, and the ack that carries each move.

use segue_protocol::handoff::advance::{Ack, PendingOn, acknowledge, advance, waiting_for};
use segue_protocol::handoff::pod::{Duty, duty, warmed};
use segue_protocol::handoff::router::{GateStage, Route, RouteStep, Trust, next_step, route};
use segue_protocol::records::{
    Capabilities, Handoff, HandoffEnd, Mode, Phase, PodAck, PodAckKind, RouterCutoverAck, RouterDrainedAck, RouterPart,
    encode,
};

use super::{E1, E4, E5, Fixture, NO_SYNC, NONE, P0, at, cut_over, drained, is_held, says};

#[tokio::test]
async fn a_handoff_goes_through_its_phases_and_each_last_ack_carries_the_move() {
    let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r", "s"]).await;
    let id = fixture.handoff(Phase::Warming, Mode::Barrier).await;
    let view = fixture.view().await;
    let (a, b) = (view.incarnation_of("a"), view.incarnation_of("b"));
    assert_eq!(route(&view, P0, Trust::Held), Route::To(at("a", a, 4)), "the old owner serves while the new one warms");
    assert_eq!(duty(&view, "b", b, P0), Duty::Warm { handoff: id, epoch: E5 });
    fixture.commit(warmed(&view, "b", b, id, P0, 0).unwrap()).await.unwrap();

    assert!(is_held(&fixture.view().await));
    assert!(fixture.ack(&drained("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Ready), "s has not drained");
    assert!(fixture.ack(&drained("s", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Syncing));

    let view = fixture.view().await;
    assert!(is_held(&view));
    assert_eq!(duty(&view, "a", a, P0), Duty::Drain { handoff: id, epoch: E4 });
    assert_eq!(duty(&view, "b", b, P0), Duty::Stand { handoff: id, epoch: E5 }, "the log is not at rest yet");
    assert!(fixture.ack(&says("a", PodAckKind::Drained, id)).await);
    assert_eq!(duty(&fixture.view().await, "b", b, P0), Duty::Sync { handoff: id, epoch: E5 });
    assert!(fixture.ack(&says("b", PodAckKind::Synced, id)).await);

    let view = fixture.view().await;
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
    assert_eq!(route(&view, P0, Trust::Held), Route::To(at("b", b, 5)));
    assert_eq!(duty(&view, "b", b, P0), Duty::Serve { epoch: E5 });
    assert!(fixture.ack(&cut_over("r", id)).await);
    assert!(fixture.ack(&cut_over("s", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Complete));

    assert_eq!(duty(&fixture.view().await, "a", a, P0), Duty::Release { handoff: id });
    assert!(fixture.ack(&says("a", PodAckKind::Released, id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Complete), "the acks of routers are part of what it leaves behind");
    assert!(fixture.advance_seen(&fixture.view().await).await);
    let view = fixture.view().await;
    assert!(view.handoffs.is_empty() && view.acks.is_empty(), "the record and all acks go together");
}

#[tokio::test]
async fn a_handoff_from_an_owner_that_releases_nothing_ends_once_the_routers_have_switched() {
    let fixture = Fixture::new(NONE, NONE, &["r", "s"]).await;
    let id = fixture.handoff(Phase::Switching, Mode::Barrier).await;
    assert!(fixture.ack(&cut_over("r", id)).await);
    assert!(!fixture.advance_seen(&fixture.view().await).await, "s has not switched");
    let before = fixture.view().await;
    assert!(fixture.ack(&cut_over("s", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
    assert!(!fixture.advance_seen(&before).await);
    assert!(fixture.advance_seen(&fixture.view().await).await);
    let view = fixture.view().await;
    assert!(view.handoffs.is_empty() && view.acks.is_empty());
    assert_eq!(fixture.history().await[0].routers.len(), 2);
}

#[tokio::test]
async fn a_release_that_its_pod_reports_by_an_outdated_view_is_kept_for_the_coordinator() {
    let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
    let id = fixture.handoff(Phase::Complete, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.router("late").await;
    assert!(fixture.ack_seen(&before, &says("a", PodAckKind::Released, id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Complete));
    assert_eq!(waiting_for(&fixture.view().await, P0), []);
    assert!(fixture.history().await.is_empty());
    assert!(fixture.advance_seen(&fixture.view().await).await);
    assert_eq!((fixture.phase().await, fixture.history().await.len()), (None, 1));
    assert!(!fixture.ack_seen(&before, &says("a", PodAckKind::Released, id)).await, "the handoff is over");
}

#[tokio::test]
async fn a_handoff_leaves_its_phases_and_what_its_routers_did() {
    let fixture = Fixture::new(NO_SYNC, NO_SYNC, &["r", "s"]).await;
    let id = fixture.handoff(Phase::Warming, Mode::Barrier).await;
    let (b, mut now) = (fixture.view().await.incarnation_of("b"), 100);
    let warm = warmed(&fixture.view().await, "b", b, id, P0, now).unwrap();
    fixture.commit(warm).await.unwrap();
    let severed = |router: &str, severed| {
        Ack::RouterDrained(RouterDrainedAck { severed, ..RouterDrainedAck::new(router, P0, id) })
    };
    let paused = |router: &str, stashed, pause_us| {
        let (drain_us, flush_us) = (pause_us / 2, 7);
        Ack::RouterCutover(RouterCutoverAck {
            stashed,
            pause_us,
            drain_us,
            flush_us,
            ..RouterCutoverAck::new(router, P0, id)
        })
    };
    for ack in [
        severed("r", 0),
        severed("s", 2),
        says("a", PodAckKind::Drained, id),
        paused("r", 3, 900),
        paused("s", 4, 1200),
        says("a", PodAckKind::Released, id),
    ] {
        now += 10;
        let view = fixture.view().await;
        let (key, incarnation) = match &ack {
            Ack::RouterDrained(RouterDrainedAck { router_name, .. })
            | Ack::RouterCutover(RouterCutoverAck { router_name, .. }) => {
                (fixture.keys.router(router_name), view.routers[router_name].incarnation())
            }
            Ack::Pod(PodAck { pod_name, .. }) => (fixture.keys.pod(pod_name), view.incarnation_of(pod_name)),
        };
        fixture.commit(acknowledge(&view, &ack, key, incarnation, now)).await.unwrap();
    }
    let end = advance(&fixture.view().await, P0, now).unwrap();
    fixture.commit(end.txn).await.unwrap();
    let [entry] = &fixture.history().await[..] else { panic!("one handoff has ended") };
    assert_eq!((entry.handoff, entry.partition, entry.epoch), (id, P0, E5));
    assert_eq!((entry.from.as_deref(), entry.to.as_str(), entry.result), (Some("a"), "b", HandoffEnd::Completed));
    assert_eq!((entry.begun_at, entry.ended_at, entry.reason.as_str()), (0, 160, "test"));
    let phases: Vec<_> = entry.phases.iter().map(|past| (past.phase, past.ms)).collect();
    let expected = [
        (Phase::Warming, 100),
        (Phase::Ready, 20),
        (Phase::Syncing, 10),
        (Phase::Switching, 20),
        (Phase::Complete, 10),
    ];
    assert_eq!(phases, expected);
    let part = |router: &str, held, pause_us, severed| RouterPart {
        router: router.into(),
        held,
        pause_us: Some(pause_us),
        drain_us: pause_us / 2,
        flush_us: 7,
        severed,
    };
    assert_eq!(entry.routers, [part("s", 4, 1200, 2), part("r", 3, 900, 0)]);
    assert_eq!((entry.held, entry.severed, entry.more_routers), (7, 2, 0));
}

#[tokio::test]
async fn of_acks_that_cross_the_last_one_carries_the_move() {
    let fixture = Fixture::new(Capabilities { released: true, ..NONE }, NONE, &["r", "s", "t"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    assert!(fixture.ack_seen(&before, &drained("r", id)).await);
    assert!(fixture.ack_seen(&before, &drained("s", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Ready), "t has not drained");
    assert!(fixture.ack_seen(&before, &drained("t", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));

    let before = fixture.view().await;
    for router in ["s", "t"] {
        assert!(fixture.ack_seen(&before, &cut_over(router, id)).await);
        assert_eq!(fixture.phase().await, Some(Phase::Switching), "r has not cut over");
    }
    assert!(fixture.ack_seen(&before, &cut_over("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Complete));
}

#[tokio::test]
async fn a_router_that_gives_up_is_not_taken_for_one_that_has_drained() {
    let fixture = Fixture::new(NONE, NONE, &["r", "s"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    let Ack::RouterDrained(said) = drained("s", id) else { unreachable!() };
    assert!(fixture.ack_seen(&before, &Ack::RouterDrained(RouterDrainedAck { gave_up: true, ..said })).await);
    assert!(fixture.ack_seen(&before, &drained("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
    assert_eq!(waiting_for(&fixture.view().await, P0), [PendingOn::RouterGaveUp("s".into())]);
}

#[tokio::test]
async fn what_a_router_said_of_an_earlier_handoff_does_not_carry_the_next_one_on() {
    let fixture = Fixture::new(NONE, NONE, &["r", "s"]).await;
    for phase in [Phase::Ready, Phase::Switching] {
        let first = fixture.handoff(phase, Mode::Barrier).await;
        let (one, other) = match phase {
            Phase::Ready => (drained("r", first), drained("s", first)),
            _ => (cut_over("r", first), cut_over("s", first)),
        };
        assert!(fixture.ack(&other).await);
        // By hand: the acks stay behind.
        fixture.delete(fixture.keys.handoff(P0)).await;
        let second = fixture.handoff(phase, Mode::Barrier).await;
        let again = match one {
            Ack::RouterDrained(said) => Ack::RouterDrained(RouterDrainedAck { handoff: second, ..said }),
            Ack::RouterCutover(said) => Ack::RouterCutover(RouterCutoverAck { handoff: second, ..said }),
            other => other,
        };
        assert!(fixture.ack(&again).await);
        assert_eq!(fixture.phase().await, Some(phase));
        fixture.delete(fixture.keys.handoff(P0)).await;
    }
}

#[tokio::test]
async fn syncing_is_skipped_when_neither_pod_has_anything_to_say() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    assert!(fixture.ack(&drained("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
}

#[tokio::test]
async fn a_router_that_gave_up_is_no_router_that_has_drained() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let Ack::RouterDrained(mut ack) = drained("r", id) else { unreachable!() };
    ack.gave_up = true;
    assert!(fixture.ack(&Ack::RouterDrained(ack)).await);
    assert_eq!(waiting_for(&fixture.view().await, P0), [PendingOn::RouterGaveUp("r".into())]);
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
    assert!(fixture.ack(&drained("r", id)).await, "unless the drain ends after all");
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
}

#[tokio::test]
async fn the_very_first_placement_needs_no_acks_and_routers_hold_meanwhile() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    fixture.delete(fixture.keys.assignment(P0)).await;
    let b = fixture.view().await.incarnation_of("b");
    let record = Handoff { phase: Phase::Ready, reason: "first placement".into(), ..Handoff::new(P0, "b", b, E1) };
    fixture.put(fixture.keys.handoff(P0), encode(&record)).await;
    let view = fixture.view().await;
    assert!(is_held(&view));
    assert_eq!(next_step(&view, P0, Trust::Held, &GateStage::Closed, false), None);
    // By a new owner that does not know that it may end the handoff itself.
    assert!(fixture.advance_seen(&view).await);
    let view = fixture.view().await;
    assert_eq!(route(&view, P0, Trust::Held), Route::To(at("b", b, 1)));
    assert!(view.handoffs.is_empty() && !fixture.advance_seen(&view).await);
    assert_eq!(fixture.history().await.len(), 1);
}

#[tokio::test]
async fn a_first_placement_is_over_once_its_owner_has_warmed_unless_somebody_was_assigned_or_it_died() {
    enum Meanwhile {
        Nothing,
        Assigned,
        Unassigned,
        Died,
        Ready,
    }
    use Meanwhile::*;
    for (meanwhile, ends) in [(Nothing, true), (Assigned, false), (Unassigned, true), (Died, false), (Ready, false)] {
        let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
        let assignment = fixture.view().await.assignments[&P0].value.clone();
        fixture.delete(fixture.keys.assignment(P0)).await;
        let b = fixture.view().await.incarnation_of("b");
        let record = Handoff::new(P0, "b", b, E5);
        fixture.put(fixture.keys.handoff(P0), encode(&record)).await;
        let view = fixture.view().await;
        let report = warmed(&view, "b", b, view.handoffs[&P0].id(), P0, 7).unwrap();
        match meanwhile {
            Nothing => {}
            Assigned => drop(fixture.put(fixture.keys.assignment(P0), encode(&assignment)).await),
            Unassigned => {
                fixture.put(fixture.keys.assignment(P0), encode(&assignment)).await;
                fixture.delete(fixture.keys.assignment(P0)).await;
            }
            Died => fixture.delete(fixture.keys.pod("b")).await,
            Ready => drop(fixture.put(fixture.keys.handoff(P0), encode(&record.entering(Phase::Ready, 3))).await),
        }
        assert_eq!(fixture.commit(report).await.is_some(), ends);
        let view = fixture.view().await;
        assert_eq!((view.handoffs.is_empty(), fixture.history().await.len()), (ends, usize::from(ends)));
        if ends {
            assert_eq!(route(&view, P0, Trust::Held), Route::To(at("b", b, 5)));
            assert_eq!(duty(&view, "b", b, P0), Duty::Serve { epoch: E5 });
        }
    }
}

#[tokio::test]
async fn independent_mode_lets_a_router_switch_by_itself_and_flips_with_its_ack() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Independent).await;
    let view = fixture.view().await;
    let b = view.incarnation_of("b");
    assert_eq!(duty(&view, "b", b, P0), Duty::Serve { epoch: E5 });
    let to = at("b", b, 5);
    assert_eq!(next_step(&view, P0, Trust::Held, &GateStage::Closed, false), Some(RouteStep::Switch(to.clone())));
    assert_eq!(next_step(&view, P0, Trust::Held, &GateStage::Open(to), false), Some(RouteStep::AckCutover(id)));
    assert!(fixture.ack(&cut_over("r", id)).await);
    let view = fixture.view().await;
    assert_eq!((fixture.phase().await, view.assignments[&P0].value.epoch), (Some(Phase::Complete), E5));
}
