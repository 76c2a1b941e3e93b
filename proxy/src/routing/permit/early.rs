//! A request that comes before the number of partitions is known.

use std::sync::atomic::Ordering::SeqCst;

use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;
use tokio::time::Instant;

use super::{Admission, AdmissionError, TableHandle};
use crate::routing::stash::Arrival;

/// The place of such a request. Until this is dropped no gate lets anybody in, so that the request can go before all that came
/// after it.
#[derive(Debug)]
pub(crate) struct EarlyRequest {
    worker: TableHandle,
    arrival: Arrival,
}

impl EarlyRequest {
    /// Waits until the number of partitions is known, or the router shuts down.
    pub(crate) async fn known(&self) {
        let table = &self.worker.inner.table;
        // Read again after this request has been counted: either it is known, or flushes see the request.
        if table.partitions.load(SeqCst) == 0 {
            table.known.cancelled().await;
        }
    }

    /// Takes the request to the gate of `partition` as [`TableHandle::enter`] does, as of its own arrival.
    ///
    /// # Errors
    ///
    /// Fails if the request would have to wait and may not: see [`AdmissionError`].
    pub(crate) fn enter(
        self,
        partition: PartitionId,
        order: Option<u64>,
        bytes: usize,
        now: Instant,
    ) -> Result<Admission, AdmissionError> {
        self.worker.enter_as_of(self.arrival, partition, order, bytes, now)
    }
}

impl Drop for EarlyRequest {
    fn drop(&mut self) {
        self.worker.inner.table.end_early();
    }
}

impl TableHandle {
    /// Returns a place for a request that waits for the number of partitions, or `None` if as many wait already as may
    /// for one partition.
    pub(crate) fn wait_early(&self, now: Instant) -> Option<EarlyRequest> {
        let table = &self.inner.table;
        table
            .begin_early()
            .then(|| EarlyRequest { worker: self.clone(), arrival: self.inner.arrival(table.nanos(now)) })
    }

    /// Returns why a request has waited in vain for the number of partitions.
    pub(crate) fn default_cause(&self) -> HoldCause {
        self.inner.table.default_cause()
    }
}
