//! The pod's side of the protocol: what a writer service needs to take part, in two pieces.
//!
//! [`PodHandle`] registers the pod, follows the store and calls the service's [`HandoffHandler`] when a partition comes
//! or goes. [`OwnershipLayer`] stands in front of the service and admits requests whose partition the pod owns at their
//! epoch. [`Hooks`] is the handler of the sidecar, which does the same for a service that knows nothing of Segue.
//!
//! Decisions are elsewhere: [`handoff::pod`](segue_protocol::handoff::pod) decides what a pod must do,
//! [`handoff::pod_reconcile`](segue_protocol::handoff::pod_reconcile) in which order this process does it.
//!
//! # Invariants
//!
//! * A pod registers, then takes its snapshot, then accepts requests.
//! * It fences before it gives its registration up.
//! * Every acknowledgement is true of the handoff that it names.

mod body;
mod by_keyspace;
mod checkpoints;
mod context;
mod driver;
mod handle;
mod heartbeat;
mod http_hooks;
mod layer;
mod lease_window;
mod lent_lease;
mod membership;
mod ownership;
mod partition_work;
mod rejection;
mod service;
mod service_watch;
mod sync;
mod tracked_call;
mod work;

pub use body::{LeaseLost, OwnedBody};
pub use by_keyspace::ByKeyspace;
pub use handle::PodHandle;
pub use http_hooks::{
    Hook, HookError, HookReport, HookReports, HookSettings, HookUrl, HookUrlError, Hooks, MAX_SOCKET_PATH,
    SECRET_HEADER,
};
pub use layer::{OwnershipFuture, OwnershipLayer, OwnershipService, refuse_unstamped};
pub use lent_lease::{LentLease, boottime_millis};
pub use ownership::{InFlight, KeylessRequest, Owned, Ownership, Rejection};
pub use service::Service;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, PartitionId};
use segue_protocol::records::Capabilities;
use tokio::time::Instant;

use crate::session::lease_now;

/// The subject of a callback of a [`HandoffHandler`]. `epoch` and `handoff` identify warmed state: its `sync` and
/// `release` carry the same two.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HandoffContext {
    /// The keyspace.
    pub keyspace: String,
    /// The partition.
    pub partition: PartitionId,
    /// The epoch that begins (`warm`, `sync`), ends (`leaving`, `drain`, `release`) or lasts (`checkpoint`).
    pub epoch: Epoch,
    /// The handoff: in `leaving` and `drain` the one that takes the partition away, otherwise the one that brought it. 0 if an
    /// operator assigned the partition by hand. In `checkpoint` the one before which the checkpoint is wanted, or 0.
    pub handoff: HandoffId,
    /// In `warm` the newest checkpoint of the partition, if there is one: any state from there on will do.
    pub checkpoint: Option<String>,
    /// The number of partitions of the keyspace.
    pub partitions: u32,
    /// The pod that the partition moves away from, while it lives and the handoff is not over.
    pub from: Option<PodAddress>,
    /// The pod that the partition moves to, while it lives and the handoff is not over.
    pub to: Option<PodAddress>,
}

/// One side of a handoff.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodAddress {
    /// The pod's name.
    pub pod: String,
    /// The address at which routers reach it: `host:port`.
    pub address: String,
}

/// The reason for which a callback failed. The callback is retried with a growing back-off while it is due, unless the
/// error is a [`PermanentFailure`].
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// The error of a `warm` or `sync` that this pod can never complete. The handoff is cancelled, and the partition goes
/// to another pod. After the point of no return, where there is no other pod, it is an error like any other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct PermanentFailure {
    reason: String,
}

impl PermanentFailure {
    /// Creates a failure. `reason` is a short text for operators.
    pub fn new(reason: impl Into<String>) -> Self {
        PermanentFailure { reason: reason.into() }
    }

    /// Returns the reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// The callbacks of a service when a partition comes or goes. Each is run until it succeeds, and then not again for the
/// same handoff. At most one runs per partition. A callback that is no longer due is dropped at its next await.
#[async_trait]
pub trait HandoffHandler: Send + Sync + 'static {
    /// Returns whether `warm` has anything to do. Partitions of a new keyspace are assigned at once to pods that have nothing to
    /// warm, all together and without handoffs; `warm` is still called.
    fn warms(&self) -> bool {
        true
    }

    /// Copy the partition's state while its old owner still serves. May take long; nothing is paused.
    async fn warm(&self, _context: &HandoffContext) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Read what was written since `warm`: the log is at rest. Requests are held meanwhile. Called only with the
    /// capability `sync`.
    async fn sync(&self, _context: &HandoffContext) -> Result<(), HandlerError> {
        Ok(())
    }

    /// End the partition's streams: routers have stopped sending its requests here, and wait for those in flight. Clients
    /// that connect again come to the new owner. Requests that the pod has are finished, and may still arrive from a router
    /// that stops a moment later. Nobody waits for the result: the call is dropped once the routers have drained or the
    /// handoff is cancelled, in which case requests simply come again. A failure is retried until then.
    async fn leaving(&self, _context: &HandoffContext) -> Result<(), HandlerError> {
        Ok(())
    }

