//! The service behind a pod, which the pod vouches for.
//!
//! A service within the process ends with it, and the layer tells it of the lease's end; nothing here concerns it. A
//! service in a process of its own can fail alone, and can continue alone.
//!
//! # Invariants
//!
//! * A registration is given up only after [`Service::settle`] has returned, unless it is already gone.
//! * No request of a partition is admitted before [`Service::accepts`] has returned.

use async_trait::async_trait;
use segue_protocol::ids::PartitionId;
use tokio::time::Instant;

/// The service behind a pod.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Returns once the service accepts requests. The pod registers only then.
    async fn up(&self) {}

    /// Returns once the service no longer accepts requests.
    async fn down(&self) {
        std::future::pending().await
    }

    /// Returns once the service says that it is unhealthy, although it accepts requests.
    async fn unhealthy(&self) {
        std::future::pending().await
    }

    /// Returns whether the service says so.
    fn is_unhealthy(&self) -> bool {
        false
    }

    /// Lets the service's work take effect until this moment. Called whenever the lease is confirmed.
    fn lend(&self, _until: Instant) {}

    /// Tells that requests of this partition are admitted from now on.
    fn accepts(&self, _partition: PartitionId) {}

    /// Ends the service's work. No more requests are admitted. The work may end by itself until `by`. Returns once
    /// nothing that the service was given can take effect any more.
    async fn settle(&self, _by: Instant) {}
}

/// A service within this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct InProcess;

impl Service for InProcess {}
