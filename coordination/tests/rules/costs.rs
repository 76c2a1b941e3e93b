//! The cost of a move: the changes that the store sends to each router, pod and coordinator, however many routers there are.

use segue_coordination::store::Store as _;
use segue_protocol::handoff::pod::warmed;
use segue_protocol::records::{Capabilities, Handoff, Mode, Phase, PodAckKind, encode};
use segue_protocol::txn::Keys;

use super::{E5, Fixture, NO_SYNC, NONE, P0, cut_over, drained, says};

/// The changes of these keys since a snapshot of the keyspace.
async fn changes(fixture: &Fixture, of: &Keys, after: segue_protocol::ids::Revision) -> usize {
    let mut watch = fixture.store.watch(of, after.next()).await.unwrap();
    let now = fixture.view().await.revision;
    let mut changes = 0;
    // The last write of each play is a change of what everybody follows.
    loop {
        let batch = watch.next().await.unwrap();
        changes += batch.events.len();
        if batch.revision >= now {
            return changes;
        }
    }
}

/// Plays a move of the partition between two pods. Returns the changes sent to each router and pod, and to a coordinator.
async fn of_a_move(capabilities: Capabilities, routers: usize) -> (usize, usize) {
    let names: Vec<String> = (0..routers).map(|number| format!("r{number:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let fixture = Fixture::new(capabilities, capabilities, &names).await;
    let begun = fixture.view().await.revision;
    let id = fixture.handoff(Phase::Warming, Mode::Barrier).await;
    let view = fixture.view().await;
    fixture.commit(warmed(&view, "b", view.incarnation_of("b"), id, P0, 0).unwrap()).await.unwrap();
    let mut acks: Vec<_> = names.iter().map(|router| drained(router, id)).collect();
    acks.extend(capabilities.drained.then(|| says("a", PodAckKind::Drained, id)));
    acks.extend(capabilities.sync.then(|| says("b", PodAckKind::Synced, id)));
    acks.extend(names.iter().map(|router| cut_over(router, id)));
    acks.extend(capabilities.released.then(|| says("a", PodAckKind::Released, id)));
    for ack in acks {
        assert!(fixture.ack(&ack).await, "{ack:?}");
        // A coordinator moves on what no participant could, and ends the handoff.
        fixture.advance_seen(&fixture.view().await).await;
    }
    assert_eq!(fixture.phase().await, None);
    let (followed, planned) = (fixture.keys.followed(), fixture.keys.planned());
    (changes(&fixture, &followed, begun).await, changes(&fixture, &planned, begun).await)
}

#[tokio::test]
async fn a_move_sends_each_router_and_pod_a_handful_of_changes_whatever_the_number_of_routers() {
    let drains = Capabilities { released: false, ..NO_SYNC };
    let syncs = Capabilities { released: false, ..Capabilities::ALL };
    for (capabilities, each) in [(NONE, 5), (drains, 8), (syncs, 10), (Capabilities::ALL, 13)] {
        for routers in [1, 10, 100] {
            // Each router's two acknowledgements are put and deleted.
            assert_eq!(
                of_a_move(capabilities, routers).await,
                (each, each + 4 * routers),
                "{capabilities:?} {routers}"
            );
        }
    }
}

#[tokio::test]
async fn a_first_placement_sends_everybody_three_changes_and_its_owners_report_is_the_last() {
    let fixture = Fixture::new(NONE, NONE, &["r", "s"]).await;
    fixture.delete(fixture.keys.assignment(P0)).await;
    let begun = fixture.view().await.revision;
    let b = fixture.view().await.incarnation_of("b");
    fixture.put(fixture.keys.handoff(P0), encode(&Handoff::new(P0, "b", b, E5))).await;
    let view = fixture.view().await;
    let report = warmed(&view, "b", b, view.handoffs[&P0].id(), P0, 0).unwrap();
    fixture.commit(report).await.unwrap();
    for keys in [fixture.keys.followed(), fixture.keys.planned()] {
        assert_eq!(changes(&fixture, &keys, begun).await, 3);
    }
}
