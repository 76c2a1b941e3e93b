//! The gRPC service for pods, which a scene can restart or silence.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use segue_grpc::{PodsKeyspace, PodsServer, PodsSettings, PodsToken};
use segue_protocol::planning::Policy;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::stage::TestKeyspace;
use crate::admin::token_file::TokenFile;

/// The service.
#[derive(Debug)]
pub(super) struct ServiceUnderTest {
    listen: SocketAddr,
    token: Option<PathBuf>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl ServiceUnderTest {
    /// Serves the pods of the stage's keyspace that present the token in this file, if one is given.
    pub(super) async fn start(
        stage: &TestKeyspace,
        listen: SocketAddr,
        token: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("cannot listen at --listen {listen}"))?;
        let listen = listener.local_addr()?;
        let policy = Policy { warm_timeout: stage.patience, phase_timeout: stage.patience, ..Policy::default() };
        let settings = PodsSettings { keyspace: stage.keys.name().to_owned(), policy, admin: None };
        let keyspace = PodsKeyspace::new(stage.store.clone(), stage.keys.clone(), settings, Arc::new(()));
        let server = PodsServer::new([keyspace]);
        let server = match token.clone().map(TokenFile::new) {
            Some(file) => server.with_token(PodsToken::new(move |presented| file.is_token(presented))),
            None => server,
        };
        let shutdown = CancellationToken::new();
        let served = server.serve(listener, None, shutdown.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = served.await {
                error!(%error, "the pods' service failed");
            }
        });
        Ok(ServiceUnderTest { listen, token, shutdown, task })
    }

    /// Ends the service. Returns the address that it served, and the file of its token.
    pub(super) async fn stop(self) -> (SocketAddr, Option<PathBuf>) {
        self.shutdown.cancel();
        // The runtime has reported any panic.
        let _ = self.task.await;
        (self.listen, self.token)
    }
}
