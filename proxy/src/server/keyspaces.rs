//! The keyspaces that a server serves, each with its settings, its table and its counters.

use std::sync::Arc;

use crate::forward::{Forward, InvalidName, WorkerKeyspace, check};
use crate::metrics::Metrics;
use crate::routing::keyspace_choice::KeyspaceChoice;
use crate::routing::table::Table;
use crate::settings::ForwardSettings;

/// One keyspace. The table and the counters have been made for as many workers as the server has.
#[derive(Debug, Clone)]
pub struct ServedKeyspace {
    /// The settings of its requests' path. The limits of clients are the same in all keyspaces of a server.
    pub forward: ForwardSettings,
    /// The table that the workers share.
    pub table: Arc<Table>,
    /// The counters.
    pub metrics: Metrics,
}

/// All keyspaces of a server.
#[derive(Debug, Clone)]
pub struct ServedKeyspaces {
    pub(crate) choice: KeyspaceChoice,
    /// At least one.
    pub(crate) each: Vec<ServedKeyspace>,
    /// The counters of connections and of requests for no keyspace.
    pub(crate) listener: Metrics,
}

impl ServedKeyspaces {
    /// Returns one keyspace, which gets every request.
    pub fn only(keyspace: ServedKeyspace) -> Self {
        let listener = keyspace.metrics.clone();
        ServedKeyspaces { choice: KeyspaceChoice::Only, each: vec![keyspace], listener }
    }

    /// Returns the settings that hold for the whole server.
    pub(super) fn common(&self) -> &ForwardSettings {
        &self.each[0].forward
    }

    /// Returns an error for settings that [`data_path`](Self::data_path) would reject.
    pub(super) fn check(&self) -> Result<(), InvalidName> {
        self.each.iter().try_for_each(|keyspace| check(&keyspace.forward))
    }

    /// Returns the data path of a worker. To be called on that worker's thread, inside its set of local tasks.
    pub(super) fn data_path(&self, worker: usize) -> Result<Forward, InvalidName> {
        let of_worker = |keyspace: &ServedKeyspace, metrics: &Metrics| -> WorkerKeyspace {
            (keyspace.forward.clone(), keyspace.table.worker(worker), metrics.worker(worker))
        };
        let first = &self.each[0];
        match &self.choice {
            KeyspaceChoice::Only => Forward::only(of_worker(first, &first.metrics)),
            KeyspaceChoice::Among(matches) => {
                let each = self.each.iter().map(|keyspace| of_worker(keyspace, &keyspace.metrics));
                Forward::among(matches.clone(), each, of_worker(first, &self.listener))
            }
        }
    }
}
