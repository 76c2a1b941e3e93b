//! The connections of the admin endpoint: by TCP, with TLS or without, and by the Unix socket.
//!
//! # Invariants
//!
//! * The number of open connections is bounded, and idle or stuck ones are closed. The Unix socket has places of its own,
//!   so that a crowd of readers does not keep an operator out.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use segue_proxy::tls::ServerTls;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Admin, MAX_PAGE_AGE};
use crate::api::Peer;
use crate::socket_path::SocketPath;

/// Most connections by TCP at a time. A few of those above the limit are told so; the others are closed without a
/// response.
pub(super) const MAX_CONNECTIONS: usize = 64;
const MAX_TURNED_AWAY: usize = 16;
/// Most connections by the Unix socket at a time. Those above the limit are closed.
const MAX_LOCAL_CONNECTIONS: usize = 16;
/// How long a request's head may take, and so the pause between two requests; how long a handshake may take; also how
/// long a client may read nothing.
pub(super) const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest life of a connection, whatever it does.
const MAX_LIFETIME: Duration = Duration::from_secs(60);
/// Pause of the accept loop after an error, such as no file descriptors left.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A connection that has been accepted.
enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// Accepts until the end, then waits for requests in progress.
pub(super) async fn accept(admin: Admin, routes: Router, end: CancellationToken) -> io::Result<()> {
    let Admin { listener, tls, socket, more: _ } = admin;
    let listener = TcpListener::from_std(listener)?;
    let semaphore = |places| Arc::new(Semaphore::new(places));
    let (places, turned_away) = (semaphore(MAX_CONNECTIONS), semaphore(MAX_TURNED_AWAY));
    let local_places = semaphore(MAX_LOCAL_CONNECTIONS);
    let clients = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted.map(|(stream, address)| Accepted::Tcp(stream, address)),
            accepted = accept_local(socket.as_ref()) => accepted.map(Accepted::Unix),
            () = end.cancelled() => break,
        };
        match accepted {
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_PAUSE).await,
            Ok(Accepted::Tcp(stream, address)) => {
                if let Ok(place) = places.clone().try_acquire_owned() {
                    clients.spawn(serve_tcp(stream, address, tls.clone(), routes.clone(), end.clone(), place));
                } else if let Ok(place) = turned_away.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(MAX_PAGE_AGE, turn_away(stream)).await;
                        drop(place);
                    });
                }
            }
            Ok(Accepted::Unix(stream)) => {
                if let Ok(place) = local_places.clone().try_acquire_owned() {
                    clients.spawn(serve_local(stream, routes.clone(), end.clone(), place));
                }
            }
        }
    }
    drop(listener);
    if let Some(socket) = socket {
        socket.release();
    }
    clients.close();
    clients.wait().await;
    Ok(())
}

async fn accept_local(socket: Option<&SocketPath>) -> io::Result<UnixStream> {
    match socket {
        Some(socket) => socket.accept().await,
        None => std::future::pending().await,
    }
}

async fn serve_tcp(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<ServerTls>,
    routes: Router,
    end: CancellationToken,
    _place: OwnedSemaphorePermit,
) {
    // Only the kernel notices a client that reads nothing.
    #[cfg(target_os = "linux")]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, IO_TIMEOUT.as_millis() as u32);
    let Some(tls) = tls else {
        return serve(stream, Peer::Tcp { address, certified: false }, routes, end).await;
    };
    match tokio::time::timeout(IO_TIMEOUT, tls.accept_http1(stream)).await {
        Ok(Ok((stream, certified))) => serve(stream, Peer::Tcp { address, certified }, routes, end).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake with a client of the admin endpoint failed"),
        Err(_) => tracing::debug!("a TLS handshake with a client of the admin endpoint took too long"),
    }
}

async fn serve_local(stream: UnixStream, routes: Router, end: CancellationToken, _place: OwnedSemaphorePermit) {
    if let Ok(uid) = stream.peer_cred().map(|peer| peer.uid()) {
        serve(stream, Peer::Unix { uid }, routes, end).await;
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    routes: Router,
    end: CancellationToken,
) {
    let routes = TowerToHyperService::new(routes);
    let routes = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        routes.call(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IO_TIMEOUT)
        .serve_connection(TokioIo::new(stream), routes);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = async { tokio::select! { () = end.cancelled() => {}, () = tokio::time::sleep(MAX_LIFETIME) => {} } } => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(IO_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the admin endpoint has ended");
    }
}

/// Responds that there is no room, and waits until that can have been read.
async fn turn_away(mut stream: TcpStream) -> io::Result<()> {
    let answer = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut unread = [0; 1024];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}
