//! The task that follows a keyspace: a snapshot, then every change after it, and a fresh snapshot whenever the watch may
//! have missed something.
//!
//! One watch covers the keyspace's root, so all its keys are seen at one revision together. A new snapshot is taken
//! after any error, a compaction included, and at a slow interval, which grows with the keyspace. It is also taken when the
//! keys that are followed have changed while the watch was silent: handoffs wait for each participant and are cancelled
//! before that interval ends.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::Revision;
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{Batch, KeyValue, Keys};
use segue_protocol::view::View;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;

use super::StoreRetry;
use super::resync::{KeyspaceSize, RESYNC_INTERVAL, SILENCE_TIMEOUT};
use crate::jitter;
use crate::store::{CopiedUpdate, Copies, SharedHorizon, Store, StoreError, Tap};

/// How long a participant may take no update before the reader of its copies gets a watch of its own.
const STUCK_AFTER: Duration = Duration::from_secs(1);

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

/// Follows these keys until the receiver of the updates is gone. `gives_copies` to a reader of this process that asks for
/// them.
pub(super) async fn follow(
    store: Arc<dyn Store>,
    keys: Keyspace,
    followed: Keys,
    updates: mpsc::Sender<Update>,
    gives_copies: bool,
) {
    let mut task = WatcherTask {
        store,
        keys,
        followed,
        updates,
        gives_copies,
        copies: Copies::default(),
        accepted: Copies::default(),
        back_off: StoreRetry::default(),
        patience: SILENCE_TIMEOUT,
        size: KeyspaceSize::default(),
        doubt: None,
    };
    loop {
        let error = match task.once().await {
            Ok(()) => continue,
            Err(Some(error)) => error,
            Err(None) => return,
        };
        if task.lost(error).await.is_err() {
            return;
        }
        sleep(task.back_off.next()).await;
    }
}

/// Returns up to twice this time in a large keyspace, where it is longer than `least`. The participants start together, or
/// have seen the same change last, and are not to read the keyspace all together.
fn spread(time: Duration, least: Duration) -> Duration {
    if time > least { jitter::shortened(time * 2) } else { time }
}

struct WatcherTask {
    store: Arc<dyn Store>,
    keys: Keyspace,
    followed: Keys,
    updates: mpsc::Sender<Update>,
    gives_copies: bool,
    /// The copies for a reader in this process.
    copies: Copies,
    /// For a reader that has been accepted. Its copies begin with the next snapshot.
    accepted: Copies,
    back_off: StoreRetry,
    /// How long the watch may be silent before the store is asked for changes.
    patience: Duration,
    /// Size of the keyspace according to the snapshot and the watch.
    size: KeyspaceSize,
    /// Why the next snapshot is early: the watch brought nothing after the first of these revisions, although the store
    /// had shown changes at the second one for long enough.
    doubt: Option<(Revision, Revision)>,
}

impl WatcherTask {
    /// Takes one snapshot and follows the watch after it. Returns `Ok` when a fresh snapshot is due, and `Err(None)`
    /// when the receiver is gone.
    async fn once(&mut self) -> Result<(), Option<StoreError>> {
        let snapshot = self.store.snapshot(&self.followed).await.map_err(Some)?;
        let size = KeyspaceSize::of(&snapshot.entries, &self.keys);
        let (mut interval, mut least) = (size.resync_interval(), size.least_patience());
        if let Some((seen, reached)) = self.doubt.take() {
            let is_put = |entry: &KeyValue| seen < entry.mod_revision && entry.mod_revision <= reached;
            if size.keys != self.size.keys || snapshot.entries.iter().any(is_put) {
                self.patience = least;
                let silent = StoreError::Unavailable(format!("the watch was silent after revision {seen}").into());
                self.lost(silent).await?;
            } else {
                self.patience = (self.patience * 2).min(interval);
            }
        }
        self.size = size;
        self.patience = self.patience.max(least);
        let mut seen = snapshot.revision;
        if !self.copies.are_read() {
            let accepted = std::mem::take(&mut self.accepted);
            let asked = || self.tap().map(|tap| tap.accept(&self.followed));
            self.copies = if accepted.are_read() { accepted } else { asked().unwrap_or_default() };
        }
        self.copies.give(|| CopiedUpdate::Snapshot(snapshot.clone()));
        let view = View::from_snapshot(self.keys.clone(), snapshot);
        self.send(Update::Snapshot(Box::new(view))).await?;
        let mut watch = self.store.watch(&self.followed, seen.next()).await.map_err(Some)?;
        let followed_since = Instant::now();
        let mut resync_at = followed_since + spread(interval, *RESYNC_INTERVAL.start());
        loop {
            tokio::select! {
                biased;
                batch = watch.next() => {
                    let batch = batch.map_err(Some)?;
                    seen = seen.max(batch.revision);
                    self.size = self.size.after(&batch, &self.keys);
                    self.back_off.reset();
                    self.copies.give(|| CopiedUpdate::Batch(batch.clone()));
                    self.send(Update::Batch(batch)).await?;
                }
                reached = self.missed(seen) => {
                    self.doubt = Some((seen, reached));
                    return Ok(());
                }
                // A reader begins with a snapshot.
                accepted = self.accept() => {
                    self.accepted = accepted;
                    return Ok(());
                }
                () = sleep_until(resync_at) => {
                    // A keyspace that was almost empty at the snapshot may be large by now, and its participants, which
                    // started together, would read it all together.
                    let grown = self.size.resync_interval();
                    if grown > interval {
                        interval = grown;
                        resync_at = followed_since + spread(grown, *RESYNC_INTERVAL.start());
                        least = self.size.least_patience();
                        self.patience = self.patience.max(least);
                        if resync_at > Instant::now() {
                            continue;
                        }
                    }
                    self.patience = (self.patience / 2).max(least);
                    return Ok(());
                }
            }
        }
    }

