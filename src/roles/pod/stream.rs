//! The listener at which the service behind a sidecar opens its streams.

use anyhow::Context as _;
use futures_util::stream::unfold;
use segue_config::StreamListen;
use segue_grpc::ServiceStreams;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::process::socket_path::{SocketPath, ensure_nobody_listens};

const KEY: &str = "pod.stream";

/// A listener of this host.
#[derive(Debug)]
pub(super) enum StreamListener {
    Tcp(TcpListener),
    Unix(SocketPath),
}

impl StreamListener {
    pub(super) async fn bind(listen: &StreamListen) -> anyhow::Result<Self> {
        match listen {
            StreamListen::Tcp(address) => {
                let bound = TcpListener::bind(address).await;
                Ok(StreamListener::Tcp(bound.with_context(|| format!("{KEY}: cannot listen on {address}"))?))
            }
            StreamListen::Unix(path) => {
                ensure_nobody_listens(KEY, path).await?;
                Ok(StreamListener::Unix(SocketPath::claim(KEY, path)?))
            }
        }
    }

    /// Serves the service's streams, one for each keyspace, until `shutdown`.
    pub(super) async fn serve(self, streams: ServiceStreams, shutdown: CancellationToken) {
        let served = match self {
            StreamListener::Tcp(listener) => {
                let connections = Box::pin(unfold(listener, async |listener| {
                    let accepted = listener.accept().await.map(|(connection, _)| connection);
                    Some((accepted, listener))
                }));
                streams.serve(connections, shutdown).await
            }
            StreamListener::Unix(mut socket) => {
                let connections = Box::pin(unfold(&mut socket, async |socket| Some((socket.accept().await, socket))));
                let served = streams.serve(connections, shutdown).await;
                socket.release();
                served
            }
        };
        if let Err(error) = served {
            error!(%error, "the service's streams failed");
        }
    }
}