    /// End what outlives requests (batches, background writes). No request of the partition is in flight any more, and
    /// none is admitted. Afterwards the log is at rest. The handoff may still be cancelled, and requests may return.
    async fn drain(&self, _context: &HandoffContext) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Release the state, which may be partly copied: the partition belongs to another pod, or its handoff was
    /// cancelled.
    async fn release(&self, _context: &HandoffContext) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Make a checkpoint of a partition that this pod serves, and return its name or position: a text on one line of at
    /// most 1,024 bytes, from which the next owner's `warm` can start. Requests go on meanwhile. `None` if there is
    /// nothing newer than what was returned before. Called only with the capability `checkpoint`, at the interval of the
    /// keyspace and when the partition is about to move. Any other callback of the partition ends it.
    async fn checkpoint(&self, _context: &HandoffContext) -> Result<Option<String>, HandlerError> {
        Ok(None)
    }

    /// Returns the load of a partition that the pod owns, for its next heartbeat. Called in the pod's loop for each
    /// partition, so it must not block.
    fn load(&self, _partition: PartitionId) -> LoadReport {
        LoadReport::default()
    }
}

/// A pod without state.
impl HandoffHandler for () {
    fn warms(&self) -> bool {
        false
    }
}

/// A [`HandoffHandler`] that does the same with each of its callbacks, such as passing it on to another process.
#[async_trait]
pub trait CallbackHandler: Send + Sync + 'static {
    /// Returns whether this callback has anything to do.
    fn has(&self, _callback: Callback) -> bool {
        true
    }

    /// Runs a callback. Returns the checkpoint that was made, if it is for one.
    async fn call(&self, callback: Callback, context: &HandoffContext) -> Result<Option<String>, HandlerError>;

    /// Returns what [`HandoffHandler::load`] does.
    fn load_of(&self, _partition: PartitionId) -> LoadReport {
        LoadReport::default()
    }
}

#[async_trait]
impl<H: CallbackHandler> HandoffHandler for H {
    fn warms(&self) -> bool {
        self.has(Callback::Warm)
    }

    async fn warm(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        self.call(Callback::Warm, context).await.map(drop)
    }

    async fn sync(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        self.call(Callback::Sync, context).await.map(drop)
    }

    async fn leaving(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        self.call(Callback::Leaving, context).await.map(drop)
    }

    async fn drain(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        self.call(Callback::Drain, context).await.map(drop)
    }

    async fn release(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        self.call(Callback::Release, context).await.map(drop)
    }

    async fn checkpoint(&self, context: &HandoffContext) -> Result<Option<String>, HandlerError> {
        self.call(Callback::Checkpoint, context).await
    }

    fn load(&self, partition: PartitionId) -> LoadReport {
        self.load_of(partition)
    }
}

/// A service's report on one of its partitions.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LoadReport {
    /// The load, in a unit of the service's own that is the same in all pods. `None` if the pod measures it: requests per
    /// second.
    pub load: Option<f64>,
    /// Number of keys, if it is known.
    pub keys: Option<u64>,
}

/// The settings of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSettings {
    /// The pod's name, unique in the keyspace.
    pub name: String,
    /// The address that routers connect to: `host:port`.
    pub address: String,
    /// How long the registration outlives the pod.
    pub lease_ttl: Duration,
    /// The pod's share of the partitions relative to the others'.
    pub weight: f64,
    /// The zone that the pod runs in.
    pub zone: Option<String>,
    /// The pod's capabilities in a handoff. Without `sync` a pause is one step shorter.
    pub capabilities: Capabilities,
    /// The address of the admin endpoint: `host:port`.
    pub admin: Option<String>,
    /// The version of its rollout.
    pub version: Option<String>,
    /// The bound on the work of a request, counted from the request's last byte. When the pod dies, its partitions wait
    /// that long for their next owner.
    pub work_ends_within: Option<Duration>,
    /// Time between two heartbeats with the pod's load; zero for none. `None`: heartbeats only while planning has a use
    /// for them.
    pub load_interval: Option<Duration>,
}

impl PodSettings {
    /// Returns settings with the usual weight, a TTL of 15 s and all capabilities.
    pub fn new(name: impl Into<String>, address: impl Into<String>) -> Self {
        PodSettings {
            name: name.into(),
            address: address.into(),
            lease_ttl: Duration::from_secs(15),
            weight: 1.0,
            zone: None,
            capabilities: Capabilities::ALL,
            admin: None,
            version: None,
            work_ends_within: None,
            load_interval: None,
        }
    }
}

/// The public state of a running pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodState {
    /// Why the pod accepts nothing. `None` if it is registered, has seen the store and may trust its lease.
    pub not_ready: Option<String>,
    /// The pod's incarnation; 0 while it is not registered.
    pub incarnation: Incarnation,
    /// The pod gives its partitions up and accepts no more, at its own or an operator's request.
    pub draining: bool,
    /// The partitions whose requests the pod accepts, with their epochs.
    pub owned: BTreeMap<PartitionId, Epoch>,
    /// The pod owns nothing, holds no state and hands nothing over. If it was told to drain, the store shows that.
    pub emptied: bool,
    /// Until when the pod may trust its lease, on the clock of [`lease_now`].
    pub trusted_until: Option<Instant>,
    /// The lease is valid at least until this moment.
    pub stands_until: Option<Instant>,
    /// Number of times that the watch of the store was lost.
    pub resyncs: u64,
}

impl PodState {
    /// Returns how long the lease may be trusted from now if it is not renewed.
    pub fn lease_remaining(&self) -> Duration {
        self.trusted_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(lease_now()))
    }
}
