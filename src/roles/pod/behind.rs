//! The service behind a sidecar, as the pod of one keyspace sees it: whether it accepts requests, and what ends its work.
//!
//! # Invariants
//!
//! * A pod has the capability `fence` only if something ends the service's work in time even when this process is dead.
//! * [`Service::settle`] returns only when one of these holds: all processes of the service are dead; the service has
//!   confirmed that it does not write, or the lease it was lent has run out, by the hook or by its stream; its work in
//!   this keyspace has ended, or the bound that it declares on its work has passed.
//! * A service that has stopped in one keyspace by its stream goes on in the others.

use std::sync::Arc;

use async_trait::async_trait;
use segue_config as config;
use segue_coordination::pod::Service;
use segue_grpc::ServiceStream;
use segue_protocol::ids::PartitionId;
use segue_proxy::sidecar::Upstream;
use tokio::time::Instant;
use tracing::warn;

use super::process::ServiceProcess;
use super::shares::ProcessShare;

#[derive(Debug)]
pub(super) struct ServiceBackend {
    process: ProcessShare<ServiceProcess>,
    /// The service with the traffic of this keyspace.
    upstream: Upstream,
    /// The stream of this keyspace, if the service has streams.
    stream: Option<ServiceStream>,
}

/// The way in which a service's stream ends its work.
pub(super) const STREAM: &str = "stream";

impl ServiceBackend {
    pub(super) fn new(
        process: ProcessShare<ServiceProcess>,
        upstream: Upstream,
        stream: Option<ServiceStream>,
    ) -> Arc<Self> {
        Arc::new(ServiceBackend { process, upstream, stream })
    }

    /// Returns in words what ends the service's work in time even if this process is dead.
    pub(super) fn vouches(section: &config::Pod) -> Option<&'static str> {
        let ways = [
            (section.exec.is_some(), "exec"),
            (section.hooks.lease.is_some(), "hooks.lease"),
            (section.work_ends_within.is_some(), "work_ends_within"),
            (section.stream.is_some(), STREAM),
        ];
        ways.into_iter().find(|(is_there, _)| *is_there).map(|(_, way)| way)
    }

    /// Returns why the service accepts no requests.
    pub(super) fn not_ready(&self) -> Option<String> {
        let says = if self.is_unhealthy() { "says that it is unhealthy" } else { "is down" };
        let down = (!self.is_up()).then(|| format!("the service at {} {says}", self.upstream.address));
        down.or_else(|| self.stream.as_ref().and_then(ServiceStream::not_ready))
    }

    /// Returns whether the service accepts connections.
    pub(super) fn is_up(&self) -> bool {
        self.process.process().is_up()
    }

    /// Returns the stream of a service that has one.
    pub(super) fn stream(&self) -> Option<&ServiceStream> {
        self.stream.as_ref()
    }
}

#[async_trait]
impl Service for ServiceBackend {
    async fn up(&self) {
        self.process.up().await;
        // The process may be in a life that began earlier.
        self.process.process().accepts_connections().await;
        if let Some(stream) = &self.stream {
            stream.up().await;
        }
    }

    async fn down(&self) {
        let silent = async {
            match &self.stream {
                Some(stream) => stream.down().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.process.down() => {}
            () = silent => warn!("service takes no part by its stream"),
        }
    }

    async fn unhealthy(&self) {
        self.process.unhealthy().await;
    }

    fn is_unhealthy(&self) -> bool {
        self.process.is_unhealthy()
    }

    fn lend(&self, until: Instant) {
        self.process.lend(until);
        if let Some(stream) = &self.stream {
            stream.lend(until);
        }
    }

    fn accepts(&self, partition: PartitionId) {
        if let Some(stream) = &self.stream {
            stream.accepts(partition);
        }
    }

    async fn settle(&self, by: Instant) {
        let (is_supervised, is_lent_time) =
            (self.process.process().is_supervised(), self.process.process().is_lent_time());
        // First: a service that is told no more cannot begin a new life under this registration.
        if let Some(stream) = &self.stream {
            stream.close();
        }
        let has_stopped = self.stream.as_ref().is_some_and(ServiceStream::has_stopped);
        if !is_supervised && !is_lent_time {
            // The bound and the stream are this keyspace's own, so the other pods' work goes on.
            self.process.leave();
        } else if !has_stopped || !self.process.leave_to_others() {
            self.process.settle(by).await;
        }
        if let Some(stream) = &self.stream
            && !is_supervised
        {
            stream.settle(by).await;
        }
        if let Some(bound) = self.upstream.work_ends_within
            && !is_supervised
            && !is_lent_time
        {
            tokio::select! {
                () = self.upstream.traffic.ended() => {}
                () = self.upstream.traffic.silent_for(bound) => {}
            }
        }
    }
}
