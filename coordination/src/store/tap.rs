//! Copies of what the participants of a process follow, for a reader of the same process.
//!
//! A store sends every change to every watch. A process that shows the keyspace in which it takes part would get everything
//! twice.
//!
//! # Invariants
//!
//! * Copies begin with a snapshot, and none is missing after it.
//! * A participant never waits for a reader. A reader that falls behind gets no more of these copies.

use std::collections::HashMap;

use segue_protocol::txn::{Batch, Keys, Snapshot};
use tokio::sync::{mpsc, watch};

use super::StoreError;

/// Most copies that wait for a reader. Their number is bounded and their bytes are not: a copy is a whole batch, or a
/// snapshot of the keyspace.
const QUEUE: usize = 1024;

/// A copy of what a participant has got from the store.
#[derive(Debug)]
pub(crate) enum Copied {
    Snapshot(Snapshot),
    Batch(Batch),
    Lost(StoreError),
}

/// Where a reader asks for copies, one for each range of keys. It belongs to a store that the process shares.
#[derive(Debug, Default)]
pub struct Tap {
    asked: watch::Sender<HashMap<Keys, mpsc::Sender<Copied>>>,
}

impl Tap {
    /// Asks for copies of these keys. They begin once a participant follows the same ones, and end with its watch or when
    /// this reader falls behind.
    pub(crate) fn ask(&self, keys: &Keys) -> mpsc::Receiver<Copied> {
        let (sender, copies) = mpsc::channel(QUEUE);
        self.asked.send_modify(|asked| drop(asked.insert(keys.clone(), sender)));
        copies
    }

    /// Completes when a reader has asked for copies of these keys.
    pub(crate) async fn asked(&self, keys: &Keys) {
        let mut asked = self.asked.subscribe();
        let is_asked = |asked: &HashMap<Keys, mpsc::Sender<Copied>>| asked.contains_key(keys);
        // The sender is this very tap.
        let _ = asked.wait_for(is_asked).await;
    }

    /// Accepts the request for copies of these keys, if there is one.
    pub(crate) fn accept(&self, keys: &Keys) -> Copies {
        let mut reader = None;
        self.asked.send_if_modified(|asked| {
            reader = asked.remove(keys);
            reader.is_some()
        });
        Copies { reader }
    }
}

/// A participant's side of the copies. Dropping it ends them.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    reader: Option<mpsc::Sender<Copied>>,
}

impl Copies {
    /// Returns whether a reader gets copies.
    pub(crate) fn are_read(&self) -> bool {
        self.reader.is_some()
    }

    /// Gives the reader a copy. Without a reader none is made.
    pub(crate) fn give(&mut self, copy: impl FnOnce() -> Copied) {
        self.reader.take_if(|reader| reader.try_send(copy()).is_err());
    }
}
