//! Routers that die, end, see nothing, or lose the store or their registration.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::store::{FaultyStore, Store as _};
use segue_protocol::ids::PartitionId;
use segue_protocol::records::{Capabilities, Mode, encode};
use segue_protocol::txn::{Keys, Op, Txn};
use segue_proxy::routing::permit::Admission;
use tokio::time::{Instant, sleep, timeout};

use super::{Fixture, P3, PARTITIONS, TTL, crash, within};

#[tokio::test(start_paused = true)]
async fn a_router_that_dies_is_waited_for_no_longer_than_its_lease() {
    within(async || {
        let fixture = Fixture::new(Mode::Barrier);
        let (_stop, _coordinator) = fixture.coordinator("c-0");
        let (_alive, dies) = (fixture.router("r-0"), fixture.router("r-1"));
        let _a = fixture.pod("a", Capabilities::ALL);
        fixture.settles(1).await;
        crash(&dies.task);
        let died = Instant::now();
        let _b = fixture.pod("b", Capabilities::ALL);
        fixture.settles(2).await;
        assert!(died.elapsed() < TTL + Duration::from_secs(4), "{:?}", died.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_router_that_sees_nothing_loses_its_lease_although_it_could_renew_it() {
    within(async || {
        let fixture = Fixture::new(Mode::Barrier);
        let (_stop, _coordinator) = fixture.coordinator("c-0");
        let store = Arc::new(FaultyStore::new(fixture.store.clone()));
        let (_sees, blind) = (fixture.router("r-0"), fixture.router_of("r-1", store.clone()));
        let _a = fixture.pod("a", Capabilities::ALL);
        fixture.settles(1).await;
        store.blind();
        let _b = fixture.pod("b", Capabilities::ALL);
        fixture.settles(2).await;
        assert!(!fixture.view().await.routers.contains_key("r-1"));
        store.pass();
        while !fixture.view().await.routers.contains_key("r-1") {
            sleep(Duration::from_millis(10)).await;
        }
        timeout(Duration::from_secs(10), fixture.request(&blind.table.worker(0), P3)).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_router_that_is_deregistered_by_hand_holds_until_it_is_registered_again() {
    within(async || {
        let fixture = Fixture::new(Mode::Barrier);
        let (_stop, _coordinator) = fixture.coordinator("c-0");
        let router = fixture.router("r-0");
        let _a = fixture.pod("a", Capabilities::ALL);
        fixture.settles(1).await;
        let first = fixture.view().await.routers["r-0"].create_revision;
        let delete = Op::Delete(Keys::One(fixture.keys.router("r-0")));
        fixture.store.commit(Txn { then: vec![delete], ..Txn::default() }).await.unwrap();
        while fixture.view().await.routers.get("r-0").is_none_or(|own| own.create_revision == first) {
            sleep(Duration::from_millis(1)).await;
        }
        timeout(Duration::from_secs(10), fixture.request(&router.table.worker(0), P3)).await.unwrap();
    })
    .await;
}

/// Handoffs do not wait for it any more.
#[tokio::test(start_paused = true)]
async fn a_router_whose_key_is_anothers_holds_at_once_until_it_has_its_own() {
    within(async || {
        let fixture = Fixture::new(Mode::Barrier);
        let (_stop, _coordinator) = fixture.coordinator("c-0");
        let router = fixture.router("r-0");
        let _a = fixture.pod("a", Capabilities::ALL);
        fixture.settles(1).await;
        let worker = router.table.worker(0);
        timeout(Duration::from_secs(10), fixture.request(&worker, P3)).await.unwrap();
        let (key, lease) = (fixture.keys.router("r-0"), fixture.store.grant(Duration::from_secs(600)).await.unwrap());
        let value = encode(&fixture.view().await.routers["r-0"].value);
        let put = Op::Put { key: key.clone(), value, lease: Some(lease) };
        for op in [Op::Delete(Keys::One(key)), put] {
            fixture.store.commit(Txn { then: vec![op], ..Txn::default() }).await.unwrap();
        }
        // The clock goes on only once the router has done what there is to do.
        sleep(Duration::from_millis(1)).await;
        assert!(timeout(Duration::from_secs(5), fixture.request(&worker, P3)).await.is_err(), "it is held");
        fixture.store.revoke(lease).await.unwrap();
        timeout(Duration::from_secs(10), fixture.request(&worker, P3)).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn through_a_store_outage_routers_serve_pods_that_fence_and_hold_for_the_others() {
    within(async || {
        for (capabilities, serves) in [(Capabilities::ALL, true), (Capabilities::default(), false)] {
            let fixture = Fixture::new(Mode::Barrier);
            let (_stop, _coordinator) = fixture.coordinator("c-0");
            let router = fixture.router("r-0");
            let _a = fixture.pod("a", capabilities);
            fixture.settles(1).await;
            fixture.store.set_available(false);
            // Past the router's lease clock.
            sleep(TTL).await;
            let worker = router.table.worker(0);
            let answered = timeout(Duration::from_secs(1), fixture.request(&worker, P3)).await.is_ok();
            assert_eq!(answered, serves);
            fixture.store.set_available(true);
            timeout(Duration::from_secs(30), fixture.request(&worker, P3)).await.unwrap();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_router_that_ends_leaves_the_quorum_at_once() {
    within(async || {
        let fixture = Fixture::new(Mode::Barrier);
        let (_stop, _coordinator) = fixture.coordinator("c-0");
        let router = fixture.router("r-0");
        while fixture.view().await.routers.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        router.control.shut_down();
        router.task.await.unwrap();
        assert!(fixture.view().await.routers.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_router_without_readable_settings_goes_on_with_the_partitions_that_it_knew() {
    within(async || {
        let fixture = Fixture::new(Mode::Barrier);
        let (_stop, coordinator) = fixture.coordinator("c-0");
        let router = fixture.router("r-0");
        let a = fixture.pod("a", Capabilities::ALL);
        fixture.settles(1).await;
        crash(&coordinator);
        let delete = Op::Delete(Keys::One(fixture.keys.config()));
        fixture.store.commit(Txn { then: vec![delete], ..Txn::default() }).await.unwrap();
        // Its watch ends, and it reads everything anew.
        fixture.store.set_available(false);
        sleep(Duration::from_millis(10)).await;
        fixture.store.set_available(true);
        let worker = router.table.worker(0);
        timeout(Duration::from_secs(10), fixture.request(&worker, P3)).await.expect("requests flow");
        crash(&a);
        while fixture.view().await.pods.contains_key("a") {
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(10)).await;
        let is_held = |partition| {
            let admission = worker.enter(partition, None, 100, Instant::now()).unwrap();
            matches!(admission, Admission::Queued(_))
        };
        assert!(PartitionId::all(PARTITIONS).all(is_held), "nothing goes to a dead owner");
    })
    .await;
}
