//! Records that cannot be read, or that have lost their leases.

use segue_coordination::store::Store as _;
use segue_protocol::handoff::advance::{PendingOn, advance, waiting_for};
use segue_protocol::handoff::pod::{Duty, duty, warmed};
use segue_protocol::handoff::router::{GateStage, HoldCause, Route, RouteStep, Trust, next_step, route};
use segue_protocol::records::{Capabilities, Mode, Phase};
use segue_protocol::txn::Keys;

use super::{Fixture, NO_SYNC, NONE, P0, at, drained};

#[tokio::test]
async fn a_record_that_cannot_be_read_stops_everything_about_its_partition() {
    let fixture = Fixture::new(Capabilities::ALL, NONE, &["r"]).await;
    fixture.put(fixture.keys.handoff(P0), b"{".to_vec()).await;
    let view = fixture.view().await;
    assert_eq!(route(&view, P0, Trust::Held), Route::Hold(HoldCause::NoOwner));
    assert_eq!(duty(&view, "a", view.incarnation_of("a"), P0), Duty::Idle);
    assert!(advance(&view, P0, 0).is_none());
}

#[tokio::test]
async fn no_phase_moves_on_while_a_party_cannot_be_read_or_lacks_its_lease() {
    for (party, by_hand) in [("a", "{"), ("b", "{"), ("a", ""), ("b", "")] {
        let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
        let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
        let key = fixture.keys.pod(party);
        let own = fixture.store.snapshot(&Keys::One(key.clone())).await.unwrap().entries.remove(0).value;
        let value = if by_hand.is_empty() { own.clone() } else { by_hand.into() };
        fixture.put(key.clone(), value).await;
        assert!(fixture.ack(&drained("r", id)).await, "the ack itself stands");
        let view = fixture.view().await;
        assert!(advance(&view, P0, 0).is_none());
        assert_eq!(
            (fixture.phase().await, waiting_for(&view, P0)),
            (Some(Phase::Ready), vec![PendingOn::Repair(key.clone())])
        );
        fixture.register(key, own).await;
        assert!(fixture.advance_seen(&fixture.view().await).await);
        assert_eq!(fixture.phase().await, Some(Phase::Syncing), "its old owner is asked");
    }
    let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
    let id = fixture.handoff(Phase::Warming, Mode::Barrier).await;
    let own = fixture.store.snapshot(&Keys::One(fixture.keys.pod("a"))).await.unwrap().entries.remove(0).value;
    fixture.put(fixture.keys.pod("a"), own).await;
    let view = fixture.view().await;
    let (a, b) = (view.incarnation_of("a"), view.incarnation_of("b"));
    assert_eq!(warmed(&view, "b", b, id, P0, 0), None);
    assert_eq!(route(&view, P0, Trust::Held), Route::To(at("a", a, 4)), "routing goes on without the lease");
    fixture.put(fixture.keys.assignment(P0), b"{".to_vec()).await;
    assert_eq!(warmed(&fixture.view().await, "b", b, id, P0, 0), None);
}

#[tokio::test]
async fn an_old_owner_that_becomes_unreadable_between_the_view_and_the_move_makes_it_fail() {
    let fixture = Fixture::new(Capabilities::ALL, NO_SYNC, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    let before = fixture.view().await;
    fixture.put(fixture.keys.pod("a"), b"{".to_vec()).await;
    assert!(fixture.ack_seen(&before, &drained("r", id)).await, "the ack itself stands");
    assert_eq!(fixture.phase().await, Some(Phase::Ready));
    // Another life's registration is no word of this one.
    fixture.delete(fixture.keys.pod("a")).await;
    fixture.put(fixture.keys.pod("a"), b"{".to_vec()).await;
    assert!(fixture.advance_seen(&fixture.view().await).await);
}

#[tokio::test]
async fn an_ack_that_cannot_be_read_was_not_given_and_is_written_again() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    fixture.put(fixture.keys.router_drained(P0, "r"), b"{".to_vec()).await;
    let view = fixture.view().await;
    assert_eq!(waiting_for(&view, P0), [PendingOn::RouterDrained("r".into())]);
    assert_eq!(next_step(&view, P0, Trust::Held, &GateStage::Closed, false), Some(RouteStep::AckDrained(id)));
    assert!(fixture.ack(&drained("r", id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
}
