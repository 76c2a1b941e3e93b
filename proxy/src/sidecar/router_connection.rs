//! A router's connection before its first request: the TLS handshake, and a bound on the time until its version of HTTP is
//! known.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::message::PREFACE;
use crate::tls::{SealedBytes, ServerTls, Stream};

/// How long a TLS handshake may take, counted from the accept.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a router's connection may be idle. Routers connect ahead of a cutover and close idle connections after 50 s. They
/// have to close first, because a request that meets a closing connection is lost.
pub(super) const ROUTER_IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Returns the connection, which sets `recognised` once the version of HTTP is known.
pub(super) fn recognising<S: AsyncRead>(stream: S, recognised: Arc<AtomicBool>) -> InspectReader<S, impl FnMut(&[u8])> {
    let mut awaited = PREFACE;
    InspectReader::new(stream, move |bytes| match awaited.strip_prefix(bytes) {
        Some(rest) if !rest.is_empty() => awaited = rest,
        _ => recognised.store(true, Relaxed),
    })
}

/// Serves a connection until it closes. A connection whose version of HTTP stays unknown is dropped: it would use up one of
/// the connections allowed, and hyper's timers begin only when the version is known.
pub(super) async fn bounded(connection: impl Future<Output = Result<(), BoxError>>, recognised: &AtomicBool) {
    let silent = async {
        sleep(ROUTER_IDLE_TIMEOUT).await;
        if recognised.load(Relaxed) {
            std::future::pending().await
        }
    };
    if let Either::Left((Err(error), _)) = select(pin!(connection), pin!(silent)).await {
        tracing::debug!(%error, "a router's connection has ended");
    }
}

/// Returns the connection, after a TLS handshake if there is `tls`. Returns `None` if the handshake fails or takes too long.
pub(super) async fn secured(stream: TcpStream, tls: Option<ServerTls>, ending: CancellationToken) -> Option<Stream> {
    let Some(tls) = tls else {
        return Some(Stream::Plain(stream));
    };
    let shaken = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream, SealedBytes::default()));
    match ending.run_until_cancelled(shaken).await? {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no TLS with a router");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::server::conn::auto;
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::sidecar::body::SidecarBody;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_never_says_what_it_speaks_is_closed() {
        for (sent, closes) in [
            ("", true),
            ("PRI * HT", true),
            (std::str::from_utf8(PREFACE).unwrap(), false),
            ("GET / HTTP/1.1\r\n\r\n", false),
        ] {
            let (mut router, sidecar) = tokio::io::duplex(1 << 10);
            let recognised = Arc::new(AtomicBool::new(false));
            let never =
                service_fn(|_: Request<Incoming>| std::future::pending::<Result<Response<SidecarBody>, Infallible>>());
            let stream = TokioIo::new(recognising(sidecar, recognised.clone()));
            let builder = auto::Builder::new(TokioExecutor::new());
            router.write_all(sent.as_bytes()).await.unwrap();
            let connection = bounded(builder.serve_connection_with_upgrades(stream, never), &recognised);
            let ended = timeout(ROUTER_IDLE_TIMEOUT + Duration::from_secs(1), connection).await;
            assert_eq!(ended.is_ok(), closes, "{sent:?}");
        }
    }
}
