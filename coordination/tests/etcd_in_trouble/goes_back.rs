//! An etcd whose data are those of an earlier backup: its cluster is the same, and its revisions come again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use segue_coordination::pod::PodHandle;
use segue_coordination::store::{EtcdOptions, EtcdStore, Store};
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::view::View;
use segue_tests::etcd::Etcd;

use crate::shells::goes_back::{hand_over, pod, settled, write_others};
use crate::shells::{ViewCount, coordinator};

/// The newest epoch of each partition that any pod has accepted, and those that fell.
#[derive(Default)]
struct Accepted {
    newest: BTreeMap<PartitionId, Epoch>,
    fallen: Vec<String>,
}

/// Records what a pod accepts.
fn record(pod: &PodHandle, name: &'static str, accepted: &Arc<Mutex<Accepted>>) {
    let (mut status, accepted) = (pod.status(), accepted.clone());
    tokio::spawn(async move {
        let mut before = BTreeMap::new();
        while status.changed().await.is_ok() {
            let owned = status.borrow_and_update().owned.clone();
            let Accepted { newest, fallen } = &mut *accepted.lock().unwrap();
            for (partition, epoch) in &owned {
                let newest = newest.entry(*partition).or_default();
                let is_lower = epoch < newest && before.get(partition) != Some(epoch);
                let text = format!("{name} accepts {partition} at {epoch} after {newest}");
                *newest = (*newest).max(*epoch);
                fallen.extend(is_lower.then_some(text));
            }
            before = owned;
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_epochs_that_pods_accept_do_not_fall_when_etcd_is_restored_from_an_older_backup() {
    let etcd = Etcd::start();
    let connect = || Arc::new(EtcdStore::connect(EtcdOptions::new([etcd.endpoint()])).unwrap());
    let store: Arc<dyn Store> = connect();
    let coordinating = tokio::spawn(coordinator(connect(), "c", Duration::from_secs(3), Arc::<ViewCount>::default()));
    let accepted = Arc::<Mutex<Accepted>>::default();
    let first = pod(connect(), "w-0");
    record(&first, "w-0", &accepted);
    let before = settled(&*store, "the first owner", |_| true).await;
    let backup = etcd.back_up();

    let second = pod(connect(), "w-1");
    record(&second, "w-1", &accepted);
    write_others(&*store, 300).await;
    let spent = hand_over(&*store, "w-0").await;
    etcd.restore(&backup);

    let is_new = |view: &View| {
        let created = |name: &str| view.pods.get(name).map(|pod| pod.create_revision);
        created("w-0").is_some_and(|created| created != before.pods["w-0"].create_revision) && created("w-1").is_some()
    };
    let after = settled(&*store, "new lives", is_new).await;
    let floor = after.config.as_ref().unwrap().value.epoch_floor;
    assert!(floor > spent, "{floor} after epoch {spent}");
    assert!(after.assignments.values().all(|owned| owned.value.epoch > floor));
    assert!(Epoch::new(after.revision.get()) < spent, "revisions alone do not tell");
    assert_eq!(accepted.lock().unwrap().fallen, [""; 0]);
    coordinating.abort();
}
