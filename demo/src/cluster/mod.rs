//! The cluster of a demo in one keyspace: store, coordinators, routers and writer pods in one process. They are those of
//! production; routers and pods serve on loopback sockets. With several keyspaces each process has a part in each, with
//! sockets of its own, and one lease.

mod coordinator;
mod keyspaces;
mod observers;
mod router;
mod snapshot;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use segue_coordination::coordinator::CoordinatorObserver;
use segue_coordination::pod::PodState;
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{Keys, Op, Txn};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

pub use snapshot::ClusterSnapshot;

use self::coordinator::Coordinator;
use self::router::Router;
use super::history::History;
use super::log::Log;
use super::options::Options;
use super::processes::Processes;
use super::timeline::Timeline;
use super::writer::pod::{WriterMembership, WriterPod};
use super::writer::{Checkpoints, Writer, WriterSettings};

/// Time for which the registration of a crashed pod outlives it. Its partitions have no working owner meanwhile.
const POD_LEASE: Duration = Duration::from_secs(3);
const ROUTER_LEASE: Duration = Duration::from_secs(5);
const COORDINATOR_LEASE: Duration = Duration::from_secs(3);
/// Longest time that a pod may take to hand its partitions over.
const HAND_OVER: Duration = Duration::from_secs(20);

/// Longest time that a router holds a request.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(10);
/// Longest time that a pod may take for a response.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A running cluster.
#[expect(missing_debug_implementations, reason = "observers have none")]
pub struct Cluster {
    history: History,
    member: WriterMembership,
    log: Log,
    checkpoints: Checkpoints,
    timeline: Arc<Timeline>,
    options: Options,
    coordinators: Vec<(Coordinator, Arc<dyn CoordinatorObserver>)>,
    routers: Vec<Router>,
    pods: BTreeMap<String, WriterPod>,
    snapshot: watch::Receiver<ClusterSnapshot>,
    _follower: AbortOnDropHandle<()>,
    _shown: Option<AbortOnDropHandle<()>>,
}

impl Cluster {
    /// Starts a cluster with one keyspace. Returns before it is ready; [`settled`](Self::settled) waits for that.
    ///
    /// # Errors
    ///
    /// Fails if etcd cannot be prepared, an address cannot be bound, or a thread cannot be started.
    pub async fn start(options: &Options, timeline: Arc<Timeline>) -> anyhow::Result<Self> {
        let (processes, keyspace) = keyspaces::open(options).await?;
        let only = keyspace.into_iter().next().context("a demo has a keyspace")?;
        Self::start_in(only, &processes, options, timeline).await
    }

    /// Starts the parts in each keyspace of as many processes as a cluster with one keyspace has.
    pub(super) async fn start_all(options: &Options) -> anyhow::Result<Vec<Self>> {
        let (processes, keyspaces) = keyspaces::open(options).await?;
        let mut clusters = Vec::new();
        for keyspace in keyspaces {
            // The metrics and the page show the first keyspace.
            let instruments = options.instruments.clone().filter(|_| clusters.is_empty());
            let options = Options { instruments, ..options.clone() };
            clusters.push(Self::start_in(keyspace, &processes, &options, Arc::default()).await?);
        }
        Ok(clusters)
    }

    async fn start_in(
        (keyspace, keys, history): (String, Keyspace, History),
        processes: &Processes,
        options: &Options,
        timeline: Arc<Timeline>,
    ) -> anyhow::Result<Self> {
        let (snapshot, follower) = snapshot::follow(processes.store().clone(), keys.clone());
        let member = WriterMembership { processes: processes.clone(), keyspace, keys, lease_ttl: POD_LEASE };
        let mut cluster = Cluster {
            history,
            member,
            log: Log::in_memory(),
            checkpoints: Checkpoints::default(),
            timeline,
            options: options.clone(),
            coordinators: Vec::new(),
            routers: Vec::new(),
            pods: BTreeMap::new(),
            snapshot,
            _follower: follower,
            _shown: None,
        };
        for number in 0..options.routers.max(1) {
            let Cluster { member, history, timeline, .. } = &cluster;
            let router = Router::start(number, member, history, timeline, options).await?;
            cluster.routers.push(router);
        }
        for number in 0..options.pods.max(1) {
            cluster.add_pod(&pod_name(number)).await?;
        }
        for name in ["coordinator-0", "coordinator-1"] {
            let observer = observers::coordinator(name, &cluster.timeline, options);
            cluster.add_coordinator(name.to_owned(), observer);
        }
        if let Some(instruments) = &options.instruments {
            let (store, keys) = (cluster.member.processes.store().clone(), cluster.member.keys.clone());
            cluster._shown = Some(instruments.serve(store, keys, observers::status(&cluster.timeline))?);
        }
        Ok(cluster)
    }

    fn add_coordinator(&mut self, name: String, observer: Arc<dyn CoordinatorObserver>) {
        let coordinator = Coordinator::start(name, &self.member, observer.clone(), &self.options, COORDINATOR_LEASE);
        self.coordinators.push((coordinator, observer));
    }

