//! The service behind a pod, which the pod vouches for.
//!
//! A service within the process ends with it and is told of the lease's end by the layer; nothing here concerns it. One in a
//! process of its own can fail alone, and can go on alone.
//!
//! # Invariants
//! * A registration is given up only after [`Service::settle`] has returned, unless it is gone already.

use async_trait::async_trait;
use tokio::time::Instant;

/// The service behind a pod.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Returns once the service takes requests. The pod registers only then.
    async fn up(&self) {}

    /// Returns once the service no longer takes requests.
    async fn down(&self) {
        std::future::pending().await
    }

    /// The lease stands: work may take effect until then. Said again whenever the lease is confirmed.
    fn lend(&self, _until: Instant) {}

    /// No request is let in any more. Has the service end its work, which it may do by itself until `by`, and returns once
    /// nothing that it was given can take effect any more.
    async fn settle(&self, _by: Instant) {}
}

/// A service within this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Within;

impl Service for Within {}
