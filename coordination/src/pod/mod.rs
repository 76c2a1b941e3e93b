//! The pod's side of the protocol: what a writer service needs to take part, in two pieces.
//!
//! [`PodHandle`] registers the pod, follows the store and calls the service's [`HandoffHandler`] when a partition comes or
//! goes; [`OwnershipLayer`] stands in front of the service and lets through what the pod owns at the request's epoch.
//! [`Hooks`] is the handler of the sidecar, which does the same for a service that knows nothing of Segue.
//!
//! Decisions are elsewhere: what a pod must do in [`handoff::pod`](segue_protocol::handoff::pod), in which order this
//! process gets there in [`handoff::pod_reconcile`](segue_protocol::handoff::pod_reconcile). What must stay true: it
//! registers, then takes its snapshot, then accepts; it fences before it gives its registration up; and all that it says
//! is true of the handoff that it says it of.

mod answer;
mod body;
mod exchange;
mod handle;
mod layer;
mod lent;
mod own_record;
mod ownership;
mod service;
mod shell;
mod sidecar;
mod sync;
mod term;
mod work;

pub use body::{LeaseLost, OwnedBody};
pub use handle::PodHandle;
pub use layer::{OwnershipFuture, OwnershipLayer, OwnershipService};
pub use lent::{LentLease, boottime_millis};
pub use ownership::{InFlight, Owned, Ownership, Refusal};
pub use service::Service;
pub use sidecar::{HookError, Hooks};

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, PartitionId};
use segue_protocol::records::Capabilities;
use tokio::time::Instant;

use crate::participant::lease_now;

/// What a callback of a [`HandoffHandler`] is about. State that was warmed is told apart by `epoch` and `handoff`: its
/// `sync` and `release` carry the same two.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Move {
    /// The keyspace.
    pub keyspace: String,
    /// The partition.
    pub partition: PartitionId,
    /// The epoch that begins (`warm`, `sync`) or ends (`drain`, `release`).
    pub epoch: Epoch,
    /// The handoff; in `drain` the one that takes the partition away, else the one by which it came. 0: an operator
    /// assigned the partition by hand.
    pub handoff: HandoffId,
}

/// Why a callback failed, in words. It is tried again, with a growing back-off, as long as it is due.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// What a service does when a partition comes or goes. Each callback is run until it succeeds, and then not again for the
/// same handoff; at most one runs per partition. One that is due no longer is dropped at its next await.
#[async_trait]
pub trait HandoffHandler: Send + Sync + 'static {
    /// Copy the partition's state while its old owner still serves. May take long; nothing is paused.
    async fn warm(&self, _part: &Move) -> Result<(), HandlerError> {
        Ok(())
    }

    /// The log is at rest: read what was written since `warm`. Requests are held meanwhile. Only with the capability
    /// `sync`.
    async fn sync(&self, _part: &Move) -> Result<(), HandlerError> {
        Ok(())
    }

    /// No request of the partition is in flight any more, and none is let in: end what outlives requests (batches,
    /// background writes). After this the log is at rest. The handoff may be cancelled yet, and requests come again.
    async fn drain(&self, _part: &Move) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Let go of the state, which may be half copied: the partition is another's, or its handoff was cancelled.
    async fn release(&self, _part: &Move) -> Result<(), HandlerError> {
        Ok(())
    }
}

/// How a pod takes part.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSettings {
    /// Its name, unique in the keyspace.
    pub name: String,
    /// Where routers reach it: `host:port`.
    pub address: String,
    /// How long its registration outlives it.
    pub lease_ttl: Duration,
    /// Its share of the partitions relative to the others'.
    pub weight: f64,
    /// Where it runs.
    pub zone: Option<String>,
    /// What it can do in a handoff. Without `sync` a pause is one step shorter.
    pub capabilities: Capabilities,
    /// Where its admin endpoint is reached: `host:port`.
    pub admin: Option<String>,
    /// The version of its rollout.
    pub version: Option<String>,
    /// No request's work lasts longer than this, counted from the last byte of the request. Once the pod is dead, its
    /// partitions wait that long for their next owner.
    pub work_ends_within: Option<Duration>,
}

impl PodSettings {
    /// Of usual weight, with a TTL of 15 s and all capabilities.
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
        }
    }
}

/// What others may know about a running pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodState {
    /// Why it accepts nothing; `None`: it is registered, has seen the store and may trust its lease.
    pub not_ready: Option<String>,
    /// Its incarnation; 0 while it is not registered.
    pub incarnation: Incarnation,
    /// It gives up what it has and gets no more: it was told to, or an operator wrote so.
    pub draining: bool,
    /// The partitions that it accepts requests of, with their epochs.
    pub owned: BTreeMap<PartitionId, Epoch>,
    /// It owns nothing, holds no state and nothing is being handed from it; if it was told to drain, the store knows.
    pub emptied: bool,
    /// Until when it may trust its lease, on the clock of [`lease_now`].
    pub trusted_until: Option<Instant>,
    /// The lease stands at least until then.
    pub stands_until: Option<Instant>,
    /// How often it had to take the state anew, because the watch was lost.
    pub resyncs: u64,
}

impl PodState {
    /// How long the lease may be trusted from now, if nothing renews it.
    pub fn lease_remaining(&self) -> Duration {
        self.trusted_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(lease_now()))
    }
}
