//! Keys without their leases, and owners that are dead.

use std::time::Duration;

use segue_coordination::store::Store as _;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::{Capabilities, Mode};
use segue_protocol::txn::{Op, Txn};
use segue_proxy::routing::permit::Admission;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use super::{Fixture, P3, PARTITIONS, REQUEST_TIMEOUT, TTL, crash, within};

#[tokio::test(start_paused = true)]
async fn keys_of_routers_and_leaders_that_another_hand_detached_from_their_leases_are_put_back() {
    within(async || {
        let fixture = Fixture::new(Mode::Barrier);
        let (_stop, leads) = fixture.coordinator("c-0");
        let router = fixture.router("r-0");
        let _a = fixture.pod("a", Capabilities::ALL);
        fixture.settles(1).await;
        let before = fixture.view().await;
        for key in [fixture.keys.router("r-0"), fixture.keys.leader()] {
            for value in ["{}", "no JSON"] {
                let put = Op::Put { key: key.clone(), value: value.into(), lease: None };
                fixture.store.commit(Txn { then: vec![put], ..Txn::default() }).await.unwrap();
                timeout(Duration::from_secs(1), fixture.request(&router.table.worker(0), P3))
                    .await
                    .expect("requests flow");
                while fixture.view().await.routers["r-0"].lease.is_none()
                    || fixture.view().await.leader.unwrap().lease.is_none()
                {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
        let after = fixture.view().await;
        assert!(after.malformed.is_empty(), "{:?}", after.malformed);
        assert_eq!(after.routers["r-0"].create_revision, before.routers["r-0"].create_revision, "the same life");
        assert_eq!(after.leader.as_ref().unwrap().create_revision, before.leader.unwrap().create_revision);
        assert_eq!(after.leader.unwrap().value.holder, "c-0");
        crash(&router.task);
        crash(&leads);
        sleep(TTL + Duration::from_secs(1)).await;
        assert!(
            fixture.view().await.routers.is_empty() && fixture.view().await.leader.is_none(),
            "they end with their leases"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_leaders_key_without_a_lease_keeps_nobody_from_being_elected() {
    within(async || {
        let fixture = Fixture::new(Mode::Barrier);
        let put = Op::Put { key: fixture.keys.leader(), value: b"{\"holder\":\"gone\"}".to_vec(), lease: None };
        fixture.store.commit(Txn { then: vec![put], ..Txn::default() }).await.unwrap();
        let (_stop, _coordinator) = fixture.coordinator("c-0");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(fixture.view().await.leader.unwrap().value.holder, "c-0");
    })
    .await;
}

/// Returns how long a partition is held after its owner's key is gone, if an exchange with that owner never ends.
async fn failover_of_a_vanished_owner(capabilities: Capabilities) -> Duration {
    let fixture = Fixture::new(Mode::Barrier);
    let (_stop, _coordinator) = fixture.coordinator("c-0");
    let router = fixture.router("r-0");
    let a = fixture.pod("a", capabilities);
    fixture.settles(1).await;
    let _b = fixture.pod("b", capabilities);
    fixture.settles(2).await;
    let worker = router.table.worker(0);
    let partition = PartitionId::all(PARTITIONS)
        .find(|partition| fixture.accepted.borrow().contains_key(&("a".to_owned(), *partition)));
    let partition = partition.unwrap();
    let Admission::Admitted(permit) = worker.enter(partition, None, 100, Instant::now()).unwrap() else {
        panic!("the partition is held")
    };
    let unanswered = spawn_local(async move { permit.sever_token().cancelled().await });
    // Its host vanishes: no connection ends, and its lease runs out.
    crash(&a);
    fixture.accepted.borrow_mut().retain(|(pod, _), _| pod != "a");
    while fixture.view().await.pods.contains_key("a") {
        sleep(Duration::from_millis(1)).await;
    }
    let gone = Instant::now();
    timeout(Duration::from_secs(60), fixture.request(&worker, partition)).await.expect("requests flow again");
    assert!(unanswered.is_finished(), "the exchange was severed first");
    gone.elapsed()
}

/// Time for planning, warming and the writes of the protocol.
const HANDOFF_OVERHEAD: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_dead_owner_that_had_fence_is_waited_for_no_longer_than_a_second() {
    within(async || {
        let took = failover_of_a_vanished_owner(Capabilities::ALL).await;
        assert!(took < Duration::from_secs(1) + HANDOFF_OVERHEAD && took >= Duration::from_secs(1), "{took:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_owner_without_fence_is_waited_for_no_longer_than_a_request_may_take() {
    within(async || {
        let took = failover_of_a_vanished_owner(Capabilities { fence: false, ..Capabilities::ALL }).await;
        assert!(took >= REQUEST_TIMEOUT && took < REQUEST_TIMEOUT + HANDOFF_OVERHEAD, "{took:?}");
    })
    .await;
}
