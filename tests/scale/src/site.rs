//! The keyspace that is measured: an etcd, processes of `segue run`, pods in this process, and a view of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use segue_coordination::pod::{HandoffHandler, PodHandle, PodSettings};
use segue_coordination::session::{Update, Watcher};
use segue_coordination::store::{EtcdOptions, EtcdStore, Store};
use segue_protocol::ids::Epoch;
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::Keys;
use segue_protocol::view::View;
use segue_tests::cluster::TestCluster;
use segue_tests::config::Config;
use segue_tests::etcd::Etcd;
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::meters::Reading;
use crate::routers::LoneRouter;

const KEYSPACE: &str = "default";
/// The size of the keyspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) pods: u32,
    pub(crate) routers: u32,
    pub(crate) partitions: u32,
    pub(crate) at_once: u32,
    /// The TTL of all leases. A pod's lease has ended before the time of its death is measured.
    pub(crate) lease: Duration,
    /// Whether the pods say that they have something to warm.
    pub(crate) warms: bool,
    /// Whether the routers are in this process, and forward nothing.
    pub(crate) without_data_plane: bool,
}

/// A service whose callbacks return at once.
struct Service {
    warms: bool,
}

impl HandoffHandler for Service {
    fn warms(&self) -> bool {
        self.warms
    }
}

/// The keyspace.
pub(crate) struct Site {
    size: Size,
    cluster: TestCluster,
    keys: Keyspace,
    store: Arc<dyn Store>,
    watcher: Watcher,
    view: View,
    coordinator: Option<Process>,
    routers: Vec<Process>,
    lone_routers: Vec<LoneRouter>,
    pods: BTreeMap<String, PodHandle>,
    /// When the present step began.
    began: Instant,
    /// The newest epoch when it did. A partition with a later one has moved since.
    newest: Epoch,
}

impl Site {
    /// Starts everything but the coordinator, and waits until the pods are registered.
    pub(crate) async fn start(size: Size) -> anyhow::Result<Self> {
        let segue = std::env::current_exe()?.with_file_name("segue");
        ensure!(segue.is_file(), "{} is missing: build it in the same profile", segue.display());
        let cluster = TestCluster::new(segue, TempDir::new()?, Etcd::start_on_disk());
        let keys = Keyspace::new("/segue/", KEYSPACE);
        let store: Arc<dyn Store> = Arc::new(EtcdStore::connect(EtcdOptions::new([cluster.etcd().endpoint()]))?);
        let watcher = Watcher::start(store.clone(), keys.clone());
        let view = View::empty(keys.clone());
        let (began, newest) = (Instant::now(), Epoch::default());
        let (routers, lone_routers, pods) = (Vec::new(), Vec::new(), BTreeMap::new());
        let coordinator = None;
        let mut site =
            Site { size, cluster, keys, store, watcher, view, coordinator, routers, lone_routers, pods, began, newest };
        for number in 0..size.routers {
            let name = format!("router-{number}");
            if size.without_data_plane {
                let (store, keys) = (site.connect()?, site.keys.clone());
                site.lone_routers.push(LoneRouter::start(store, keys, name, size.lease));
                continue;
            }
            let config = site.config().router(&name, free_address()).set("router.workers", 1);
            let config = config.set("router.lease_ttl", site.lease());
            site.routers.push(site.cluster.run(&name, &config));
        }
        for number in 0..size.pods {
            site.add_pod(number)?;
        }
        // A router with a mapping registers once the coordinator has written the keyspace's settings.
        let routers = site.lone_routers.len();
        let all = |view: &View| view.pods.len() == size.pods as usize && view.routers.len() >= routers;
        site.until(Duration::from_secs(120), all).await.context("not all pods and routers register")?;
        Ok(site)
    }

    fn config(&self) -> Config {
        self.cluster.config().set("admin.listen", free_address().to_string()).set("log.level", "warn")
    }

    /// Returns the TTL of all leases, as a configuration has it.
    fn lease(&self) -> String {
        format!("{}s", self.size.lease.as_secs())
    }

    fn add_pod(&mut self, number: u32) -> anyhow::Result<()> {
        let name = format!("pod-{number:04}");
        let store = self.connect()?;
        let settings = PodSettings { lease_ttl: self.size.lease, ..PodSettings::new(&name, "127.0.0.1:1") };
        let pod = PodHandle::start(
            store,
            KEYSPACE,
            self.keys.clone(),
            settings,
            Arc::new(Service { warms: self.size.warms }),
        );
        self.pods.insert(name, pod);
        Ok(())
    }

