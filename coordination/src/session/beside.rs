//! Follows a keyspace for a reader beside the participants of its process.
//!
//! The reader has a watch of its own only while no participant of the process follows the same keys.
//!
//! # Invariants
//!
//! * Copies never take the reader back. A participant may have read its snapshot before the reader's own watch brought later
//!   changes, so the watch stays until the copies have reached its revision.
//! * A store that has gone back itself, as after a restore, is followed. A watch takes its snapshot after everything that it has
//!   brought, so a lower revision there is the store's own.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use segue_protocol::ids::Revision;
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::Keys;
use segue_protocol::view::View;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::follow::{Update, follow};
use crate::store::{CopiedUpdate, CopyReader, SharedHorizon, Store};

/// How long a new reader waits for copies before it opens a watch. A participant takes a snapshot for it meanwhile.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// How long a reader whose copies have ended keeps its own watch before it asks again. It may be slower than the
/// participant, which takes a snapshot each time.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Follows these keys until the receiver of the updates is gone.
pub(super) async fn follow_beside(
    store: Arc<dyn Store>,
    keys: Keyspace,
    followed: Keys,
    updates: mpsc::Sender<Update>,
) {
    let Some(tap) = store.horizon().map(SharedHorizon::tap) else {
        return follow(store, keys, followed, updates, false).await;
    };
    let shown = ReaderPosition { updates, revision: AtomicU64::new(0) };
    let (mut wait, mut pause) = (FIRST_WAIT, Duration::ZERO);
    loop {
        let rest = sleep(pause);
        let copies = async {
            rest.await;
            let mut copies = tap.ask(&followed);
            (caught_up(&mut copies, &keys, &shown).await, copies)
        };
        let mut copies = pin!(copies);
        let asked = timeout(wait, &mut copies).await;
        let (begun, mut copies) = match asked {
            Ok(begun) => begun,
            Err(_) => {
                let (own, mut watched) = mpsc::channel(1);
                tokio::select! {
                    biased;
                    begun = &mut copies => begun,
                    () = follow(store.clone(), keys.clone(), followed.clone(), own, false) => return,
                    () = shown.hand_on(&mut watched) => return,
                }
            }
        };
        let mut next = begun.map(|view| Update::Snapshot(Box::new(view)));
        while let Some(update) = next {
            if shown.send(update).await.is_err() {
                return;
            }
            next = copies.recv().await.map(|copied| match copied {
                CopiedUpdate::Snapshot(snapshot) => {
                    Update::Snapshot(Box::new(View::from_snapshot(keys.clone(), snapshot)))
                }
                CopiedUpdate::Batch(batch) => Update::Batch(batch),
                CopiedUpdate::Lost(error) => Update::Lost(error),
            });
        }
        (wait, pause) = (Duration::ZERO, ASK_AGAIN);
    }
}

/// Returns the view that the copies make up once it is no older than what the reader has been shown, or nothing if the copies
/// end before.
async fn caught_up(copies: &mut CopyReader, keys: &Keyspace, shown: &ReaderPosition) -> Option<View> {
    let mut view: Option<View> = None;
    loop {
        match (copies.recv().await?, &mut view) {
            (CopiedUpdate::Snapshot(snapshot), view) => *view = Some(View::from_snapshot(keys.clone(), snapshot)),
            (CopiedUpdate::Batch(batch), Some(view)) => drop(view.apply(batch)),
            // The next copy is a snapshot.
            (CopiedUpdate::Lost(_), view) => *view = None,
            (CopiedUpdate::Batch(_), None) => {}
        }
        if view.as_ref().is_some_and(|view| view.revision >= shown.revision()) {
            return view;
        }
    }
}

/// The revision that the reader has been shown last, and the way to show it more.
struct ReaderPosition {
    updates: mpsc::Sender<Update>,
    revision: AtomicU64,
}

impl ReaderPosition {
    /// Sends the reader an update. Fails once the reader is gone.
    async fn send(&self, update: Update) -> Result<(), ()> {
        let revision = match &update {
            Update::Snapshot(view) => Some(view.revision),
            Update::Batch(batch) => Some(batch.revision),
            Update::Lost(_) => None,
        };
        self.updates.send(update).await.map_err(drop)?;
        if let Some(revision) = revision {
            self.revision.store(revision.get(), Relaxed);
        }
        Ok(())
    }

    fn revision(&self) -> Revision {
        Revision::new(self.revision.load(Relaxed))
    }