    /// Returns the store's revision once the keys have changed after `seen`, and long enough ago for a watch to have
    /// delivered that. A batch that arrives meanwhile starts this anew, and so does a snapshot that is put off.
    async fn missed(&self, seen: Revision) -> Revision {
        let one = Keys::One(self.keys.config());
        let mut surveyed = seen;
        loop {
            sleep(spread(self.patience, SILENCE_TIMEOUT)).await;
            let survey = match self.store.snapshot(&one).await {
                Ok(now) if now.revision <= surveyed => continue,
                Ok(_) => self.store.survey(&self.followed, seen).await,
                Err(error) => Err(error),
            };
            match survey {
                Ok(survey) if survey.is_changed || survey.keys != self.size.keys => {
                    sleep(ARRIVAL_TIMEOUT).await;
                    return survey.revision;
                }
                Ok(survey) => surveyed = survey.revision,
                // A store that does not respond is not asked for a snapshot as well. The lease limits how long that may
                // last.
                Err(error) => debug!(%error, "cannot ask the store for changes"),
            }
        }
    }

    fn tap(&self) -> Option<&Tap> {
        self.store.horizon().map(SharedHorizon::tap).filter(|_| self.gives_copies)
    }

    /// Accepts a reader of this process once one has asked for copies. Each request wakes all participants that follow the
    /// same keys, and only one of them accepts it. Cancel-safe.
    async fn accept(&self) -> Copies {
        let Some(tap) = self.tap().filter(|_| !self.copies.are_read()) else {
            return std::future::pending().await;
        };
        loop {
            tap.asked(&self.followed).await;
            let accepted = tap.accept(&self.followed);
            if accepted.are_read() {
                return accepted;
            }
        }
    }

    async fn lost(&mut self, error: StoreError) -> Result<(), Option<StoreError>> {
        self.copies.give(|| CopiedUpdate::Lost(error.clone()));
        self.send(Update::Lost(error)).await
    }

