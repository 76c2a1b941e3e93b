//! The router's side of the protocol as a shell: registers, follows the store, asks [`handoff::router`] what to do with
//! each partition, and has a [`DataPlane`] do it.
//!
//! One task owns the view, so steps never race; writes to the store run beside it. What must stay true: it registers,
//! then takes its snapshot, then opens its routes; it fences before it gives its registration up.
//!
//! [`handoff::router`]: segue_protocol::handoff::router

mod acks;
mod driver;
mod mapping;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::router::{HoldCause, OnDrainTimeout, OnStoreLoss, Stage, Target};
use segue_protocol::ids::{Incarnation, PartitionId};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Partitioner, PodRecord};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::driver::{End, Router};
#[cfg(doc)]
use crate::participant::lease_now;
use crate::participant::{Claim, register};
use crate::store::{Store, StoreError};

/// How a partition's cutover went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CutoverTimes {
    /// How many requests waited.
    pub stashed: u64,
    /// From the stop until nothing was in flight.
    pub drain: Duration,
    /// From the stop until the first request could reach a pod again.
    pub pause: Duration,
    /// From then until the stash was empty and the gate open.
    pub flush: Duration,
}

/// What moves requests, told partition by partition what to do.
pub trait DataPlane: Send + Sync + 'static {
    /// There are partitions `0..partitions`. Never fewer than before.
    fn set_partitions(&self, partitions: u32);
    /// What it does with a partition, and until when the partition's pod is left alone because it refused.
    fn stage(&self, partition: PartitionId) -> (Stage, Option<Instant>);
    /// Holds requests from here on.
    fn stop(&self, partition: PartitionId, cause: HoldCause);
    /// What holds a partition back that is stopped already.
    fn name_cause(&self, partition: PartitionId, cause: HoldCause);
    /// Requests will be sent to this pod soon.
    fn expect(&self, _target: &Target, _pod: &PodRecord, _without_lease: bool) {}
    /// Sends requests to this pod, those that were held first. `without_lease`: also when this router's lease may have ended.
    fn switch(&self, partition: PartitionId, target: &Target, pod: &PodRecord, without_lease: bool);
    /// Forgets that the partition's pod refused.
    fn retry_now(&self, partition: PartitionId);
    /// Ends everything that is in flight; how many exchanges that were.
    fn sever(&self, partition: PartitionId) -> u64;
    /// The router's lease may be trusted until then, on the clock of [`lease_now`].
    fn trust_until(&self, until: Instant);
    /// How the last cutover went, if one has ended since this was asked last.
    fn take_times(&self, partition: PartitionId) -> Option<CutoverTimes>;
}

/// How a router takes part.
#[derive(Debug, Clone)]
pub struct RouterSettings {
    /// Its name, unique in the keyspace.
    pub name: String,
    /// How long its registration outlives it.
    pub lease_ttl: Duration,
    /// What it does when the store is lost.
    pub on_store_loss: OnStoreLoss,
    /// How long a drain may last, and what it does then.
    pub drain: DrainSettings,
    /// Where its admin endpoint is reached: `host:port`.
    pub admin: Option<String>,
    /// How it maps requests to partitions. `None`: whatever is in front of it does.
    pub partitioner: Option<Partitioner>,
    /// How long a pod's answer may take to begin.
    pub request_timeout: Duration,
}

/// How long requests in flight may delay a cutover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainSettings {
    /// How long a router waits for what is in flight to the old owner; below the coordinator's `phase_timeout`.
    pub timeout: Duration,
    /// What it does then.
    pub on_timeout: OnDrainTimeout,
}

/// The defaults of the file.
impl Default for DrainSettings {
    fn default() -> Self {
        DrainSettings { timeout: Duration::from_secs(20), on_timeout: OnDrainTimeout::default() }
    }
}

/// A cutover that has ended, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cutover {
    /// Which partition.
    pub partition: PartitionId,
    /// Where it leads now.
    pub target: Target,
    /// How it went.
    pub times: CutoverTimes,
    /// How many exchanges were severed for it.
    pub severed: u64,
}

/// What others may know about a running router.
#[derive(Debug, Clone)]
pub struct RouterStatus {
    /// It is registered, has seen the store and may trust its lease; else why not.
    pub not_ready: Option<String>,
    /// Its incarnation; 0 before it is registered.
    pub incarnation: Incarnation,
    /// Until when it may trust its lease, on the clock of [`lease_now`].
    pub trusted_until: Option<Instant>,
    /// How often it had to take the state anew, by cause.
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

/// Observes what a router does.
pub trait RouterObserver: Send + Sync + 'static {
    /// A partition's requests flow again after a stop.
    fn cutover(&self, cutover: &Cutover);
    /// The store was lost from sight.
    fn resync(&self, cause: &StoreError);
}

/// What a router is joined to within its process.
pub struct RouterPorts {
    /// What moves its requests.
    pub plane: Arc<dyn DataPlane>,
    /// Partitions in which the data plane saw something happen.
    pub notices: mpsc::UnboundedReceiver<PartitionId>,
    /// Who is told what it does.
    pub observer: Arc<dyn RouterObserver>,
    /// Where it says how it is.
    pub status: watch::Sender<RouterStatus>,
}

impl std::fmt::Debug for RouterPorts {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RouterPorts").finish_non_exhaustive()
    }
}

/// Runs a router's side of the protocol until `shutdown`, then deregisters. Requests must not flow any more by then.
pub async fn run_router(
    store: Arc<dyn Store>,
    keys: Keyspace,
    settings: RouterSettings,
    ports: RouterPorts,
    shutdown: CancellationToken,
) {
    let mut router = Router::new(store, keys, settings, ports);
    router.publish(Some("not registered yet".to_owned()));
    loop {
        let key = router.keys.router(&router.settings.name);
        let claim = Claim::new(key, router.settings.lease_ttl).after(router.incarnation);
        let registered = async {
            router.agree_on_mapping().await;
            register(&router.store, &claim, |_| router.record()).await
        };
        let registration = tokio::select! {
            // First, so that one who is registered at the very moment of the shutdown deregisters.
            biased;
            registration = registered => registration,
            () = shutdown.cancelled() => return,
        };
        match router.live(&registration, &shutdown).await {
            End::Shutdown => {
                router.fence();
                if let Err(error) = registration.withdraw().await {
                    warn!(%error, "could not deregister; the registration ends with its lease");
                }
                return;
            }
            End::RegistrationGone => {
                // Fenced already. The old key is gone or ends by itself: this process lets its lease go.
                router.publish(Some("registration lost; registering again".to_owned()));
                let _ = registration.withdraw().await;
            }
        }
    }
}
