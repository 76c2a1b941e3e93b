//! The load that pods report, as planning reads it in the store.

use segue_grpc::proto::{Heartbeat, Load, PollRequest};
use segue_protocol::ids::PartitionId;
use segue_protocol::records::{Thousandths, encode};
use segue_protocol::view::View;

use super::client::{beat, connect, hello, register};
use super::site::Site;

impl Site {
    async fn balance_load(&self, on: bool) {
        self.until("settings", |view| view.settings().is_some_and(|settings| settings.planning.is_some())).await;
        let mut config = self.view().await.settings().unwrap().clone();
        config.planning.as_mut().unwrap()["balance_load"] = on.into();
        self.put(self.keys.config(), encode(&config)).await;
    }
}

fn load(total: f64) -> Option<Load> {
    let keys = [(3, 30), (4, 40)].into();
    Some(Load { total, by_partition: [(0, total / 2.0), (3, total / 4.0)].into(), keys })
}

/// Returns the total that planning reads, and the load of partition 3.
fn planned(view: &View, pod: &str) -> Option<(f64, f64)> {
    let load = view.load(pod)?;
    Some((load.total.into(), load.partitions.get(&PartitionId::new(3))?.load.into()))
}

#[tokio::test(flavor = "multi_thread")]
async fn planning_reads_the_load_of_a_pod_with_a_stream_while_it_uses_it() {
    let site = Site::start().await;
    site.balance_load(false).await;
    let (beats, mut events) = register(site.address(0), hello(&site.name, "a")).await.unwrap();
    tokio::spawn(async move { while let Ok(Some(_)) = events.message().await {} });
    beats.send(Heartbeat { seq: 2, load: load(8.0), seen: u64::MAX, ..Heartbeat::default() }).await.unwrap();
    tokio::spawn(beat(beats));
    let streams = || site.instances[0].status.streams();
    site.until("the instance knows it", |_| streams().iter().any(|stream| stream.load.is_some())).await;
    assert!(site.view().await.loads.is_empty(), "planning has no use for it");
    site.balance_load(true).await;
    site.until("the load", |view| planned(view, "a") == Some((8.0, 2.0))).await;
    let view = site.view().await;
    assert_eq!(view.loads["a"].lease, view.pods["a"].lease, "it ends with its pod");
    let record = view.load("a").unwrap();
    assert_eq!(record.total, Thousandths(8000));
    let keys = [0, 3, 4].map(|partition| record.partitions[&PartitionId::new(partition)].keys);
    assert_eq!(keys, [None, Some(30), Some(40)]);
    site.balance_load(false).await;
    site.until("no heartbeat, so that the pod is not suspected", |view| view.loads.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn planning_reads_the_load_of_a_pod_that_polls() {
    let site = Site::start().await;
    site.balance_load(true).await;
    let mut client = connect(site.address(0)).await;
    let mut hello = hello(&site.name, "a");
    for seq in 1..=2 {
        let heartbeat = Heartbeat { seq, hello: Some(hello.clone()), load: load(4.0), ..Heartbeat::default() };
        let request = PollRequest { heartbeat: Some(heartbeat), after_revision: 0, wait: None };
        hello.resume = client.poll(request).await.unwrap().into_inner().welcome.unwrap().resume;
    }
    site.until("the load", |view| planned(view, "a") == Some((4.0, 1.0))).await;
}
