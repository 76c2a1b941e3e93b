//! The connections of the admin endpoint: by TCP, with TLS or without, and by the Unix socket.
//!
//! # Invariants
//!
//! * The number of open connections is bounded, and idle or stuck ones are closed. A connection ends once its age and
//!   then the longest wait of a request are over. The Unix socket has places of its own, so that a crowd of readers does
//!   not keep an operator out.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
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
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, sink};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Admin;
use super::api::AdminPeer;
use super::shown::MAX_PAGE_AGE;
use crate::process::socket_path::SocketPath;

/// Most connections by TCP at a time. A few of those above the limit are told so; the others are closed without a
/// response.
pub(super) const MAX_CONNECTIONS: usize = 64;
const MAX_TURNED_AWAY: usize = 16;
/// Most connections by the Unix socket at a time. Those above the limit are closed.
const MAX_LOCAL_CONNECTIONS: usize = 16;
/// How long a request's head may take, and so the pause between two requests; how long a handshake may take; also how
/// long a client may read nothing.
pub(super) const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// Age at which a connection takes no further request. One in progress is still answered.
const MAX_LIFETIME: Duration = Duration::from_secs(60);
/// How long the answer to a connection's last request may take to make. Longer than a request may wait.
const MAX_LAST_ANSWER: Duration = Duration::from_secs(60);
/// Most bytes that are read behind a connection's last response.
const MAX_LINGER_BYTES: u64 = 8 << 20;
/// Pause of the accept loop after an error, such as no file descriptors left.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A connection that has been accepted.
enum AcceptedStream {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// Accepts until the end, then waits for requests in progress.
pub(super) async fn accept(admin: Admin, routes: Router, end: CancellationToken) -> io::Result<()> {
    let Admin { listener, tls, mut socket, .. } = admin;
    let listener = TcpListener::from_std(listener)?;
    let semaphore = |places| Arc::new(Semaphore::new(places));
    let (places, turned_away) = (semaphore(MAX_CONNECTIONS), semaphore(MAX_TURNED_AWAY));
    let local_places = semaphore(MAX_LOCAL_CONNECTIONS);
    let clients = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted.map(|(stream, address)| AcceptedStream::Tcp(stream, address)),
            accepted = accept_local(socket.as_mut()) => accepted.map(AcceptedStream::Unix),
            () = end.cancelled() => break,
        };
        match accepted {
            Err(_) => sleep(ACCEPT_RETRY_PAUSE).await,
            Ok(AcceptedStream::Tcp(stream, address)) => {
                if let Ok(place) = places.clone().try_acquire_owned() {
                    clients.spawn(serve_tcp(stream, address, tls.clone(), routes.clone(), end.clone(), place));
                } else if let Ok(place) = turned_away.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        let _ = timeout(MAX_PAGE_AGE, turn_away(stream)).await;
                        drop(place);
                    });
                }
            }
            Ok(AcceptedStream::Unix(stream)) => {
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

async fn accept_local(socket: Option<&mut SocketPath>) -> io::Result<UnixStream> {
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
        return serve(stream, AdminPeer::Tcp { address, certified: false }, routes, end).await;
    };
    match timeout(IO_TIMEOUT, tls.accept_http1(stream)).await {
        Ok(Ok((stream, certified))) => serve(stream, AdminPeer::Tcp { address, certified }, routes, end).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake with a client of the admin endpoint failed"),
        Err(_) => tracing::debug!("a TLS handshake with a client of the admin endpoint took too long"),
    }
}

