//! Serves one client's connection, from accept to close: HTTP/1.1 or HTTP/2, told apart by ALPN or by its first bytes.
//!
//! Not here: when a client is told to go ([`client`](super::client), [`registry`](super::registry)).
//!
//! # Invariants
//!
//! * Who is left to another process is told with an answer, never by a close.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::active_request::{ActiveRequest, TrackedBody};
use super::client::{Client, ConnectionCommand};
use super::io::ClientIo;
use super::registry::{ConnectionGuard, ConnectionRegistry};
use crate::forward::client_presence::Presence;
use crate::forward::{ClientGone, ClientInfo, Forward};
use crate::message::interim::Interim;
use crate::message::local_reply::LocalReply;
use crate::runtime::background::LocalExecutor;
use crate::tls::{ServerTls, Stream};

/// How an HTTP/2 connection begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a client may send ahead on a stream of HTTP/2 before anybody reads: 64 MB/s at 1 ms. A connection takes as much of
/// all its streams together, so that uploads which nobody reads never stop the others. While requests are held this is
/// memory that no stash counts.
const STREAM_WINDOW: u32 = 64 << 10;

/// The largest window of HTTP/2.
const MAX_WINDOW: u32 = (1 << 31) - 1;

/// What of an answer is taken from its pod before the client takes it, for each stream. A client that reads nothing has
/// this much of each of its streams kept here.
const SEND_BUFFER: usize = 64 << 10;

/// A client that does not answer a ping for so long is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

impl ConnectionGuard {
    /// Serves the client to its end.
    pub(super) async fn serve(self, stream: TcpStream, peer: HeaderValue, forward: Forward) {
        // Whoever goes on with a connection that switches protocols keeps its place.
        let this = Rc::new(self);
        let client = &this.client;
        let _ = stream.set_nodelay(true);
        // What waits for a client that reads nothing is behind hyper's back, and the exchange that it came from is over
        // by then: the kernel alone knows.
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(this.clients.limits.unread_timeout));
        let mut stream = match &this.clients.limits.tls {
            None => Stream::Plain(stream),
            // In a box, as every task would have room for a handshake otherwise, also those in clear text.
            Some(tls) => match Box::pin(shake_hands(tls, stream, client)).await {
                Some(stream) => stream,
                None => return,
            },
        };
        let interim = Interim::default();
        let mut ahead = BytesMut::new();
        let recognised = match stream.agreed_on_http2() {
            Some(is_http2) => Ok(Some(is_http2)),
            None => until_told(client, recognise(&mut stream, &mut ahead, client)).await,
        };
        let is_http2 = match recognised {
            Ok(Some(is_http2)) => is_http2,
            Ok(None) => return,
            Err(command) => {
                if command == ConnectionCommand::HeaderTimeout {
                    let presence = Presence::default();
                    ClientIo::new(stream, Bytes::new(), client.arrived.clone(), interim, presence)
                        .refuse(LocalReply::TooSlow);
                }
                return;
            }
        };
        // By HTTP/2 hyper always reads, and so notices by itself that a client has gone.
        let presence = if is_http2 { Presence::default() } else { Presence::of_http1() };
        let seat: Weak<dyn Any> = Rc::downgrade(&(this.clone() as Rc<dyn Any>));
        let peer = Rc::new(ClientInfo {
            address: peer,
            secure: stream.is_secure(),
            interim: interim.clone(),
            presence: presence.clone(),
            usage: client.address.usage().clone(),
            seat,
        });
        if !is_http2 {
            client.arrived.await_head();
        }
        let io = ClientIo::new(stream, ahead.freeze(), client.arrived.clone(), interim, presence);
        client.http2.set(is_http2);
        if is_http2 {
            // In a box, as a connection by HTTP/1.1 would have room for it otherwise.
            Box::pin(this.serve_http2(io, client, peer, forward)).await;
        } else {
            this.serve_http1(io, client, peer, forward).await;
        }
    }

    async fn serve_http1(&self, io: ClientIo, client: &Rc<Client>, peer: Rc<ClientInfo>, forward: Forward) {
        let mut connection = http1::Builder::new()
            .header_read_timeout(None)
            .max_header_size(self.clients.limits.max_header_bytes)
            // hyper reads a head into its buffer before it can tell how long it is.
            .max_buf_size(self.clients.limits.max_header_bytes.saturating_mul(2).max(16 << 10))
            .serve_connection(TokioIo::new(io), service(&self.clients, client, peer, forward))
            .with_upgrades();
        let mut finishing = false;
        let ended = std::future::poll_fn(|context| {
            match client.poll_command(context) {
                ConnectionCommand::DrainAndClose if !finishing => {
                    finishing = true;
                    Pin::new(&mut connection).graceful_shutdown();
                }
                // The service tells the client, with its next answer.
                ConnectionCommand::Continue
                | ConnectionCommand::DrainAndClose
                | ConnectionCommand::CloseAfterResponse => {}
                command @ (ConnectionCommand::HeaderTimeout | ConnectionCommand::CloseNow) => {
                    return Poll::Ready(Err(command));
                }
            }
            Pin::new(&mut connection).poll(context).map(Ok)
        })
        .await;
        match ended {
            Ok(Err(error)) => tracing::debug!(%error, "a client's connection has ended"),
            Ok(Ok(())) if client.unread.get() => {
                if let Some(parts) = connection.into_parts() {
                    // Only a server that ends, or one that needs the place, does not wait for it.
                    if client.command.get() == ConnectionCommand::DrainAndClose {
                        client.command.set(ConnectionCommand::CloseAfterResponse);
                    }
                    // In a box, as every connection would have room for it otherwise.
                    let _ = until_told(client, Box::pin(parts.io.into_inner().linger())).await;
                }
            }
            Ok(Ok(())) | Err(ConnectionCommand::CloseNow) => {}
            Err(_) => {
                if let Some(parts) = connection.into_parts() {
                    parts.io.into_inner().refuse(LocalReply::TooSlow);
                }
            }
        }
    }

    async fn serve_http2(&self, io: ClientIo, client: &Rc<Client>, peer: Rc<ClientInfo>, forward: Forward) {
        let streams = self.clients.limits.max_streams;
        let mut connection = http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW.saturating_mul(streams).min(MAX_WINDOW))
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_header_list_size(u32::try_from(self.clients.limits.max_header_bytes).unwrap_or(u32::MAX))
            .serve_connection(TokioIo::new(io), service(&self.clients, client, peer, forward));
        let mut finishing = false;
        let ended = std::future::poll_fn(|context| {
            match client.poll_command(context) {
                // hyper says twice that it goes, and leaves room for what is on its way.
                ConnectionCommand::DrainAndClose | ConnectionCommand::CloseAfterResponse if !finishing => {
                    finishing = true;
                    Pin::new(&mut connection).graceful_shutdown();
                }
                ConnectionCommand::Continue
                | ConnectionCommand::DrainAndClose
                | ConnectionCommand::CloseAfterResponse => {}
                // Told while it was not known yet what is spoken, or to make room.
                ConnectionCommand::HeaderTimeout | ConnectionCommand::CloseNow => return Poll::Ready(Ok(())),
            }
            Pin::new(&mut connection).poll(context)
        })
        .await;
        if let Err(error) = ended {
            tracing::debug!(%error, "a client's connection has ended");
        }
    }
}

