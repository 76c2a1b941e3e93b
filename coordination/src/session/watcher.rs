//! Follows a keyspace: a snapshot, then every change after it, and a fresh snapshot whenever the watch may have missed
//! something.
//!
//! One watch covers the keyspace's root, so all its keys are seen at one revision together. A new snapshot is taken
//! after any error, a compaction included, and at a slow interval. It is also taken when the store has moved on while
//! the watch was silent: handoffs wait for each participant and are cancelled before that interval ends.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::Revision;
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{Batch, Keys};
use segue_protocol::view::{View, ViewDelta};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::StoreRetry;
use crate::store::{Store, StoreError};

/// Time between two snapshots while the watch is healthy.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);

/// How long a watch may be silent before the store's revision is checked. The writes of other keyspaces raise that
/// revision too. The time therefore doubles, up to [`RESYNC_INTERVAL`], with each snapshot that shows nothing new, and
/// halves with each interval without such a snapshot.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a change may take to arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(1);

/// An update of a followed keyspace.
#[derive(Debug)]
pub enum Update {
    /// The whole state; it replaces what was known.
    Snapshot(Box<View>),
    /// The changes after what was known.
    Batch(Batch),
    /// The watch was lost. A snapshot follows once the store responds.
    Lost(StoreError),
}

/// A followed keyspace. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    updates: mpsc::Receiver<Update>,
    /// An update that [`try_next_batch`](Self::try_next_batch) has received and that is no batch.
    next: Option<Update>,
    _task: AbortOnDropHandle<()>,
}

