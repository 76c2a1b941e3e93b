//! The streams that a listener has open, and how they end with it.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::{Connected, Router};

/// How long a listener that shuts down still responds.
pub(crate) const GO_AWAY_WITHIN: Duration = Duration::from_secs(2);

/// The streams that are open. Clones refer to the same ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenStreams {
    /// Cancelled when the streams are to end.
    pub(crate) ending: CancellationToken,
    /// The loops of the streams, and other work that ends with them.
    pub(crate) tasks: TaskTracker,
}

impl OpenStreams {
    /// Tells all streams to end.
    pub(crate) fn end(&self) {
        self.ending.cancel();
        self.tasks.close();
    }
}

/// Returns the number of calls that a connection may have open for this many keyspaces. A call that waits for another
/// keyspace's must not keep that one from its turn.
pub(crate) fn per_keyspace(calls: u32, keyspaces: usize) -> u32 {
    calls.saturating_mul(u32::try_from(keyspaces).unwrap_or(u32::MAX))
}

/// Serves connections until `shutdown`, and then tells the streams that there are to end. Calls that stay open are aborted.
pub(crate) async fn serve<IO, E>(
    calls: Router,
    connections: impl Stream<Item = Result<IO, E>>,
    streams: impl FnOnce() -> Vec<OpenStreams>,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error>
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let ended = async {
        shutdown.cancelled().await;
        let streams = streams();
        streams.iter().for_each(OpenStreams::end);
        let _ = timeout(GO_AWAY_WITHIN, join_all(streams.iter().map(|streams| streams.tasks.wait()))).await;
    };
    tokio::select! {
        served = calls.serve_with_incoming_shutdown(connections, ended) => served,
        () = async {
            shutdown.cancelled().await;
            sleep(GO_AWAY_WITHIN * 2).await;
        } => Ok(()),
    }
}
