//! The body of a client's request as its connection delivers it: through hyper, or from the connection itself.
//!
//! # Invariants
//!
//! * A body that its client cut off never ends as if it were complete.
//! * A body never yields bytes of a later request.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

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

impl From<hyper::Error> for BodyReadError {
    fn from(error: hyper::Error) -> Self {
        let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<io::Error>());
        // A connection that ends is an `UnexpectedEof`, and a stream of HTTP/2 that ends is no `io::Error`.
        match cause.map(io::Error::kind) {
            Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => BodyReadError::Malformed,
            _ => BodyReadError::CutOff,
        }
    }
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

    /// Notes that this request's body will not be read any further.
    fn release(&self, request: u64);
}

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
                Poll::Ready(frame.map(|frame| frame.map_err(BodyReadError::from)))
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
