//! Routers without a data plane, all in this process: what a router reads from the store and writes to it, and nothing else.
//!
//! Each has a connection, a lease and a watch of its own, as a router in a process of its own has. No request is ever in
//! flight, so that a stop has drained at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use segue_coordination::router::{
    CutoverTimes, DataPlane, DrainSettings, RouterPorts, RouterSettings, RouterStatus, run_router,
};
use segue_coordination::store::Store;
use segue_protocol::handoff::router::{GateStage, HoldCause, OnStoreLoss, Target};
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::records::PodRecord;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A router that forwards nothing.
pub(crate) struct LoneRouter {
    _notices: mpsc::UnboundedSender<PartitionId>,
    _status: watch::Receiver<RouterStatus>,
}

impl LoneRouter {
    pub(crate) fn start(store: Arc<dyn Store>, keys: Keyspace, name: String, lease_ttl: Duration) -> Self {
        let settings = RouterSettings {
            name,
            lease_ttl,
            on_store_loss: OnStoreLoss::default(),
            drain: DrainSettings::default(),
            admin: None,
            partitioner: None,
            request_timeout: Duration::from_secs(30),
            max_wait: Duration::from_secs(30),
        };
        let ((notices, received), (status, shown)) =
            (mpsc::unbounded_channel(), watch::channel(RouterStatus::default()));
        let plane = Arc::new(Routes::default());
        let ports = RouterPorts { plane, notices: received, observer: Arc::new(()), status };
        tokio::spawn(run_router(store, keys, settings, ports, CancellationToken::new()));
        LoneRouter { _notices: notices, _status: shown }
    }
}

/// Where each partition would be routed to.
#[derive(Default)]
struct Routes(Mutex<HashMap<PartitionId, Target>>);

impl Routes {
    fn lock(&self) -> MutexGuard<'_, HashMap<PartitionId, Target>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DataPlane for Routes {
    fn set_partitions(&self, _: u32) {}

    fn stage(&self, partition: PartitionId) -> (GateStage, Option<Instant>) {
        (self.lock().get(&partition).cloned().map_or(GateStage::Closed, GateStage::Open), None)
    }

    fn stop(&self, partition: PartitionId, _: HoldCause) {
        self.lock().remove(&partition);
    }

    fn name_cause(&self, _: PartitionId, _: HoldCause) {}

    fn switch(&self, partition: PartitionId, target: &Target, _: &PodRecord, _: bool) {
        self.lock().insert(partition, target.clone());
    }

    fn retry_now(&self, _: PartitionId) {}

    fn sever(&self, _: PartitionId) -> u64 {
        0
    }

    fn sever_streams(&self, _: PartitionId) -> u64 {
        0
    }

    fn oldest_exchange(&self, _: PartitionId) -> Option<Instant> {
        None
    }

    fn trust_until(&self, _: Instant) {}

    fn take_times(&self, _: PartitionId) -> Option<CutoverTimes> {
        None
    }
}
