//! The writer as a pod: a service that takes part in handoffs.
//!
//! Two pieces of `segue-coordination` make it a pod. [`PodHandle`] registers it and calls the four callbacks below when
//! a partition arrives or leaves. The handle's layer in front of the service refuses requests for partitions that the
//! pod does not own. The layer also counts the requests in flight, so the pod reports "drained" without help from the
//! service.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use segue_coordination::pod::{HandlerError, HandoffHandler, Move, PodHandle, PodSettings, PodState};
use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use segue_protocol::records::Capabilities;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower::{BoxError, Layer as _, Service};

use super::server::Server;
use super::{Writer, WriterService};

/// The callbacks of the protocol.
#[async_trait]
impl HandoffHandler for Writer {
    /// Copies the state while the old owner still serves. Clients do not wait for it.
    async fn warm(&self, part: &Move) -> Result<(), HandlerError> {
        Writer::warm(self, part.partition, part.handoff)?;
        let bytes = self.settings().state_bytes;
        if bytes > 0 {
            // A large copy would block the other tasks of this thread.
            tokio::task::spawn_blocking(move || drop(std::hint::black_box(vec![1_u8; bytes].clone()))).await?;
        }
        tokio::time::sleep(self.settings().warm_time).await;
        Ok(())
    }

    /// Reads what the old owner wrote until it stopped. Clients wait meanwhile.
    async fn sync(&self, part: &Move) -> Result<(), HandlerError> {
        Ok(Writer::sync(self, part.partition, part.handoff)?)
    }

    /// Does nothing: no work outlives its request, and each write is in the log before its response.
    async fn drain(&self, _: &Move) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Drops the state: another pod owns the partition now, or the handoff to this pod was cancelled.
    async fn release(&self, part: &Move) -> Result<(), HandlerError> {
        Writer::release(self, part.partition, part.handoff);
        Ok(())
    }
}

/// A writer that serves requests and is registered as a pod.
#[derive(Debug)]
pub struct Pod {
    handle: PodHandle,
    server: Server,
}

/// Store, keyspace and lease of a member of the cluster.
#[derive(Debug, Clone)]
pub struct Membership {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Name of the keyspace.
    pub keyspace: String,
    /// Keys of the keyspace.
    pub keys: Keyspace,
    /// Time for which the registration outlives the pod.
    pub lease_ttl: Duration,
}

impl Pod {
    /// Serves on `listener` and registers under the writer's name.
    pub fn start(
        writer: &Writer,
        member: &Membership,
        listener: TcpListener,
        capabilities: Capabilities,
    ) -> io::Result<Self> {
        let service = WriterService::new(writer.clone());
        Self::start_with(writer, member, listener, capabilities, |handle| handle.layer().layer(service))
    }

    /// Like [`start`](Self::start), with the service that `service` makes of the pod's handle.
    pub fn start_with<S, B>(
        writer: &Writer,
        member: &Membership,
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
        let handle = PodHandle::start(member.store.clone(), &member.keyspace, member.keys.clone(), settings, handler);
        writer.is_pod(handle.status());
        let server = Server::start(listener, service(&handle));
        Ok(Pod { handle, server })
    }

    /// Returns a receiver of the pod's state.
    pub fn status(&self) -> watch::Receiver<PodState> {
        self.handle.status()
    }

    /// Hands all partitions over and deregisters, then stops serving.
    pub async fn shut_down(self, at_most: Duration) {
        self.handle.shutdown(at_most).await;
        self.server.stop(Duration::from_secs(1)).await;
    }

    /// Ends the pod and its connections at once. Its registration stays until the lease expires.
    pub async fn crash(self) {
        // The server ends first, so that no response is sent any more, not even a refusal by the ended pod.
        self.server.kill().await;
        self.handle.crash();
    }
}
