//! The writer as a pod: a service that takes part in handoffs.
//!
//! Two parts of `segue-coordination` make a service a pod. [`PodHandle`] registers it and calls the callbacks
//! below when a partition comes or goes. Its layer stands in front of the service, refuses what the pod does not own,
//! and counts requests in flight, so that "drained" is known without help from the service.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use segue_coordination::pod::{HandlerError, HandoffContext, HandoffHandler, PodHandle, PodSettings, PodState};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::Capabilities;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower::{BoxError, Layer as _, Service};

use super::super::processes::Processes;
use super::server::WriterServer;
use super::{Writer, WriterService};

/// The callbacks of the service.
#[async_trait]
impl HandoffHandler for Writer {
    /// Copies the state while the old owner still serves. May take long.
    async fn warm(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        Writer::warm(self, part.partition, part.handoff, part.checkpoint.as_deref())?;
        let bytes = self.settings().state_bytes;
        if bytes > 0 {
            // In a task of its own: copying would block this thread.
            tokio::task::spawn_blocking(move || drop(std::hint::black_box(vec![1_u8; bytes].clone()))).await?;
        }
        tokio::time::sleep(self.settings().warm_time).await;
        Ok(())
    }

    /// The old owner has stopped for good: its latest records are all that was missing. Clients wait meanwhile.
    async fn sync(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        Ok(Writer::sync(self, part.partition, part.handoff)?)
    }

    /// No work outlives a request here: the log has each write before its response.
    async fn drain(&self, _: &HandoffContext) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Another pod owns the partition now, or the handoff was cancelled.
    async fn release(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        Writer::release(self, part.partition, part.handoff);
        Ok(())
    }

    /// Saves the state while requests go on, so that the next owner need not read the whole log.
    async fn checkpoint(&self, part: &HandoffContext) -> Result<Option<String>, HandlerError> {
        Ok(Writer::checkpoint(self, part.partition, part.epoch))
    }
}

/// A writer that serves and is registered.
#[derive(Debug)]
pub struct WriterPod {
    handle: PodHandle,
    server: WriterServer,
}

/// The keyspace of a pod, and its lease.
#[derive(Debug, Clone)]
pub struct WriterMembership {
    /// The store, and the leases of the processes.
    pub processes: Processes,
    /// Name of the keyspace.
    pub keyspace: String,
    /// Keys of the keyspace.
    pub keys: Keyspace,
    /// Time for which the registration outlives the pod.
    pub lease_ttl: Duration,
}

impl WriterPod {
    /// Serves on `listener` and registers under the writer's name.
    ///
    /// # Errors
    ///
    /// Fails if the listener has no address.
    pub fn start(
        writer: &Writer,
        member: &WriterMembership,
        listener: TcpListener,
        capabilities: Capabilities,
    ) -> io::Result<Self> {
        let service = WriterService::new(writer.clone());
        Self::start_with(writer, member, listener, capabilities, |handle| handle.layer().layer(service))
    }

    /// Does the same with a service that `service` makes of the pod's handle.
    ///
    /// # Errors
    ///
    /// Fails if the listener has no address.
    pub fn start_with<S, B>(
        writer: &Writer,
        member: &WriterMembership,
        listener: TcpListener,
        capabilities: Capabilities,
        service: impl FnOnce(&PodHandle) -> S,
    ) -> io::Result<Self>
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let mut settings = PodSettings::new(writer.name().as_ref(), listener.local_addr()?.to_string());
        settings.lease_ttl = member.lease_ttl;
        settings.capabilities = capabilities;
        let handler = Arc::new(writer.clone());
        let (leases, keys) = (member.processes.leases(writer.name()), member.keys.clone());
        let handle = PodHandle::start(leases, &member.keyspace, keys, settings, handler);
        writer.is_pod(handle.status());
        let server = WriterServer::start(listener, service(&handle));
        Ok(WriterPod { handle, server })
    }

    /// Returns the pod's state.
    pub fn status(&self) -> watch::Receiver<PodState> {
        self.handle.status()
    }

    /// Hands its partitions over, then stops serving, then deregisters.
    pub async fn shut_down(self, at_most: Duration) {
        self.handle.shutdown(at_most).await;
        self.server.stop(Duration::from_secs(1)).await;
    }

    /// Crashes the pod: it is gone at once with all connections, and nobody is notified.
    pub async fn crash(self) {
        // First, so that it sends nothing any more, not even that the pod has ended.
        self.server.kill().await;
        self.handle.crash();
    }
}
