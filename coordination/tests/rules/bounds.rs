//! The bound on the work of an owner that dies.

use std::time::Duration;

use segue_protocol::handoff::advance::{PendingOn, advance, advance_past_bound, pending_bound, waiting_for};
use segue_protocol::handoff::pod::{Duty, duty};
use segue_protocol::ids::HandoffId;
use segue_protocol::records::{Assignment, Capabilities, Mode, Phase, PodAckKind, encode};

use super::{E5, Fixture, NO_SYNC, NONE, P0, drained, says};

#[tokio::test]
async fn the_flip_copies_the_bound_of_the_new_owner_into_the_assignment() {
    let fixture = Fixture::new(NONE, NONE, &["r"]).await;
    fixture.delete(fixture.keys.pod("b")).await;
    fixture.bounded_pod("b", NONE, Some(10_000)).await;
    let id = fixture.handoff(Phase::Ready, Mode::Barrier).await;
    assert!(fixture.ack(&drained("r", id)).await);
    assert_eq!(fixture.view().await.assignments[&P0].value.work_ends_within_ms, Some(10_000));
}

/// Returns a keyspace whose partition 0 belongs to a dead pod with a bound on its work, and whose handoff is in this
/// phase.
async fn bounded(phase: Phase, new: Capabilities) -> (Fixture, HandoffId) {
    let fixture = Fixture::new(Capabilities::ALL, new, &["r"]).await;
    let owned = fixture.view().await.assignments[&P0].value.clone();
    let bounded = Assignment { work_ends_within_ms: Some(10_000), ..owned };
    fixture.put(fixture.keys.assignment(P0), encode(&bounded)).await;
    let id = fixture.handoff(phase, Mode::Barrier).await;
    assert_eq!(pending_bound(&fixture.view().await, P0), None, "it lives");
    fixture.delete(fixture.keys.pod("a")).await;
    assert_eq!(pending_bound(&fixture.view().await, P0), Some(Duration::from_secs(10)));
    (fixture, id)
}

#[tokio::test]
async fn a_dead_owners_bound_is_waited_out_by_somebody_who_has_seen_it_gone_for_that_long() {
    for (new, next) in [(Capabilities::ALL, Phase::Syncing), (NO_SYNC, Phase::Switching)] {
        let (fixture, id) = bounded(Phase::Ready, new).await;
        assert!(advance_past_bound(&fixture.view().await, P0, 0).is_none(), "r has not drained");
        assert!(fixture.ack(&drained("r", id)).await);
        let view = fixture.view().await;
        assert_eq!(fixture.phase().await, Some(Phase::Ready), "the last ack carries no move");
        assert!(advance(&view, P0, 0).is_none());
        assert_eq!(waiting_for(&view, P0), [PendingOn::WorkEnds("a".into())]);
        let step = advance_past_bound(&view, P0, 0).unwrap();
        fixture.commit(step.txn).await.unwrap();
        assert_eq!(fixture.phase().await, Some(next));
    }
    let (fixture, id) = bounded(Phase::Ready, Capabilities::ALL).await;
    fixture.ack(&drained("r", id)).await;
    fixture.commit(advance_past_bound(&fixture.view().await, P0, 0).unwrap().txn).await.unwrap();
    let view = fixture.view().await;
    let b = view.incarnation_of("b");
    assert_eq!(duty(&view, "b", b, P0), Duty::Sync { handoff: id, epoch: E5 });
    assert!(fixture.ack(&says("b", PodAckKind::Synced, id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching), "what was waited out once is waited out");
}

#[tokio::test]
async fn an_owner_that_dies_in_syncing_with_a_bound_lets_the_new_one_begin_only_after_it() {
    let (fixture, id) = bounded(Phase::Syncing, Capabilities::ALL).await;
    let view = fixture.view().await;
    let b = view.incarnation_of("b");
    assert_eq!(duty(&view, "b", b, P0), Duty::Stand { handoff: id, epoch: E5 });
    let marked = advance_past_bound(&view, P0, 0).unwrap();
    assert_eq!((marked.from, marked.to), (Phase::Syncing, Some(Phase::Syncing)));
    fixture.commit(marked.txn).await.unwrap();
    let view = fixture.view().await;
    assert_eq!(duty(&view, "b", b, P0), Duty::Sync { handoff: id, epoch: E5 });
    assert!(advance(&view, P0, 0).is_none() && advance_past_bound(&view, P0, 0).is_none(), "the tail is not read");
    assert!(fixture.ack(&says("b", PodAckKind::Synced, id)).await);
    assert_eq!(fixture.phase().await, Some(Phase::Switching));
}

#[tokio::test]
async fn the_word_of_an_owner_that_dies_after_it_is_worth_more_than_its_bound() {
    let fixture = Fixture::new(Capabilities::ALL, Capabilities::ALL, &["r"]).await;
    let owned = fixture.view().await.assignments[&P0].value.clone();
    fixture.put(fixture.keys.assignment(P0), encode(&Assignment { work_ends_within_ms: Some(10_000), ..owned })).await;
    let id = fixture.handoff(Phase::Syncing, Mode::Barrier).await;
    assert!(fixture.ack(&says("a", PodAckKind::Drained, id)).await);
    fixture.delete(fixture.keys.pod("a")).await;
    let view = fixture.view().await;
    assert_eq!(pending_bound(&view, P0), None);
    assert_eq!(duty(&view, "b", view.incarnation_of("b"), P0), Duty::Sync { handoff: id, epoch: E5 });
}
