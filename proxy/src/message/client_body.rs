//! The body of a client's request as its connection delivers it: by HTTP/1.1 itself, by HTTP/2 through hyper.
//!
//! # Invariants
//!
//! * A body that its client cut off never ends as if it were complete.
//! * A body never yields bytes of a later request.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use crate::tls::Stream;

/// Why a body cannot be read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyReadError {
    /// The client did not send all of it.
    #[error("the client did not send the whole body")]
    CutOff,
    /// What the client sent is not framed as its head says.
    #[error("the body is not framed as its head says")]
    Malformed,
}

/// A connection that reads the bodies of its requests. Requests are numbered, because the body of an earlier one may
/// still be referred to.
pub(crate) trait ReadBody {
    /// Returns the next frame of this request's body, like [`Body::poll_frame`].
    fn poll_frame(&self, request: u64, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyReadError>>>;

    /// Returns whether this request's body has been read to its end.
    fn is_ended(&self, request: u64) -> bool;

    /// Returns how much is left of this request's body, if that is known.
    fn left(&self, request: u64) -> Option<u64>;

    /// Returns how many bytes have arrived that are part of no frame yet.
    fn buffered(&self) -> usize;

    /// Returns what yields the connection if the response to this request switches to another protocol.
    fn on_switch(&self, request: u64) -> ClientSwitch;

    /// Notes that this request's body will not be read any further.
    fn release(&self, request: u64);
}

/// Yields a client's connection, and what has been read of it behind the request, once a response that switches to another
/// protocol has been written.
pub(crate) type ClientSwitch = oneshot::Receiver<(Stream, BytesMut)>;

/// The body of a client's request.
pub struct ClientBody(Kind);

impl std::fmt::Debug for ClientBody {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ClientBody").field("is_end_stream", &self.is_end_stream()).finish_non_exhaustive()
    }
}

enum Kind {
    Empty,
    Hyper(Incoming),
    Direct(Direct),
}

/// A body that is read from its connection. Its connection is told when it is dropped.
struct Direct {
    connection: Rc<dyn ReadBody>,
    request: u64,
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.connection.release(self.request);
    }
}

impl ClientBody {
    pub(crate) fn empty() -> Self {
        ClientBody(Kind::Empty)
    }

    /// Returns the body of this request on this connection.
    pub(crate) fn of_connection(connection: Rc<dyn ReadBody>, request: u64) -> Self {
        ClientBody(Kind::Direct(Direct { connection, request }))
    }

    /// Returns what yields the connection if the response switches to another protocol, unless it cannot.
    pub(crate) fn on_switch(&self) -> Option<ClientSwitch> {
        match &self.0 {
            Kind::Empty | Kind::Hyper(_) => None,
            Kind::Direct(body) => Some(body.connection.on_switch(body.request)),
        }
    }

    /// Returns how many bytes have arrived that are part of no frame yet, as far as that is known: hyper does not tell.
    pub(crate) fn buffered(&self) -> usize {
        match &self.0 {
            Kind::Empty | Kind::Hyper(_) => 0,
            Kind::Direct(body) => body.connection.buffered(),
        }
    }
}

impl From<Incoming> for ClientBody {
    fn from(body: Incoming) -> Self {
        ClientBody(Kind::Hyper(body))
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyReadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyReadError>>> {
        match &mut self.0 {
            Kind::Empty => Poll::Ready(None),
            Kind::Hyper(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                // By HTTP/2 whatever is malformed ends the stream.
                Poll::Ready(frame.map(|frame| frame.map_err(|_| BodyReadError::CutOff)))
            }
            Kind::Direct(body) => body.connection.poll_frame(body.request, context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty => true,
            Kind::Hyper(body) => body.is_end_stream(),
            Kind::Direct(body) => body.connection.is_ended(body.request),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Hyper(body) => body.size_hint(),
            Kind::Direct(body) => {
                body.connection.left(body.request).map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}
