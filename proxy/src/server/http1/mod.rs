//! Serves plain HTTP/1.1 requests without hyper, in the connection's own task and without a channel between the
//! connection and its request.
//!
//! Whatever is not plain (`request_head`) is left to hyper, with the bytes that have arrived of it: upgrades, `Expect`,
//! HTTP/1.0 and every head that is malformed or large. Local replies to heads are hyper's, therefore.
//! Elsewhere: the socket and the body of a request (`wire`), writing a response (`writer`, `response_head`).
//!
//! # Invariants
//!
//! * A connection passes to hyper only between two requests.
//! * A client that closes its side while its request is being served loses the request, as with hyper.
//! * A connection that waits, for a request or for a response, has no buffer but that of bytes which have arrived of the
//!   next request.

mod request_head;
mod response_head;
mod scratch;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod twin;
mod wire;
mod writer;

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::header::CONNECTION;
use http::{Method, Request, Response};
use http_body::Body as _;

use self::request_head::RequestHead;
use self::response_head::{Terms, write_head};
pub(super) use self::scratch::Scratch;
use self::wire::{Next, Wire};
use self::writer::{Rest, Writer};
use super::active_request::ActiveRequest;
use super::client::{Client, ConnectionCommand};
use super::data_path::{BoxError, ServeRequest};
use super::io::local_reply_bytes;
use super::registry::ConnectionRegistry;
use crate::forward::{ClientGone, ClientInfo};
use crate::message::local_reply::LocalReply;
use crate::tls::Stream;

/// A client's connection, and what serves its requests.
pub(super) struct Session<'connection, S> {
    pub(super) clients: &'connection ConnectionRegistry,
    pub(super) client: &'connection Rc<Client>,
    pub(super) peer: &'connection ClientInfo,
    pub(super) service: &'connection S,
}

/// How a connection leaves this half of the server.
pub(super) enum End {
    Closed,
    /// It is shut down on this side, and the client still sends.
    Unread(Stream),
    /// hyper has to serve it from here on, beginning with these bytes.
    NotPlain(Stream, Bytes),
}

/// What follows a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Continue,
    /// This side is shut down first.
    Close,
    Abort,
}

