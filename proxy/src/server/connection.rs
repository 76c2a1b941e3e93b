//! Serves one client's connection, from accept to close: HTTP/1.1 or HTTP/2, told apart by ALPN or by its first bytes.
//!
//! Elsewhere: HTTP/1.1 (`http1`). HTTP/2 is hyper's.
//! Not here: when a connection has to close ([`client`](super::client), [`registry`](super::registry)).
//!
//! # Invariants
//!
//! * In a hot restart an HTTP/1.1 connection is closed with a response, never between two of them.

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::active_request::{ActiveRequest, TrackedBody};
use super::client::{Client, ConnectionCommand};
use super::data_path::{DataPath, Layers, ServeRequest};
use super::http1::{ClientSession, ConnectionEnd};
use super::io::{ClientIo, local_reply_bytes};
use super::linger::linger;
use super::proxy_protocol::read_header;
use super::registry::{ConnectionGuard, ConnectionRegistry};
use super::worker::address_of;
use crate::forward::ClientInfo;
use crate::forward::client_presence::Presence;
use crate::message::PREFACE;
use crate::message::client_body::ClientBody;
use crate::message::headers::ClientLines;
use crate::message::interim::Interim;
use crate::message::local_reply::LocalReply;
use crate::runtime::background::LocalExecutor;
use crate::tls::{SealedBytes, ServerTls, Stream};

/// Window of an HTTP/2 stream: 64 MB/s at a round trip of 1 ms. A connection's window is that of all its streams together, so
/// that uploads which nobody reads never stop the others. No stash counts this memory while requests are held.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;

/// The largest window that HTTP/2 allows.
const MAX_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// How much of a response is read from its pod ahead of the client, for each stream. A client that reads nothing costs this
/// much memory for each of its streams.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// A client that leaves a ping unacknowledged for [`PING_TIMEOUT`] is taken for gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How many responses may precede the end of their requests on an HTTP/2 connection before it is closed properly. h2 soon
/// forgets the stream of such a response, and each data frame that arrives there later is one more reset.
const MOST_UNREAD_UPLOADS: u32 = 128;

/// How many streams h2 may reset by its own decision before the connection is closed properly: its requests in flight are
/// served, and its client makes another one.
const MOST_RESETS: u32 = 256;
/// After how many h2 ends a connection with all that is in flight on it. Between the two bounds lies what arrives until the
/// client has been told. It is finite because each such reset may leave a pod with work that nobody awaits.
const MOST_RESETS_OF_H2: usize = 64 << 10;

/// A connection on which HTTP comes next.
struct ReadyConnection {
    stream: Stream,
    /// The client's address, as `x-forwarded-for` has it.
    peer: HeaderValue,
    /// The value of `x-forwarded-client-cert`, if the client has shown a certificate.
    certificate: Option<HeaderValue>,
}

