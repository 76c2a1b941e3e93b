//! The keyspace as `/status` shows it: a view of its own, so that reading it costs the roles nothing.

use std::sync::Arc;

use segue_coordination::session::{Watcher, unix_millis};
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::StatusSource;
use super::on_demand::OnDemandReader;
use super::page::board::Board;
use crate::telemetry::metrics::StoreHealth;

/// A followed keyspace.
#[derive(Debug)]
pub(crate) struct KeyspaceStatusSource {
    board: Arc<Board>,
    on_demand: Arc<OnDemandReader>,
    health: Arc<StoreHealth>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl KeyspaceStatusSource {
    /// Follows a keyspace by its watcher, which is one that `plans` or not. If not, the load of pods is unknown.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        keys: Keyspace,
        (mut watcher, plans): (Watcher, bool),
        health: Arc<StoreHealth>,
    ) -> Self {
        let board = Arc::new(Board::new(keys.clone(), unix_millis()));
        let on_demand = Arc::new(OnDemandReader::new());
        let (reader, shown) = (on_demand.clone(), board.clone());
        let read = tokio::spawn(async move { reader.run(store, keys, shown, plans).await });
        let shared = board.clone();
        let task = tokio::spawn(async move {
            loop {
                shared.update(watcher.next().await, unix_millis());
            }
        });
        KeyspaceStatusSource { board, on_demand, health, _tasks: [task, read].map(AbortOnDropHandle::new) }
    }

    /// Returns the board that the live page reads.
    pub(crate) fn board(&self) -> Arc<Board> {
        self.board.clone()
    }

    /// Returns what puts the routers' reports on that board.
    pub(crate) fn on_demand(&self) -> Arc<OnDemandReader> {
        self.on_demand.clone()
    }
}

impl StatusSource for KeyspaceStatusSource {
    fn name(&self) -> &'static str {
        "keyspace"
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn note(&self) -> Option<String> {
        self.health.trouble()
    }

    fn status(&self) -> Value {
        json!(self.board.status(unix_millis()).store_refuses(self.health.write_refusal()))
    }

    fn summary(&self) -> Option<Value> {
        Some(json!({ "store_refuses_writes": self.health.write_refusal() }))
    }

    fn refresh(&self) {
        self.health.refresh();
    }
}
