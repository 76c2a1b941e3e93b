//! Requests that come before the number of partitions is known, and so before anybody can say at which gate they wait.
//!
//! # Invariants
//!
//! * No flush starts a request while one of them has not entered. They enter as of their arrival, so the flush starts them in
//!   their order, before those that came later.
//! * A flush that sees one of them is begun again by the last. Either side writes its own word, the number of partitions or
//!   that of early requests, and then reads the other's, in one total order (sequential consistency).
//! * Their number only falls once the number of partitions is known, so flushes wait for a bounded number of entries.

use std::sync::atomic::Ordering::SeqCst;

use segue_protocol::ids::PartitionId;

use super::state::Table;

impl Table {
    /// Counts one more such request. Returns `false` if as many wait already as may for one partition.
    pub(in crate::routing) fn begin_early(&self) -> bool {
        let may_wait = self.early.fetch_add(1, SeqCst) < self.max_requests();
        if !may_wait {
            self.end_early();
        }
        may_wait
    }

    /// Counts one of them out: it has entered or left. After the last one the flushes go on.
    pub(in crate::routing) fn end_early(&self) {
        if self.early.fetch_sub(1, SeqCst) == 1 {
            let partitions = self.partitions.load(SeqCst);
            PartitionId::all(partitions).for_each(|partition| self.begin_flush_again(partition));
        }
    }

    /// Returns whether one of them has still to enter.
    pub(super) fn has_early(&self) -> bool {
        self.early.load(SeqCst) > 0
    }

    /// Begins a flush anew that has waited for them, for the requests that wait by now.
    fn begin_flush_again(&self, partition: PartitionId) {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        if let Some(closed) = guard.as_mut() {
            closed.state.begin_flush_again(cell.gate.position(), self.limits.flush_concurrency());
            self.flush(partition, cell, closed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use segue_protocol::ids::{Epoch, Incarnation};
    use tokio::time::Instant;

    use super::*;
    use crate::routing::permit::{Admission, EarlyRequest, QueuedPermit, TableHandle};
    use crate::routing::table::StashLimits;

    const P0: PartitionId = PartitionId::new(0);
    const KEY: Option<u64> = Some(7);

    fn early(worker: &TableHandle) -> EarlyRequest {
        worker.wait_early(Instant::now()).unwrap()
    }

    /// Makes partition 0 and leads it to a pod.
    fn open(table: &Table) {
        table.trust_until(Instant::now() + Duration::from_secs(3600));
        table.set_partitions(1);
        let slot = table.intern_pod("writer-0", Incarnation::registered_at(1.into()), "pod:1", false);
        table.switch(P0, slot, Epoch::new(1));
    }

    #[track_caller]
    fn queued(admission: Result<Admission, crate::routing::table::AdmissionError>) -> QueuedPermit {
        match admission.unwrap() {
            Admission::Queued(queued) => queued,
            Admission::Admitted(_) => panic!("it is let in at once"),
        }
    }

    #[tokio::test]
    async fn early_requests_go_in_their_order_before_those_that_came_later() {
        let (table, _notices) = Table::new(1, StashLimits::default());
        let worker = table.worker(0);
        let (first, second) = (early(&worker), early(&worker));
        open(&table);
        let now = Instant::now();
        let mut third = queued(worker.enter(P0, KEY, 1, now));
        let mut second = queued(second.enter(P0, KEY, 1, now));
        let mut first = queued(first.enter(P0, KEY, 1, now));
        for _ in 0..2 {
            let mut permit = (&mut first).now_or_never().unwrap().unwrap();
            assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
            permit.delivered();
            drop(permit);
            (first, second, third) = (second, third, queued(worker.enter(P0, KEY, 1, now)));
        }
    }

    #[tokio::test]
    async fn an_early_request_that_leaves_holds_up_nobody() {
        let (table, _notices) = Table::new(1, StashLimits::default());
        let worker = table.worker(0);
        let early = early(&worker);
        open(&table);
        let later = queued(worker.enter(P0, KEY, 1, Instant::now()));
        drop(early);
        later.now_or_never().unwrap().unwrap().delivered();
        assert!(matches!(worker.enter(P0, KEY, 1, Instant::now()), Ok(Admission::Admitted(_))), "the gate is open");
    }
}