fn service(
    clients: &Rc<ConnectionRegistry>,
    client: &Rc<Client>,
    peer: Rc<ClientInfo>,
    forward: Forward,
) -> impl Service<Request<Incoming>, Response = Response<TrackedBody>, Error = ClientGone, Future: 'static> + use<> {
    let (clients, client) = (clients.clone(), client.clone());
    hyper::service::service_fn(move |request: Request<Incoming>| {
        let serving = ActiveRequest::begin(&clients, &client, request.body());
        // hyper moves what it is given more than once: one pointer instead of kilobytes.
        let answer = Box::pin(forward.call(request, peer.clone()));
        let (client, peer) = (client.clone(), peer.clone());
        async move {
            let mut answer = answer.await?;
            // Whatever its client has had no room for comes too late now.
            drop(peer.interim.take());
            if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                client.upgraded.set(true);
            } else if !client.http2.get() && answer.headers().contains_key(CONNECTION) {
                client.unread.set(true);
            } else if client.command.get() == ConnectionCommand::CloseAfterResponse && !client.http2.get() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(answer.map(|body| TrackedBody { body, _request: serving }))
        }
    })
}

/// A handshake has as long as a head, from the first moment on: a client has to begin it.
async fn shake_hands(tls: &ServerTls, stream: TcpStream, client: &Client) -> Option<Stream> {
    client.arrived.set_in_head(true);
    let shaken = until_told(client, tls.accept(stream)).await;
    client.arrived.set_in_head(false);
    match shaken {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no TLS with a client");
            None
        }
        Err(_) => None,
    }
}

/// Reads until it is clear which version of HTTP this is; `None`: the client has said nothing and is gone.
async fn recognise(stream: &mut Stream, ahead: &mut BytesMut, client: &Client) -> Option<bool> {
    ahead.reserve(2 << 10);
    loop {
        if stream.read_buf(ahead).await.ok()? == 0 {
            return None;
        }
        client.arrived.set_in_head(true);
        let seen = ahead.len().min(PREFACE.len());
        if ahead[..seen] != PREFACE[..seen] {
            return Some(false);
        }
        if seen == PREFACE.len() {
            return Some(true);
        }
    }
}

/// Runs until done, or until the client is to be closed.
async fn until_told<T>(client: &Client, work: impl Future<Output = T>) -> Result<T, ConnectionCommand> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| match client.poll_command(context) {
        // Nothing has been asked yet, so there is nothing to finish.
        command @ (ConnectionCommand::DrainAndClose
        | ConnectionCommand::HeaderTimeout
        | ConnectionCommand::CloseNow) => Poll::Ready(Err(command)),
        ConnectionCommand::Continue | ConnectionCommand::CloseAfterResponse => work.as_mut().poll(context).map(Ok),
    })
    .await
}
