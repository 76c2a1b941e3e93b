//! Participants that lie, for sabotage.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use segue_coordination::router::{CutoverTimes, DataPlane};
use segue_coordination::store::Store as _;
use segue_protocol::handoff::advance::{Ack, acknowledge};
use segue_protocol::handoff::router::{GateStage, HoldCause, Target};
use segue_protocol::ids::PartitionId;
use segue_protocol::records::{Phase, PodAck, PodAckKind, PodRecord};
use segue_proxy::routing::table::Table;
use tokio::time::{Instant, sleep};

use crate::contract::Author;
use crate::world::World;

/// Says `drained` for the pod `name` as soon as it is asked.
pub(crate) async fn say_drained(world: Arc<World>, name: String) {
    loop {
        sleep(Duration::from_millis(1)).await;
        let txns: Vec<_> = world.contract.with_view(|view| {
            let asked = view.handoffs.values().filter(|handoff| {
                let record = &handoff.value;
                record.phase == Phase::Syncing
                    && record.old_owner.as_ref() == Some(&name)
                    && view.live_old_owner(record).is_some()
                    && view.pod_ack(record.partition, &name, PodAckKind::Drained, handoff.id()).is_none()
            });
            asked
                .map(|handoff| {
                    let (partition, ack) = (handoff.value.partition, PodAckKind::Drained);
                    let ack = PodAck::new(name.clone(), partition, handoff.id(), ack);
                    acknowledge(view, &Ack::Pod(ack), world.keys.pod(&name), handoff.value.old_incarnation, 0)
                })
                .collect()
        });
        for txn in txns {
            let _ = world.store.commit(txn).await;
            world.look(Author::Other).await;
        }
    }
}

/// A data plane that says that a partition is held while requests of it are in flight.
pub(crate) struct Hasty {
    table: Arc<Table>,
    /// Where it was told to switch, which it cannot do yet: there it tells the truth.
    caught: Mutex<BTreeSet<PartitionId>>,
}

impl Hasty {
    pub(crate) fn new(table: Arc<Table>) -> Self {
        Hasty { table, caught: Mutex::default() }
    }

    fn caught(&self) -> MutexGuard<'_, BTreeSet<PartitionId>> {
        self.caught.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DataPlane for Hasty {
    fn set_partitions(&self, partitions: u32) {
        DataPlane::set_partitions(&*self.table, partitions);
    }

    fn stage(&self, partition: PartitionId) -> (GateStage, Option<Instant>) {
        match self.table.stage(partition) {
            (GateStage::Draining(_), None) if !self.caught().contains(&partition) => (GateStage::Closed, None),
            other => other,
        }
    }

    fn stop(&self, partition: PartitionId, cause: HoldCause) {
        DataPlane::stop(&*self.table, partition, cause);
    }

    fn name_cause(&self, partition: PartitionId, cause: HoldCause) {
        DataPlane::name_cause(&*self.table, partition, cause);
    }

    fn switch(&self, partition: PartitionId, target: &Target, pod: &PodRecord, without_lease: bool) {
        if matches!(self.table.stage(partition).0, GateStage::Draining(_)) {
            self.caught().insert(partition);
        } else {
            self.caught().remove(&partition);
        }
        DataPlane::switch(&*self.table, partition, target, pod, without_lease);
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
        DataPlane::trust_until(&*self.table, until);
    }

    fn take_times(&self, partition: PartitionId) -> Option<CutoverTimes> {
        DataPlane::take_times(&*self.table, partition)
    }
}
