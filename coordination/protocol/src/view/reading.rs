//! Values as they stand in the store, read into the maps of a view, with the reason where a value cannot be read.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use super::Stamped;
use crate::ids::{Epoch, PartitionId};
use crate::records::{KeyspaceConfig, MAX_PARTITIONS};
use crate::txn::KeyValue;

/// A key as it came, of which one record is to be read.
pub(super) struct Reading<'a> {
    pub(super) entry: &'a KeyValue,
}

impl Reading<'_> {
    fn parse<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(&self.entry.value).map_err(|error| error.to_string())
    }

    pub(super) fn stamp<T>(&self, value: T) -> Stamped<T> {
        let KeyValue { create_revision, mod_revision, lease, .. } = *self.entry;
        Stamped { create_revision, mod_revision, lease, value }
    }

    pub(super) fn stamped<T: DeserializeOwned>(&self) -> Result<Stamped<T>, String> {
        Ok(self.stamp(self.parse()?))
    }

    /// A value that cannot be read takes the readable one that stood there before with it.
    pub(super) fn put_into<K: Ord, T: DeserializeOwned>(
        &self,
        map: &mut BTreeMap<K, Stamped<T>>,
        key: K,
    ) -> Result<(), String> {
        map.remove(&key);
        map.insert(key, self.stamped()?);
        Ok(())
    }

    /// More partitions than anyone can have would be taken for a size to allocate.
    pub(super) fn config(&self) -> Result<Stamped<KeyspaceConfig>, String> {
        let config: Stamped<KeyspaceConfig> = self.stamped()?;
        match config.value.partitions {
            partitions if partitions > MAX_PARTITIONS => {
                Err(format!("it has {partitions} partitions, and no keyspace has more than {MAX_PARTITIONS}"))
            }
            _ => Ok(config),
        }
    }

    /// The same for a record that names its partition and an epoch: it must be the partition of its key, and an epoch
    /// that another can follow.
    pub(super) fn put_numbered<T: DeserializeOwned>(
        &self,
        map: &mut BTreeMap<PartitionId, Stamped<T>>,
        partition: PartitionId,
        named: impl Fn(&T) -> (PartitionId, Epoch),
    ) -> Result<(), String> {
        map.remove(&partition);
        let record = self.stamped()?;
        let (named, epoch) = named(&record.value);
        if named != partition {
            return Err(format!("it names partition {named}"));
        }
        if epoch == Epoch::MAX {
            return Err("no epoch can follow its own".to_owned());
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
