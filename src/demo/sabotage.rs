//! A router that breaks the protocol, so that tests can see what the checks make of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use segue_coordination::protocol::records::{Phase, PodRecord};
use segue_coordination::protocol::router::{HoldCause, Stage, Target};
use segue_coordination::router::{CutoverTimes, DataPlane};
use segue_coordination::store::keys::Partition;
use segue_proxy::table::Table;
use tokio::time::Instant;

use super::witness::Witness;

/// A data plane that leads a partition to its new owner as soon as it has itself drained, and says that it holds. The other
/// routers may still send to the old owner, which has not confirmed that it has ended, nor the new one that it has read
/// the tail.
pub(super) struct EarlySwitch {
    table: Arc<Table>,
    witness: Witness,
    early: Mutex<HashMap<Partition, Target>>,
}

impl EarlySwitch {
    pub(super) fn new(table: Arc<Table>, witness: Witness) -> Self {
        EarlySwitch { table, witness, early: Mutex::default() }
    }

    fn early(&self) -> MutexGuard<'_, HashMap<Partition, Target>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is to get the partition, if it is time to hold it.
    fn new_owner(&self, partition: Partition) -> Option<(Target, PodRecord)> {
        let seen = self.witness.seen();
        let handoff = seen.handoffs.get(&partition)?;
        let holds = matches!(handoff.phase, Phase::Ready | Phase::Syncing) && handoff.old_owner.is_some();
        let pod = seen.pods.get(&handoff.new_owner).filter(|_| holds)?;
        let target =
            Target { pod: handoff.new_owner.clone(), incarnation: handoff.new_incarnation, epoch: handoff.epoch };
        Some((target, pod.clone()))
    }
}

impl DataPlane for EarlySwitch {
    fn set_partitions(&self, partitions: u32) {
        Table::set_partitions(&self.table, partitions);
    }

    fn stage(&self, partition: Partition) -> (Stage, Option<Instant>) {
        let (stage, retry_at) = self.table.stage(partition);
        let mut early = self.early();
        if stage == Stage::Held
            && !early.contains_key(&partition)
            && let Some((target, pod)) = self.new_owner(partition)
        {
            self.table.switch(partition, &target, &pod, false);
            early.insert(partition, target);
        }
        if early.contains_key(&partition) { (Stage::Held, None) } else { (stage, retry_at) }
    }

    fn stop(&self, partition: Partition, cause: HoldCause) {
        self.early().remove(&partition);
        Table::stop(&self.table, partition, cause);
    }

    fn name_cause(&self, partition: Partition, cause: HoldCause) {
        DataPlane::name_cause(&*self.table, partition, cause);
    }

    fn switch(&self, partition: Partition, target: &Target, pod: &PodRecord, without_lease: bool) {
        match self.early().remove(&partition) {
            Some(early) if early == *target => {}
            Some(_) => Table::stop(&self.table, partition, HoldCause::Handoff),
            None => DataPlane::switch(&*self.table, partition, target, pod, without_lease),
        }
    }

    fn retry_now(&self, partition: Partition) {
        DataPlane::retry_now(&*self.table, partition);
    }

    fn sever(&self, partition: Partition) -> u64 {
        DataPlane::sever(&*self.table, partition)
    }

    fn trust_until(&self, until: Instant) {
        Table::trust_until(&self.table, until);
    }

    fn take_times(&self, partition: Partition) -> Option<CutoverTimes> {
        DataPlane::take_times(&*self.table, partition)
    }
}
