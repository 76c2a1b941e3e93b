//! Partitions move under load, with and without a barrier, while leaders come and go.

use std::time::Duration;

use segue_protocol::ids::PartitionId;
use segue_protocol::records::{Capabilities, Mode};
use tokio::time::{Instant, sleep};

use super::{Fixture, PARTITIONS, Router, crash, within};

async fn pods_join_and_leave(mode: Mode, routers: &[&str]) {
    let fixture = Fixture::new(mode);
    let (_stop, _coordinator) = fixture.coordinator("c-0");
    let routers: Vec<Router> = routers.iter().map(|name| fixture.router(name)).collect();
    let sentinel = fixture.sentinel();
    let _a = fixture.pod("a", Capabilities::ALL);
    fixture.settles(1).await;
    let clients: Vec<_> = routers
        .iter()
        .flat_map(|router| (0..8).map(|number| fixture.client(router, number)).collect::<Vec<_>>())
        .collect();
    let _b = fixture.pod("b", Capabilities::ALL);
    fixture.settles(2).await;
    let c = fixture.pod("c", Capabilities::ALL);
    fixture.settles(3).await;
    crash(&c);
    // What the dead pod believed dies with it.
    fixture.dead.borrow_mut().insert("c".to_owned());
    fixture.accepted.borrow_mut().retain(|(pod, _), _| pod != "c");
    fixture.settles(2).await;
    let before = fixture.served.get();
    sleep(Duration::from_secs(2)).await;
    assert!(fixture.served.get() > before + 1000, "requests flow: {before} → {}", fixture.served.get());
    assert!(clients.iter().all(|client| !client.is_finished()) && !sentinel.is_finished(), "an invariant was broken");
    for router in routers {
        assert_eq!(PartitionId::all(PARTITIONS).map(|partition| router.table.stashed(partition).0).sum::<usize>(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn partitions_move_under_load_with_one_writer_at_all_times() {
    within(async || pods_join_and_leave(Mode::Barrier, &["r-0", "r-1"]).await).await;
}

#[tokio::test(start_paused = true)]
async fn independent_mode_moves_partitions_with_a_single_router() {
    within(async || {
        let fixture = Fixture::new(Mode::Independent);
        let (_stop, _coordinator) = fixture.coordinator("c-0");
        let router = fixture.router("r-0");
        let _a = fixture.pod("a", Capabilities::ALL);
        fixture.settles(1).await;
        let clients: Vec<_> = (0..8).map(|number| fixture.client(&router, number)).collect();
        let _b = fixture.pod("b", Capabilities::ALL);
        fixture.settles(2).await;
        assert!(fixture.served.get() > 100);
        assert!(clients.iter().all(|client| !client.is_finished()));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_standby_goes_on_with_what_a_dead_leader_began() {
    within(async || {
        let fixture = Fixture::new(Mode::Barrier);
        let (_stop, leader) = fixture.coordinator("c-0");
        let _router = fixture.router("r-0");
        let _a = fixture.pod("a", Capabilities::ALL);
        fixture.settles(1).await;
        let (_stop, _standby) = fixture.coordinator("c-1");
        let _b = fixture.pod("b", Capabilities::ALL);
        // In the middle of the moves.
        while fixture.view().await.handoffs.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        crash(&leader);
        fixture.settles(2).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_resigns_is_followed_at_once() {
    within(async || {
        let fixture = Fixture::new(Mode::Barrier);
        let (stop, leader) = fixture.coordinator("c-0");
        while fixture.view().await.leader.is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        let (_stop, _standby) = fixture.coordinator("c-1");
        sleep(Duration::from_secs(1)).await;
        stop.cancel();
        leader.await.unwrap();
        let resigned = Instant::now();
        while fixture.view().await.leader.is_none_or(|leader| leader.value.holder != "c-1") {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(resigned.elapsed() < Duration::from_millis(100), "{:?}", resigned.elapsed());
    })
    .await;
}
