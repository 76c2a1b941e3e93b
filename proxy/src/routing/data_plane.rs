//! The table as the router's side of the protocol sees it: a [`DataPlane`] that is told, partition by partition, to
//! stop, switch or sever.
//!
//! Translation only. Elsewhere: what to do and when (`segue-protocol`), and how it is done safely
//! ([`table`](crate::routing::table)).

use segue_coordination::router::{CutoverTimes, DataPlane, DrainEnd};
use segue_protocol::handoff::router::{GateStage, HoldCause, Target};
use segue_protocol::ids::PartitionId;
use segue_protocol::records::PodRecord;
use segue_protocol::troubles::TrafficSample;
use tokio::time::Instant;

use crate::routing::gate::GateState;
use crate::routing::table::Table;

impl DataPlane for Table {
    fn set_partitions(&self, partitions: u32) {
        Table::set_partitions(self, partitions);
    }

    fn stage(&self, partition: PartitionId) -> (GateStage, Option<Instant>) {
        let seen = self.position(partition);
        let target = || {
            let pod = self.pod(seen.slot);
            Target { pod: pod.name.clone(), incarnation: pod.incarnation, epoch: seen.epoch }
        };
        let stage = match seen.position {
            // Requests that still wait do so behind others of their own key. That may take long and is no part of the
            // cutover.
            GateState::Flushing if seen.flows => GateStage::Open(target()),
            GateState::Closed => GateStage::Closed,
            GateState::Open => GateStage::Open(target()),
            GateState::Draining => GateStage::Draining(target()),
            GateState::Flushing => GateStage::Flushing(target()),
        };
        (stage, seen.retry_at)
    }

    fn stop(&self, partition: PartitionId, cause: HoldCause) {
        Table::stop(self, partition, cause);
    }

    fn name_cause(&self, partition: PartitionId, cause: HoldCause) {
        Table::name_cause(self, partition, cause);
    }

    fn drain_ends(&self, partition: PartitionId, end: DrainEnd) {
        Table::drain_ends(self, partition, end);
    }

    fn expect(&self, target: &Target, pod: &PodRecord, without_lease: bool) {
        let slot = self.intern_pod(&target.pod, target.incarnation, &pod.address, without_lease);
        Table::expect(self, slot);
    }

    fn set_ready_pods(&self, pods: &[(Target, &PodRecord, bool)]) {
        let number = |(target, pod, without_lease): &(Target, &PodRecord, bool)| {
            self.intern_pod(&target.pod, target.incarnation, &pod.address, *without_lease)
        };
        let pods: Vec<_> = pods.iter().map(|ready| (number(ready), ready.1.zone.as_deref())).collect();
        Table::set_ready_pods(self, &pods);
    }

    fn switch(&self, partition: PartitionId, target: &Target, pod: &PodRecord, without_lease: bool) {
        let slot = self.intern_pod(&target.pod, target.incarnation, &pod.address, without_lease);
        Table::switch(self, partition, slot, target.epoch);
    }

    fn retry_now(&self, partition: PartitionId) {
        Table::retry_now(self, partition);
    }

    fn sever(&self, partition: PartitionId) -> u64 {
        u64::from(Table::sever(self, partition))
    }

    fn sever_streams(&self, partition: PartitionId) -> u64 {
        u64::from(Table::sever_streams(self, partition))
    }

    fn oldest_exchange(&self, partition: PartitionId) -> Option<Instant> {
        Table::oldest_exchange(self, partition)
    }

    fn trust_until(&self, until: Instant) {
        Table::trust_until(self, until);
    }

    fn take_times(&self, partition: PartitionId) -> Option<CutoverTimes> {
        Table::take_times(self, partition)
    }

    fn sample(&self) -> TrafficSample {
        Table::sample(self)
    }
}
