//! Tells every worker which pods are about to get a partition, so that it has a connection before it needs one.

use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The channel to each worker.
pub(super) struct PreconnectChannels {
    workers: Vec<UnboundedSender<u32>>,
    /// The receiving ends; each worker takes its own when it starts.
    ends: Mutex<Vec<Option<UnboundedReceiver<u32>>>>,
}

impl PreconnectChannels {
    pub(super) fn new(workers: usize) -> Self {
        let (workers, ends): (Vec<_>, Vec<_>) = (0..workers).map(|_| unbounded_channel()).unzip();
        PreconnectChannels { workers, ends: Mutex::new(ends.into_iter().map(Some).collect()) }
    }

    pub(super) fn tell(&self, slot: u32) {
        for worker in &self.workers {
            // A worker that does not run needs no connection.
            let _ = worker.send(slot);
        }
    }

    pub(super) fn take(&self, worker: usize) -> Option<UnboundedReceiver<u32>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).get_mut(worker)?.take()
    }
}
