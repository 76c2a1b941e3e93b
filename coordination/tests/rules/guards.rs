//! Transactions that the store refuses because something has happened since the view.

use segue_protocol::handoff::advance::{PendingOn, waiting_for};
use segue_protocol::handoff::pod::warmed;
use segue_protocol::ids::Incarnation;
use segue_protocol::records::{Capabilities, Handoff, Mode, Phase, PodAckKind, encode};

use super::{Fixture, NO_SYNC, NONE, P0, drained, is_held, says};

#[tokio::test]
async fn a_router_that_registers_late_makes_the_move_fail() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.router("late").await;
    assert!(fixture.ack_seen(&before, &drained("r", id)).await, "the ack itself stands");
    assert_eq!(fixture.phase().await, Some(Phase::Ready), "but not the move that it would have carried");
    assert_eq!(waiting_for(&fixture.view().await, P0), [PendingOn::RouterDrained("late".into())]);
    assert!(is_held(&fixture.view().await), "and the late one never routes to the old owner");
}

#[tokio::test]
async fn a_router_that_dies_drops_out_of_the_quorum() {
    let fixture = Fixture::new(NONE, NONE, &["r", "s"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    assert!(fixture.ack(&drained("r", id)).await);
    fixture.delete(fixture.keys.router("s")).await;
    assert!(fixture.advance_seen(&fixture.view().await).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
}

#[tokio::test]
async fn an_ack_for_an_earlier_handoff_is_impossible() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let first = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.delete(fixture.keys.handoff(P0)).await;
    let second = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    assert_ne!(first, second);
    assert!(!fixture.ack_seen(&before, &drained("r", first)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
}

#[tokio::test]
async fn a_participant_whose_registration_is_gone_cannot_acknowledge() {
    let fixture = Fixture::new(Capabilities::ALL, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Syncing, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.delete(fixture.keys.pod("a")).await;
    fixture.pod("a", Capabilities::ALL).await;
    assert!(!fixture.ack_seen(&before, &says("a", PodAckKind::Drained, id)).await);
}

#[tokio::test]
async fn an_old_owner_that_comes_back_between_the_view_and_the_move_makes_it_fail() {
    let fixture = Fixture::new(Capabilities::ALL, NO_SYNC, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    fixture.delete(fixture.keys.pod("a")).await;
    let without_a = fixture.view().await;
    fixture.pod("a", Capabilities::ALL).await;
    assert!(fixture.ack_seen(&without_a, &drained("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
}

#[tokio::test]
async fn nothing_flips_to_a_new_owner_that_is_dead() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.delete(fixture.keys.pod("b")).await;
    fixture.ack_seen(&before, &drained("r", id)).await;
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
    assert_eq!(waiting_for(&fixture.view().await, P0), [PendingOn::NewOwner("b".into())]);
}

#[tokio::test]
async fn a_move_is_made_once_however_many_try() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    assert!(fixture.ack(&drained("r", id)).await);
    let moved = fixture.view().await;
    assert!(fixture.ack_seen(&before, &drained("r", id)).await, "a repeated ack is harmless");
    assert_eq!(fixture.view().await.handoffs[&P0].mod_revision, moved.handoffs[&P0].mod_revision);
}

#[tokio::test]
async fn a_first_placement_flips_over_nothing() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let owned = fixture.view().await.assignments[&P0].value.clone();
    fixture.delete(fixture.keys.assignment(P0)).await;
    let b = fixture.view().await.incarnation_of("b");
    fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let record = fixture.view().await.handoffs[&P0].value.clone();
    let first = Handoff { old_owner: None, old_incarnation: Incarnation::NONE, new_incarnation: b, ..record };
    fixture.put(fixture.keys.handoff(P0), encode(&first)).await;
    fixture.put(fixture.keys.assignment(P0), encode(&owned)).await;
    assert!(!fixture.advance_seen(&fixture.view().await).await, "an operator has assigned it meanwhile");
    fixture.delete(fixture.keys.assignment(P0)).await;
    assert!(fixture.advance_seen(&fixture.view().await).await);
}

#[tokio::test]
async fn an_independent_move_gets_ready_only_if_no_router_registered_since_it_was_created() {
    for mode in [Mode::Barrier, Mode::Independent] {
        let fixture = Fixture::new(NONE, NONE, &["r"]).await;
        let id = fixture.handoff(Phase::Warming, mode).await;
        let before = fixture.view().await;
        let b = before.incarnation_of("b");
        fixture.router("late").await;
        for view in [before, fixture.view().await] {
            let committed = fixture.commit(warmed(&view, "b", b, id, P0, 0).unwrap()).await.is_some();
            assert_eq!(committed, mode == Mode::Barrier);
            if committed {
                break;
            }
        }
    }
}
