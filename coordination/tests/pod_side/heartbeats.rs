//! A pod's heartbeats with its load: when it sends them, and what they say.

use std::time::Duration;

use segue_coordination::pod::PodSettings;
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::planning::{HEARTBEAT_INTERVAL, Policy, stored};
use segue_protocol::records::{KeyspaceConfig, PodLoad, Thousandths, encode};
use segue_protocol::txn::{Keys, Op};
use segue_protocol::view::View;
use tokio::time::sleep;

use super::fixture::{Fixture, Pod, TTL};

const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);

impl Fixture {
    /// Writes settings of the keyspace by which planning uses the load of pods, or does not.
    pub(crate) async fn use_load(&self, balance_load: bool) {
        let planning = stored(&Policy { balance_load, ..Policy::default() });
        let config = KeyspaceConfig { planning: Some(planning), ..KeyspaceConfig::new(4) };
        self.put(self.keys.config(), encode(&config)).await;
    }

    /// Waits for a heartbeat of the pod `w` that satisfies this.
    async fn heartbeat(&self, what: &str, shows: impl Fn(&PodLoad) -> bool) -> View {
        self.until(what, |view| view.load("w").is_some_and(&shows)).await
    }
}

async fn start(fixture: &Fixture, load_interval: Option<Duration>) -> Pod {
    let settings = PodSettings { lease_ttl: TTL, load_interval, ..PodSettings::new("w", "127.0.0.1:1") };
    Pod::start_with(fixture, settings).await
}

#[tokio::test(start_paused = true)]
async fn a_pod_sends_heartbeats_while_planning_uses_its_load_and_leaves_none_behind() {
    let (fixture, _) = Fixture::new();
    let pod = start(&fixture, None).await;
    fixture.place(P0, &pod, 1).await;
    for _ in 0..2 {
        fixture.use_load(false).await;
        let before = fixture.view().await.revision;
        sleep(10 * HEARTBEAT_INTERVAL).await;
        let after = fixture.view().await;
        assert!(after.loads.is_empty() && after.revision == before, "an unused heartbeat is not written");
        fixture.use_load(true).await;
        let of_p0 = |load: &PodLoad| load.partitions.contains_key(&P0) && load.interval_ms == 5_000;
        fixture.heartbeat("a heartbeat that lists the partition", of_p0).await;
        fixture.use_load(false).await;
        fixture.until("no heartbeat, so that the pod is not suspected", |view| view.loads.is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_lists_partitions_only_if_planning_uses_their_load() {
    let (fixture, _) = Fixture::new();
    let mut pod = start(&fixture, Some(Duration::from_secs(1))).await;
    fixture.place(P0, &pod, 1).await;
    let requests = async {
        loop {
            assert_eq!(pod.status_of(P0, 1).await, 200);
            sleep(Duration::from_millis(100)).await;
        }
    };
    let has_load = |load: &PodLoad| load.total > Thousandths(0);
    tokio::select! {
        view = fixture.heartbeat("the total", has_load) => assert!(view.loads["w"].value.partitions.is_empty()),
        () = requests => {}
    }
    fixture.use_load(true).await;
    fixture.heartbeat("a list", |load| load.partitions.contains_key(&P0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_own_settings_say_so_sends_no_heartbeats() {
    let (fixture, _) = Fixture::new();
    fixture.use_load(true).await;
    let _pod = start(&fixture, Some(Duration::ZERO)).await;
    sleep(10 * HEARTBEAT_INTERVAL).await;
    assert!(fixture.view().await.loads.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_comes_back_brings_no_requests_of_its_earlier_stay() {
    let (fixture, _) = Fixture::new();
    fixture.use_load(true).await;
    let mut pod = start(&fixture, Some(Duration::from_secs(1))).await;
    fixture.place(P0, &pod, 1).await;
    fixture.place(P1, &pod, 1).await;
    let is_listed = |load: &PodLoad| load.partitions.contains_key(&P0);
    fixture.heartbeat("its presence", is_listed).await;
    for _ in 0..100 {
        assert_eq!(pod.status_of(P0, 1).await, 200);
    }
    fixture.heartbeat("its load", |load| load.partitions.get(&P0).is_some_and(|it| it.load > Thousandths(0))).await;
    let gone = Op::Delete(Keys::One(fixture.keys.assignment(P0)));
    fixture.commit(vec![], vec![gone]).await;
    fixture.heartbeat("its absence", |load| !is_listed(load)).await;
    fixture.place(P0, &pod, Epoch::new(9)).await;
    let view = fixture.heartbeat("its return", is_listed).await;
    assert_eq!(view.load("w").unwrap().partitions[&P0].load, Thousandths(0), "it has had no request since");
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_be_read_leave_the_last_ones_in_force() {
    let (fixture, _) = Fixture::new();
    let _pod = start(&fixture, None).await;
    fixture.use_load(true).await;
    fixture.heartbeat("a heartbeat", |_| true).await;
    fixture.put(fixture.keys.config(), b"garbled".to_vec()).await;
    // The pod has read the keyspace anew several times.
    sleep(Duration::from_secs(600)).await;
    let before = fixture.view().await.loads["w"].mod_revision;
    sleep(10 * HEARTBEAT_INTERVAL).await;
    let after = fixture.view().await;
    assert!(after.loads.get("w").is_some_and(|load| load.mod_revision > before), "no heartbeat comes any more");
}
