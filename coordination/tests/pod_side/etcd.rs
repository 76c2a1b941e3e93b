//! One handoff from end to end on a real etcd.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::pod::PodSettings;
use segue_coordination::store::{EtcdOptions, EtcdStore};
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::records::{Phase, Thousandths};
use segue_protocol::txn::{Keys, Op};
use segue_protocol::view::View;
use segue_tests::etcd::Etcd;

use super::fixture::{Fixture, Pod};

const E2: Epoch = Epoch::new(2);
const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_pods_heartbeats_count_its_requests_and_end_with_its_lease() {
    let etcd = Etcd::start();
    let fixture = Fixture::on(Arc::new(EtcdStore::connect(EtcdOptions::new([etcd.endpoint()])).unwrap()));
    let interval = Duration::from_millis(500);
    let settings = PodSettings { load_interval: Some(interval), ..PodSettings::new("w", "127.0.0.1:1") };
    fixture.use_load(true).await;
    let mut pod = Pod::start_with(&fixture, settings).await;
    fixture.place(P0, &pod, 1).await;
    fixture.place(P1, &pod, 1).await;
    let load = |view: &View, partition| Some(view.load("w")?.partitions.get(&partition)?.load);
    fixture.until("both are listed", |view| load(view, P0).is_some() && load(view, P1).is_some()).await;
    let requests = async {
        loop {
            assert_eq!(pod.status_of(P0, 1).await, 200);
        }
    };
    tokio::select! {
        _ = fixture.until("a load", |view| load(view, P0) > Some(Thousandths(0))) => {}
        () = requests => {}
    }
    fixture.until("it is over", |view| load(view, P0) == Some(Thousandths(0))).await;
    let view = fixture.view().await;
    let (record, registration) = (&view.loads["w"], &view.pods["w"]);
    assert_eq!(record.lease, registration.lease, "a heartbeat ends with its pod");
    assert_eq!(record.value.interval_ms, 500);
    assert_eq!(load(&view, P1), Some(Thousandths(0)), "other partitions had no requests");
    pod.handle.shutdown(Duration::from_millis(100)).await;
    assert!(fixture.view().await.load("w").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registered_pod_that_has_nothing_to_say_writes_nothing_to_etcd() {
    let etcd = Etcd::start();
    let fixture = Fixture::on(Arc::new(EtcdStore::connect(EtcdOptions::new([etcd.endpoint()])).unwrap()));
    fixture.use_load(false).await;
    let lease_ttl = Duration::from_secs(2);
    let pod = Pod::start_with(&fixture, PodSettings { lease_ttl, ..PodSettings::new("w", "127.0.0.1:1") }).await;
    let before = fixture.view().await.revision;
    for _ in 0..5 {
        let until = pod.state().trusted_until;
        pod.until("the lease is renewed", |state| state.trusted_until > until).await;
    }
    assert_eq!(fixture.view().await.revision, before, "a renewal is no write, so the store does not grow");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_moves_between_two_pods_on_etcd_and_a_pod_survives_the_loss_of_its_key() {
    let etcd = Etcd::start();
    let fixture = Fixture::on(Arc::new(EtcdStore::connect(EtcdOptions::new([etcd.endpoint()])).unwrap()));
    let settings = |name| PodSettings { lease_ttl: Duration::from_secs(3), ..PodSettings::new(name, "127.0.0.1:1") };
    let mut old = Pod::start_with(&fixture, settings("old")).await;
    let mut new = Pod::start_with(&fixture, settings("new")).await;
    fixture.place(P0, &old, 1).await;
    assert_eq!(old.status_of(P0, 1).await, 200);

    fixture.begin(P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.move_to(P0, Phase::Syncing).await;
    fixture.in_phase(P0, Phase::Switching).await;
    new.until("it serves", |state| state.owned.get(&P0) == Some(&E2)).await;
    assert_eq!(new.status_of(P0, 2).await, 200);
    assert_eq!(old.status_of(P0, 1).await, 421);
    fixture.move_to(P0, Phase::Complete).await;
    fixture.end(P0).await;

    let before = new.incarnation();
    fixture.commit(vec![], vec![Op::Delete(Keys::One(fixture.keys.pod("new")))]).await;
    new.until("it is back", |state| state.incarnation > before && state.not_ready.is_none()).await;
    assert_eq!(new.status_of(P0, 2).await, 421);

    old.handle.shutdown(Duration::from_secs(10)).await;
    assert!(!fixture.view().await.pods.contains_key("old"));

    // A zombie on a stopped store: refused, then gone.
    fixture.place(P1, &new, 1).await;
    etcd.pause();
    let state = new.state();
    tokio::time::sleep_until(state.trusted_until.unwrap()).await;
    // A keepalive that was on its way when the store stopped may have moved the clock once more.
    let state = new.state();
    tokio::time::sleep_until(state.trusted_until.unwrap()).await;
    assert_eq!(new.status_of(P1, 1).await, 421);
    etcd.resume();
    new.until("it is ready again", |state| state.not_ready.is_none()).await;
}
