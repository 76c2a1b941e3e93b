//! The leases of one process: participants with the same TTL share one.
//!
//! A process with many keyspaces renews one lease instead of one for each. When it dies, all its keys vanish together.
//! Participants share if they are started with clones of one [`Leases`]. A participant that is alone has a lease of its
//! own.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use segue_protocol::ids::LeaseId;
use segue_protocol::keys::Keyspace;
use segue_protocol::registration::OwnKeys;
use tokio::sync::Mutex;

use super::KeptLease;
use super::lease::ProcessLease;
use crate::store::{HorizonStore, SharedHorizon, Store, StoreError};

/// A store, and the leases that participants of this process share in it. Clones share the same ones.
#[derive(Debug, Clone)]
pub struct Leases {
    store: Arc<dyn Store>,
    horizon: SharedHorizon,
    /// The lease of each TTL that was granted last.
    newest: Arc<Mutex<BTreeMap<Duration, Weak<ProcessLease>>>>,
}

impl Leases {
    /// Begins without a lease. Participants of a process that have a [`HorizonStore`] in common learn together that the store
    /// went back; those of these leases do in any case.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let (store, horizon) = HorizonStore::around(store);
        Leases { store, horizon, newest: Arc::default() }
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns what the process has seen of the store.
    pub(super) fn horizon(&self) -> &SharedHorizon {
        &self.horizon
    }

    /// Returns a share in the lease of this TTL, which is granted if there is none. Cancel-safe: a lease that nobody
    /// shares expires.
    pub(super) async fn share(
        &self,
        ttl: Duration,
        keyspace: &Keyspace,
        keys: &OwnKeys,
    ) -> Result<KeptLease, StoreError> {
        // Held during the grant, so that participants which register together get one lease.
        let mut newest = self.newest.lock().await;
        let known = newest.get(&ttl).and_then(Weak::upgrade).filter(|lease| !lease.is_past());
        if let Some(joined) = known.and_then(|lease| KeptLease::join(lease, keyspace, keys.clone())) {
            return Ok(joined);
        }
        let lease = ProcessLease::grant(self.store.clone(), self.horizon.clone(), ttl).await?;
        newest.insert(ttl, Arc::downgrade(&lease));
        KeptLease::join(lease, keyspace, keys.clone()).ok_or(StoreError::LeaseNotFound)
    }

    /// Returns whether an attempt of this process has put this key under this lease without learning of it: the store did
    /// not respond, or the attempt was stopped. Nobody acts by such a key.
    pub(super) async fn have_forgotten(&self, key: &str, lease: LeaseId) -> bool {
        let newest = self.newest.lock().await;
        newest.values().filter_map(Weak::upgrade).any(|known| known.has_forgotten(key, lease))
    }
}

/// A participant that gets a store has a lease of its own.
impl From<Arc<dyn Store>> for Leases {
    fn from(store: Arc<dyn Store>) -> Self {
        Leases::new(store)
    }
}

/// A participant that gets a store has a lease of its own.
impl<S: Store> From<Arc<S>> for Leases {
    fn from(store: Arc<S>) -> Self {
        Leases::new(store)
    }
}