impl ConnectionGuard {
    /// Serves the connection until it closes.
    pub(super) async fn serve<M: Layers>(self, stream: TcpStream, peer: HeaderValue, path: DataPath<M>) {
        // A tunnel holds on to this when the connection switches protocols, and so stays counted.
        let this = Rc::new(self);
        let client = &this.client;
        let _ = stream.set_nodelay(true);
        // Bytes that a client does not read have left the server, and their exchange is over: only the kernel sees them.
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(this.clients.terms.unread_timeout));
        let Some(ReadyConnection { mut stream, peer, certificate }) = this.open(stream, peer).await else { return };
        let mut ahead = BytesMut::new();
        let agreed_on_http2 = stream.agreed_on_http2();
        let recognised = match agreed_on_http2 {
            Some(false) => Ok(ClientProtocol::Http1),
            // h2 itself would wait for the preface without an end.
            Some(true) | None => until_told(&this.clients, client, recognise(&mut stream, &mut ahead, client)).await,
        };
        let is_http2 = match recognised {
            // h2 refuses whatever is not its preface.
            Ok(ClientProtocol::Http1) => agreed_on_http2 == Some(true),
            Ok(ClientProtocol::Http2) => true,
            Ok(ClientProtocol::Disconnected) => return,
            Err(command) => {
                if command == ConnectionCommand::HeaderTimeout && agreed_on_http2.is_none() {
                    this.clients.replied(LocalReply::TooSlow);
                    stream.write_now(&local_reply_bytes(LocalReply::TooSlow));
                }
                return;
            }
        };
        // By HTTP/2 hyper always reads, so it notices when a client disconnects.
        let presence = if is_http2 { Presence::default() } else { Presence::of_http1() };
        let seat: Weak<dyn Any> = Rc::downgrade(&(this.clone() as Rc<dyn Any>));
        let peer = Rc::new(ClientInfo {
            lines: ClientLines::new(
                peer,
                stream.is_secure(),
                certificate,
                if is_http2 { Version::HTTP_2 } else { Version::HTTP_11 },
            ),
            interim: Interim::default(),
            presence,
            usage: client.address().usage().clone(),
            addresses: this.clients.addresses.clone(),
            unread_uploads: Cell::new(0),
            seat,
        });
        client.http2.set(is_http2);
        let requests = path.for_client(peer.clone());
        // Both boxed: otherwise each connection would reserve room for the other protocol.
        if is_http2 {
            let most = this.clients.terms.max_header_bytes;
            let io = ClientIo::new(stream, ahead.freeze(), client.arrived.clone(), most);
            return Box::pin(this.serve_http2(io, client, peer, requests)).await;
        }
        let session = ClientSession { clients: &this.clients, client, peer: &peer, service: &requests };
        if let ConnectionEnd::Unread(stream) = Box::pin(session.serve(stream, ahead)).await {
            this.linger(Box::pin(linger(stream))).await;
        }
    }

    /// Reads what stands ahead of HTTP. Returns nothing if the connection ends there.
    async fn open(&self, mut stream: TcpStream, mut peer: HeaderValue) -> Option<ReadyConnection> {
        if self.clients.terms.proxy_protocol {
            // Boxed: otherwise every connection would reserve room for it.
            match Box::pin(name_client(&mut stream, &self.client, &self.clients)).await {
                ProxyHeader::Names(ip) => {
                    peer = address_of(ip);
                    let _ = self.client.named.set(self.clients.addresses.connect(ip));
                }
                ProxyHeader::NamesNobody => {}
                ProxyHeader::Missing => return None,
            }
        }
        let (stream, certificate) = match &self.clients.terms.tls {
            None => (Stream::Plain(stream), None),
            // Boxed: otherwise every task would reserve room for a handshake, also those in clear text.
            Some(tls) => Box::pin(shake_hands(tls, stream, &self.client, &self.clients)).await?,
        };
        Some(ReadyConnection { stream, peer, certificate })
    }

    /// Waits for the end of what the client sends on a connection that is shut down on this side. Only a server that stops,
    /// or one that needs the room, ends the wait. `reading` is boxed: otherwise every connection would reserve room for it.
    async fn linger(&self, reading: Pin<Box<impl Future<Output = ()>>>) {
        let client = &self.client;
        if client.command.get() == ConnectionCommand::DrainAndClose {
            client.command.set(ConnectionCommand::CloseAfterResponse);
        }
        let _ = until_told(&self.clients, client, reading).await;
    }

    async fn serve_http2(&self, io: ClientIo, client: &Rc<Client>, peer: Rc<ClientInfo>, requests: impl ServeRequest) {
        let streams = self.clients.terms.max_streams;
        let of_client = peer.clone();
        let mut connection = http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(STREAM_WINDOW_BYTES.saturating_mul(streams).min(MAX_WINDOW_BYTES))
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .max_local_error_reset_streams(MOST_RESETS_OF_H2)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_header_list_size(u32::try_from(self.clients.terms.max_header_bytes).unwrap_or(u32::MAX))
            .serve_connection(TokioIo::new(io), service(&self.clients, client, peer, requests));
        let mut finishing = false;
        let ended = std::future::poll_fn(|context| {
            match client.poll_command(context) {
                // hyper sends two GOAWAYs, so that requests on their way are still served.
                ConnectionCommand::DrainAndClose | ConnectionCommand::CloseAfterResponse if !finishing => {
                    finishing = true;
                    Pin::new(&mut connection).graceful_shutdown();
                }
                ConnectionCommand::Continue
                | ConnectionCommand::DrainAndClose
                | ConnectionCommand::CloseAfterResponse => {}
                // Sent before the protocol was known, or to make room for others.
                ConnectionCommand::HeaderTimeout | ConnectionCommand::CloseNow => return Poll::Ready(Some(Ok(()))),
            }
            let polled = Pin::new(&mut connection).poll(context);
            self.clients.note_head(client, client.arrived.unfinished() + client.sealed());
            (0..client.arrived.take_malformed()).for_each(|_| self.clients.replied(LocalReply::Malformed));
            if client.arrived.resets() >= MOST_RESETS && client.command.get() == ConnectionCommand::Continue {
                tracing::debug!("a client has made too many mistakes on one HTTP/2 connection; closing it properly");
                client.tell(ConnectionCommand::DrainAndClose);
            }
            match polled {
                Poll::Pending if client.arrived.is_discarded() => Poll::Ready(None),
                ended => ended.map(Some),
            }
        })
        .await;
        // The tasks of its requests have not yet learnt of the end.
        let requests = client.serving.get();
        let log = |ended| {
            if let Err(error) = ended {
                tracing::debug!(%error, "a client's connection has ended");
                if let Some(reason) = mistake(&error) {
                    self.clients.broke_http2(&of_client.lines.address, reason, requests);
                }
            }
        };
        match ended {
            Some(ended) => log(ended),
            None => self.linger(Box::pin(async { log(connection.await) })).await,
        }
    }
}

