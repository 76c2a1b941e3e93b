//! Follows a keyspace: a snapshot, then every change after it, and a fresh snapshot whenever the thread is lost.
//!
//! One watch over the keyspace's root, so that all its keys are seen at one revision together. No event is ever believed
//! lost: after any error, a compaction included, and on a slow tick, the state is taken anew.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::BackOff;
use crate::protocol::view::View;
use crate::store::data::{Batch, Keys};
use crate::store::keys::Keyspace;
use crate::store::{Store, StoreError};

/// How often the state is taken anew although the watch is well.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);

/// What following brings.
#[derive(Debug)]
pub enum Update {
    /// The whole state; replaces what was known.
    Snapshot(Box<View>),
    /// The changes after what was known.
    Batch(Batch),
    /// The thread is lost; a snapshot follows once the store answers.
    Lost(StoreError),
}

/// A keyspace being followed. Dropping it ends the watch.
#[derive(Debug)]
pub struct Follow {
    updates: mpsc::Receiver<Update>,
    /// Looked at by [`try_next_batch`](Self::try_next_batch), and no batch.
    next: Option<Update>,
    _task: AbortOnDropHandle<()>,
}

impl Follow {
    /// Begins with a snapshot that is taken after this call.
    pub fn start(store: Arc<dyn Store>, keys: Keyspace) -> Self {
        // Behind a slow reader the store's own watch buffers, and compaction bounds that.
        let (sender, updates) = mpsc::channel(256);
        Follow { updates, next: None, _task: AbortOnDropHandle::new(tokio::spawn(follow(store, keys, sender))) }
    }

    /// What is new. Cancel-safe.
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

    /// What is there already, if it is a batch; anything else is left for [`next`](Self::next).
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

async fn follow(store: Arc<dyn Store>, keys: Keyspace, updates: mpsc::Sender<Update>) {
    let mut back_off = BackOff::default();
    loop {
        let error = match follow_once(&*store, &keys, &updates, &mut back_off).await {
            Ok(()) => continue,
            Err(Some(error)) => error,
            Err(None) => return,
        };
        if updates.send(Update::Lost(error)).await.is_err() {
            return;
        }
        sleep(back_off.next()).await;
    }
}

/// One snapshot and the watch after it. `Ok`: time for a fresh snapshot. `Err(None)`: nobody listens any more.
async fn follow_once(
    store: &dyn Store,
    keys: &Keyspace,
    updates: &mpsc::Sender<Update>,
    back_off: &mut BackOff,
) -> Result<(), Option<StoreError>> {
    let all = Keys::Prefix(keys.root().to_owned());
    let snapshot = store.snapshot(&all).await.map_err(Some)?;
    let from = snapshot.revision + 1;
    let view = View::from_snapshot(keys.clone(), snapshot);
    updates.send(Update::Snapshot(Box::new(view))).await.map_err(|_| None)?;
    let mut watch = store.watch(&all, from).await.map_err(Some)?;
    let resync_at = Instant::now() + RESYNC_INTERVAL;
    while let Ok(batch) = timeout_at(resync_at, watch.next()).await {
        let batch = batch.map_err(Some)?;
        back_off.reset();
        updates.send(Update::Batch(batch)).await.map_err(|_| None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn looking_for_batches_takes_nothing_else_away() {
        let (sender, updates) = mpsc::channel(8);
        let idle = AbortOnDropHandle::new(tokio::spawn(std::future::pending()));
        let mut follow = Follow { updates, next: None, _task: idle };
        let batch = |revision| Update::Batch(Batch { revision, events: Vec::new() });
        let view = || Box::new(View::empty(Keyspace::new("/segue/", "test")));
        for update in [batch(1), Update::Snapshot(view()), batch(2)] {
            sender.send(update).await.unwrap();
        }
        assert_eq!(follow.try_next_batch().unwrap().revision, 1);
        assert!(follow.try_next_batch().is_none());
        assert!(follow.try_next_batch().is_none());
        assert!(matches!(follow.next().await, Update::Snapshot(_)));
        assert_eq!(follow.try_next_batch().unwrap().revision, 2);
        assert!(follow.try_next_batch().is_none());
    }
}