async fn serve_local(stream: UnixStream, routes: Router, end: CancellationToken, _place: OwnedSemaphorePermit) {
    if let Ok(uid) = stream.peer_cred().map(|peer| peer.uid()) {
        serve(stream, AdminPeer::Unix { uid }, routes, end).await;
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: AdminPeer,
    routes: Router,
    end: CancellationToken,
) {
    let routes = TowerToHyperService::new(routes);
    // One request at a time has an answer made for it.
    let made = Arc::new(Mutex::new(()));
    let making = made.clone();
    let routes = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let answer = routes.call(request.map(Body::new));
        let making = making.clone();
        async move {
            let _making = making.lock().await;
            answer.await
        }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IO_TIMEOUT)
        .serve_connection(TokioIo::new(stream), routes);
    let mut serving = Pin::new(&mut connection);
    let ended = tokio::select! {
        ended = serving.as_mut() => Some(ended),
        () = end.cancelled() => {
            serving.as_mut().graceful_shutdown();
            timeout(IO_TIMEOUT, serving).await.ok()
        }
        () = sleep(MAX_LIFETIME) => {
            serving.as_mut().graceful_shutdown();
            let too_long = async {
                // A request whose head has begun to arrive is served.
                sleep(IO_TIMEOUT).await;
                tokio::select! {
                    _ = made.lock() => {}
                    () = sleep(MAX_LAST_ANSWER) => {}
                    () = end.cancelled() => {}
                }
                sleep(IO_TIMEOUT).await;
            };
            tokio::select! { ended = serving => Some(ended), () = too_long => None }
        }
    };
    let is_shut_down = match ended {
        Some(Ok(())) => true,
        Some(Err(error)) => {
            tracing::debug!(%error, "a connection to the admin endpoint has ended");
            // hyper has responded that it cannot read the head.
            error.is_parse()
        }
        None => false,
    };
    if is_shut_down {
        let reading = linger(connection.into_parts().io.into_inner());
        tokio::select! { () = reading => {}, () = end.cancelled() => {} }
    }
}

/// Waits for the end of what the client sends on a connection that is shut down on this side. Closed with unread bytes it
/// would be reset, and the client might lose the response.
async fn linger(stream: impl AsyncRead + Unpin) {
    let mut rest = stream.take(MAX_LINGER_BYTES);
    let _ = timeout(IO_TIMEOUT, copy(&mut rest, &mut sink())).await;
}

/// Responds that there is no room, and waits until that can have been read.
async fn turn_away(mut stream: TcpStream) -> io::Result<()> {
    let answer = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    linger(stream).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use axum::routing::{get, put};
    use tokio::io::duplex;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_request_of_an_old_connection_is_still_answered() {
        let wait = || async {
            sleep(Duration::from_secs(50)).await;
            "done"
        };
        let (mut client, server) = duplex(4096);
        let routes = Router::new().route("/wait", get(wait));
        let serving = tokio::spawn(serve(server, AdminPeer::Unix { uid: 0 }, routes, CancellationToken::new()));
        let (began, mut bytes) = (Instant::now(), [0; 4096]);
        for number in 1..=2 {
            client.write_all(b"GET /wait HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
            let mut text = String::new();
            while !text.ends_with("done") {
                let count = client.read(&mut bytes).await.unwrap();
                assert!(count > 0, "request {number} was cut off after {:?}", began.elapsed());
                text += &String::from_utf8_lossy(&bytes[..count]);
            }
        }
        assert_eq!(client.read(&mut bytes).await.unwrap(), 0, "no third one");
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_sends_a_whole_body_before_it_reads_is_told_why_it_was_refused() {
        for (head, status) in [
            ("PUT /refuse HTTP/1.1\r\nhost: h\r\ncontent-length: 4194304\r\n\r\n", "403"),
            ("PUT /refuse HTTP/1.1\r\nhost: h\r\nno field\r\ncontent-length: 4194304\r\n\r\n", "400"),
        ] {
            let (mut client, server) = duplex(4096);
            let routes = Router::new().route("/refuse", put(|| async { StatusCode::FORBIDDEN }));
            let serving = tokio::spawn(serve(server, AdminPeer::Unix { uid: 0 }, routes, CancellationToken::new()));
            client.write_all(head.as_bytes()).await.unwrap();
            client.write_all(&vec![b'x'; 4 << 20]).await.unwrap();
            client.shutdown().await.unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
            serving.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_take_its_answer_keeps_no_connection() {
        let (mut client, server) = duplex(4096);
        let routes = Router::new().route("/large", get(|| async { "x".repeat(1 << 20) }));
        let serving = tokio::spawn(serve(server, AdminPeer::Unix { uid: 0 }, routes, CancellationToken::new()));
        client.write_all(b"GET /large HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
        let began = Instant::now();
        serving.await.unwrap();
        assert_eq!(began.elapsed(), MAX_LIFETIME + 2 * IO_TIMEOUT);
    }
}