    async fn send(&mut self, update: Update) -> Result<(), Option<StoreError>> {
        let place = match timeout(STUCK_AFTER, self.updates.reserve()).await {
            Ok(place) => place,
            Err(_) => {
                // The reader shows what a stuck participant does not see.
                self.copies = Copies::default();
                self.updates.reserve().await
            }
        };
        match place {
            Ok(place) => {
                place.send(update);
                Ok(())
            }
            Err(_) => Err(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::PartitionId;
    use segue_protocol::txn::{Op, Txn};

    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::session::Watcher;
    use crate::store::{Fault, FaultyStore, MemoryStore, StoreCall};

    /// Returns a store whose calls are counted, and how the test itself writes to it.
    fn counted() -> (Arc<FaultyStore>, MemoryStore) {
        let memory = MemoryStore::new();
        (Arc::new(FaultyStore::new(Arc::new(memory.clone()))), memory)
    }

    /// As [`counted`], with a store that answers every call, but whose watches bring nothing.
    fn silent() -> (Arc<FaultyStore>, MemoryStore) {
        let (store, memory) = counted();
        store.set_rule(|call| if matches!(call, StoreCall::Watch(_)) { Fault::Silence } else { Fault::Pass });
        (store, memory)
    }

    async fn put(store: &MemoryStore, key: String) -> Revision {
        let then = vec![Op::put(key, Vec::new())];
        store.commit(Txn::guarded([], then)).await.unwrap().revision
    }

    /// Returns the number of reads of the whole keyspace.
    fn snapshots(store: &FaultyStore) -> usize {
        store.count(|call| matches!(call, StoreCall::Snapshot(Keys::Prefix(_) | Keys::Between(..))))
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
        let (store, memory) = silent();
        let mut watcher = Watcher::start(store, keyspace());
        snapshot(&mut watcher).await;
        for _ in 0..5 {
            // A quiet keyspace must not make the checks rarer.
            assert!(timeout(Duration::from_secs(34), watcher.next()).await.is_err());
            let put = put(&memory, keyspace().config()).await;
            let seen = timeout(Duration::from_secs(7), async {
                assert!(matches!(watcher.next().await, Update::Lost(_)), "it is counted, and logged");
                snapshot(&mut watcher).await
            });
            assert_eq!(seen.await.expect("the change is seen"), put);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_watch_is_noticed_within_seconds_while_only_other_keys_are_written() {
        let (store, memory) = silent();
        put(&memory, keyspace().pod("a")).await;
        let mut watcher = Watcher::start(store, keyspace());
        snapshot(&mut watcher).await;
        let heartbeats = AbortOnDropHandle::new(tokio::spawn({
            let memory = memory.clone();
            async move {
                loop {
                    put(&memory, keyspace().load("a")).await;
                    sleep(Duration::from_secs(2)).await;
                }
            }
        }));
        // Heartbeats of some hours must not make the checks rarer: they are not among the keys that are followed.
        assert!(timeout(Duration::from_secs(59), watcher.next()).await.is_err(), "no snapshot is due");
        for _ in 0..200 {
            snapshot(&mut watcher).await;
        }
        let then = vec![Op::Delete(Keys::One(keyspace().pod("a")))];
        memory.commit(Txn::guarded([], then)).await.unwrap();
        let seen = timeout(Duration::from_secs(7), async {
            assert!(matches!(watcher.next().await, Update::Lost(_)), "it is counted, and logged");
            snapshot(&mut watcher).await
        });
        seen.await.expect("a deletion is seen as well");
        drop(heartbeats);
    }

    #[tokio::test(start_paused = true)]
    async fn the_writes_of_other_keyspaces_cost_no_storm_of_snapshots() {
        let (store, memory) = counted();
        let mut watcher = Watcher::start(store.clone(), keyspace());
        let hour = async {
            for second in 0..3600 {
                put(&memory, "/another/key".to_owned()).await;
                if second % 30 == 0 {
                    put(&memory, keyspace().config()).await;
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
        let snapshots = snapshots(&store);
        let looks = store.count(|call| matches!(call, StoreCall::Snapshot(Keys::One(_))));
        let surveys = store.count(|call| matches!(call, StoreCall::Survey(_)));
        assert!(snapshots <= 61, "{snapshots} snapshots, where the slow tick alone takes 60");
        assert!(looks <= 3600 / 5 && surveys <= looks, "{looks} looks, {surveys} surveys");
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_keyspace_is_read_again_more_rarely() {
        let (store, memory) = counted();
        for partition in PartitionId::all(20_000) {
            put(&memory, keyspace().assignment(partition)).await;
        }
        let mut watcher = Watcher::start(store.clone(), keyspace());
        snapshot(&mut watcher).await;
        assert!(timeout(Duration::from_secs(199), watcher.next()).await.is_err(), "20,000 keys at 100 a second");
        timeout(Duration::from_secs(202), snapshot(&mut watcher)).await.expect("the next snapshot");
        assert_eq!(snapshots(&store), 2);
        let [least, time] = [60, 200].map(Duration::from_secs);
        let times: std::collections::BTreeSet<_> = (0..50).map(|_| spread(time, least)).collect();
        assert!(times.len() > 1 && times.iter().all(|time| (200..=400).contains(&time.as_secs())), "{times:?}");
        assert_eq!(spread(least, least), least);
    }

    #[tokio::test(start_paused = true)]
    async fn participants_of_a_keyspace_that_was_empty_at_first_do_not_read_it_together_once_it_is_large() {
        const PARTICIPANTS: usize = 8;
        let (store, memory) = counted();
        let mut watchers = Vec::new();
        for _ in 0..PARTICIPANTS {
            let mut watcher = Watcher::start(store.clone(), keyspace());
            snapshot(&mut watcher).await;
            watchers.push(watcher);
        }
        let begun = Instant::now();
        let partitions: Vec<PartitionId> = PartitionId::all(20_000).collect();
        for some in partitions.chunks(100) {
            let put = |partition: &PartitionId| Op::put(keyspace().assignment(*partition), vec![]);
            let then: Vec<Op> = some.iter().map(put).collect();
            memory.commit(Txn::guarded([], then)).await.unwrap();
            for watcher in &mut watchers {
                assert!(matches!(watcher.next().await, Update::Batch(_)));
            }
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "the clock has stood still");
        let readers = watchers.into_iter().map(|mut watcher| {
            tokio::spawn(async move {
                snapshot(&mut watcher).await;
                (begun.elapsed(), watcher)
            })
        });
        let mut times = std::collections::BTreeSet::new();
        for reader in readers.collect::<Vec<_>>() {
            times.insert(reader.await.unwrap().0);
        }
        assert!(
            times.iter().all(|time| (200..=401).contains(&time.as_secs())),
            "20,000 keys at 100 a second: {times:?}"
        );
        assert!(times.len() > 1, "all read it at {times:?}");
        assert_eq!(snapshots(&store), 2 * PARTICIPANTS);
    }
}