/// Returns the code with which `h2` has ended a connection because of what its client sent there.
fn mistake(error: &hyper::Error) -> Option<h2::Reason> {
    let error = std::error::Error::source(error)?.downcast_ref::<h2::Error>()?;
    error.reason().filter(|_| error.is_go_away() && error.is_library())
}

fn service<S: ServeRequest>(
    clients: &Rc<ConnectionRegistry>,
    client: &Rc<Client>,
    peer: Rc<ClientInfo>,
    requests: S,
) -> impl Service<Request<Incoming>, Response = Response<TrackedBody<S::Body>>, Error = S::Error, Future: 'static> + use<S>
{
    let (clients, client) = (clients.clone(), client.clone());
    hyper::service::service_fn(move |request: Request<Incoming>| {
        let serving = ActiveRequest::begin(&clients, &client);
        // Boxed: hyper moves it more than once.
        let response = Box::pin(requests.serve(request.map(ClientBody::from)));
        let (client, peer) = (client.clone(), peer.clone());
        async move {
            let response = response.await?;
            if peer.unread_uploads.get() >= MOST_UNREAD_UPLOADS && client.command.get() == ConnectionCommand::Continue {
                client.tell(ConnectionCommand::DrainAndClose);
            }
            Ok(response.map(|body| TrackedBody { body, _request: serving }))
        }
    })
}

/// The header of the PROXY protocol on a connection.
enum ProxyHeader {
    Names(IpAddr),
    /// The connection is the balancer's own, such as a health check, or its client's address is none of IP.
    NamesNobody,
    /// There is none, it is invalid, or it came too late: the connection has to close.
    Missing,
}

/// Reads the header of the PROXY protocol. It has as long as a request head, counted from the accept.
async fn name_client(stream: &mut TcpStream, client: &Client, clients: &ConnectionRegistry) -> ProxyHeader {
    client.arrived.set_in_head(true);
    let read = until_told(clients, client, read_header(stream)).await;
    client.arrived.set_in_head(false);
    match read {
        Ok(Ok(named)) => named.map_or(ProxyHeader::NamesNobody, ProxyHeader::Names),
        Ok(Err(error)) => {
            clients.misled(&error);
            ProxyHeader::Missing
        }
        Err(_) => ProxyHeader::Missing,
    }
}

/// Performs the TLS handshake. It has as long as a request head, counted from the accept.
async fn shake_hands(
    tls: &ServerTls,
    stream: TcpStream,
    client: &Client,
    clients: &ConnectionRegistry,
) -> Option<(Stream, Option<HeaderValue>)> {
    client.arrived.set_in_head(true);
    let sealed = client.sealed.get_or_init(SealedBytes::default).clone();
    let shaken = until_told(clients, client, tls.accept_client(stream, sealed)).await;
    client.arrived.set_in_head(false);
    match shaken {
        Ok(Ok(accepted)) => Some(accepted),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no TLS with a client");
            None
        }
        Err(_) => None,
    }
}

/// The version of HTTP that a client's first bytes show.
enum ClientProtocol {
    Http1,
    Http2,
    /// The client has disconnected before it was clear.
    Disconnected,
}

/// Reads until the version of HTTP is known.
async fn recognise(stream: &mut Stream, ahead: &mut BytesMut, client: &Client) -> ClientProtocol {
    ahead.reserve(2 << 10);
    loop {
        if matches!(stream.read_buf(ahead).await, Ok(0) | Err(_)) {
            return ClientProtocol::Disconnected;
        }
        client.arrived.set_in_head(true);
        let seen = ahead.len().min(PREFACE.len());
        if ahead[..seen] != PREFACE[..seen] {
            return ClientProtocol::Http1;
        }
        if seen == PREFACE.len() {
            return ClientProtocol::Http2;
        }
    }
}

/// Runs `work` to its end, or until the connection has to close. Notes what TLS cannot open meanwhile.
async fn until_told<T>(
    clients: &ConnectionRegistry,
    client: &Client,
    work: impl Future<Output = T>,
) -> Result<T, ConnectionCommand> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| match client.poll_command(context) {
        // No request is in flight, so there is nothing to drain.
        command @ (ConnectionCommand::DrainAndClose
        | ConnectionCommand::HeaderTimeout
        | ConnectionCommand::CloseNow) => Poll::Ready(Err(command)),
        ConnectionCommand::Continue | ConnectionCommand::CloseAfterResponse => {
            let polled = work.as_mut().poll(context);
            clients.note_head(client, if polled.is_pending() { client.sealed() } else { 0 });
            polled.map(Ok)
        }
    })
    .await
}
