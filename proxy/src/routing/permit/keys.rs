//! The part of a [`TableHandle`] that counts keys.

use super::TableHandle;
use crate::routing::partition_key::RequestLocation;

impl TableHandle {
    /// Returns whether keys are counted now.
    #[inline]
    pub(crate) fn counts_keys(&self) -> bool {
        self.inner.table.counts_keys()
    }

    /// Counts the key of a request at this location.
    pub(crate) fn note_key(&self, location: RequestLocation, key: &[u8]) {
        if let Some(hash) = location.order {
            self.inner.table.note_key(self.inner.index, location.partition, hash, key);
        }
    }
}
