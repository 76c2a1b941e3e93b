//! The keyspaces that a server serves, each with its settings, its table and its counters, and how a running server is told
//! that they change.
//!
//! # Invariants
//!
//! * All workers are told of the same changes in the same order.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::forward::{Forward, InvalidName, KeyspaceLife, WorkerKeyspace, check};
use crate::metrics::Metrics;
use crate::routing::keyspace_choice::KeyspaceMatch;
use crate::routing::partition_key::PartitionSource;
use crate::routing::table::{StashLimits, Table};
use crate::settings::{CommonSettings, ForwardSettings, OwnerExceptions, UPLOAD_GRACE, UpstreamSettings};

/// One keyspace. The table and the counters have been made for as many workers as the server has.
#[derive(Debug, Clone)]
pub struct ServedKeyspace {
    /// The settings of its requests' path.
    pub forward: ForwardSettings,
    /// The table that the workers share.
    pub table: Arc<Table>,
    /// The counters.
    pub metrics: Metrics,
}

/// One keyspace among several.
#[derive(Debug, Clone)]
pub(crate) struct ListedKeyspace {
    pub(crate) served: ServedKeyspace,
    /// The requests that are for it.
    pub(crate) matching: Option<KeyspaceMatch>,
    pub(crate) life: KeyspaceLife,
}

/// The keyspaces that a server starts with.
#[derive(Debug, Clone)]
pub struct ServedKeyspaces {
    pub(super) common: CommonSettings,
    /// The counters of connections and of requests for no keyspace.
    pub(super) listener: Metrics,
    each: KeyspaceSet,
}

#[derive(Debug, Clone)]
enum KeyspaceSet {
    Only(Box<ServedKeyspace>),
    Among {
        each: Vec<ListedKeyspace>,
        /// Has no partitions, for requests that are for no keyspace.
        empty: Arc<Table>,
    },
}

impl ServedKeyspace {
    /// Returns the keyspace as a worker serves it. To be called on that worker's thread.
    fn of_worker(&self, worker: usize) -> WorkerKeyspace {
        (self.forward.clone(), self.table.worker(worker), self.metrics.worker(worker))
    }
}

impl ListedKeyspace {
    fn add_to(&self, forward: &Forward, worker: usize) -> Result<(), InvalidName> {
        forward.add(self.served.of_worker(worker), self.matching.clone(), &self.life)
    }
}

impl ServedKeyspaces {
    /// Returns one keyspace, which gets every request.
    pub fn only(keyspace: ServedKeyspace) -> Self {
        Self::only_with(CommonSettings::from(&keyspace.forward), keyspace)
    }

    /// Does the same with these settings for the whole server.
    pub(crate) fn only_with(common: CommonSettings, keyspace: ServedKeyspace) -> Self {
        let listener = keyspace.metrics.clone();
        ServedKeyspaces { common, listener, each: KeyspaceSet::Only(Box::new(keyspace)) }
    }

    /// Returns any number of keyspaces, for a server of so many workers.
    pub(crate) fn among(common: CommonSettings, each: Vec<ListedKeyspace>, listener: Metrics, workers: usize) -> Self {
        let (empty, _) = Table::new(workers, StashLimits::default());
        ServedKeyspaces { common, listener, each: KeyspaceSet::Among { each, empty } }
    }

    /// Returns an error for settings that [`data_path`](Self::data_path) would reject.
    pub(super) fn check(&self) -> Result<(), InvalidName> {
        match &self.each {
            KeyspaceSet::Only(only) => check(&only.forward),
            KeyspaceSet::Among { each, .. } => {
                check(&for_no_keyspace(&self.common))?;
                each.iter().try_for_each(|keyspace| check(&keyspace.served.forward))
            }
        }
    }

    /// Returns the data path of a worker. To be called on that worker's thread, inside its set of local tasks.
    pub(super) fn data_path(&self, worker: usize) -> Result<Forward, InvalidName> {
        match &self.each {
            KeyspaceSet::Only(only) => Forward::only(only.of_worker(worker)),
            KeyspaceSet::Among { each, empty } => {
                let none = (for_no_keyspace(&self.common), empty.worker(worker), self.listener.worker(worker));
                let forward = Forward::among(none)?;
                each.iter().try_for_each(|keyspace| keyspace.add_to(&forward, worker))?;
                Ok(forward)
            }
        }
    }
}

/// Returns the settings for requests that are for no keyspace. They reach no pod.
fn for_no_keyspace(common: &CommonSettings) -> ForwardSettings {
    ForwardSettings {
        router: common.router.clone(),
        keyspace: "none".to_owned(),
        partition: PartitionSource::Number { header: PartitionSource::DEFAULT_HEADER, order_by: None },
        exceptions: OwnerExceptions::default(),
        trust_forwarded: common.trust_forwarded,
        limits: common.limits.clone(),
        key_limit: None,
        upload_grace: UPLOAD_GRACE,
        upstream: UpstreamSettings::default(),
        tracer: common.tracer.clone(),
        requests: common.requests,
    }
}

/// A change to the keyspaces of a running server that has several.
#[derive(Debug, Clone)]
pub(crate) enum KeyspaceChange {
    /// One more, whose settings have been checked.
    Add(Box<ListedKeyspace>),
    /// The one of this name gets no further requests.
    Remove(String),
}

/// A change for one worker, and where the worker confirms it.
type WorkerChange = (KeyspaceChange, oneshot::Sender<()>);

/// The channels by which the workers of a server are told of changes.
#[derive(Debug, Default)]
pub(super) struct KeyspaceChanges(Vec<mpsc::UnboundedSender<WorkerChange>>);

/// The end of a worker's channel.
pub(super) struct WorkerChanges(mpsc::UnboundedReceiver<WorkerChange>);

impl KeyspaceChanges {
    /// Returns the end for one more worker.
    pub(super) fn next_worker(&mut self) -> WorkerChanges {
        let (changes, changed) = mpsc::unbounded_channel();
        self.0.push(changes);
        WorkerChanges(changed)
    }

    /// Returns the number of workers.
    pub(super) fn workers(&self) -> usize {
        self.0.len()
    }

    /// Tells all workers at once. The future completes when each of them has made the change or has ended.
    pub(super) fn tell(&self, change: &KeyspaceChange) -> impl Future<Output = ()> + use<> {
        let told = self.0.iter().filter_map(|worker| {
            let (confirm, confirmed) = oneshot::channel();
            worker.send((change.clone(), confirm)).is_ok().then_some(confirmed)
        });
        let told: Vec<_> = told.collect();
        async move {
            for confirmed in told {
                let _ = confirmed.await;
            }
        }
    }
}

impl WorkerChanges {
    /// Makes each change as it comes, as long as the server runs.
    pub(super) async fn follow(mut self, forward: Forward, worker: usize) {
        while let Some((change, confirm)) = self.0.recv().await {
            match change {
                KeyspaceChange::Add(keyspace) => {
                    keyspace.add_to(&forward, worker).expect("names that were checked");
                }
                KeyspaceChange::Remove(name) => forward.remove(&name),
            }
            let _ = confirm.send(());
        }
    }
}
