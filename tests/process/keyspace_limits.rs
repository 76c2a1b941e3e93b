//! The limits on handoffs of the keyspaces of one coordinator, with etcd and sidecars as processes.
//!
//! The pods' hooks answer when the test lets their keyspace go on, so each keyspace takes all places that it may take. What
//! was in flight at any moment is read from the history of etcd, change by change.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use segue_coordination::store::{EtcdStore, Store as _};
use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::keys::{KeyName, Keyspace};
use segue_protocol::records::{Handoff, Phase};
use segue_protocol::txn::{Event, Keys, Snapshot};
use segue_protocol::view::View;
use segue_tests::cluster::TestCluster;
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::site::service::{Call, serve};
use crate::site::{SEGUE, store};

const PREFIX: &str = "/segue/";
/// Two keyspaces with a limit in their table, and one with that of the coordinator's section.
const KEYSPACES: [&str; 3] = ["narrow", "wide", "common"];
const PARTITIONS: usize = 12;

/// A pod, a hook of it, and a keyspace.
type Hook = (&'static str, &'static str, String);

/// Holds the calls of hooks until they are let go on in their keyspace.
struct Gate {
    /// The partitions of which each hook was told.
    told: Mutex<BTreeMap<Hook, BTreeSet<u64>>>,
    let_go: watch::Sender<BTreeSet<(&'static str, String)>>,
}

impl Gate {
    fn closed() -> Arc<Self> {
        Arc::new(Gate { told: Mutex::default(), let_go: watch::Sender::default() })
    }

    async fn pass(&self, pod: &'static str, call: &Call) {
        let (keyspace, partition, _) = call.told();
        let hook = if call.path == "/warm" { "warm" } else { "release" };
        self.told.lock().unwrap().entry((pod, hook, keyspace.clone())).or_default().insert(partition);
        self.let_go.subscribe().wait_for(|let_go| let_go.contains(&(hook, keyspace.clone()))).await.unwrap();
    }

    fn open(&self, hook: &'static str, keyspace: &str) {
        self.let_go.send_modify(|let_go| _ = let_go.insert((hook, keyspace.to_owned())));
    }

    fn close_all(&self) {
        self.let_go.send_modify(BTreeSet::clear);
    }

    /// Returns of how many partitions a hook of the pod has been told in each keyspace.
    fn told(&self, pod: &'static str, hook: &'static str) -> [usize; 3] {
        let told = self.told.lock().unwrap();
        KEYSPACES.map(|keyspace| told.get(&(pod, hook, keyspace.to_owned())).map_or(0, BTreeSet::len))
    }
}

/// Starts the service of a pod, which answers hooks when the gate does.
async fn service(pod: &'static str, gate: Arc<Gate>) -> SocketAddr {
    serve(move |call| {
        let gate = gate.clone();
        async move {
            gate.pass(pod, &call).await;
            (200, String::new())
        }
    })
    .await
}

/// A coordinator of the keyspaces, and the pods that have been started.
struct Site {
    cluster: TestCluster,
    gate: Arc<Gate>,
    runtime: Runtime,
    store: EtcdStore,
    processes: Vec<Process>,
}

impl Site {
    /// Starts a coordinator whose section and whose tables have this limit.
    fn start(limit: &str, common: i64, narrow: i64, wide: i64) -> Self {
        let (cluster, runtime) = (TestCluster::start(SEGUE), Runtime::new().unwrap());
        let of_table = |name: &str| match name {
            "narrow" => format!("{limit} = {narrow}\n"),
            "wide" => format!("{limit} = {wide}\n"),
            _ => String::new(),
        };
        let config = KEYSPACES.iter().fold(cluster.config(), |config, name| config.keyspace(name, &of_table(name)));
        let config = config.coordinator("c-0", PARTITIONS as u32);
        let config = config.set(&format!("coordinator.{limit}"), common);
        // A gate may stay closed for long.
        let config = config.set("coordinator.phase_timeout", "5m").quick();
        let processes = vec![cluster.run("control", &config)];
        let store = runtime.block_on(async { store(cluster.etcd()) });
        Site { cluster, gate: Gate::closed(), runtime, store, processes }
    }

    /// Starts a pod in all keyspaces.
    fn pod(&mut self, name: &'static str) {
        let upstream = self.runtime.block_on(service(name, self.gate.clone()));
        let config = KEYSPACES.iter().fold(self.cluster.config(), |config, name| config.keyspace(name, ""));
        let config =
            config.pod(name, free_address(), upstream).hooks(&format!("http://{upstream}"), &["warm", "release"]);
        self.processes.push(self.cluster.run(name, &config.quick()));
    }

    /// Waits until the hook of a pod has been told of so many partitions in each keyspace. Asserts that it was told of no
    /// more.
    fn is_told(&self, pod: &'static str, hook: &'static str, expected: [usize; 3]) {
        let mut told = [0; 3];
        until(&format!("{hook} of {expected:?} partitions at {pod}"), || {
            told = self.gate.told(pod, hook);
            let is_above = told.iter().zip(&expected).any(|(told, expected)| told > expected);
            is_above || told == expected
        });
        assert_eq!(told, expected, "{hook} at {pod} in {KEYSPACES:?}");
    }

