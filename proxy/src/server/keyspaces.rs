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

/// All keyspaces of a server: one that gets every request, or several.
#[derive(Debug, Clone)]
pub(crate) struct ServedKeyspaces {
    pub(crate) first: ServedKeyspace,
    pub(crate) several: Option<Several>,
}

/// What a server with several keyspaces has in addition.
#[derive(Debug, Clone)]
pub(crate) struct Several {
    pub(crate) others: Vec<ServedKeyspace>,
    pub(crate) choice: KeyspaceChoice,
    /// The counters of connections and of requests for no keyspace.
    pub(crate) listener: Metrics,
}

impl ServedKeyspaces {
    /// Returns one keyspace that gets every request.
    pub(super) fn one(forward: &ForwardSettings, table: &Arc<Table>, metrics: &Metrics) -> Self {
        let first = ServedKeyspace { forward: forward.clone(), table: table.clone(), metrics: metrics.clone() };
        ServedKeyspaces { first, several: None }
    }

    /// Returns the counters of the listener.
    pub(super) fn listener(&self) -> &Metrics {
        self.several.as_ref().map_or(&self.first.metrics, |several| &several.listener)
    }

    /// Returns an error for settings that [`data_path`](Self::data_path) would reject.
    pub(super) fn check(&self) -> Result<(), InvalidName> {
        let others = self.several.iter().flat_map(|several| &several.others);
        others.chain([&self.first]).try_for_each(|keyspace| check(&keyspace.forward))
    }

    /// Returns the data path of a worker. To be called on that worker's thread, inside its set of local tasks.
    pub(super) fn data_path(&self, worker: usize) -> Result<Forward, InvalidName> {
        let of_worker = |keyspace: &ServedKeyspace| -> WorkerKeyspace {
            let ServedKeyspace { forward, table, metrics } = keyspace;
            (forward.clone(), table.worker(worker), metrics.worker(worker))
        };
        let first = of_worker(&self.first);
        match &self.several {
            None => Forward::new(&first.0, first.1, first.2),
            Some(several) => Forward::of_keyspaces(
                first,
                several.others.iter().map(of_worker).collect(),
                several.choice.clone(),
                (self.first.forward.clone(), self.first.table.worker(worker), several.listener.worker(worker)),
            ),
        }
    }
}