    /// Returns the addresses of the routers.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.routers.iter().map(Router::address).collect()
    }

    /// Returns the events of the cluster.
    pub(super) fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    /// Returns the keys of the keyspace.
    pub fn keys(&self) -> &Keyspace {
        &self.member.keys
    }

    /// Returns the log of all pods.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the record of what was written to the store.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns a receiver of the cluster's placement.
    pub fn watch_snapshot(&self) -> watch::Receiver<ClusterSnapshot> {
        self.snapshot.clone()
    }

    /// Returns the current placement.
    pub fn snapshot(&self) -> ClusterSnapshot {
        self.snapshot.borrow().clone()
    }

    /// Returns the names of the running pods.
    pub fn pods(&self) -> Vec<String> {
        self.pods.keys().cloned().collect()
    }

    /// Returns the first name that no running pod has.
    pub fn next_pod(&self) -> String {
        (0..).map(pod_name).find(|name| !self.pods.contains_key(name)).unwrap_or_default()
    }

    /// Starts a pod.
    ///
    /// # Errors
    ///
    /// Fails if no port of the loopback can be bound.
    pub async fn add_pod(&mut self, name: &str) -> anyhow::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("a pod's listener")?;
        let Options { service_time, warm_time, state_bytes, capabilities, .. } = self.options;
        let checkpoints = self.checkpoints.clone();
        let settings = WriterSettings { service_time, warm_time, state_bytes, checkpoints };
        let writer = Writer::new(name, self.log.clone(), settings);
        let pod = match &self.options.wiring {
            None => WriterPod::start(&writer, &self.member, listener, capabilities)?,
            Some(wiring) => WriterPod::start_with(&writer, &self.member, listener, capabilities, |handle| {
                wiring.service(handle, &writer)
            })?,
        };
        self.pods.insert(name.to_owned(), pod);
        Ok(())
    }

    /// Ends a pod after it has handed its partitions over.
    pub async fn remove_pod(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            pod.shut_down(HAND_OVER).await;
            self.member.processes.ended(name);
        }
    }

    /// Crashes a pod.
    pub async fn crash_pod(&mut self, name: &str) {
        let Some(pod) = self.pods.remove(name) else { return };
        let PodState { incarnation, .. } = pod.status().borrow().clone();
        self.timeline.events().crashed.insert((name.to_owned(), incarnation), super::clock::now());
        pod.crash().await;
        self.member.processes.ended(name);
    }

    /// Makes the leading coordinator resign and starts it again as a standby. Returns once another one leads, or after
    /// twice the coordinators' lease.
    pub async fn resign_leader(&mut self) {
        let leader = self.snapshot().leader;
        let Some(at) = self.coordinators.iter().position(|(one, _)| leader.as_ref() == Some(one.name())) else {
            return;
        };
        let (resigned, observer) = self.coordinators.remove(at);
        let name = resigned.name().clone();
        resigned.stop().await;
        let mut snapshot = self.snapshot.clone();
        let other = snapshot.wait_for(|snapshot| snapshot.leader.is_some() && snapshot.leader != leader);
        let _ = tokio::time::timeout(2 * COORDINATOR_LEASE, other).await;
        self.add_coordinator(name, observer);
    }

    /// Waits until every partition has a living owner, nothing moves, the running pods have shares (equal ones with
    /// `sticky`) and all routers are ready. Returns whether that was so within `patience`.
    pub async fn settled(&self, patience: Duration) -> bool {
        let (pods, mut snapshot) = (self.pods(), self.snapshot.clone());
        let (partitions, strategy) = (self.options.partitions, self.options.strategy);
        let settled = snapshot.wait_for(|snapshot| snapshot.are_settled(partitions, &pods, strategy));
        let settled = matches!(tokio::time::timeout(patience, settled).await, Ok(Ok(_)));
        settled && self.routers_ready(patience).await
    }

    async fn routers_ready(&self, patience: Duration) -> bool {
        let ready = futures_util::future::join_all(self.routers.iter().map(Router::ready));
        tokio::time::timeout(patience, ready).await.is_ok()
    }

    /// Ends the cluster and deletes its keys if the store is etcd.
    pub async fn stop(self) {
        let patience = Duration::from_secs(2);
        let routers = self.routers.into_iter().map(|router| tokio::time::timeout(patience, router.stop()));
        futures_util::future::join_all(routers).await;
        futures_util::future::join_all(self.pods.into_values().map(WriterPod::crash)).await;
        for (coordinator, _) in self.coordinators {
            let _ = tokio::time::timeout(patience, coordinator.stop()).await;
        }
        if self.options.etcd.is_some() {
            let everything = Op::Delete(Keys::Prefix(self.member.keys.root().to_owned()));
            let txn = Txn::guarded([], [everything]);
            if let Err(error) = self.member.processes.store().commit(txn).await {
                tracing::warn!(%error, keyspace = self.member.keyspace, "could not remove the demo's keys from etcd");
            }
        }
    }
}

fn pod_name(number: u32) -> String {
    format!("writer-{number}")
}