    /// Sends the reader what its own watch brings, until the reader is gone.
    async fn hand_on(&self, watched: &mut mpsc::Receiver<Update>) {
        while let Some(update) = watched.recv().await {
            if self.send(update).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::txn::{Op, Txn};
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::super::Watcher;
    use super::*;
    use crate::store::{Fault, FaultyStore, MemoryStore, StoreCall};

    /// Returns a store that the process shares. Other tasks run while a read is on its way.
    fn tapped() -> Arc<FaultyStore> {
        let store = FaultyStore::shared(Arc::new(MemoryStore::new()));
        store.set_rule(slow_reads);
        Arc::new(store)
    }

    fn slow_reads(call: &StoreCall) -> Fault {
        if matches!(call, StoreCall::Snapshot(_)) { Fault::hold(yield_now()) } else { Fault::Pass }
    }

    async fn put(store: &FaultyStore) -> Revision {
        let then = vec![Op::put(keyspace().config(), Vec::new())];
        store.commit(Txn::guarded([], then)).await.unwrap().revision
    }

    /// Returns the number of watches that have been opened.
    fn watches(store: &FaultyStore) -> usize {
        store.count(|call| matches!(call, StoreCall::Watch(_)))
    }

    /// Holds back the answer to the next snapshot. Returns what tells that it has been read, and what releases it.
    fn hold(store: &FaultyStore) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let ((tell, read), (release, released)) = (oneshot::channel(), oneshot::channel::<()>());
        let mut held = Some(async move { drop((tell.send(()), released.await)) });
        store.set_rule(move |call| match call {
            StoreCall::Snapshot(_) => held.take().map_or_else(|| slow_reads(call), Fault::hold_answer),
            _ => Fault::Pass,
        });
        (read, release)
    }

    fn keyspace() -> Keyspace {
        Keyspace::new("/segue/", "test")
    }

    /// Follows until the view shows this revision, without a step back.
    async fn reach(watcher: &mut Watcher, view: &mut View, revision: Revision) {
        let reached = async {
            while view.revision < revision {
                match watcher.next().await {
                    Update::Snapshot(fresh) => {
                        assert!(fresh.revision >= view.revision, "{} after {}", fresh.revision, view.revision);
                        view.resync(*fresh);
                    }
                    Update::Batch(batch) => drop(view.apply(batch)),
                    Update::Lost(error) => panic!("{error}"),
                }
            }
        };
        // The snapshot that a participant takes for a reader is the only other way to these changes.
        timeout(Duration::from_secs(30), reached).await.expect("the changes are seen");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_beside_a_participant_sees_what_it_sees_without_a_watch() {
        let store = tapped();
        let mut participant = Watcher::start(store.clone(), keyspace());
        let (mut seen, mut shown) = (View::empty(keyspace()), View::empty(keyspace()));
        let revision = put(&store).await;
        reach(&mut participant, &mut seen, revision).await;
        let mut reader = Watcher::start_beside(store.clone(), keyspace(), false);
        reach(&mut reader, &mut shown, revision).await;
        for _ in 0..3 {
            let revision = put(&store).await;
            reach(&mut participant, &mut seen, revision).await;
            reach(&mut reader, &mut shown, revision).await;
            assert_eq!(seen, shown);
        }
        assert_eq!(watches(&store), 2, "the participant's own, and its next one after the snapshot for the reader");
    }

    #[tokio::test(start_paused = true)]
    async fn only_one_of_two_participants_reads_the_keyspace_again_for_a_reader() {
        let store = tapped();
        let mut participants = [(); 2].map(|()| Watcher::start(store.clone(), keyspace()));
        let mut seen = [(); 2].map(|()| View::empty(keyspace()));
        let mut shown = View::empty(keyspace());
        let revision = put(&store).await;
        for (participant, seen) in participants.iter_mut().zip(&mut seen) {
            reach(participant, seen, revision).await;
        }
        let mut reader = Watcher::start_beside(store.clone(), keyspace(), false);
        reach(&mut reader, &mut shown, revision).await;
        let revision = put(&store).await;
        for (participant, seen) in participants.iter_mut().zip(&mut seen) {
            reach(participant, seen, revision).await;
        }
        reach(&mut reader, &mut shown, revision).await;
        assert_eq!(seen, [shown.clone(), shown]);
        assert_eq!(watches(&store), 3, "one of each participant, and the next one of that which accepted the reader");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_has_a_watch_of_its_own_while_nobody_follows_the_same_keys() {
        let store = tapped();
        // A planner follows other keys, so the reader gets no copies from it.
        let planner = Watcher::start_planning(store.clone(), keyspace());
        let mut reader = Watcher::start_beside(store.clone(), keyspace(), false);
        let mut shown = View::empty(keyspace());
        reach(&mut reader, &mut shown, put(&store).await).await;
        assert_eq!(watches(&store), 2);
        let (mut participant, mut seen) = (Watcher::start(store.clone(), keyspace()), View::empty(keyspace()));
        reach(&mut participant, &mut seen, put(&store).await).await;
        reach(&mut reader, &mut shown, put(&store).await).await;
        assert_eq!(watches(&store), 3, "the participant's first snapshot is for both");
        drop(participant);
        reach(&mut reader, &mut shown, put(&store).await).await;
        assert_eq!(watches(&store), 4);
        drop(planner);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_sees_what_a_stuck_participant_does_not() {
        let store = tapped();
        let stuck = Watcher::start(store.clone(), keyspace());
        let mut reader = Watcher::start_beside(store.clone(), keyspace(), false);
        let mut shown = View::empty(keyspace());
        for _ in 0..1000 {
            reach(&mut reader, &mut shown, put(&store).await).await;
        }
        drop(stuck);
    }

    #[tokio::test(start_paused = true)]
    async fn copies_of_an_older_snapshot_take_a_reader_with_a_watch_of_its_own_not_back() {
        let store = tapped();
        let mut reader = Watcher::start_beside(store.clone(), keyspace(), false);
        let mut shown = View::empty(keyspace());
        reach(&mut reader, &mut shown, put(&store).await).await;
        let (read, release) = hold(&store);
        let (mut participant, mut seen) = (Watcher::start(store.clone(), keyspace()), View::empty(keyspace()));
        read.await.expect("the participant reads its snapshot");
        for _ in 0..3 {
            reach(&mut reader, &mut shown, put(&store).await).await;
        }
        drop(release);
        for _ in 0..3 {
            let revision = put(&store).await;
            reach(&mut participant, &mut seen, revision).await;
            reach(&mut reader, &mut shown, revision).await;
            assert_eq!(seen, shown);
        }
        assert_eq!(watches(&store), 2, "the copies are used: the participant takes no second snapshot for the reader");
        // Once the copies have reached what the reader has been shown, it needs the participant.
        drop(participant);
        reach(&mut reader, &mut shown, put(&store).await).await;
        assert_eq!(watches(&store), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_has_gone_back_is_followed_by_copies_and_by_a_watch() {
        let store = tapped();
        let mut reader = Watcher::start_beside(store.clone(), keyspace(), false);
        let mut shown = View::empty(keyspace());
        let (mut participant, mut seen) = (None, View::empty(keyspace()));
        for _ in 0..3 {
            let mut revision = Revision::ZERO;
            for _ in 0..5 {
                revision = put(&store).await;
            }
            reach(&mut reader, &mut shown, revision).await;
            // The store goes back to one without revisions.
            store.replace(Arc::new(MemoryStore::new()));
            let gone_back = async {
                loop {
                    match reader.next().await {
                        Update::Snapshot(fresh) if fresh.revision < revision => return *fresh,
                        Update::Snapshot(_) | Update::Batch(_) | Update::Lost(_) => {}
                    }
                }
            };
            // The first time the participant is new, and its copies begin below what the reader has been shown.
            let participant = participant.get_or_insert_with(|| Watcher::start(store.clone(), keyspace()));
            shown = timeout(Duration::from_secs(30), gone_back).await.expect("the store is followed");
            let revision = put(&store).await;
            reach(&mut reader, &mut shown, revision).await;
            while seen.revision != revision {
                match participant.next().await {
                    Update::Snapshot(fresh) => seen = *fresh,
                    Update::Batch(batch) => drop(seen.apply(batch)),
                    Update::Lost(_) => {}
                }
            }
            assert_eq!(seen, shown);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_participant_does_not_wait_for_a_slow_reader() {
        let store = tapped();
        let mut participant = Watcher::start(store.clone(), keyspace());
        let mut reader = Watcher::start_beside(store.clone(), keyspace(), false);
        let (mut seen, mut shown) = (View::empty(keyspace()), View::empty(keyspace()));
        reach(&mut reader, &mut shown, put(&store).await).await;
        let mut revision = Revision::ZERO;
        for _ in 0..3000 {
            revision = put(&store).await;
            reach(&mut participant, &mut seen, revision).await;
        }
        reach(&mut reader, &mut shown, revision).await;
        assert_eq!(seen, shown);
    }
}
