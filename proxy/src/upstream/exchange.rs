//! An exchange with a pod by either version of HTTP: a request being sent, and the response that comes back.
//!
//! Not here: how the bytes of each version are written and read ([`http1`], [`http2`]).
//!
//! # Invariants
//!
//! * An exchange that is dropped before its end is broken off.

use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{Response, Version};
use http_body::{Frame, SizeHint};

use super::error::{Broken, SendError};
use super::http1::HeadLines;
use super::rest::{ExchangeGuard, UnsentRequest};
use super::{http1, http2};
use crate::message::headers::{clean_response, clean_response_trailers};
use crate::message::stream_kind::says_stream;
use crate::tls::Stream;

/// A request that is being sent, until the head of its response is there. Dropping it breaks it off.
#[allow(clippy::large_enum_variant, reason = "a box would be one more allocation for each exchange")]
pub(crate) enum Exchange {
    Http1(http1::Exchange),
    Http2(http2::Exchange),
}

/// A pod's response.
pub(crate) enum PodResponse {
    /// A response whose body is to be read.
    Response(Response<ResponseStream>),
    /// It switched protocols: its head, the bare connection, and what had been read of it.
    Switched(Response<()>, Stream, BytesMut),
}

impl Exchange {
    /// Sends the request and waits for the head of the response. `interim` gets the pod's informational responses.
    pub(crate) fn poll_response(
        &mut self,
        context: &mut Context<'_>,
        interim: &mut dyn FnMut(&http1::ResponseHead),
    ) -> Poll<Result<PodResponse, SendError>> {
        Poll::Ready(match self {
            Exchange::Http1(exchange) => {
                ready!(exchange.poll_response(context, interim)).map(|received| match received {
                    http1::PodResponse::Response(mut head, body, rest) => {
                        let (rest, lines) = (rest.map(UnsentRequest::new), head.lines.take());
                        let source = match body {
                            http1::Body::Whole(bytes) => Source::Whole(bytes),
                            // Boxed: most bodies arrive with their head, and what surrounds this is moved often.
                            http1::Body::Reader(reader) => Source::Http1(Box::new(reader)),
                        };
                        let is_stream =
                            lines.as_ref().map_or_else(|| says_stream(&head.headers), |lines| lines.is_stream);
                        let body = ResponseStream { source, rest, lines, is_stream };
                        PodResponse::Response(response(head, body))
                    }
                    http1::PodResponse::Switched(head, stream, read) => {
                        PodResponse::Switched(response(head, ()), stream, read)
                    }
                })
            }
            Exchange::Http2(exchange) => ready!(exchange.poll_response(context)).map(|(response, rest)| {
                let (mut parts, reader) = response.into_parts();
                // The version is that of the client's connection.
                parts.version = Version::HTTP_11;
                clean_response(&mut parts.headers);
                let (source, rest, is_stream) =
                    (Source::Http2(reader), rest.map(UnsentRequest::new), says_stream(&parts.headers));
                let body = ResponseStream { source, rest, lines: None, is_stream };
                PodResponse::Response(Response::from_parts(parts, body))
            }),
        })
    }
}

fn response<B>(head: http1::ResponseHead, body: B) -> Response<B> {
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    if let Some(reason) = head.reason.and_then(|reason| hyper::ext::ReasonPhrase::try_from(reason.as_ref()).ok()) {
        response.extensions_mut().insert(reason);
    }
    response
}

/// The body of a response as it comes from the pod, and what is still to be sent of its request. Dropping it before its end
/// breaks the exchange off.
pub(crate) struct ResponseStream {
    // Dropped first: the request is broken off before its connection is closed.
    rest: Option<UnsentRequest>,
    source: Source,
    /// The headers of the response, if its map is empty for that reason.
    lines: Option<HeadLines>,
    is_stream: bool,
}

enum Source {
    /// All that is left of the body.
    Whole(Bytes),
    Http1(Box<http1::BodyReader>),
    Http2(http2::BodyStream),
}

impl ResponseStream {
    /// Returns whether everything has been read.
    pub(crate) fn is_done(&self) -> bool {
        match &self.source {
            Source::Whole(bytes) => bytes.is_empty(),
            Source::Http1(reader) => reader.is_done(),
            Source::Http2(reader) => reader.is_done(),
        }
    }

    /// Returns whether the response is a stream by its content type.
    pub(crate) fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Takes the headers of the response, if they are lines.
    pub(crate) fn take_lines(&mut self) -> Option<HeadLines> {
        self.lines.take()
    }

    /// Returns the whole body, if it has arrived already.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        match &mut self.source {
            Source::Whole(bytes) => Some(std::mem::take(bytes)),
            Source::Http1(reader) => reader.take_whole(),
            Source::Http2(reader) => reader.is_done().then(Bytes::new),
        }
    }

    /// Returns whether something of the request is still to be sent.
    pub(crate) fn is_uploading(&self) -> bool {
        self.rest.is_some()
    }

    /// Keeps the exchange counted until its request has been sent as well. To be called once everything has been read.
    pub(crate) fn finish(self, counted: Box<impl ExchangeGuard>) {
        let ResponseStream { rest, source, .. } = self;
        let Some(rest) = rest else { return drop(counted) };
        let read = match source {
            Source::Http1(reader) => reader.into_half(),
            Source::Whole(_) | Source::Http2(_) => None,
        };
        rest.finish(read, counted);
    }

    /// Returns how much is left, where that is known.
    pub(crate) fn left(&self) -> Option<u64> {
        match &self.source {
            Source::Whole(bytes) => Some(bytes.len() as u64),
            Source::Http1(reader) => reader.left(),
            Source::Http2(reader) => reader.left(),
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.left().map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    pub(crate) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut frame = ready!(match &mut self.source {
            Source::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Source::Http1(reader) => reader.poll_frame(context),
            Source::Http2(reader) => reader.poll_frame(context),
        });
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            clean_response_trailers(trailers);
        }
        Poll::Ready(frame)
    }
}
