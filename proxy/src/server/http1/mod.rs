//! Serves HTTP/1.1 and HTTP/1.0 in the connection's own task, without a channel between the connection and its request.
//! Elsewhere: the socket and the body of a request (`wire`), writing a response (`writer`, `response_head`).
//!
//! # Invariants
//!
//! * A client that closes its side while its request is being served loses the request.
//! * A connection that waits, for a request or for a response, has no buffer but that of bytes which have arrived of the
//!   next request.

mod request_head;
mod response_head;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod twin;
mod wire;
mod writer;

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::BytesMut;
use http::header::CONNECTION;
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use tower::BoxError;

use self::request_head::RequestHead;
use self::response_head::{ResponseTerms, WrittenFraming, write_head};
use self::wire::{NextInput, Wire};
use self::writer::{ResponseWriter, UnsentResponse};
use super::active_request::ActiveRequest;
use super::client::{Client, ConnectionCommand};
use super::data_path::ServeRequest;
use super::io::local_reply_bytes;
use super::registry::ConnectionRegistry;
use crate::forward::{ClientGone, ClientInfo};
use crate::message::headers::options;
use crate::message::local_reply::LocalReply;
use crate::tls::Stream;

/// A client's connection, and what serves its requests.
pub(super) struct ClientSession<'connection, S> {
    pub(super) clients: &'connection ConnectionRegistry,
    pub(super) client: &'connection Rc<Client>,
    pub(super) peer: &'connection ClientInfo,
    pub(super) service: &'connection S,
}

/// How a connection leaves this half of the server.
pub(super) enum ConnectionEnd {
    Closed,
    /// It is shut down on this side, and the client still sends.
    Unread(Stream),
}

/// The next act on a connection after a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterResponse {
    Continue,
    /// This side is shut down first.
    Close,
    Abort,
    /// Another protocol is spoken, elsewhere.
    Switch,
}

/// The properties of a request that its response depends on.
struct RequestTerms {
    method: Method,
    version: Version,
    /// Whether the connection closes behind it.
    close: bool,
    takes_trailers: bool,
}

