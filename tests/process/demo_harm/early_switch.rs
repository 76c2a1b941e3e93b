//! A router that breaks the protocol, to show that the checks find it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use segue_coordination::router::{CutoverTimes, DataPlane};
use segue_demo::history::History;
use segue_protocol::handoff::router::{GateStage, HoldCause, Target};
use segue_protocol::ids::PartitionId;
use segue_protocol::records::{Phase, PodRecord};
use segue_proxy::routing::table::Table;
use tokio::time::Instant;

/// A data plane that leads a partition to its new owner as soon as a handoff is planned, and pretends to follow the
/// protocol. The other routers still send to the old owner, which has not ended, and the new one has not read the tail.
pub(crate) struct EarlySwitch {
    table: Arc<Table>,
    history: History,
    early: Mutex<HashMap<PartitionId, Early>>,
}

/// A partition that was switched early.
struct Early {
    old: Target,
    new: Target,
    pod: PodRecord,
    switched: bool,
    /// The control side was events that the partition is held.
    held: bool,
}

impl EarlySwitch {
    pub(crate) fn new(table: Arc<Table>, history: History) -> Self {
        EarlySwitch { table, history, early: Mutex::default() }
    }

    fn early(&self) -> MutexGuard<'_, HashMap<PartitionId, Early>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the planned move of a partition.
    fn planned(&self, partition: PartitionId, old: &Target) -> Option<Early> {
        let seen = self.history.seen();
        let handoff = seen.handoffs.get(&partition).filter(|handoff| handoff.phase < Phase::Switching)?;
        let pod = seen.pods.get(&handoff.new_owner)?.clone();
        let (name, incarnation) = (handoff.new_owner.clone(), handoff.new_incarnation);
        let new = Target { pod: name, incarnation, epoch: handoff.epoch };
        let moves = handoff.old_owner.is_some() && new.epoch > old.epoch;
        moves.then(|| Early { old: old.clone(), new, pod, switched: false, held: false })
    }
}

impl DataPlane for EarlySwitch {
    fn set_partitions(&self, partitions: u32) {
        Table::set_partitions(&self.table, partitions);
    }

    fn stage(&self, partition: PartitionId) -> (GateStage, Option<Instant>) {
        let mut all = self.early();
        if let (GateStage::Open(old), _) = self.table.stage(partition)
            && !all.contains_key(&partition)
            && let Some(early) = self.planned(partition, &old)
        {
            all.insert(partition, early);
            Table::stop(&self.table, partition, HoldCause::Handoff);
        }
        let Some(early) = all.get_mut(&partition) else { return self.table.stage(partition) };
        if !early.switched && self.table.stage(partition).0 == GateStage::Closed {
            early.switched = true;
            DataPlane::switch(&*self.table, partition, &early.new, &early.pod, false);
        }
        (if early.held { GateStage::Closed } else { GateStage::Open(early.old.clone()) }, None)
    }

    fn stop(&self, partition: PartitionId, cause: HoldCause) {
        match self.early().get_mut(&partition) {
            Some(early) => early.held = true,
            None => Table::stop(&self.table, partition, cause),
        }
    }

    fn switch(&self, partition: PartitionId, target: &Target, pod: &PodRecord, without_lease: bool) {
        match self.early().remove(&partition) {
            Some(early) if early.switched && early.new == *target => {}
            early => {
                if early.is_some() {
                    Table::stop(&self.table, partition, HoldCause::Handoff);
                }
                DataPlane::switch(&*self.table, partition, target, pod, without_lease);
            }
        }
    }

    fn name_cause(&self, partition: PartitionId, cause: HoldCause) {
        DataPlane::name_cause(&*self.table, partition, cause);
    }

    fn retry_now(&self, partition: PartitionId) {
        DataPlane::retry_now(&*self.table, partition);
    }

    fn sever(&self, partition: PartitionId) -> u64 {
        DataPlane::sever(&*self.table, partition)
    }

    fn sever_streams(&self, partition: PartitionId) -> u64 {
        DataPlane::sever_streams(&*self.table, partition)
    }

    fn oldest_exchange(&self, partition: PartitionId) -> Option<Instant> {
        DataPlane::oldest_exchange(&*self.table, partition)
    }

    fn trust_until(&self, until: Instant) {
        Table::trust_until(&self.table, until);
    }

    fn take_times(&self, partition: PartitionId) -> Option<CutoverTimes> {
        DataPlane::take_times(&*self.table, partition)
    }
}
