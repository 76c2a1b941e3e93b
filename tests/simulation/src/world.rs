//! What all participants of a simulation share: the store, the network, the log of the partitions, and what checks
//! them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use segue_coordination::store::MemoryStore;
use segue_protocol::keys::Keyspace;

use crate::contract::Contract;
use crate::history::RequestHistory;
use crate::log::Logs;
use crate::network::Network;
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::setting::Setting;
use crate::trace::Trace;

/// One simulated world.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) setting: Setting,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) store: MemoryStore,
    pub(crate) keys: Keyspace,
    pub(crate) rng: Rng,
    pub(crate) network: Network,
    /// By how much the store's disk slows each write down.
    pub(crate) disk: Mutex<Duration>,
    pub(crate) logs: Logs,
    pub(crate) contract: Contract,
    pub(crate) history: RequestHistory,
    pub(crate) trace: Arc<Trace>,
}

/// The keyspace's name.
pub(crate) const KEYSPACE: &str = "sim";

impl World {
    /// The world of a seed. To be called inside its runtime.
    pub(crate) fn new(seed: u64, sabotage: Option<Sabotage>, keeps_lines: bool) -> Arc<Self> {
        let rng = Rng::new(seed);
        let setting = Setting::of(&rng.fork());
        let keys = Keyspace::new("/segue/", KEYSPACE);
        let trace = Arc::new(Trace::new(keeps_lines));
        trace.event(format_args!("{setting:?}"));
        Arc::new(World {
            store: MemoryStore::new(),
            network: Network::default(),
            disk: Mutex::default(),
            logs: Logs::new(setting.partitions, trace.clone()),
            contract: Contract::new(keys.clone(), trace.clone()),
            history: RequestHistory::new(trace.clone()),
            rng,
            keys,
            setting,
            sabotage,
            trace,
        })
    }

    pub(crate) fn is_sabotaged(&self, by: Sabotage) -> bool {
        self.sabotage == Some(by)
    }
}
