//! The processes of a demo, as far as they have something in common: a process that takes part in several keyspaces has
//! one lease.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use segue_coordination::session::Leases;
use segue_coordination::store::Store;

/// Opens the store once more, over a connection of its own.
type OpenStore = Arc<dyn Fn() -> Arc<dyn Store> + Send + Sync>;

/// The store, and the leases of each process. Clones share them.
#[derive(Clone)]
pub struct Processes {
    store: Arc<dyn Store>,
    open: OpenStore,
    leases: Arc<Mutex<BTreeMap<String, Leases>>>,
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processes").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Processes {
    /// Begins without a process. Each one will have a store that `open` returns, as it would alone: on a connection that
    /// all share, one process's events would queue behind another's writes.
    pub fn new(open: impl Fn() -> Arc<dyn Store> + Send + Sync + 'static) -> Self {
        Processes { store: open(), open: Arc::new(open), leases: Arc::default() }
    }

    /// Returns the store of those who belong to no process.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the leases of the process of this name.
    pub fn leases(&self, process: &str) -> Leases {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.entry(process.to_owned()).or_insert_with(|| Leases::new((self.open)())).clone()
    }

    /// Forgets the process of this name, which has ended: another one of this name shares no lease with it.
    pub fn ended(&self, process: &str) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).remove(process);
    }
}
