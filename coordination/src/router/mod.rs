//! The router's side of the protocol as a shell: it registers, follows the store, calls [`handoff::router`] for each
//! partition, and makes a [`DataPlane`] carry the steps out.
//!
//! One task owns the view, so steps never race. Writes to the store run beside it.
//!
//! # Invariants
//!
//! * A router registers, then takes its snapshot, then opens its routes.
//! * It fences before it gives its registration up.
//!
//! [`handoff::router`]: segue_protocol::handoff::router

mod acks;
mod drains;
mod driver;
mod mapping;
mod ready_pods;
mod stop_limiter;
mod troubles;

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::router::{GateStage, HoldCause, OnDrainTimeout, OnStoreLoss, Target};
use segue_protocol::ids::{Incarnation, PartitionId};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Handoff, Partitioner, PodRecord, RouterRecord, RouterTroubles, encode};
use segue_protocol::troubles::TrafficSample;
use segue_protocol::view::Versioned;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::driver::{RouterDriver, RouterEnd};
#[cfg(doc)]
use crate::session::lease_now;
use crate::session::{Leases, unix_millis};
use crate::store::StoreError;

/// The times of a partition's cutover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CutoverTimes {
    /// Number of requests that waited.
    pub stashed: u64,
    /// Time from the stop until nothing was in flight.
    pub drain: Duration,
    /// Time from the stop until the first request could reach a pod again.
    pub pause: Duration,
    /// Time from then until the stash was empty and the gate open.
    pub flush: Duration,
}

/// When a drain in progress ends what is still in flight, as things stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainEnd {
    /// When streams are severed. `None` if they are not.
    pub severs_streams: Option<Instant>,
    /// When everything is severed. `None` if it is not.
    pub severs: Option<Instant>,
    /// When the router asks for the handoff to be cancelled instead. `None` if it does not.
    pub gives_up: Option<Instant>,
}

/// The part of a router that forwards requests. It is controlled partition by partition.
pub trait DataPlane: Send + Sync + 'static {
    /// Sets the number of partitions, `0..partitions`. It never decreases.
    fn set_partitions(&self, partitions: u32);
    /// Returns the stage of a partition, and until when the partition's pod is left alone because it refused.
    fn stage(&self, partition: PartitionId) -> (GateStage, Option<Instant>);
    /// Holds requests from now on.
    fn stop(&self, partition: PartitionId, cause: HoldCause);
    /// Sets why a stopped partition is held.
    fn name_cause(&self, partition: PartitionId, cause: HoldCause);
    /// Announces when the partition's drain ends what is in flight. Only shown to operators.
    fn drain_ends(&self, _partition: PartitionId, _end: DrainEnd) {}
    /// Announces that requests will soon be sent to this pod.
    fn expect(&self, _target: &Target, _pod: &PodRecord, _without_lease: bool) {}
    /// Sets the pods that requests without a key may go to, and whether each is sent to as in [`switch`](Self::switch) without
    /// a lease. They are known before the number of partitions is.
    fn set_ready_pods(&self, _pods: &[(Target, &PodRecord, bool)]) {}
    /// Sends requests to this pod, held ones first. `without_lease` allows that even when this router's lease may have
    /// ended.
    fn switch(&self, partition: PartitionId, target: &Target, pod: &PodRecord, without_lease: bool);
    /// Forgets that the partition's pod refused.
    fn retry_now(&self, partition: PartitionId);
    /// Ends everything that is in flight. Returns the number of severed exchanges.
    fn sever(&self, partition: PartitionId) -> u64;
    /// Ends the streams that are in flight and have lasted for a moment. Returns how many there were that had not been
    /// severed before.
    fn sever_streams(&self, partition: PartitionId) -> u64;
    /// Returns since when the oldest exchange in flight has lasted, other than a stream. `None` if none has lasted for
    /// a moment.
    fn oldest_exchange(&self, partition: PartitionId) -> Option<Instant>;
    /// Sets until when the router's lease may be trusted, on the clock of [`lease_now`].
    fn trust_until(&self, until: Instant);
    /// Returns the times of the last cutover, if one has ended since the last call.
    fn take_times(&self, partition: PartitionId) -> Option<CutoverTimes>;
    /// Returns what it has seen of its traffic. Only shown to operators.
    fn sample(&self) -> TrafficSample {
        TrafficSample::default()
    }
}

/// The settings of a router's side of the protocol.
#[derive(Debug, Clone)]
pub struct RouterSettings {
    /// The router's name, unique in the keyspace.
    pub name: String,
    /// How long the registration outlives the router.
    pub lease_ttl: Duration,
    /// The policy for a lost store.
    pub on_store_loss: OnStoreLoss,
    /// The limit of a drain, and the policy when it is reached.
    pub drain: DrainSettings,
    /// The address of the admin endpoint: `host:port`.
    pub admin: Option<String>,
    /// How the router maps requests to partitions. `None` if something in front of it does.
    pub partitioner: Option<Partitioner>,
    /// How long a pod's response may take to begin.
    pub request_timeout: Duration,
    /// How long a request is held.
    pub max_wait: Duration,
}

