//! A world for tests of the data path: a table that the test switches, a server over it, pods and clients with real
//! sockets. Pods and clients do what the test says, when it says so.

#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

pub mod client;
pub mod pod;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use segue_coordination::router::DataPlane;
use segue_protocol::handoff::router::{HoldCause, Stage, Target};
use segue_protocol::ids::{Incarnation, PartitionId, Revision};
use segue_protocol::records::PodRecord;
use segue_proxy::metrics::Metrics;
use segue_proxy::router::{BoundRouter, RouterParts};
use segue_proxy::routing::partition_key::PartitionSource;
use segue_proxy::routing::table::{StashLimits, Table};
use segue_proxy::server::{Server, ServerError, ServerHandle};
use segue_proxy::settings::{ClientLimits, ForwardSettings, ServerSettings, UPLOAD_GRACE, UpstreamSettings};
use tokio::time::Instant;

const I1: Incarnation = Incarnation::registered_at(Revision::new(1));

/// Longer than anything here takes; only a test that fails waits for it.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Settings {
    pub forward: ForwardSettings,
    pub server: ServerSettings,
    pub stash: StashLimits,
    pub partitions: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            forward: ForwardSettings {
                router: "router-0".to_owned(),
                keyspace: "default".to_owned(),
                partition: PartitionSource::Number {
                    header: "x-partition".parse().unwrap(),
                    order_by: Some("x-key".parse().unwrap()),
                },
                trust_forwarded: false,
                // All clients of a test have one address, and some of them drip.
                limits: ClientLimits { max_in_flight_per_client: 0, min_upload_rate: 0, ..ClientLimits::default() },
                upload_grace: UPLOAD_GRACE,
                upstream: UpstreamSettings::default(),
            },
            server: ServerSettings { listen: "127.0.0.1:0".to_owned(), workers: 1, tls: None },
            stash: StashLimits {
                max_requests: 100,
                max_bytes: 1 << 20,
                max_total_bytes: 1 << 20,
                max_wait: PATIENCE,
                flush_concurrency: 16,
            },
            partitions: 8,
        }
    }
}

type Targets = Arc<Mutex<HashMap<PartitionId, (Target, PodRecord)>>>;

pub struct World {
    pub table: Arc<Table>,
    pub metrics: Metrics,
    pub address: SocketAddr,
    pub server: Option<ServerHandle>,
    targets: Targets,
}

impl World {
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Self {
        let server = Server::bind(settings.server.clone()).unwrap();
        Self::over(server, settings)
    }

    pub fn over(server: Server, settings: Settings) -> Self {
        Self::started(server, settings, |server, forward, table, metrics| server.start(forward, table, metrics))
    }

    /// A world whose server is started by `start`.
    pub fn started(
        server: Server,
        settings: Settings,
        start: impl FnOnce(Server, &ForwardSettings, &Arc<Table>, &Metrics) -> Result<ServerHandle, ServerError>,
    ) -> Self {
        let RouterParts { server, table, mut notices, metrics } = BoundRouter::of(server, settings.stash).into_parts();
        if settings.partitions > 0 {
            table.set_partitions(settings.partitions);
        }
        table.trust_until(Instant::now() + Duration::from_secs(3600));
        let address = server.local_addr();
        let server = start(server, &settings.forward, &table, &metrics).unwrap();
        let targets = Targets::default();
        // What the router's shell does, as far as these tests need it.
        let (told, wanted) = (table.clone(), targets.clone());
        tokio::spawn(async move {
            while let Some(partition) = notices.recv().await {
                tokio::spawn(settle(told.clone(), wanted.clone(), partition));
            }
        });
        World { table, metrics, address, server: Some(server), targets }
    }

    /// The pod at this address is about to be led to.
    pub fn expect(&self, address: impl ToString, epoch: u64) {
        let (target, record) = named(&address.to_string(), epoch);
        DataPlane::expect(&*self.table, &target, &record, false);
    }

    /// Leads a partition to the pod at this address, as soon as nothing is in flight elsewhere.
    pub fn lead(&self, partition: PartitionId, address: impl ToString, epoch: u64) {
        let (target, record) = named(&address.to_string(), epoch);
        self.targets.lock().unwrap().insert(partition, (target, record));
        self.table.stop(partition, HoldCause::Handoff);
        tokio::spawn(settle(self.table.clone(), self.targets.clone(), partition));
    }

    /// Holds a partition.
    pub fn hold(&self, partition: PartitionId, cause: HoldCause) {
        self.targets.lock().unwrap().remove(&partition);
        self.table.stop(partition, cause);
        DataPlane::name_cause(&*self.table, partition, cause);
    }

    /// Severs what is in flight. An exchange can be severed once it has lasted for a moment, as one that outlasts a drain
    /// has, so this tries until all are.
    pub fn sever(&self, partition: PartitionId) {
        let table = self.table.clone();
        tokio::spawn(async move {
            while table.sever(partition) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }

    /// Waits until so many requests of the partition are held.
    pub async fn held(&self, partition: PartitionId, requests: usize) {
        until(|| self.table.stashed(partition).0 == requests, "requests to be held").await;
    }

    /// What the control side is told of partition 0.
    pub fn table_stage(&self) -> Stage {
        DataPlane::stage(&*self.table, PartitionId::new(0)).0
    }

    /// Waits until so many requests of the partition are in flight.
    pub async fn in_flight(&self, partition: PartitionId, requests: u32) {
        until(|| self.table.in_flight(partition) == requests, "requests in flight").await;
    }
}

fn named(address: &str, epoch: u64) -> (Target, PodRecord) {
    let record = serde_json::json!({"pod_name": "pod", "address": address});
    (
        Target { pod: format!("pod-{address}"), incarnation: I1, epoch: epoch.into() },
        serde_json::from_value(record).unwrap(),
    )
}

async fn settle(table: Arc<Table>, targets: Targets, partition: PartitionId) {
    loop {
        let Some((target, record)) = targets.lock().unwrap().get(&partition).cloned() else {
            return;
        };
        let (stage, retry_at) = DataPlane::stage(&*table, partition);
        if let Some(at) = retry_at.filter(|at| *at > Instant::now()) {
            tokio::time::sleep_until(at).await;
            continue;
        }
        match stage {
            Stage::Held => DataPlane::switch(&*table, partition, &target, &record, false),
            Stage::Draining(at) if at == target => DataPlane::switch(&*table, partition, &target, &record, false),
            Stage::Open(at) | Stage::Flushing(at) if at != target => table.stop(partition, HoldCause::Handoff),
            _ => return,
        }
        return;
    }
}

/// Waits for a condition that another thread brings about and nobody announces.
pub async fn until(mut condition: impl FnMut() -> bool, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Runs until done, or fails the test.
pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("something that should have happened has not")
}