/// Closes the connection when it is dropped, which cuts off a body that something else still reads.
struct CloseOnDrop(Rc<Wire>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<S: ServeRequest> Session<'_, S> {
    /// Serves the connection, of which `ahead` has been read already.
    pub(super) async fn serve(&self, stream: Stream, ahead: BytesMut) -> End {
        let wire = CloseOnDrop(Wire::new(stream, ahead, self.clients.scratch.clone()));
        let ended = {
            let mut work = pin!(self.requests(&wire.0));
            std::future::poll_fn(|context| match self.client.poll_command(context) {
                command @ (ConnectionCommand::HeaderTimeout | ConnectionCommand::CloseNow) => Poll::Ready(Err(command)),
                _ => work.as_mut().poll(context).map(Ok),
            })
            .await
        };
        let Some((mut stream, input)) = wire.0.close() else { return End::Closed };
        match ended {
            Ok(Next::Other) => End::NotPlain(stream, input),
            Ok(_) if self.client.unread.get() => End::Unread(stream),
            Err(ConnectionCommand::HeaderTimeout) => {
                self.clients.replied(LocalReply::TooSlow);
                stream.write_now(&local_reply_bytes(LocalReply::TooSlow));
                End::Closed
            }
            _ => End::Closed,
        }
    }

    /// Serves requests until the connection ends or something comes that is not plain.
    async fn requests(&self, wire: &Rc<Wire>) -> Next {
        loop {
            let head = match std::future::poll_fn(|context| self.poll_next(context, wire)).await {
                Next::Request(head) => *head,
                Next::End => {
                    // TLS tells its client, as far as that takes no waiting.
                    let _ = wire.poll_shutdown(&mut Context::from_waker(Waker::noop()));
                    return Next::End;
                }
                Next::Other => return Next::Other,
            };
            match self.exchange(wire, head).await {
                Then::Continue => {}
                Then::Close => {
                    let _ = std::future::poll_fn(|context| wire.poll_shutdown(context)).await;
                    return Next::End;
                }
                Then::Abort => {
                    self.client.unread.set(false);
                    return Next::End;
                }
            }
        }
    }

    fn poll_next(&self, context: &mut Context<'_>, wire: &Wire) -> Poll<Next> {
        let next = wire.poll_head(context, self.clients.terms.max_header_bytes);
        let in_head = next.is_pending() && !wire.is_between_requests();
        self.client.arrived.set_in_head(in_head);
        let sealed = if next.is_pending() { self.client.sealed() } else { 0 };
        self.clients.note_head(self.client, if in_head { wire.memory() } else { 0 } + sealed);
        if next.is_pending() && !in_head && self.is_told(ConnectionCommand::DrainAndClose) {
            return Poll::Ready(Next::End);
        }
        next
    }

    fn is_told(&self, command: ConnectionCommand) -> bool {
        self.client.command.get() == command
    }

    /// Serves one request.
    async fn exchange(&self, wire: &Rc<Wire>, head: RequestHead) -> Then {
        let RequestHead { parts, framing, close, takes_trailers } = head;
        let to_head = parts.method == Method::HEAD;
        let serving = ActiveRequest::begin(self.clients, self.client, None);
        let request = Request::from_parts(parts, wire.begin(framing));
        let mut writer = Writer::default();
        let response = {
            let mut response = pin!(self.service.serve(request));
            std::future::poll_fn(|context| self.poll_response(context, wire, response.as_mut(), &mut writer)).await
        };
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(%error, "a request gets no response");
                return Then::Abort;
            }
        };
        let Some(closes) = self.respond(wire, writer, response, (to_head, close, takes_trailers)).await else {
            return Then::Abort;
        };
        drop(serving);
        // A drain that begins only now cuts off an upload whose response is complete, as with hyper.
        let drains = self.is_told(ConnectionCommand::DrainAndClose);
        let is_read = std::future::poll_fn(|context| match wire.poll_settled(context) {
            Poll::Pending if !drains && self.is_told(ConnectionCommand::DrainAndClose) => Poll::Ready(false),
            settled => settled,
        });
        if is_read.await && !closes { Then::Continue } else { Then::Close }
    }

    /// Writes the response. Returns whether the connection closes behind it, or `None` if it could not be written to its end.
    async fn respond(
        &self,
        wire: &Rc<Wire>,
        mut writer: Writer,
        response: Response<S::Body>,
        (to_head, close, takes_trailers): (bool, bool, bool),
    ) -> Option<bool> {
        let (head, mut body) = response.into_parts();
        let lines = S::take_lines(&mut body);
        // The service says so if it has responded before the end of the request.
        let is_early = head.headers.contains_key(CONNECTION);
        let is_told =
            self.is_told(ConnectionCommand::CloseAfterResponse) || self.is_told(ConnectionCommand::DrainAndClose);
        self.client.unread.set(is_early || is_told);
        let closes = close || self.client.unread.get();
        let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
        let date = || self.clients.scratch.date();
        let out = writer.begin(wire, &self.peer.interim);
        let framing = match write_head(out, (&head, lines.as_ref()), length, Terms { to_head, closes }, date) {
            Ok(framing) => framing,
            Err(error) => {
                tracing::debug!(%error, "a response cannot be passed on");
                return None;
            }
        };
        let declares = takes_trailers.then_some(&head.headers);
        let mut rest = Rest { body: pin!(body), framing, declares, ended: false };
        let written = std::future::poll_fn(|context| {
            let written = writer.poll_response(context, wire, &mut rest);
            if written.is_pending() && self.is_gone(context, wire) {
                return Poll::Ready(Err(ClientGone.into()));
            }
            written
        });
        if let Err(error) = written.await {
            tracing::debug!(%error, "a client's connection has ended");
            return None;
        }
        writer.give_back(wire);
        Some(closes)
    }

    /// Waits for the response. Meanwhile writes the pod's informational responses, says whether the client is still
    /// there, and notices when it is not.
    fn poll_response(
        &self,
        context: &mut Context<'_>,
        wire: &Wire,
        response: Pin<&mut impl Future<Output = Result<Response<S::Body>, S::Error>>>,
        writer: &mut Writer,
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