    /// Returns a connection of its own, as a participant in a process of its own has.
    fn connect(&self) -> anyhow::Result<Arc<dyn Store>> {
        Ok(Arc::new(EtcdStore::connect(EtcdOptions::new([self.cluster.etcd().endpoint()]))?))
    }

    pub(crate) fn etcd(&self) -> &Etcd {
        self.cluster.etcd()
    }

    /// Returns the process id of the coordinator; 0 before there is one.
    pub(crate) fn coordinator(&self) -> u32 {
        self.coordinator.as_ref().map_or(0, Process::id)
    }

    /// Returns the process ids of the routers.
    pub(crate) fn routers(&self) -> Vec<u32> {
        self.routers.iter().map(Process::id).collect()
    }

    pub(crate) async fn meters(&self) -> anyhow::Result<Reading> {
        let revision = self.store.snapshot(&Keys::One(self.keys.config())).await?.revision;
        Reading::take(self.etcd(), revision, self.coordinator.as_ref().map(Process::id), &self.routers())
    }

    fn begin(&mut self) {
        self.began = Instant::now();
        let epochs = self.view.assignments.values().map(|assignment| assignment.value.epoch);
        self.newest = epochs.max().unwrap_or_default();
    }

    /// Starts the coordinator.
    pub(crate) async fn lead(&mut self) -> anyhow::Result<()> {
        self.begin();
        let Size { partitions, at_once, .. } = self.size;
        let config = self.config().coordinator("coordinator", partitions);
        let config = config.set("coordinator.max_concurrent_handoffs", at_once);
        let config = config.set("coordinator.max_warming_per_pod", at_once.div_ceil(8).max(1));
        let config = config.set("coordinator.lease_ttl", self.lease());
        self.coordinator = Some(self.cluster.run("coordinator", &config.set("coordinator.cool_down", "0s")));
        Ok(())
    }

    /// Starts another pod.
    pub(crate) async fn join(&mut self) -> anyhow::Result<()> {
        self.begin();
        self.add_pod(self.size.pods)
    }

    /// Crashes a pod and waits until its lease has ended.
    pub(crate) async fn lose(&mut self) -> anyhow::Result<()> {
        let (name, pod) = self.pods.pop_first().context("there is no pod")?;
        pod.crash();
        let gone = |view: &View| !view.pods.contains_key(&name);
        self.until(self.size.lease * 3, gone).await.context("the pod's lease does not end")?;
        self.begin();
        Ok(())
    }

    /// Waits until the partitions are balanced over the pods and nothing moves. Returns how long the step took, and the
    /// number of partitions that moved in it.
    pub(crate) async fn settled(&mut self, patience: Duration) -> anyhow::Result<(Duration, u64)> {
        let (partitions, pods) = (self.size.partitions as usize, self.pods.len());
        let least = partitions / pods.max(1);
        let settled = |view: &View| {
            let balanced = |pod: &String| view.assigned_count(pod) >= least;
            let all = view.pods.len() == pods && view.live_owners() == partitions && view.handoffs.is_empty();
            all && view.pods.keys().all(balanced)
        };
        self.until(patience, settled).await?;
        let took = self.began.elapsed();
        let moved = self.view.assignments.values().filter(|assignment| assignment.value.epoch > self.newest).count();
        Ok((took, moved as u64))
    }

    /// Follows the keyspace until this holds.
    async fn until(&mut self, patience: Duration, holds: impl Fn(&View) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        while !holds(&self.view) {
            let left = deadline.saturating_duration_since(Instant::now());
            let update = timeout(left, self.watcher.next()).await.with_context(|| {
                let (owned, moving) = (self.view.live_owners(), self.view.handoffs.len());
                format!("not settled in {} s: {owned} partitions are owned and {moving} move", patience.as_secs())
            })?;
            match update {
                Update::Snapshot(view) => self.view = *view,
                Update::Batch(batch) => drop(self.view.apply(batch)),
                Update::Lost(_) => {}
            }
            while let Some(batch) = self.watcher.try_next_batch() {
                self.view.apply(batch);
            }
        }
        Ok(())
    }
}
