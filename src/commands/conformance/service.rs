//! The gRPC service for pods, which a scene can restart or silence.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use segue_grpc::{PodsServer, PodsSettings};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::stage::Stage;

/// The service.
#[derive(Debug)]
pub(super) struct Service {
    listen: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Service {
    /// Serves the pods of the stage's keyspace.
    pub(super) async fn start(stage: &Stage, listen: SocketAddr) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("cannot listen at --listen {listen}"))?;
        let listen = listener.local_addr()?;
        let settings = PodsSettings {
            keyspace: stage.keys.name().to_owned(),
            warm_timeout: stage.patience,
            phase_timeout: stage.patience,
        };
        let server = PodsServer::new(stage.store.clone(), stage.keys.clone(), settings, Arc::new(()));
        let shutdown = CancellationToken::new();
        let served = server.serve(listener, None, shutdown.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = served.await {
                error!(%error, "the pods' service failed");
            }
        });
        Ok(Service { listen, shutdown, task })
    }

    /// Ends the service. Returns the address that it served.
    pub(super) async fn stop(self) -> SocketAddr {
        self.shutdown.cancel();
        // The runtime has reported any panic.
        let _ = self.task.await;
        self.listen
    }
}
