//! Reads stored values into the maps of a view, and notes the reason where a value cannot be read.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use super::Versioned;
use crate::ids::{Epoch, PartitionId};
use crate::records::{KeyspaceConfig, MAX_PARTITIONS};
use crate::txn::KeyValue;

/// A key as stored, from which one record is read.
pub(super) struct RecordReader<'a> {
    pub(super) entry: &'a KeyValue,
}

impl RecordReader<'_> {
    fn parse<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(&self.entry.value).map_err(|error| error.to_string())
    }

    pub(super) fn stamp<T>(&self, value: T) -> Versioned<T> {
        let KeyValue { create_revision, mod_revision, lease, .. } = *self.entry;
        Versioned { create_revision, mod_revision, lease, value }
    }

    pub(super) fn stamped<T: DeserializeOwned>(&self) -> Result<Versioned<T>, String> {
        Ok(self.stamp(self.parse()?))
    }

    /// Reads a value into a map. A value that cannot be read removes the readable one that was there before.
    pub(super) fn put_into<K: Ord, T: DeserializeOwned>(
        &self,
        map: &mut BTreeMap<K, Versioned<T>>,
        key: K,
    ) -> Result<(), String> {
        map.remove(&key);
        map.insert(key, self.stamped()?);
        Ok(())
    }

    /// Reads the settings. A number above the limit is refused: it would become the size of an allocation.
    pub(super) fn config(&self) -> Result<Versioned<KeyspaceConfig>, String> {
        let config: Versioned<KeyspaceConfig> = self.stamped()?;
        match config.value.partitions {
            partitions if partitions > MAX_PARTITIONS => {
                Err(format!("it has {partitions} partitions, and no keyspace has more than {MAX_PARTITIONS}"))
            }
            _ if config.value.epoch_floor > Epoch::MAX => {
                Err(format!("its epoch_floor {} is above {}, the last epoch", config.value.epoch_floor, Epoch::MAX))
            }
            _ => Ok(config),
        }
    }

    /// Like [`put_into`](Self::put_into), for a record that names its partition and an epoch. The partition must be
    /// that of its key, and the epoch not above the last one.
    pub(super) fn put_numbered<T: DeserializeOwned>(
        &self,
        map: &mut BTreeMap<PartitionId, Versioned<T>>,
        partition: PartitionId,
        named: impl Fn(&T) -> (PartitionId, Epoch),
    ) -> Result<(), String> {
        map.remove(&partition);
        let record = self.stamped()?;
        let (named, epoch) = named(&record.value);
        if named != partition {
            return Err(format!("it names partition {named}"));
        }
        if epoch > Epoch::MAX {
            return Err(format!("its epoch {epoch} is above {}, the last one", Epoch::MAX));
        }
        map.insert(partition, record);
        Ok(())
    }

    pub(super) fn put_ack<K: Ord, T: DeserializeOwned>(&self, acks: &mut BTreeMap<K, T>, key: K) -> Result<(), String> {
        acks.remove(&key);
        acks.insert(key, self.parse()?);
        Ok(())
    }
}
