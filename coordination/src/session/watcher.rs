//! The handle of a followed keyspace.

use std::sync::Arc;

use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{Batch, Keys};
use segue_protocol::view::{View, ViewDelta};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::beside::follow_beside;
use super::follow::{Update, follow};
use crate::store::Store;

/// A followed keyspace. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    updates: mpsc::Receiver<Update>,
    /// An update that [`try_next_batch`](Self::try_next_batch) has received and that is no batch.
    next: Option<Update>,
    _task: AbortOnDropHandle<()>,
}

impl Watcher {
    /// Begins with a snapshot that is taken after this call. It has all that routers and pods need: the acknowledgements of
    /// routers and the pods' heartbeats are left out.
    pub fn start(store: Arc<dyn Store>, keys: Keyspace) -> Self {
        let followed = keys.followed();
        Self::follow(store, keys, followed)
    }

    /// Like [`start`](Self::start), with those, for whoever plans.
    pub fn start_planning(store: Arc<dyn Store>, keys: Keyspace) -> Self {
        let planned = keys.planned();
        Self::follow(store, keys, planned)
    }

    /// Like [`start`](Self::start), or as one that plans, for a reader that only shows the keyspace. It needs no watch of its own
    /// while a participant of this process follows the same keys by the same store.
    pub fn start_beside(store: Arc<dyn Store>, keys: Keyspace, plans: bool) -> Self {
        let followed = if plans { keys.planned() } else { keys.followed() };
        Self::spawn(|updates| follow_beside(store, keys, followed, updates))
    }

    fn follow(store: Arc<dyn Store>, keys: Keyspace, followed: Keys) -> Self {
        Self::spawn(|updates| follow(store, keys, followed, updates, true))
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(run: impl FnOnce(mpsc::Sender<Update>) -> F) -> Self {
        // If the reader is slow the store's own watch buffers, and compaction bounds that.
        let (sender, updates) = mpsc::channel(256);
        let running = tokio::spawn(run(sender).in_current_span());
        Watcher { updates, next: None, _task: AbortOnDropHandle::new(running) }
    }

    /// Returns the next update. Cancel-safe.
    pub async fn next(&mut self) -> Update {
        if let Some(update) = self.next.take() {
            return update;
        }
        match self.updates.recv().await {
            Some(update) => update,
            // The task ends only with this handle.
            None => std::future::pending().await,
        }
    }

    /// Applies a batch to the view, and with it every batch that has arrived since. Returns what they touched.
    pub(crate) fn apply(&mut self, view: &mut View, batch: Batch) -> ViewDelta {
        let mut delta = view.apply(batch);
        while let Some(batch) = self.try_next_batch() {
            delta.extend(view.apply(batch));
        }
        delta
    }

    /// Returns the next update if it has already arrived and is a batch. Any other update is left for
    /// [`next`](Self::next).
    pub fn try_next_batch(&mut self) -> Option<Batch> {
        if self.next.is_none() {
            self.next = self.updates.try_recv().ok();
        }
        match self.next.take() {
            Some(Update::Batch(batch)) => Some(batch),
            other => {
                self.next = other;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::Revision;

    use super::*;

    fn keyspace() -> Keyspace {
        Keyspace::new("/segue/", "test")
    }

    #[tokio::test]
    async fn looking_for_batches_takes_nothing_else_away() {
        let (sender, updates) = mpsc::channel(8);
        let idle = AbortOnDropHandle::new(tokio::spawn(std::future::pending()));
        let mut watcher = Watcher { updates, next: None, _task: idle };
        let batch = |revision: u64| Update::Batch(Batch { revision: revision.into(), events: Vec::new() });
        let view = || Box::new(View::empty(keyspace()));
        for update in [batch(1), Update::Snapshot(view()), batch(2)] {
            sender.send(update).await.unwrap();
        }
        assert_eq!(watcher.try_next_batch().unwrap().revision, Revision::new(1));
        assert!(watcher.try_next_batch().is_none());
        assert!(watcher.try_next_batch().is_none());
        assert!(matches!(watcher.next().await, Update::Snapshot(_)));
        assert_eq!(watcher.try_next_batch().unwrap().revision, Revision::new(2));
        assert!(watcher.try_next_batch().is_none());
    }
}
