//! Measures the most frequent keys of a table's requests. Keys are counted only meanwhile.

use std::sync::Arc;

use segue_protocol::ids::PartitionId;

use super::key_counts::MeasurementId;
use super::key_sketch::{HotKey, KeySketch};
use super::state::Table;

/// A measurement of the most frequent keys, from its beginning until it is finished or dropped.
#[derive(Debug)]
pub struct KeyMeasurement {
    id: MeasurementId,
    /// `None` once it is finished.
    table: Option<Arc<Table>>,
}

impl Table {
    /// Begins to count keys.
    pub fn measure_keys(self: &Arc<Self>) -> KeyMeasurement {
        KeyMeasurement { id: self.key_counts.begin(), table: Some(self.clone()) }
    }

    /// Returns whether keys are counted now.
    #[inline]
    pub(in crate::routing) fn counts_keys(&self) -> bool {
        self.key_counts.is_wanted()
    }

    /// Counts the key of a request, whose hash is that of its order.
    pub(in crate::routing) fn note_key(&self, worker: usize, partition: PartitionId, hash: u64, key: &[u8]) {
        self.key_counts.note(worker, partition, hash, key);
    }
}

impl KeyMeasurement {
    /// Ends the measurement. Returns the most frequent keys, the first ones first.
    pub fn finish(mut self) -> Vec<HotKey> {
        self.table.take().map_or_else(Vec::new, |table| KeySketch::merged(table.key_counts.end(self.id)))
    }
}

impl Drop for KeyMeasurement {
    fn drop(&mut self) {
        if let Some(table) = &self.table {
            drop(table.key_counts.end(self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::table::StashLimits;

    const P0: PartitionId = PartitionId::new(0);

    #[test]
    fn keys_are_counted_from_the_beginning_of_a_measurement_to_its_end() {
        let (table, _notices) = Table::new(2, StashLimits::default());
        let note = |worker, key: &[u8]| table.note_key(worker, P0, 1, key);
        let requests = |measurement: KeyMeasurement| {
            let keys = measurement.finish();
            keys.iter().map(|key| (key.key.len(), key.requests)).collect::<Vec<_>>()
        };
        note(0, b"before");
        let first = table.measure_keys();
        note(0, &[b'x'; 100]);
        let second = table.measure_keys();
        assert!(table.counts_keys());
        note(1, &[b'x'; 100]);
        assert_eq!(requests(first), [(64, 2)]);
        note(1, &[b'x'; 100]);
        assert_eq!(requests(second), [(64, 2)]);
        assert!(!table.counts_keys());
        note(0, b"after");
        assert_eq!(requests(table.measure_keys()), []);
        drop(table.measure_keys());
        assert!(!table.counts_keys());
    }
}
