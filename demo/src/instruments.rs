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
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

/// Counts what happens in a demo and shows it. The observers count all routers and all coordinators together.
pub trait Instruments: Debug + Send + Sync {
    /// Adds the counts of a router's requests.
    fn add_router(&self, name: &str, metrics: &Metrics);
    /// Returns what counts the cutovers of routers.
    fn router(&self) -> Arc<dyn RouterObserver>;
    /// Returns what counts the work of coordinators. Only the one that leads, or has just led, calls `leads`.
    fn coordinator(&self) -> Arc<dyn CoordinatorObserver>;
    /// Shows what was counted, the keyspace and the demo's own `status` until the handle is dropped. Called once, when all
    /// routers have been added.
    fn serve(&self, store: Arc<dyn Store>, keys: Keyspace, status: Status) -> anyhow::Result<AbortOnDropHandle<()>>;
}

/// Returns what a demo does just now.
pub type Status = Arc<dyn Fn() -> Value + Send + Sync>;
