//! The keyspace as `/status` shows it: followed separately from the roles, so that reading it costs them nothing.

use std::sync::Arc;

use segue_coordination::session::{Update, Watcher, unix_millis};
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use segue_protocol::view::View;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::PoisonError;
use tokio_util::task::AbortOnDropHandle;

use crate::admin::StatusSource;
use crate::status::KeyspaceStatus;

/// A followed keyspace.
#[derive(Debug)]
pub struct KeyspaceStatusSource {
    view: Arc<Mutex<View>>,
    _task: AbortOnDropHandle<()>,
}

impl KeyspaceStatusSource {
    /// Starts to follow a keyspace.
    pub fn start(store: Arc<dyn Store>, keys: Keyspace) -> Self {
        let view = Arc::new(Mutex::new(View::empty(keys.clone())));
        let shared = view.clone();
        let task = tokio::spawn(async move {
            let mut watcher = Watcher::start(store, keys);
            loop {
                let update = watcher.next().await;
                let mut view = shared.lock().unwrap_or_else(PoisonError::into_inner);
                match update {
                    Update::Snapshot(snapshot) => *view = *snapshot,
                    Update::Batch(batch) => drop(view.apply(batch)),
                    Update::Lost(_) => {}
                }
            }
        });
        KeyspaceStatusSource { view, _task: AbortOnDropHandle::new(task) }
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
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        json!(KeyspaceStatus::of(&view, unix_millis()))
    }
}
