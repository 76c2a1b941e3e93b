//! The processes of a demo, as far as they have something in common: a process that takes part in several keyspaces has
//! one lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use segue_coordination::session::Leases;
use segue_coordination::store::Store;

/// The store, and the leases of each process. Clones share them.
#[derive(Debug, Clone)]
pub struct Processes {
    store: Arc<dyn Store>,
    leases: Arc<Mutex<BTreeMap<String, Leases>>>,
}

impl Processes {
    /// Begins without a process.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Processes { store, leases: Arc::default() }
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the leases of the process of this name.
    pub fn leases(&self, process: &str) -> Leases {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.entry(process.to_owned()).or_insert_with(|| Leases::new(self.store.clone())).clone()
    }

    /// Forgets the process of this name, which has ended: another one of this name shares no lease with it.
    pub fn ended(&self, process: &str) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).remove(process);
    }
}
