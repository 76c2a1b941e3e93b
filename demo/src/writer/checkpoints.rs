//! The checkpoints of the demo's writers: the state of a partition up to an offset of its log, by name. They are in the
//! memory of the process, beside the log.
//!
//! A writer that starts from one reads the rest of the log, so its readers notice a checkpoint that is wrong.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use segue_protocol::ids::{Epoch, PartitionId};

use super::{Cache, lock};

/// The checkpoints of all writers. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints {
    /// The newest of each epoch. It can replace an earlier one of that name: any later state will do.
    saved: Arc<Mutex<HashMap<(PartitionId, Epoch), Cache>>>,
}

impl Checkpoints {
    /// Saves a state and returns its name. The epochs before the last two are forgotten.
    pub(super) fn save(&self, partition: PartitionId, epoch: Epoch, cache: Cache) -> String {
        let mut saved = lock(&self.saved);
        saved.insert((partition, epoch), cache);
        let mut epochs: Vec<Epoch> = saved.keys().filter(|key| key.0 == partition).map(|key| key.1).collect();
        epochs.sort();
        for epoch in epochs.iter().rev().skip(2) {
            saved.remove(&(partition, *epoch));
        }
        format!("{}-{}", partition.get(), epoch.get())
    }

    /// Returns the state of that name. `None`: there is none, and the log has everything.
    pub(super) fn load(&self, name: &str) -> Option<Cache> {
        let (partition, epoch) = name.split_once('-')?;
        let key = (PartitionId::new(partition.parse().ok()?), Epoch::new(epoch.parse().ok()?));
        lock(&self.saved).get(&key).cloned()
    }
}
