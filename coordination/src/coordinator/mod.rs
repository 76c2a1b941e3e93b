//! The coordinator as a shell. It is elected, follows the store, calls [`planning`](segue_protocol::planning) for what
//! to do and [`advance`](segue_protocol::handoff::advance) for the phases that can move on, and writes what they
//! return.
//!
//! Level-triggered: a new leader derives everything from its first snapshot, which is taken after its election. Every
//! write is guarded by the leader's key, so a coordinator that lost its lease without knowing cannot write.

mod history;
mod leadership;

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::advance::waiting_for;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
#[cfg(doc)]
use segue_protocol::planning::CancelReason;
use segue_protocol::planning::{MoveCause, Policy, RoundCause};
use segue_protocol::records::{Leader, Phase, encode};
use segue_protocol::view::View;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::leadership::Leadership;
#[cfg(doc)]
use crate::session::lease_now;
use crate::session::{Claim, register};
use crate::store::{Store, StoreError};

/// The settings of a coordinator.
#[derive(Debug, Clone)]
pub struct CoordinatorSettings {
    /// The coordinator's name, unique in the keyspace.
    pub name: String,
    /// The time a dead leader blocks the election of the next.
    pub lease_ttl: Duration,
    /// The placement policy.
    pub policy: Policy,
}

/// The result of a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandoffResult {
    /// The partition has its new owner. Why it moved.
    Completed(MoveCause),
    /// The partition stayed with its old owner. The name of a [`CancelReason`], or [`NOT_HERE`](HandoffResult::NOT_HERE).
    Cancelled(&'static str),
}

impl HandoffResult {
    /// The cause of a handoff that was cancelled, but not by this leader.
    pub const NOT_HERE: &str = "elsewhere";
}

/// An observer of a leader.
pub trait CoordinatorObserver: Send + Sync + 'static {
    /// The coordinator now leads, or no longer does.
    fn leads(&self, leads: bool);
    /// A round of planning closed.
    fn round(&self, cause: RoundCause);
    /// A phase ended.
    fn phase_ended(&self, phase: Phase, lasted: Duration);
    /// A handoff ended.
    fn handoff_ended(&self, partition: PartitionId, result: HandoffResult);
    /// The leader's view has changed.
    fn view_changed(&self, view: &View);
    /// The watch of the store was lost.
    fn resync(&self, cause: &StoreError);
}

/// The public state of a running coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoordinatorStatus {
    /// Whether the coordinator leads.
    pub leads: bool,
    /// Why the coordinator does not follow the store. `None` if it does.
    pub not_ready: Option<String>,
    /// Notices for the operator, in words.
    pub notices: Vec<String>,
    /// Until when a leader may trust its lease, on the clock of [`lease_now`]. `None` while it does not lead.
    pub trusted_until: Option<Instant>,
}

/// Runs a coordinator until `shutdown`: a standby until it is elected, then the leader. At its end a leader resigns.
pub async fn run_coordinator(
    store: Arc<dyn Store>,
    keys: Keyspace,
    settings: CoordinatorSettings,
    observer: Arc<dyn CoordinatorObserver>,
    status: watch::Sender<CoordinatorStatus>,
    shutdown: CancellationToken,
) {
    let holder = settings.name.clone();
    let record = move |lease_id| encode(&Leader { holder: holder.clone(), lease_id });
    let mut claim = Claim::new(keys.leader(), settings.lease_ttl).clearing_leaseless();
    loop {
        let elected = tokio::select! {
            // The election comes first, so that a coordinator elected at the moment of the shutdown resigns.
            biased;
            elected = register(&store, &claim, &record) => elected,
            () = shutdown.cancelled() => return,
        };
        info!(name = settings.name, "leading");
        observer.leads(true);
        let mut leadership = Leadership::new(&store, &keys, &settings, &*observer, &status, &elected);
        let value = record(elected.lease.id());
        leadership.run(&elected, value, &shutdown).await;
        // Writes in flight may still be committed: the lease, and with it their guard, is valid until here.
        leadership.stop_writes().await;
        drop(leadership);
        observer.leads(false);
        status.send_modify(|status| (status.leads, status.trusted_until) = (false, None));
        claim = claim.after(elected.incarnation);
        if let Err(error) = elected.withdraw().await {
            warn!(%error, "cannot resign; the leadership ends with its lease");
        }
        if shutdown.is_cancelled() {
            return;
        }
        info!(name = settings.name, "no longer leading");
    }
}

/// Returns what the partition's handoff waits for, in words, for logs and `segue status`.
pub fn describe_waits(view: &View, partition: PartitionId) -> String {
    let waits: Vec<String> = waiting_for(view, partition).iter().map(ToString::to_string).collect();
    waits.join(", ")
}
