//! What all participants in a keyspace share: the store, the network, the log of the partitions, and what checks them.
//! Keyspaces of one simulation have the store, the network and the faults in common.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use segue_coordination::store::MemoryStore;
use segue_protocol::keys::Keyspace;
use tokio::time::Instant;

use crate::causes::Causes;
use crate::contract::Contract;
use crate::history::RequestHistory;
use crate::log::Logs;
use crate::network::Network;
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::setting::Setting;
use crate::store_link::Refuses;
use crate::trace::Trace;

/// The simulated world of one keyspace.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) setting: Setting,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) store: MemoryStore,
    pub(crate) keys: Keyspace,
    pub(crate) rng: Arc<Rng>,
    pub(crate) network: Arc<Network>,
    /// By how much the store's disk slows each write down.
    pub(crate) disk: Arc<Mutex<Duration>>,
    /// Which writes the store refuses.
    pub(crate) refuses: Arc<Mutex<Refuses>>,
    pub(crate) logs: Logs,
    pub(crate) contract: Contract,
    pub(crate) history: RequestHistory,
    pub(crate) trace: Arc<Trace>,
    /// How many changes of keys watches have brought.
    pub(crate) delivered: AtomicU64,
    /// When it began.
    pub(crate) began: Instant,
}

impl World {
    /// The worlds of a seed, one for each keyspace, with the setting as `adapt` leaves it. To be called inside its runtime.
    pub(crate) fn all(
        seed: u64,
        sabotage: Option<Sabotage>,
        keeps_lines: bool,
        adapt: impl FnOnce(&mut Setting),
    ) -> Vec<Arc<Self>> {
        let rng = Arc::new(Rng::new(seed));
        let mut setting = Setting::of(&rng.fork());
        adapt(&mut setting);
        let trace = Arc::new(Trace::new(keeps_lines));
        trace.event(format_args!("{setting:?}"));
        let (store, network, disk) = (MemoryStore::new(), Arc::<Network>::default(), Arc::<Mutex<Duration>>::default());
        let refuses = Arc::<Mutex<Refuses>>::default();
        let began = Instant::now();
        let world = |number: u64| {
            let keys = Keyspace::new("/segue/", &format!("sim-{number}"));
            Arc::new(World {
                store: store.clone(),
                network: network.clone(),
                disk: disk.clone(),
                refuses: refuses.clone(),
                logs: Logs::new(setting.partitions, trace.clone()),
                contract: Contract::new(keys.clone(), Causes::new(setting.policy.clone()), trace.clone()),
                history: RequestHistory::new(trace.clone()),
                rng: rng.clone(),
                keys,
                setting: setting.clone(),
                sabotage,
                trace: trace.clone(),
                delivered: AtomicU64::new(0),
                began,
            })
        };
        (0..setting.keyspaces).map(world).collect()
    }

    pub(crate) fn is_sabotaged(&self, by: Sabotage) -> bool {
        self.sabotage == Some(by)
    }
}
