//! The pod's heartbeats: its load, total and by partition, in a key of its own under its lease.
//!
//! The load of a partition is the number of admitted requests per second, unless the service reports its own. The shell's
//! loop sends the heartbeats, so a pod that is stuck misses them before its lease ends.
//!
//! # Invariants
//!
//! * At most one heartbeat is being written. One that fails is not repeated: the next one follows soon.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::{Incarnation, LeaseId, PartitionId};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{PartitionLoad, PodLoad};
use segue_protocol::registration::heartbeat;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::debug;

use super::HandoffHandler;
use super::ownership::Ownership;
use crate::session::{Registration, unix_millis};
use crate::store::{Store, StoreError};

/// The heartbeats of one life of a pod.
pub(super) struct Heartbeat {
    store: Arc<dyn Store>,
    keys: Keyspace,
    pod: String,
    interval: Duration,
    life: (Incarnation, LeaseId),
    /// When the last heartbeat was measured.
    measured: Instant,
    /// Requests of each partition that had been admitted then.
    admitted: BTreeMap<PartitionId, u64>,
    writing: JoinSet<Result<(), StoreError>>,
}

impl Heartbeat {
    /// Begins the heartbeats of a registration. With an interval of zero there are none.
    pub(super) fn of(
        store: Arc<dyn Store>,
        keys: Keyspace,
        pod: String,
        interval: Duration,
        registration: &Registration,
    ) -> Self {
        let life = (registration.incarnation, registration.lease.id());
        let (measured, admitted) = (Instant::now(), BTreeMap::new());
        Heartbeat { store, keys, pod, interval, life, measured, admitted, writing: JoinSet::new() }
    }

    /// Returns when the next heartbeat is due.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.interval.is_zero()).then(|| self.measured + self.interval)
    }

    /// Sends the heartbeat that is due, if one is.
    pub(super) fn send(&mut self, ownership: &Ownership, handler: &dyn HandoffHandler) {
        let now = Instant::now();
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        let elapsed = (now - self.measured).as_secs_f64();
        let admitted = ownership.admitted();
        let load = |(partition, count): (&PartitionId, &u64)| {
            let report = handler.load(*partition);
            let since = count.saturating_sub(self.admitted.get(partition).copied().unwrap_or(0));
            let load = report.load.unwrap_or(since as f64 / elapsed);
            (*partition, PartitionLoad { load: load.into(), keys: report.keys })
        };
        let partitions = admitted.iter().map(load).collect();
        (self.measured, self.admitted) = (now, admitted);
        if !self.writing.is_empty() {
            debug!("the last heartbeat is still being written; skipping one");
            return;
        }
        let interval = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        let record = PodLoad { at: unix_millis(), ..PodLoad::new(self.life.0, interval, partitions) };
        let (txn, store) = (heartbeat(&self.keys, &self.pod, self.life.1, &record), self.store.clone());
        self.writing.spawn(async move { store.commit(txn).await.map(drop) });
    }

    /// Returns after each completed write. Pending while none is in flight. Cancel-safe.
    pub(super) async fn written(&mut self) {
        match self.writing.join_next().await {
            None => std::future::pending().await,
            Some(Ok(Err(error))) => debug!(%error, "heartbeat not written"),
            Some(_) => {}
        }
    }
}
