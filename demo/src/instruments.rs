//! The interface of what counts and shows a demo while it runs.
//!
//! The demo reports events and knows no metrics. A program with metrics implements [`Instruments`] and passes it in
//! [`Options::instruments`](super::Options::instruments). Without it nothing is counted.

use std::fmt::Debug;
use std::sync::Arc;

use segue_coordination::coordinator::CoordinatorObserver;
use segue_coordination::router::RouterObserver;
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use segue_proxy::metrics::Metrics;
use segue_proxy::routing::table::Table;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

/// Counts the events of a demo and shows them. Each observer counts for all routers or all coordinators together.
pub trait Instruments: Debug + Send + Sync {
    /// Adds the metrics of a router's requests, and its partitions.
    fn add_router(&self, name: &str, metrics: &Metrics, table: &Arc<Table>);
    /// Returns the observer that counts the cutovers of routers.
    fn router(&self) -> Arc<dyn RouterObserver>;
    /// Returns the observer that counts the work of coordinators. Only the coordinator that leads, or has just led,
    /// calls `leads`.
    fn coordinator(&self) -> Arc<dyn CoordinatorObserver>;
    /// Shows the counts, the keyspace and the demo's own `status` until the handle is dropped. Called once, after all
    /// routers have been added.
    ///
    /// # Errors
    ///
    /// Fails if the address that they are shown at cannot be bound.
    fn serve(&self, store: Arc<dyn Store>, keys: Keyspace, status: Status) -> anyhow::Result<AbortOnDropHandle<()>>;
}

/// A function that returns the current state of a demo.
pub type Status = Arc<dyn Fn() -> Value + Send + Sync>;
