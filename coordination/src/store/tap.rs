//! Copies of what the participants of a process follow, for a reader of the same process.
//!
//! A store sends every change to every watch. A process that shows the keyspace in which it takes part would get everything
//! twice.
//!
//! # Invariants
//!
//! * Copies begin with a snapshot, and none is missing after it.
//! * A participant never waits for a reader. A reader that falls behind gets no more of these copies.
//! * The copies that wait for a reader are bounded in number and in bytes.

use std::collections::HashMap;
use std::sync::Arc;

use segue_protocol::txn::{Batch, Event, KeyValue, Keys, Snapshot};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::StoreError;

/// Most copies that wait for a reader.
const QUEUE: usize = 1024;
/// Most bytes of copies that wait for a reader. One copy may be larger if no other waits: a keyspace is read in one snapshot,
/// whatever its size.
const QUEUE_BYTES: u32 = 64 << 20;

/// A copy of what a participant has got from the store.
#[derive(Debug)]
pub(crate) enum CopiedUpdate {
    Snapshot(Snapshot),
    Batch(Batch),
    Lost(StoreError),
}

impl CopiedUpdate {
    /// Returns about how many bytes of memory the copy takes.
    fn bytes(&self) -> usize {
        let entry = |entry: &KeyValue| size_of::<KeyValue>() + entry.key.len() + entry.value.len();
        match self {
            CopiedUpdate::Snapshot(snapshot) => snapshot.entries.iter().map(entry).sum(),
            CopiedUpdate::Batch(batch) => batch
                .events
                .iter()
                .map(|event| match event {
                    Event::Put(put) => entry(put),
                    Event::Delete { key, .. } => size_of::<Event>() + key.len(),
                })
                .sum(),
            CopiedUpdate::Lost(_) => 0,
        }
    }
}

/// A copy that waits, and its part of the bytes that may.
type WaitingCopy = (CopiedUpdate, OwnedSemaphorePermit);

/// Where a reader asks for copies, one for each range of keys. The process shares it.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    asked: watch::Sender<HashMap<Keys, Copies>>,
}

impl Tap {
    /// Asks for copies of these keys. They begin once a participant follows the same ones, and end with its watch or when
    /// this reader falls behind.
    pub(crate) fn ask(&self, keys: &Keys) -> CopyReader {
        let (sender, copies) = mpsc::channel(QUEUE);
        let copies_to = Copies { reader: Some((sender, Arc::new(Semaphore::new(QUEUE_BYTES as usize)))) };
        self.asked.send_modify(|asked| drop(asked.insert(keys.clone(), copies_to)));
        CopyReader { copies }
    }

    /// Completes when a reader has asked for copies of these keys.
    pub(crate) async fn asked(&self, keys: &Keys) {
        let mut asked = self.asked.subscribe();
        let is_asked = |asked: &HashMap<Keys, Copies>| asked.contains_key(keys);
        // The sender is this very tap.
        let _ = asked.wait_for(is_asked).await;
    }

    /// Accepts the request for copies of these keys, if there is one.
    pub(crate) fn accept(&self, keys: &Keys) -> Copies {
        let mut copies = None;
        self.asked.send_if_modified(|asked| {
            copies = asked.remove(keys);
            copies.is_some()
        });
        copies.unwrap_or_default()
    }
}

/// A reader's side of the copies.
#[derive(Debug)]
pub(crate) struct CopyReader {
    copies: mpsc::Receiver<WaitingCopy>,
}

impl CopyReader {
    /// Returns the next copy, or nothing once they have ended. Cancel-safe.
    pub(crate) async fn recv(&mut self) -> Option<CopiedUpdate> {
        self.copies.recv().await.map(|(copied, _)| copied)
    }
}

/// A participant's side of the copies. Dropping it ends them.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Where the copies go, and the bytes that may still wait there.
    reader: Option<(mpsc::Sender<WaitingCopy>, Arc<Semaphore>)>,
}

impl Copies {
    /// Returns whether a reader gets copies.
    pub(crate) fn are_read(&self) -> bool {
        self.reader.is_some()
    }

    /// Gives the reader a copy. Without a reader none is made.
    pub(crate) fn give(&mut self, copy: impl FnOnce() -> CopiedUpdate) {
        self.reader.take_if(|(reader, room)| {
            let copied = copy();
            let bytes = u32::try_from(copied.bytes()).unwrap_or(u32::MAX).min(QUEUE_BYTES);
            let Ok(permit) = room.clone().try_acquire_many_owned(bytes) else { return true };
            reader.try_send((copied, permit)).is_err()
        });
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::Revision;

    use super::*;

    fn snapshot(bytes: usize) -> CopiedUpdate {
        let revision = Revision::new(1);
        let entry = KeyValue {
            key: String::new(),
            value: vec![0; bytes],
            create_revision: revision,
            mod_revision: revision,
            lease: None,
        };
        CopiedUpdate::Snapshot(Snapshot { revision, entries: vec![entry] })
    }

    #[tokio::test]
    async fn copies_end_for_a_reader_that_leaves_too_many_bytes_unread() {
        let (tap, keys) = (Tap::default(), Keys::One("a".to_owned()));
        let mut reader = tap.ask(&keys);
        let mut copies = tap.accept(&keys);
        let half = QUEUE_BYTES as usize / 2;
        for _ in 0..3 {
            copies.give(|| snapshot(half));
            reader.recv().await.expect("what has been read no longer counts");
        }
        copies.give(|| snapshot(2 * QUEUE_BYTES as usize));
        reader.recv().await.expect("a copy of any size waits alone");
        copies.give(|| snapshot(half));
        copies.give(|| snapshot(half));
        assert!(!copies.are_read(), "with the entries' own size these are too many");
        reader.recv().await.expect("what waits is still read");
        assert!(reader.recv().await.is_none());
    }
}
