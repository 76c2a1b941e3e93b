//! Pods that coordinate themselves by assignment rounds, as processes: there is no coordinator but in their own files.
use segue_coordination::store::{EtcdStore, Store};
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::Keys;
use segue_tests::cluster::TestCluster;
use segue_tests::config::Config;
use segue_tests::ports::free_address;
use serde_json::{Value, json};

use crate::site::service::serve_text;
use crate::site::{SEGUE, store};

const PARTITIONS: u32 = 8;

async fn pod(cluster: &TestCluster, name: &str) -> Config {
    cluster.config().pod(name, free_address(), serve_text("served").await)
}

/// Returns the settings of the keyspace in the store.
async fn settings(store: &EtcdStore) -> Option<Value> {
    let key = Keyspace::new("/segue/", "default").config();
    let found = store.snapshot(&Keys::One(key)).await.unwrap().entries.pop();
    found.map(|entry| serde_json::from_slice(&entry.value).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_with_a_coordinator_section_create_the_settings_and_place_each_others_partitions() {
    let cluster = TestCluster::start(SEGUE);
    let store = store(cluster.etcd());
    assert_eq!(settings(&store).await, None);
    let mut running = Vec::new();
    for name in ["a", "b"] {
        let config = pod(&cluster, name).await.coordinator(name, PARTITIONS).set("coordinator.coordination", "rounds");
        running.push(cluster.run(name, &config.quick()));
    }
    tokio::task::block_in_place(|| cluster.settles(PARTITIONS, &["a", "b"]));
    let created = settings(&store).await.unwrap();
    assert_eq!(created["partitions"], json!(PARTITIONS), "{created}");
    assert_eq!(created["planning"]["coordination"], json!("rounds"), "{created}");
    let leader = store.snapshot(&Keys::One(Keyspace::new("/segue/", "default").leader())).await.unwrap();
    assert!(leader.entries.is_empty(), "nobody leads");

    // A pod without that section finds the settings, and the others give it its share.
    running.push(cluster.run("c", &pod(&cluster, "c").await.quick()));
    tokio::task::block_in_place(|| cluster.settles(PARTITIONS, &["a", "b", "c"]));

    // The rounds go on without the one that closed the first.
    let (status, output) = tokio::task::block_in_place(|| running.remove(0).terminate());
    assert!(status.success(), "{output}");
    tokio::task::block_in_place(|| cluster.settles(PARTITIONS, &["b", "c"]));
    assert_eq!(settings(&store).await.unwrap(), created, "one set of settings for good");
}
