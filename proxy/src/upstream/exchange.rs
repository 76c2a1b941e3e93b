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
use super::rest::{Counted, Rest};
use super::{http1, http2};
use crate::message::headers::{clean_answer, clean_answer_trailers};
use crate::tls::Stream;

/// A request on its way, until the head of its answer is there. Dropped, it is broken off.
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one; a box would be one more allocation")]
pub(crate) enum Exchange {
    Http1(http1::Exchange),
    Http2(http2::Exchange),
}

/// What a pod answered.
pub(crate) enum Answer {
    /// An answer whose body is to be read.
    Response(Response<ResponseStream>),
    /// It switched protocols: its head, the bare connection, and what had been read of it.
    Switched(Response<()>, Stream, BytesMut),
}

impl Exchange {
    /// `interim`: gets what a pod answers before its answer.
    pub(crate) fn poll_answer(
        &mut self,
        context: &mut Context<'_>,
        interim: &mut dyn FnMut(&http1::ResponseHead),
    ) -> Poll<Result<Answer, SendError>> {
        Poll::Ready(match self {
            Exchange::Http1(exchange) => ready!(exchange.poll_answer(context, interim)).map(|answer| match answer {
                http1::Answer::Response(head, reader, rest) => {
                    let body = ResponseStream { source: Source::Http1(reader), rest: rest.map(Rest::new) };
                    Answer::Response(response(head, body))
                }
                http1::Answer::Switched(head, stream, read) => Answer::Switched(response(head, ()), stream, read),
            }),
            Exchange::Http2(exchange) => ready!(exchange.poll_answer(context)).map(|(response, rest)| {
                let (mut parts, reader) = response.into_parts();
                // The client's connection decides about the version.
                parts.version = Version::HTTP_11;
                clean_answer(&mut parts.headers);
                let body = ResponseStream { source: Source::Http2(reader), rest: rest.map(Rest::new) };
                Answer::Response(Response::from_parts(parts, body))
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

/// The body of an answer as it comes from the pod, and what is still to be sent of its request. Dropped before its end, the
/// exchange is broken off.
pub(crate) struct ResponseStream {
    // First, so that it is broken off before its connection is closed.
    rest: Option<Rest>,
    source: Source,
}

enum Source {
    Http1(http1::Reader),
    Http2(http2::Reader),
}

impl ResponseStream {
    /// Everything has been read.
    pub(crate) fn is_done(&self) -> bool {
        match &self.source {
            Source::Http1(reader) => reader.is_done(),
            Source::Http2(reader) => reader.is_done(),
        }
    }

    /// The whole body, if it is already here.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        match &mut self.source {
            Source::Http1(reader) => reader.take_whole(),
            Source::Http2(reader) => reader.is_done().then(Bytes::new),
        }
    }

    /// Everything has been read, so the exchange is over once its request has been sent.
    pub(crate) fn finish(self, counted: Box<impl Counted>) {
        let ResponseStream { rest, source } = self;
        let Some(rest) = rest else { return drop(counted) };
        let read = match source {
            Source::Http1(reader) => reader.into_half(),
            Source::Http2(_) => None,
        };
        rest.finish(read, counted);
    }

    /// How much is left, where that is known.
    pub(crate) fn left(&self) -> Option<u64> {
        match &self.source {
            Source::Http1(reader) => reader.left(),
            Source::Http2(reader) => reader.left(),
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.left().map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    pub(crate) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut frame = ready!(match &mut self.source {
            Source::Http1(reader) => reader.poll_frame(context),
            Source::Http2(reader) => reader.poll_frame(context),
        });
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            clean_answer_trailers(trailers);
        }
        Poll::Ready(frame)
    }
}
