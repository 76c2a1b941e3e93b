//! The coordinator as a shell: gets elected, follows the store, asks [`planning`](segue_protocol::planning) what to do
//! and [`advance`](segue_protocol::handoff::advance) which phases can move on, and writes what they say.
//!
//! Level-triggered: a new leader derives everything from its first snapshot, which is taken after its election. Every
//! write carries the guard that it still leads, so one that lost its lease without knowing cannot write.

mod leadership;

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::advance::waiting_for;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{Policy, RoundCause};
use segue_protocol::records::{Leader, Phase, encode};
use segue_protocol::view::View;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::leadership::Leadership;
use crate::participant::{Claim, register};
use crate::store::{Store, StoreError};

/// How a coordinator takes part.
#[derive(Debug, Clone)]
pub struct CoordinatorSettings {
    /// Its name, unique in the keyspace.
    pub name: String,
    /// How long a dead leader stands in the way of the next.
    pub lease_ttl: Duration,
    /// What it is to bring about.
    pub policy: Policy,
}

/// How a handoff ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandoffResult {
    /// The partition has its new owner.
    Completed,
    /// The partition stayed where it was.
    Cancelled,
}

/// Observes what a leader does.
pub trait CoordinatorObserver: Send + Sync + 'static {
    /// It leads now, or no longer.
    fn leads(&self, leads: bool);
    /// A round of planning closed.
    fn round(&self, cause: RoundCause);
    /// A phase ended after so long.
    fn phase_ended(&self, phase: Phase, lasted: Duration);
    /// A handoff ended.
    fn handoff_ended(&self, partition: PartitionId, result: HandoffResult);
    /// The leader's view has changed.
    fn view_changed(&self, view: &View);
    /// The store was lost from sight.
    fn resync(&self, cause: &StoreError);
}

/// What others may know about a running coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoordinatorStatus {
    /// Whether it leads.
    pub leads: bool,
    /// It follows the store; else why not.
    pub not_ready: Option<String>,
    /// What an operator should know, in words.
    pub notices: Vec<String>,
}

/// Runs a coordinator until `shutdown`: a standby until it is elected, then the leader. A leader that ends resigns.
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
            // First, so that one who is elected at the very moment of the shutdown resigns.
            biased;
            elected = register(&store, &claim, &record) => elected,
            () = shutdown.cancelled() => return,
        };
        info!(name = settings.name, "leading");
        observer.leads(true);
        let mut leadership = Leadership::new(&store, &keys, &settings, &*observer, &status, &elected);
        let value = record(elected.lease.id());
        leadership.run(&elected, value, &shutdown).await;
        // Writes that are under way may still be committed: the lease, and with it their guard, stands until here.
        leadership.stop_writes().await;
        drop(leadership);
        observer.leads(false);
        status.send_modify(|status| status.leads = false);
        claim = claim.after(elected.incarnation);
        if let Err(error) = elected.withdraw().await {
            warn!(%error, "could not resign; the lease ends by itself");
        }
        if shutdown.is_cancelled() {
            return;
        }
        info!(name = settings.name, "no longer leading");
    }
}

/// Who the handoffs of a view wait for, in words: for logs and `segue status`.
pub fn describe_waits(view: &View, partition: PartitionId) -> String {
    let waits: Vec<String> = waiting_for(view, partition).iter().map(ToString::to_string).collect();
    waits.join(", ")
}
