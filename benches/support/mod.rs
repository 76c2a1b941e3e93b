//! A routing table with one pod, for the benches. Each bench uses only a part of this module.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::router::DataPlane;
use segue_protocol::handoff::router::Target;
use segue_protocol::ids::{Incarnation, PartitionId, Revision};
use segue_protocol::records::{Capabilities, PodRecord};
use segue_proxy::routing::permit::{Admission, Permit, QueuedPermit, TableHandle};
use segue_proxy::routing::table::{StashLimits, Table};
use tokio::time::Instant;

/// Number of partitions of the table.
pub(crate) const PARTITIONS: u32 = 64;

/// Returns a table whose partitions all lead to one pod.
pub(crate) fn open_table(workers: usize) -> Arc<Table> {
    let limits = StashLimits {
        max_requests: 10_000,
        max_bytes: 64 << 20,
        max_total_bytes: 512 << 20,
        max_wait: Duration::from_secs(30),
        flush_concurrency: 64,
    };
    // The receiver of notices is dropped because no control side reads it.
    let (table, _) = Table::new(workers, limits);
    table.set_partitions(PARTITIONS);
    table.trust_until(Instant::now() + Duration::from_secs(86_400));
    PartitionId::all(PARTITIONS).for_each(|partition| switch(&table, partition, "pod", 1));
    table
}

/// Switches a partition to a pod.
pub(crate) fn switch(table: &Table, partition: PartitionId, pod: &str, epoch: u64) {
    let record = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new(pod, "127.0.0.1:1") };
    let target =
        Target { pod: pod.to_owned(), incarnation: Incarnation::registered_at(Revision::new(1)), epoch: epoch.into() };
    DataPlane::switch(table, partition, &target, &record, true);
}

/// Returns the permit of a request. Panics if the gate is not open.
pub(crate) fn permit(worker: &TableHandle, partition: PartitionId, now: Instant) -> Permit {
    match worker.enter(partition, None, 512, now) {
        Ok(Admission::Admitted(permit)) => permit,
        other => panic!("expected an open gate, found {other:?}"),
    }
}

/// Returns the queued permit of a request. Panics if the gate is open.
pub(crate) fn wait(worker: &TableHandle, partition: PartitionId, now: Instant) -> QueuedPermit {
    match worker.enter(partition, None, 512, now) {
        Ok(Admission::Queued(queued)) => queued,
        other => panic!("expected a closed gate, found {other:?}"),
    }
}
