//! The table as the router's side of the protocol sees it: a [`DataPlane`] that is told, partition by partition, to stop,
//! switch or sever.
//!
//! Translation only: what to do and when is decided in `segue-coordination`, how it is done safely in
//! [`table`](crate::table).

use segue_coordination::protocol::records::PodRecord;
use segue_coordination::protocol::router::{HoldCause, Stage, Target};
use segue_coordination::router::{CutoverTimes, DataPlane};
use segue_coordination::store::keys::Partition;
use tokio::time::Instant;

use crate::gate::Position;
use crate::table::Table;

impl DataPlane for Table {
    fn set_partitions(&self, partitions: u32) {
        Table::set_partitions(self, partitions);
    }

    fn stage(&self, partition: Partition) -> (Stage, Option<Instant>) {
        let (position, slot, epoch, retry_at) = self.position(partition);
        let target = || {
            let pod = self.pod(slot);
            Target { pod: pod.name.clone(), incarnation: pod.incarnation, epoch }
        };
        let stage = match position {
            Position::Held => Stage::Held,
            Position::Open => Stage::Open(target()),
            Position::Draining => Stage::Draining(target()),
            Position::Flushing => Stage::Flushing(target()),
        };
        (stage, retry_at)
    }

    fn stop(&self, partition: Partition, cause: HoldCause) {
        Table::stop(self, partition, cause);
    }

    fn name_cause(&self, partition: Partition, cause: HoldCause) {
        Table::name_cause(self, partition, cause);
    }

    fn expect(&self, target: &Target, pod: &PodRecord, without_lease: bool) {
        let slot = self.intern_pod(&target.pod, target.incarnation, &pod.address, without_lease);
        Table::expect(self, slot);
    }

    fn switch(&self, partition: Partition, target: &Target, pod: &PodRecord, without_lease: bool) {
        let slot = self.intern_pod(&target.pod, target.incarnation, &pod.address, without_lease);
        Table::switch(self, partition, slot, target.epoch);
    }

    fn retry_now(&self, partition: Partition) {
        Table::retry_now(self, partition);
    }

    fn sever(&self, partition: Partition) -> u64 {
        u64::from(Table::sever(self, partition))
    }

    fn trust_until(&self, until: Instant) {
        Table::trust_until(self, until);
    }

    fn take_times(&self, partition: Partition) -> Option<CutoverTimes> {
        Table::take_times(self, partition)
    }
}
