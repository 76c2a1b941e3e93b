//! The service's handle to its running pod.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{AbortHandle, abortable};
use segue_protocol::keys::Keyspace;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::driver::{NOT_REGISTERED, PodDriver};
use super::layer::OwnershipLayer;
use super::membership::Intent;
use super::ownership::Ownership;
use super::service::{InProcess, Service};
use super::{HandoffHandler, PodSettings, PodState};
use crate::session::Leases;

/// A running pod. Clones refer to the same pod. When the last one is dropped the pod ends as by [`crash`](Self::crash).
#[derive(Debug, Clone)]
pub struct PodHandle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ownership: Arc<Ownership>,
    state: watch::Receiver<PodState>,
    intent: watch::Sender<Intent>,
    running: AbortHandle,
}

impl PodHandle {
    /// Starts a pod of the keyspace `keyspace`, whose keys are `keys`. It registers as soon as the store responds and no
    /// earlier life of its name exists, and runs until it is shut down. Participants that get clones of one [`Leases`]
    /// share a lease; a pod that gets a store has its own.
    pub fn start(
        leases: impl Into<Leases>,
        keyspace: &str,
        keys: Keyspace,
        settings: PodSettings,
        handler: Arc<dyn HandoffHandler>,
    ) -> PodHandle {
        Self::start_before(leases, keyspace, keys, settings, handler, Arc::new(InProcess))
    }

    /// Like [`start`](Self::start), for a pod that vouches for a service in another process.
    pub fn start_before(
        leases: impl Into<Leases>,
        keyspace: &str,
        keys: Keyspace,
        settings: PodSettings,
        handler: Arc<dyn HandoffHandler>,
        service: Arc<dyn Service>,
    ) -> PodHandle {
        let (handle, run) = Self::prepare_before(leases.into(), keyspace, keys, settings, handler, service);
        tokio::spawn(run.in_current_span());
        handle
    }

    /// Like [`start`](Self::start), for a caller that runs the pod's future itself. The pod ends with that future.
    pub fn prepare<L: Into<Leases>>(
        leases: L,
        keyspace: &str,
        keys: Keyspace,
        settings: PodSettings,
        handler: Arc<dyn HandoffHandler>,
    ) -> (PodHandle, impl Future<Output = ()> + Send + use<L>) {
        Self::prepare_before(leases.into(), keyspace, keys, settings, handler, Arc::new(InProcess))
    }

    fn prepare_before(
        leases: Leases,
        keyspace: &str,
        keys: Keyspace,
        settings: PodSettings,
        handler: Arc<dyn HandoffHandler>,
        service: Arc<dyn Service>,
    ) -> (PodHandle, impl Future<Output = ()> + Send + use<>) {
        let ownership = Arc::new(Ownership::new(keyspace));
        let (sender, state) =
            watch::channel(PodState { not_ready: Some(NOT_REGISTERED.into()), ..PodState::default() });
        let (intent, intents) = watch::channel(Intent::Serve);
        let driver = PodDriver::new(leases, keys, settings, (handler, service), ownership.clone(), sender, intents);
        let (run, running) = abortable(driver.run());
        let handle = PodHandle { inner: Arc::new(Inner { ownership, state, intent, running }) };
        (handle, run.map(|_| ()))
    }

    /// Returns the layer to put in front of the service.
    pub fn layer(&self) -> OwnershipLayer {
        OwnershipLayer::new(self.inner.ownership.clone())
    }

    /// Returns the accepted partitions and the requests in flight.
    pub fn ownership(&self) -> &Arc<Ownership> {
        &self.inner.ownership
    }

    /// Returns a channel with the pod's public state. It closes when the pod has ended.
    pub fn status(&self) -> watch::Receiver<PodState> {
        self.inner.state.clone()
    }

    /// Makes the pod give up its partitions and accept no more. It continues to serve until other pods have taken over.
    pub fn set_draining(&self) {
        self.inner.intent.send_if_modified(|intent| {
            let serves = *intent == Intent::Serve;
            if serves {
                *intent = Intent::Drain;
            }
            serves
        });
    }

    /// Returns once the pod owns nothing and hands nothing over, or has ended. Use after
    /// [`set_draining`](Self::set_draining).
    pub async fn emptied(&self) {
        // An error means that the pod has ended.
        let _ = self.status().wait_for(|state| state.emptied).await;
    }

    /// Ends the pod: drains, waits until it is emptied, refuses what is left, lets its work end, and deregisters. Takes
    /// no longer than `at_most`, plus a moment for the store's response. The first four fifths of it are for handing
    /// over.
    pub async fn shutdown(&self, at_most: Duration) {
        let now = Instant::now();
        self.end_by(now + at_most / 5 * 4, now + at_most).await;
    }

    /// Ends the pod without handing anything over: refuses what is left, lets its work end, and deregisters. Takes no longer
    /// than `at_most`, plus a moment for the store's response.
    pub async fn end(&self, at_most: Duration) {
        let now = Instant::now();
        self.end_by(now, now + at_most).await;
    }

    async fn end_by(&self, hand_over_until: Instant, until: Instant) {
        self.inner.intent.send_replace(Intent::End { hand_over_until, until });
        let _ = self.status().wait_for(|_| false).await;
    }

    /// Ends the pod at once, as a crash does: nothing is handed over or announced, and the registration ends with its
    /// lease. Accepted work is stopped.
    pub fn crash(&self) {
        self.inner.crash();
    }
}

impl Inner {
    fn crash(&self) {
        self.running.abort();
        self.ownership.close();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.crash();
    }
}
