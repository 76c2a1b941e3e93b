//! The state that all calls of an instance about one keyspace share.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::store::{SharedHorizon, Store, StoreError};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::Policy;
use tonic::Status;
use tracing::Span;

use crate::hub::Hub;
use crate::keyspaces::NamedKeyspace;
use crate::load_reports::LoadReports;
use crate::observer::PodsObserver;
use crate::open_streams::OpenStreams;
use crate::proto::Ack;
use crate::sessions::PodSessions;

/// How long acknowledgements wait for this instance's view, and one for the store.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How many acknowledgements one request may carry.
const MAX_ACKS: usize = 4096;

/// Refuses a request that carries too many acknowledgements.
pub(crate) fn check_count(acks: &[Ack]) -> Result<(), Status> {
    if acks.len() > MAX_ACKS {
        let text = format!("`acks`: {}; expected {MAX_ACKS} at most, so send the others in another call", acks.len());
        return Err(Status::invalid_argument(text));
    }
    Ok(())
}

/// The settings of a keyspace's service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsSettings {
    /// The name of the keyspace.
    pub keyspace: String,
    /// The policy of this process's configuration. Pods are told the timeouts of the policy that is in force in the
    /// keyspace.
    pub policy: Policy,
    /// The address of this process's admin endpoint, if others can reach it: `host:port`. Operators' commands ask it about
    /// the pods that this service serves.
    pub admin: Option<String>,
}

/// The state that all calls of an instance about one keyspace share.
#[derive(Debug)]
pub(crate) struct KeyspaceService {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) horizon: SharedHorizon,
    pub(crate) keys: Keyspace,
    pub(crate) keyspace: String,
    /// Tells this instance from all others, also from one that it replaces.
    pub(crate) instance: u64,
    pub(crate) settings: PodsSettings,
    pub(crate) hub: Hub,
    pub(crate) observer: Arc<dyn PodsObserver>,
    pub(crate) sessions: Arc<PodSessions>,
    pub(crate) loads: LoadReports,
    pub(crate) streams: OpenStreams,
    /// The span of the log lines about the keyspace.
    pub(crate) span: Span,
}

impl NamedKeyspace for Arc<KeyspaceService> {
    fn name(&self) -> &str {
        &self.keyspace
    }
}

pub(crate) fn unavailable(error: StoreError) -> Status {
    Status::unavailable(error.to_string())
}
