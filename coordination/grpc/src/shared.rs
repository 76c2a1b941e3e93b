//! The state that all calls of an instance share.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::store::{Store, StoreError};
use segue_protocol::keys::Keyspace;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::hub::Hub;
use crate::observer::PodsObserver;
use crate::sessions::Sessions;

/// How long an instance that shuts down still responds.
pub(crate) const GO_AWAY_WITHIN: Duration = Duration::from_secs(2);

/// The settings of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsSettings {
    /// The name of the keyspace.
    pub keyspace: String,
    /// How long a pod may warm before the coordinator cancels. Pods are told.
    pub warm_timeout: Duration,
    /// How long `Ready` and `Syncing` may last together. Pods are told.
    pub phase_timeout: Duration,
}

/// The state that all calls of an instance share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keys: Keyspace,
    pub(crate) keyspace: String,
    pub(crate) settings: PodsSettings,
    pub(crate) hub: Hub,
    pub(crate) observer: Arc<dyn PodsObserver>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) ending: CancellationToken,
    pub(crate) streams: TaskTracker,
}

pub(crate) fn unavailable(error: StoreError) -> Status {
    Status::unavailable(error.to_string())
}
