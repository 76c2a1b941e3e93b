//! The coordinator as a shell. It is elected, follows the store, calls [`planning`](segue_protocol::planning) for what
//! to do and [`advance`](segue_protocol::handoff::advance) for the phases that can move on, and writes what they
//! return.
//!
//! Level-triggered: a new leader derives everything from its first snapshot, which is taken after its election. Every
//! write is guarded by the leader's key, so a coordinator that lost its lease without knowing cannot write.

mod history;
mod leadership;
mod participation;
mod refusals;
mod seat;
mod upkeep;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::advance::waiting_for;
use segue_protocol::ids::{HandoffId, Incarnation, PartitionId};
use segue_protocol::keys::Keyspace;
#[cfg(doc)]
use segue_protocol::planning::CancelReason;
use segue_protocol::planning::{Coordination, MoveCause, Policy, RoundCause};
use segue_protocol::records::{Handoff, Phase};
use segue_protocol::view::View;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::leadership::{Leadership, SeatEnd};
use self::seat::Seat;
#[cfg(doc)]
use crate::session::lease_now;
use crate::session::{Leases, register};
use crate::store::StoreError;

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

/// A phase of a handoff that has ended.
#[derive(Debug)]
pub struct EndedPhase<'a> {
    /// The handoff.
    pub handoff: HandoffId,
    /// Its record, as this leader first saw it.
    pub record: &'a Handoff,
    /// The phase.
    pub phase: Phase,
    /// How long the phase lasted. Of phases that pass between two looks at the store, by what the record says.
    pub lasted: Duration,
    /// How long ago it ended.
    pub ago: Duration,
    /// How long this leader has seen the handoff.
    pub age: Duration,
    /// The end of the handoff, if it has ended with this phase.
    pub result: Option<HandoffResult>,
}

/// An observer of a leader.
pub trait CoordinatorObserver: Send + Sync + 'static {
    /// The coordinator now leads, or no longer does.
    fn leads(&self, leads: bool);
    /// A round of planning closed.
    fn round(&self, cause: RoundCause);
    /// A phase ended.
    fn phase_ended(&self, phase: Phase, lasted: Duration);
    /// A phase ended, as the trace of its handoff records it.
    fn traced_phase(&self, _ended: &EndedPhase<'_>) {}
    /// A handoff ended.
    fn handoff_ended(&self, partition: PartitionId, result: HandoffResult);
    /// The store fills up because nobody compacts it, or no longer does.
    fn store_fills_up(&self, _fills_up: bool) {}
    /// By how many milliseconds the clocks of pods and routers are ahead of the leader's, by name.
    fn clocks(&self, _offsets: &BTreeMap<String, i64>) {}
    /// The leader's view has changed.
    fn view_changed(&self, view: &View);
    /// The watch of the store was lost.
    fn resync(&self, cause: &StoreError);
}

/// Observes nothing.
impl CoordinatorObserver for () {
    fn leads(&self, _: bool) {}
    fn round(&self, _: RoundCause) {}
    fn phase_ended(&self, _: Phase, _: Duration) {}
    fn handoff_ended(&self, _: PartitionId, _: HandoffResult) {}
    fn view_changed(&self, _: &View) {}
    fn resync(&self, _: &StoreError) {}
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
    /// Those of them that are warnings.
    pub warnings: Vec<String>,
    /// Until when a leader may trust its lease, on the clock of [`lease_now`]. `None` while it does not lead.
    pub trusted_until: Option<Instant>,
}

/// Runs a coordinator until `shutdown`. With a leader it is a standby until it is elected; with assignment rounds it takes
/// part in them at once. The keyspace's settings say which of both, and before they exist those of this coordinator. At
/// its end it gives up its seat. Participants that get clones of one [`Leases`] share a lease; a coordinator that gets a
/// store has its own.
pub async fn run_coordinator(
    leases: impl Into<Leases>,
    keys: Keyspace,
    settings: CoordinatorSettings,
    observer: Arc<dyn CoordinatorObserver>,
    status: watch::Sender<CoordinatorStatus>,
    shutdown: CancellationToken,
) {
    let leases = leases.into();
    let (store, name) = (leases.store(), settings.name.as_str());
    let mut earlier = Incarnation::NONE;
    // A process that took the leader's key first would stop the rounds of a keyspace at each of its starts.
    let mut coordination = tokio::select! {
        biased;
        coordination = seat::coordination(store, &keys, &settings.policy) => coordination,
        () = shutdown.cancelled() => return,
    };
    loop {
        let record = |lease_id| seat::record(coordination, name, lease_id);
        let claim = seat::claim(coordination, &keys, &settings, earlier);
        let elected = tokio::select! {
            // The election comes first, so that a coordinator elected at the moment of the shutdown resigns.
            biased;
            elected = register(&leases, &claim, &record) => elected,
            () = shutdown.cancelled() => return,
        };
        match coordination {
            Coordination::Leader => info!(name, "leading"),
            Coordination::Rounds => info!(name, "taking part in assignment rounds"),
        }
        let mut seat = Seat::new(coordination, store, name, &elected);
        let mut leadership = Leadership::new(store, &keys, &settings, &*observer, &status);
        let end = leadership.run(&elected, &mut seat, &shutdown).await;
        // Writes in flight may still be committed: the lease, and with it their guard, is valid until here.
        leadership.stop_writes().await;
        if leadership.speaks() {
            observer.leads(false);
        }
        drop((leadership, seat));
        status.send_modify(|status| (status.leads, status.trusted_until) = (false, None));
        earlier = elected.incarnation;
        if let Err(error) = elected.withdraw().await {
            warn!(%error, "cannot resign; the leadership ends with its lease");
        }
        if shutdown.is_cancelled() {
            return;
        }
        match end {
            SeatEnd::Over => info!(name, "no longer leading"),
            SeatEnd::Changed(to) => {
                info!(name, coordination = to.name(), "the keyspace is coordinated in another way; changing to it");
                (coordination, earlier) = (to, Incarnation::NONE);
            }
        }
    }
}

/// Returns what the partition's handoff waits for, in words, for logs and `segue status`.
pub fn describe_waits(view: &View, partition: PartitionId) -> String {
    let waits: Vec<String> = waiting_for(view, partition).iter().map(ToString::to_string).collect();
    waits.join(", ")
}