    /// Lets all moves of a keyspace go on, and waits until the pods own so many partitions and none moves.
    fn finishes(&self, keyspace: &str, expected: &[(&str, usize)]) {
        ["warm", "release"].iter().for_each(|hook| self.gate.open(hook, keyspace));
        let expected: BTreeMap<_, _> = expected.iter().map(|(pod, count)| ((*pod).to_owned(), *count)).collect();
        until(&format!("{expected:?} in {keyspace}"), || {
            let view = self.view(keyspace);
            let mut owned = BTreeMap::<_, usize>::new();
            view.assignments.values().for_each(|it| *owned.entry(it.value.owner.clone()).or_default() += 1);
            view.handoffs.is_empty() && owned == expected
        });
    }

    fn view(&self, keyspace: &str) -> View {
        let keys = Keyspace::new(PREFIX, keyspace);
        let all = Keys::Prefix(keys.root().to_owned());
        View::from_snapshot(keys, self.runtime.block_on(self.store.snapshot(&all)).unwrap())
    }

    fn revision(&self) -> Revision {
        self.view(KEYSPACES[0]).revision
    }

    /// Returns the most handoffs that were in flight at a time in each keyspace, of those that `counts` names, from the
    /// revision after `since` on.
    fn most_in_flight(&self, since: Revision, counts: impl Fn(&Handoff) -> bool) -> [usize; 3] {
        KEYSPACES.map(|keyspace| self.runtime.block_on(self.most_of(keyspace, since, &counts)))
    }

    async fn most_of(&self, keyspace: &str, since: Revision, counts: impl Fn(&Handoff) -> bool) -> usize {
        let keys = Keyspace::new(PREFIX, keyspace);
        let all = Keys::Prefix(keys.root().to_owned());
        let Snapshot { entries, .. } = self.store.snapshot(&all).await.unwrap();
        let last = entries.iter().map(|entry| entry.mod_revision).max().unwrap();
        let mut history = self.store.watch(&all, since.next()).await.unwrap();
        let (mut in_flight, mut most, mut seen) = (BTreeSet::<PartitionId>::new(), 0, since);
        while seen < last {
            let batch = history.next().await.unwrap();
            seen = batch.revision;
            for event in batch.events {
                match event {
                    Event::Put(entry) => {
                        let Some(KeyName::Handoff(partition)) = keys.parse(&entry.key) else { continue };
                        let handoff: Handoff = serde_json::from_slice(&entry.value).unwrap();
                        if counts(&handoff) {
                            in_flight.insert(partition);
                        } else {
                            in_flight.remove(&partition);
                        }
                    }
                    Event::Delete { key, .. } => {
                        let Some(KeyName::Handoff(partition)) = keys.parse(&key) else { continue };
                        in_flight.remove(&partition);
                    }
                }
                most = most.max(in_flight.len());
            }
        }
        most
    }
}

#[test]
fn each_keyspace_has_its_own_limit_on_handoffs_in_flight() {
    let mut site = Site::start("max_concurrent_handoffs", 2, 1, 4);
    let alone = [("a", PARTITIONS)];
    site.pod("a");
    site.is_told("a", "warm", [1, 4, 2]);
    // The others stay at their limits while one keyspace begins and ends all its handoffs.
    site.finishes("wide", &alone);
    site.is_told("a", "warm", [1, PARTITIONS, 2]);
    ["narrow", "common"].iter().for_each(|keyspace| site.finishes(keyspace, &alone));
    assert_eq!(site.most_in_flight(Revision::ZERO, |_| true), [1, 4, 2]);

    // Of the moves for balance at most half of the places, and at least one, until the old owner has released.
    let (settled, both) = (site.revision(), [("a", PARTITIONS / 2), ("b", PARTITIONS / 2)]);
    site.gate.close_all();
    site.pod("b");
    site.is_told("b", "warm", [1, 2, 1]);
    site.gate.open("warm", "wide");
    site.is_told("a", "release", [0, 2, 0]);
    ["narrow", "common"].iter().for_each(|keyspace| site.finishes(keyspace, &both));
    site.is_told("b", "warm", [PARTITIONS / 2, 2, PARTITIONS / 2]);
    site.finishes("wide", &both);
    assert_eq!(site.most_in_flight(settled, |_| true), [1, 2, 1]);
}

#[test]
fn each_keyspace_has_its_own_limit_on_partitions_that_a_pod_warms() {
    let mut site = Site::start("max_warming_per_pod", 2, 1, 4);
    // Partitions without an owner may exceed the limit, so all are placed before it is looked at.
    site.pod("a");
    KEYSPACES.iter().for_each(|keyspace| site.finishes(keyspace, &[("a", PARTITIONS)]));

    let (settled, both) = (site.revision(), [("a", PARTITIONS / 2), ("b", PARTITIONS / 2)]);
    site.gate.close_all();
    site.pod("b");
    site.is_told("b", "warm", [1, 4, 2]);
    site.finishes("wide", &both);
    site.is_told("b", "warm", [1, PARTITIONS / 2, 2]);
    ["narrow", "common"].iter().for_each(|keyspace| site.finishes(keyspace, &both));
    assert_eq!(site.most_in_flight(settled, |handoff| handoff.phase == Phase::Warming), [1, 4, 2]);
}
