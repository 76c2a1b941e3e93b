//! The counts of keys of a table's workers, one sketch for each measurement. Plain data but for the locks.
//!
//! # Invariants
//!
//! * Without a measurement a request reads one word for it, which nobody writes.
//! * Of a key only its beginning is kept, and only until the end of the measurement.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use segue_protocol::ids::PartitionId;

use super::key_sketch::KeySketch;
use crate::routing::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard};

/// Most bytes that are kept of a key.
const MAX_KEY_BYTES: usize = 64;

/// The sketches of each worker, one for each measurement.
pub(super) struct KeyCounts {
    measurements: AtomicUsize,
    last: AtomicU64,
    workers: Vec<Mutex<Vec<(MeasurementId, KeySketch)>>>,
}

/// The number of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MeasurementId(u64);

impl KeyCounts {
    pub(super) fn new(workers: usize) -> Self {
        KeyCounts {
            measurements: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            workers: (0..workers).map(|_| Mutex::default()).collect(),
        }
    }

    fn lock(&self, worker: usize) -> MutexGuard<'_, Vec<(MeasurementId, KeySketch)>> {
        // A sketch is consistent between any two statements that can panic.
        self.workers[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a measurement.
    pub(super) fn begin(&self) -> MeasurementId {
        let id = MeasurementId(self.last.fetch_add(1, Relaxed));
        for worker in 0..self.workers.len() {
            self.lock(worker).push((id, KeySketch::default()));
        }
        self.measurements.fetch_add(1, Relaxed);
        id
    }

    /// Returns whether there is a measurement.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.measurements.load(Relaxed) > 0
    }

    /// Counts the key of a request of this worker.
    pub(super) fn note(&self, worker: usize, partition: PartitionId, hash: u64, key: &[u8]) {
        for (_, sketch) in &mut *self.lock(worker) {
            sketch.note(hash, partition, || key[..key.len().min(MAX_KEY_BYTES)].into());
        }
    }

    /// Ends a measurement. Returns the sketches of the workers.
    pub(super) fn end(&self, id: MeasurementId) -> Vec<KeySketch> {
        self.measurements.fetch_sub(1, Relaxed);
        let of_worker = |worker| {
            let mut sketches = self.lock(worker);
            let at = sketches.iter().position(|(its, _)| *its == id)?;
            Some(sketches.swap_remove(at).1)
        };
        (0..self.workers.len()).filter_map(of_worker).collect()
    }
}