impl Watcher {
    /// Begins with a snapshot that is taken after this call.
    pub fn start(store: Arc<dyn Store>, keys: Keyspace) -> Self {
        // If the reader is slow the store's own watch buffers, and compaction bounds that.
        let (sender, updates) = mpsc::channel(256);
        Watcher { updates, next: None, _task: AbortOnDropHandle::new(tokio::spawn(run(store, keys, sender))) }
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
            let more = view.apply(batch);
            delta.partitions.extend(more.partitions);
            delta.membership |= more.membership;
            delta.intentions |= more.intentions;
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

async fn run(store: Arc<dyn Store>, keys: Keyspace, updates: mpsc::Sender<Update>) {
    let mut task =
        WatcherTask { store, keys, updates, back_off: StoreRetry::default(), patience: SILENCE_TIMEOUT, doubt: None };
    loop {
        let error = match task.once().await {
            Ok(()) => continue,
            Err(Some(error)) => error,
            Err(None) => return,
        };
        if task.updates.send(Update::Lost(error)).await.is_err() {
            return;
        }
        sleep(task.back_off.next()).await;
    }
}

struct WatcherTask {
    store: Arc<dyn Store>,
    keys: Keyspace,
    updates: mpsc::Sender<Update>,
    back_off: StoreRetry,
    /// How long the watch may be silent before the store's revision is checked.
    patience: Duration,
    /// Why the next snapshot is early: the watch brought nothing after the first of these revisions, although the store
    /// had been at the second one for long enough.
    doubt: Option<(Revision, Revision)>,
}

impl WatcherTask {
    /// Takes one snapshot and follows the watch after it. Returns `Ok` when a fresh snapshot is due, and `Err(None)`
    /// when the receiver is gone.
    async fn once(&mut self) -> Result<(), Option<StoreError>> {
        let all = self.keys.followed();
        let snapshot = self.store.snapshot(&all).await.map_err(Some)?;
        if let Some((seen, reached)) = self.doubt.take() {
            if snapshot.entries.iter().any(|entry| seen < entry.mod_revision && entry.mod_revision <= reached) {
                self.patience = SILENCE_TIMEOUT;
                let silent = StoreError::Unavailable(format!("the watch was silent after revision {seen}"));
                self.send(Update::Lost(silent)).await?;
            } else {
                self.patience = (self.patience * 2).min(RESYNC_INTERVAL);
            }
        }
        let mut seen = snapshot.revision;
        let view = View::from_snapshot(self.keys.clone(), snapshot);
        self.send(Update::Snapshot(Box::new(view))).await?;
        let mut watch = self.store.watch(&all, seen.next()).await.map_err(Some)?;
        let resync_at = Instant::now() + RESYNC_INTERVAL;
        loop {
            tokio::select! {
                biased;
                batch = watch.next() => {
                    let batch = batch.map_err(Some)?;
                    seen = batch.revision;
                    self.back_off.reset();
                    self.send(Update::Batch(batch)).await?;
                }
                reached = self.missed(seen) => {
                    self.doubt = Some((seen, reached));
                    return Ok(());
                }
                () = sleep_until(resync_at) => {
                    self.patience = (self.patience / 2).max(SILENCE_TIMEOUT);
                    return Ok(());
                }
            }
        }
    }

    /// Returns the store's revision once it is past `seen`, and long enough for a watch to have delivered the changes
    /// between.
    async fn missed(&self, seen: Revision) -> Revision {
        let one = Keys::One(self.keys.config());
        loop {
            sleep(self.patience).await;
            match self.store.snapshot(&one).await {
                Ok(now) if now.revision > seen => {
                    sleep(ARRIVAL_TIMEOUT).await;
                    return now.revision;
                }
                Ok(_) => {}
                // A store that does not respond is not asked for a snapshot as well. The lease limits how long that may
                // last.
                Err(error) => debug!(%error, "cannot ask for the store's revision"),
            }
        }
    }

    async fn send(&self, update: Update) -> Result<(), Option<StoreError>> {
        self.updates.send(update).await.map_err(|_| None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

    use async_trait::async_trait;
    use segue_protocol::ids::LeaseId;
    use segue_protocol::txn::{Op, Snapshot, Txn, TxnOutcome};
    use tokio::time::timeout;

    use super::*;
    use crate::store::{MemoryStore, Watch};

    /// A store that answers every call, but whose watches may bring nothing.
    #[derive(Debug, Default)]
    struct Silent {
        store: MemoryStore,
        on: AtomicBool,
        /// The senders that keep silent watches open.
        open: Mutex<Vec<mpsc::Sender<Result<Batch, StoreError>>>>,
        /// Number of reads of a single key.
        looks: AtomicU32,
        /// Number of reads of the whole keyspace.
        snapshots: AtomicU32,
    }

    impl Silent {
        async fn put(&self, key: String) -> Revision {
            let then = vec![Op::Put { key, value: Vec::new(), lease: None }];
            self.store.commit(Txn { then, ..Txn::default() }).await.unwrap().revision
        }
    }

    #[async_trait]
    impl Store for Silent {
        async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
            let reads = if matches!(keys, Keys::One(_)) { &self.looks } else { &self.snapshots };
            reads.fetch_add(1, SeqCst);
            self.store.snapshot(keys).await
        }
        async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
            if !self.on.load(SeqCst) {
                return self.store.watch(keys, from).await;
            }
            let (open, batches) = mpsc::channel(1);
            self.open.lock().unwrap().push(open);
            Ok(Watch::new(batches))
        }
        async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
            self.store.commit(txn).await
        }
        async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
            self.store.grant(ttl).await
        }
        async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
            self.store.keep_alive(lease).await
        }
        async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
            self.store.revoke(lease).await
        }
    }

    fn keyspace() -> Keyspace {
        Keyspace::new("/segue/", "test")
    }

    async fn snapshot(watcher: &mut Watcher) -> Revision {
        match watcher.next().await {
            Update::Snapshot(view) => view.revision,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_a_silent_watch_keeps_to_itself_are_seen_within_seconds_again_and_again() {
        let store = Arc::new(Silent { on: true.into(), ..Silent::default() });
        let mut watcher = Watcher::start(store.clone(), keyspace());
        snapshot(&mut watcher).await;
        for _ in 0..5 {
            // A quiet keyspace must not make the checks rarer.
            assert!(timeout(Duration::from_secs(34), watcher.next()).await.is_err());
            let put = store.put(keyspace().config()).await;
            let seen = timeout(Duration::from_secs(7), async {
                assert!(matches!(watcher.next().await, Update::Lost(_)), "it is counted, and logged");
                snapshot(&mut watcher).await
            });
            assert_eq!(seen.await.expect("the change is seen"), put);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_writes_of_other_keyspaces_cost_no_storm_of_snapshots() {
        let store = Arc::new(Silent::default());
        let mut watcher = Watcher::start(store.clone(), keyspace());
        let hour = async {
            for second in 0..3600 {
                store.put("/another/key".to_owned()).await;
                if second % 30 == 0 {
                    store.put(keyspace().config()).await;
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        let nothing_lost = async {
            loop {
                assert!(!matches!(watcher.next().await, Update::Lost(_)), "the watch is well");
            }
        };
        tokio::select! {
            () = hour => {}
            () = nothing_lost => {}
        }
        let (looks, snapshots) = (store.looks.load(SeqCst), store.snapshots.load(SeqCst));
        assert!(snapshots <= 100, "{snapshots} snapshots, where the slow tick alone takes 60");
        assert!(looks <= 3600 / 5, "{looks} looks");
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
