//! The keyspace as `/status` shows it: followed separately from the roles, so that reading it costs them nothing.

use std::sync::Arc;

use segue_coordination::session::{Watcher, unix_millis};
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::admin::StatusSource;
use crate::page::board::Board;

/// A followed keyspace.
#[derive(Debug)]
pub struct KeyspaceStatusSource {
    board: Arc<Board>,
    _task: AbortOnDropHandle<()>,
}

impl KeyspaceStatusSource {
    /// Starts to follow a keyspace.
    pub fn start(store: Arc<dyn Store>, keys: Keyspace) -> Self {
        let board = Arc::new(Board::new(keys.clone()));
        let shared = board.clone();
        let task = tokio::spawn(async move {
            let mut watcher = Watcher::start(store, keys);
            loop {
                shared.update(watcher.next().await, unix_millis());
            }
        });
        KeyspaceStatusSource { board, _task: AbortOnDropHandle::new(task) }
    }

    /// Returns the board that the live page reads.
    pub fn board(&self) -> Arc<Board> {
        self.board.clone()
    }
}

impl StatusSource for KeyspaceStatusSource {
    fn name(&self) -> &'static str {
        "keyspace"
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn status(&self) -> Value {
        json!(self.board.status(unix_millis()))
    }
}
