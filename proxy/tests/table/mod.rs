//! The public interface of the routing table: workers with requests, and a control side that stops and switches.
mod cutover;
mod held;
mod refused;

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::router::DataPlane;
use segue_coordination::session::count_by_tokio;
use segue_protocol::handoff::router::{GateStage, Target};
use segue_protocol::ids::{Epoch, Incarnation, PartitionId, Revision};
use segue_protocol::records::PodRecord;
use segue_proxy::routing::permit::{Admission, Permit, QueuedPermit, TableHandle};
use segue_proxy::routing::table::{StashLimits, Table};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

const I1: Incarnation = Incarnation::registered_at(Revision::new(1));
const E1: Epoch = Epoch::new(1);
const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);
const P2: PartitionId = PartitionId::new(2);

const LIMITS: StashLimits = StashLimits {
    max_requests: 100,
    max_bytes: 10_000,
    max_total_bytes: 15_000,
    max_wait: Duration::from_secs(30),
    flush_concurrency: 64,
};

fn table(workers: usize) -> (Arc<Table>, UnboundedReceiver<PartitionId>) {
    count_by_tokio();
    let (table, notices) = Table::new(workers, LIMITS);
    table.set_partitions(8);
    table.trust_until(Instant::now() + Duration::from_secs(3600));
    (table, notices)
}

fn target(pod: &str, epoch: u64) -> Target {
    Target { pod: pod.to_owned(), incarnation: I1, epoch: epoch.into() }
}

fn switch(table: &Table, partition: PartitionId, pod: &str, epoch: u64) {
    let record = PodRecord::new(pod, format!("{pod}:80"));
    DataPlane::switch(table, partition, &target(pod, epoch), &record, false);
}

fn stage(table: &Table, partition: PartitionId) -> GateStage {
    DataPlane::stage(table, partition).0
}

fn passes(worker: &TableHandle, order: Option<u64>) -> Permit {
    match worker.enter(P0, order, 10, Instant::now()).unwrap() {
        Admission::Admitted(permit) => permit,
        Admission::Queued(_) => panic!("held"),
    }
}

fn waits(worker: &TableHandle, order: Option<u64>) -> QueuedPermit {
    match worker.enter(P0, order, 10, Instant::now()).unwrap() {
        Admission::Queued(queued) => queued,
        Admission::Admitted(_) => panic!("passed"),
    }
}

async fn is_pending(queued: &mut QueuedPermit) -> bool {
    tokio::select! {
        biased;
        _ = queued => false,
        () = std::future::ready(()) => true,
    }
}