/// Closes the connection when it is dropped, which cuts off a body that something else still reads.
struct CloseOnDrop(Rc<Wire>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<S: ServeRequest> ClientSession<'_, S> {
    /// Serves the connection, of which `ahead` has been read already.
    pub(super) async fn serve(&self, stream: Stream, ahead: BytesMut) -> ConnectionEnd {
        let wire = CloseOnDrop(Wire::new(stream, ahead, self.clients.scratch.clone()));
        let ended = {
            let mut work = pin!(self.requests(&wire.0));
            std::future::poll_fn(|context| match self.client.poll_command(context) {
                command @ (ConnectionCommand::HeaderTimeout | ConnectionCommand::CloseNow) => Poll::Ready(Err(command)),
                _ => work.as_mut().poll(context).map(Ok),
            })
            .await
        };
        let Some(mut stream) = wire.0.close() else { return ConnectionEnd::Closed };
        match ended {
            Ok(()) if self.client.unread.get() => ConnectionEnd::Unread(stream),
            Err(ConnectionCommand::HeaderTimeout) => {
                self.clients.replied(LocalReply::TooSlow);
                stream.write_now(&local_reply_bytes(LocalReply::TooSlow));
                ConnectionEnd::Closed
            }
            _ => ConnectionEnd::Closed,
        }
    }

    /// Serves requests until the connection ends.
    async fn requests(&self, wire: &Rc<Wire>) {
        loop {
            let head = match std::future::poll_fn(|context| self.poll_next(context, wire)).await {
                NextInput::Request(head) => *head,
                NextInput::End => {
                    // TLS tells its client, as far as that takes no waiting.
                    let _ = wire.poll_shutdown(&mut Context::from_waker(Waker::noop()));
                    return;
                }
                NextInput::Refused(reply) => return self.refuse(wire, reply).await,
            };
            match self.exchange(wire, head).await {
                AfterResponse::Continue => {}
                AfterResponse::Close => {
                    let _ = std::future::poll_fn(|context| wire.poll_shutdown(context)).await;
                    return;
                }
                AfterResponse::Abort | AfterResponse::Switch => {
                    self.client.unread.set(false);
                    return;
                }
            }
        }
    }

    /// Responds to bytes that are no request, and shuts this side of the connection down.
    async fn refuse(&self, wire: &Wire, reply: LocalReply) {
        self.clients.replied(reply);
        // More of it may be on its way.
        self.client.unread.set(true);
        let mut writer = ResponseWriter::of(local_reply_bytes(reply));
        let _ = std::future::poll_fn(|context| {
            ready!(writer.poll_write(context, wire))?;
            wire.poll_shutdown(context)
        })
        .await;
    }

    fn poll_next(&self, context: &mut Context<'_>, wire: &Wire) -> Poll<NextInput> {
        let next = wire.poll_head(context, self.clients.terms.max_header_bytes);
        let in_head = next.is_pending() && !wire.is_between_requests();
        self.client.arrived.set_in_head(in_head);
        let sealed = if next.is_pending() { self.client.sealed() } else { 0 };
        self.clients.note_head(self.client, if in_head { wire.memory() } else { 0 } + sealed);
        if next.is_pending() && !in_head && self.is_told(ConnectionCommand::DrainAndClose) {
            return Poll::Ready(NextInput::End);
        }
        next
    }

    fn is_told(&self, command: ConnectionCommand) -> bool {
        self.client.command.get() == command
    }

    /// Serves one request.
    async fn exchange(&self, wire: &Rc<Wire>, head: RequestHead) -> AfterResponse {
        let body = wire.begin(&head);
        let RequestHead { parts, close, takes_trailers, .. } = head;
        let asked = RequestTerms { method: parts.method.clone(), version: parts.version, close, takes_trailers };
        let serving = ActiveRequest::begin(self.clients, self.client);
        let request = Request::from_parts(parts, body);
        let mut writer = ResponseWriter::default();
        let response = {
            let mut response = pin!(self.service.serve(request));
            std::future::poll_fn(|context| self.poll_response(context, wire, response.as_mut(), &mut writer)).await
        };
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(%error, "a request gets no response");
                return AfterResponse::Abort;
            }
        };
        let then = self.respond(wire, writer, response, asked).await;
        drop(serving);
        if matches!(then, AfterResponse::Abort | AfterResponse::Switch) {
            return then;
        }
        // A drain that begins only now cuts off an upload whose response is complete.
        let drains = self.is_told(ConnectionCommand::DrainAndClose);
        let is_read = std::future::poll_fn(|context| match wire.poll_settled(context) {
            Poll::Pending if !drains && self.is_told(ConnectionCommand::DrainAndClose) => Poll::Ready(false),
            settled => settled,
        });
        if is_read.await { then } else { AfterResponse::Close }
    }

    /// Writes the response, and gives the connection away if it switches protocols.
    async fn respond(
        &self,
        wire: &Rc<Wire>,
        mut writer: ResponseWriter,
        response: Response<S::Body>,
        asked: RequestTerms,
    ) -> AfterResponse {
        let (head, mut body) = response.into_parts();
        let lines = S::take_lines(&mut body);
        let switches = head.status == StatusCode::SWITCHING_PROTOCOLS;
        // The service says so if it has responded before the end of the request.
        let mut said = head.headers.get_all(CONNECTION).iter().flat_map(options);
        let is_early = said.any(|option| option.eq_ignore_ascii_case(b"close"));
        // Where the client takes this for a tunnel, no request follows.
        let is_tunnel = asked.method == Method::CONNECT && head.status.is_success();
        let is_told =
            self.is_told(ConnectionCommand::CloseAfterResponse) || self.is_told(ConnectionCommand::DrainAndClose);
        self.client.unread.set(!switches && (is_early || is_told));
        let closes = asked.close || is_tunnel || self.client.unread.get();
        let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
        let date = || self.clients.scratch.date();
        let terms = ResponseTerms {
            method: &asked.method,
            version: asked.version,
            closes,
            is_close_implied: asked.close && asked.version == Version::HTTP_10,
        };
        let out = writer.begin(wire, &self.peer.interim);
        let framing = match write_head(out, (&head, lines.as_ref()), length, terms, date) {
            Ok(framing) => framing,
            Err(error) => {
                tracing::debug!(%error, "a response cannot be passed on");
                return AfterResponse::Abort;
            }
        };
        let declares = asked.takes_trailers.then_some(&head.headers);
        let mut rest = UnsentResponse { body: pin!(body), framing, declares, ended: false };
        let written = std::future::poll_fn(|context| {
            let written = writer.poll_response(context, wire, &mut rest);
            if written.is_pending() && self.is_gone(context, wire) {
                return Poll::Ready(Err(ClientGone.into()));
            }
            written
        });
        if let Err(error) = written.await {
            tracing::debug!(%error, "a client's connection has ended");
            if framing == WrittenFraming::UntilClose {
                wire.throw_away();
            }
            return AfterResponse::Abort;
        }
        writer.give_back(wire);
        if switches {
            // The tunnel keeps the client registered.
            self.client.upgraded.set(true);
            return if wire.switch() { AfterResponse::Switch } else { AfterResponse::Abort };
        }
        if closes || framing == WrittenFraming::UntilClose { AfterResponse::Close } else { AfterResponse::Continue }
    }

    /// Waits for the response. Meanwhile writes the pod's informational responses, says whether the client is still
    /// there, and notices when it is not.
    fn poll_response(
        &self,
        context: &mut Context<'_>,
        wire: &Wire,
        response: Pin<&mut impl Future<Output = Result<Response<S::Body>, S::Error>>>,
        writer: &mut ResponseWriter,
    ) -> Poll<Result<Response<S::Body>, BoxError>> {
        if let Poll::Ready(response) = response.poll(context) {
            return Poll::Ready(response.map_err(Into::into));
        }
        self.peer.presence.reply(|| wire.is_closed_by_peer());
        let written = writer.poll_interim(context, wire, &self.peer.interim);
        if matches!(written, Poll::Ready(Err(_))) || self.is_gone(context, wire) {
            return Poll::Ready(Err(ClientGone.into()));
        }
        Poll::Pending
    }

    fn is_gone(&self, context: &mut Context<'_>, wire: &Wire) -> bool {
        wire.poll_gone(context).is_ready() || (self.client.is_sought.take() && wire.is_closed_by_peer())
    }
}