impl RouterSettings {
    /// Returns the value of this router's registration.
    fn record(&self) -> Vec<u8> {
        let now = unix_millis();
        let (router_name, admin) = (self.name.clone(), self.admin.clone());
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let (patience_ms, max_wait_ms) = (millis(self.drain.patience), millis(self.max_wait));
        let (registered_at, last_heartbeat) = (now, now);
        encode(&RouterRecord { router_name, registered_at, last_heartbeat, admin, patience_ms, max_wait_ms })
    }
}

/// How long requests in flight may delay a cutover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainSettings {
    /// How long a router waits for requests in flight to the old owner. Below the coordinator's `phase_timeout`.
    pub timeout: Duration,
    /// The policy after that.
    pub on_timeout: OnDrainTimeout,
    /// How long a router waits for streams among them: upgraded connections, event streams, and gRPC responses that
    /// have begun. Not above `timeout`.
    pub streams: Duration,
    /// In a planned move, how long a router goes on routing to the old owner because an exchange is under way.
    pub patience: Duration,
}

/// The defaults of the configuration file.
impl Default for DrainSettings {
    fn default() -> Self {
        DrainSettings {
            timeout: Duration::from_secs(20),
            on_timeout: OnDrainTimeout::default(),
            streams: Duration::from_secs(2),
            patience: Duration::from_secs(10),
        }
    }
}

/// A cutover that has ended, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cutover {
    /// The partition.
    pub partition: PartitionId,
    /// The new destination of its requests.
    pub target: Target,
    /// The times of the cutover.
    pub times: CutoverTimes,
    /// Number of exchanges severed for it.
    pub severed: u64,
}

/// The public state of a running router.
#[derive(Debug, Clone)]
pub struct RouterStatus {
    /// Why the router is not ready. `None` if it is registered, has seen the store and may trust its lease.
    pub not_ready: Option<String>,
    /// The router's incarnation; 0 before it is registered.
    pub incarnation: Incarnation,
    /// Until when the router may trust its lease, on the clock of [`lease_now`].
    pub trusted_until: Option<Instant>,
    /// Number of times that the watch of the store was lost.
    pub resyncs: u64,
}

impl Default for RouterStatus {
    fn default() -> Self {
        RouterStatus {
            not_ready: Some("not started yet".to_owned()),
            incarnation: Incarnation::NONE,
            trusted_until: None,
            resyncs: 0,
        }
    }
}

/// An observer of a router.
pub trait RouterObserver: Send + Sync + 'static {
    /// A partition is about to be stopped or switched, by this handoff if there is one.
    fn cuts_over(&self, _partition: PartitionId, _handoff: Option<&Versioned<Handoff>>) {}
    /// A partition resumed after a stop.
    fn cutover(&self, cutover: &Cutover);
    /// The watch of the store was lost.
    fn resync(&self, cause: &StoreError);
    /// The router has compared its mapping of keys with the keyspace's, before it registers.
    fn mapping_differs(&self, _differs: bool) {}
    /// What clients suffer has been looked at.
    fn troubles(&self, _troubles: &RouterTroubles) {}
}

/// Observes nothing.
impl RouterObserver for () {
    fn cutover(&self, _: &Cutover) {}

    fn resync(&self, _: &StoreError) {}
}

/// The connections of a router's control side within its process.
pub struct RouterPorts {
    /// The data plane.
    pub plane: Arc<dyn DataPlane>,
    /// Partitions in which the data plane has seen an event.
    pub notices: mpsc::UnboundedReceiver<PartitionId>,
    /// The observer.
    pub observer: Arc<dyn RouterObserver>,
    /// The channel of the router's state.
    pub status: watch::Sender<RouterStatus>,
}

impl std::fmt::Debug for RouterPorts {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RouterPorts").finish_non_exhaustive()
    }
}

/// Runs a router's side of the protocol until `shutdown`, then deregisters. By then the router must have stopped
/// forwarding. Participants that get clones of one [`Leases`] share a lease; a router that gets a store has its own.
pub async fn run_router(
    leases: impl Into<Leases>,
    keys: Keyspace,
    settings: RouterSettings,
    ports: RouterPorts,
    shutdown: CancellationToken,
) {
    let leases = leases.into();
    let mut router = RouterDriver::new(leases.store().clone(), keys, settings, ports);
    router.publish(Some("not registered yet".to_owned()));
    loop {
        let registration = tokio::select! {
            // Registration comes first, so that a router registered at the moment of the shutdown deregisters.
            biased;
            registration = router.registered(&leases) => registration,
            () = shutdown.cancelled() => return,
        };
        match router.live(&registration, &shutdown).await {
            RouterEnd::Shutdown => {
                router.fence();
                if let Err(error) = registration.withdraw().await {
                    warn!(%error, "cannot deregister; the registration ends with its lease");
                }
                return;
            }
            RouterEnd::RegistrationGone => {
                // The router has fenced. The old key is gone or expires: this process drops its lease.
                let why = if registration.lease.is_past() { "the store went back" } else { "registration lost" };
                router.publish(Some(format!("{why}; registering again")));
                let _ = registration.withdraw().await;
            }
        }
    }
}
