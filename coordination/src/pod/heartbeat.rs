//! The pod's heartbeats: its load in a key of its own under its lease.
//!
//! A pod sends them if its own settings say so, or while planning has a use for them by the settings of the keyspace. It
//! lists the load of single partitions only in the latter case. The load of a partition is the number of admitted requests
//! per second, unless the service reports its own. The shell's loop sends the heartbeats, so a pod that is stuck misses
//! them before its lease ends.
//!
//! # Invariants
//!
//! * At most one heartbeat is being written. One that fails is not repeated: the next one follows soon.
//! * A pod that sends no more heartbeats leaves none behind: it would be suspected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::{Incarnation, LeaseId, PartitionId};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{HEARTBEAT_INTERVAL, uses_load};
use segue_protocol::records::{PartitionLoad, PodLoad};
use segue_protocol::registration::{end_heartbeats, heartbeat};
use segue_protocol::txn::Txn;
use segue_protocol::view::View;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::debug;

use super::HandoffHandler;
use super::ownership::Ownership;
use crate::session::{Registration, unix_millis};
use crate::store::{Store, StoreError};

/// Pause between a failed write and the deletion of the last heartbeat.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The heartbeats of one life of a pod.
pub(super) struct Heartbeat {
    store: Arc<dyn Store>,
    keys: Keyspace,
    pod: String,
    /// The interval of the pod's own settings, zero for none. `None` leaves the choice to the keyspace's.
    own_interval: Option<Duration>,
    /// Whether planning has a use for the load.
    uses_load: bool,
    /// Whether a heartbeat may be in the store.
    stands: bool,
    /// The end of the pause after a failed write.
    rests_until: Instant,
    life: (Incarnation, LeaseId),
    /// When the last heartbeat was measured.
    measured: Instant,
    /// Requests of each partition that had been admitted then.
    admitted: BTreeMap<PartitionId, u64>,
    writing: JoinSet<Result<(), StoreError>>,
}

impl Heartbeat {
    /// Begins the heartbeats of a registration.
    pub(super) fn of(
        store: Arc<dyn Store>,
        keys: Keyspace,
        pod: String,
        own_interval: Option<Duration>,
        registration: &Registration,
    ) -> Self {
        Heartbeat {
            store,
            keys,
            pod,
            own_interval,
            uses_load: false,
            stands: false,
            rests_until: Instant::now(),
            life: (registration.incarnation, registration.lease.id()),
            measured: Instant::now(),
            admitted: BTreeMap::new(),
            writing: JoinSet::new(),
        }
    }

    /// Follows the settings of the keyspace.
    pub(super) fn follow(&mut self, view: &View) {
        self.uses_load = uses_load(view);
    }

    fn interval(&self) -> Duration {
        let of_the_keyspace = if self.uses_load { HEARTBEAT_INTERVAL } else { Duration::ZERO };
        self.own_interval.unwrap_or(of_the_keyspace)
    }

    /// Returns when the next heartbeat is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let interval = self.interval();
        (!interval.is_zero()).then(|| self.measured + interval)
    }

    /// Sends the heartbeat that is due, if one is, and deletes the last one when there are no more.
    pub(super) fn send(&mut self, ownership: &Ownership, handler: &dyn HandoffHandler) {
        let now = Instant::now();
        let Some(due) = self.due() else {
            if self.stands && self.writing.is_empty() && now >= self.rests_until {
                self.stands = false;
                self.write(end_heartbeats(&self.keys, &self.pod, self.life.0));
            }
            return;
        };
        if now < due {
            return;
        }
        let elapsed = (now - self.measured).as_secs_f64();
        let admitted = ownership.admitted();
        let load = |(partition, count): (&PartitionId, &u64)| {
            let report = handler.load(*partition);
            // Without an earlier count of this stay the requests may be those of an earlier one.
            let since = self.admitted.get(partition).map_or(0, |before| count.saturating_sub(*before));
            let load = report.load.unwrap_or(since as f64 / elapsed);
            (*partition, PartitionLoad { load: load.into(), keys: report.keys })
        };
        let partitions = admitted.iter().map(load).collect();
        (self.measured, self.admitted) = (now, admitted);
        if !self.writing.is_empty() {
            debug!("the last heartbeat is still being written; skipping one");
            return;
        }
        let interval = u64::try_from(self.interval().as_millis()).unwrap_or(u64::MAX);
        let mut record = PodLoad { at: unix_millis(), ..PodLoad::new(self.life.0, interval, partitions) };
        if !self.uses_load {
            record.partitions.clear();
        }
        self.stands = true;
        self.write(heartbeat(&self.keys, &self.pod, self.life.1, &record));
    }

    fn write(&mut self, txn: Txn) {
        let store = self.store.clone();
        self.writing.spawn(async move { store.commit(txn).await.map(drop) });
    }

    /// Returns after each completed write. Pending while none is in flight. Cancel-safe.
    pub(super) async fn written(&mut self) {
        match self.writing.join_next().await {
            None => std::future::pending().await,
            Some(Ok(Err(error))) => {
                debug!(%error, "heartbeat not written");
                // It may have been the deletion of the last one.
                (self.stands, self.rests_until) = (true, Instant::now() + RETRY_PAUSE);
            }
            Some(_) => {}
        }
    }
}
