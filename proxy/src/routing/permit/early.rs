//! The part of a [`TableHandle`] that concerns requests which come before the number of partitions is known.

use std::rc::Rc;

use segue_protocol::handoff::router::HoldCause;

use super::{Inner, TableHandle};

/// The place of a request that waits for the number of partitions.
#[derive(Debug)]
pub(crate) struct Early(Rc<Inner>);

impl Drop for Early {
    fn drop(&mut self) {
        self.0.early.set(self.0.early.get() - 1);
    }
}

impl TableHandle {
    /// Waits until the requests that wait for the number of partitions and came earlier have entered or left.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.inner.turn.lock().await
    }

    /// Returns why a request has waited in vain for the number of partitions.
    pub(crate) fn default_cause(&self) -> HoldCause {
        self.inner.table.default_cause()
    }

    /// Returns a place for a request that waits for the number of partitions, or `None` if as many wait already as may
    /// for one partition.
    pub(crate) fn wait_early(&self) -> Option<Early> {
        let waiting = self.inner.early.get();
        if waiting >= self.inner.table.max_requests() {
            return None;
        }
        self.inner.early.set(waiting + 1);
        Some(Early(self.inner.clone()))
    }
}
