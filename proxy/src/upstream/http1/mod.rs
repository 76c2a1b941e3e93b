//! An exchange over an HTTP/1.1 connection to a pod.
//!
//! Written here instead of using hyper's client because the exchange then runs inside the request's own future, on the
//! request's own head. It needs no task, no channel and no copy of the headers, and it is known exactly whether a byte
//! of the request can have reached the pod.
//!
//! Elsewhere: which connection ([`upstream`](super)), how long it may take ([`forward`](crate::forward)).
//!
//! # Invariants
//!
//! * A connection goes back to its pool only between two exchanges, with nothing unread.
//! * [`SendError::NotSent`] is returned only if nothing was written.

mod connection;
mod decoder;
mod framing_headers;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod head_lines;
mod reader;
mod request_head;
mod response_head;
mod rest;
mod upload;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use http::request::Parts;
use http::{Method, StatusCode};
use tokio::time::Sleep;

pub(super) use connection::MAX_IDLE_AGE;
pub(crate) use connection::PodConnection;
use connection::READ_BYTES;
pub(crate) use decoder::{DecodedPart, Decoder};
pub(crate) use head_lines::HeadLines;
pub(crate) use reader::{Body, BodyReader};
use request_head::{RequestFraming, encode_request};
pub(crate) use response_head::ResponseHead;
use response_head::parse_response_head;
use rest::RestOfRequest;
use upload::UploadError;
pub(crate) use upload::chunk_size;

use super::error::{Broken, SendError};
use super::http2::is_settings;
use super::pool::Pool;
use super::rest::RequestSender;
use crate::message::expect_continue::{CONTINUE_TIMEOUT, expects_continue};
use crate::message::header_scan::HeaderScan;
use crate::message::headers::RoutingHeaders;
use crate::message::request_body::Attempt;
use crate::tls::{self, Stream};

/// A pod's response.
pub(crate) enum PodResponse {
    /// A head, a body, and the rest of the request if it is still being sent.
    Response(ResponseHead, Body, Option<Box<dyn RequestSender>>),
    /// The pod switched protocols: the bare connection, and what had been read of it.
    Switched(ResponseHead, Stream, BytesMut),
}

/// The form of the response that a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// A response with a map of its headers.
    Map,
    /// A response whose headers, if they are ordinary, are lines for an HTTP/1.1 client.
    Lines,
    /// A switch to another protocol.
    Switch,
}

/// A request that is being sent, until the head of its response is there.
pub(crate) struct Exchange {
    /// `None` once over.
    live: Option<Live>,
    /// Whether the request is a HEAD.
    to_head: bool,
    pool: Rc<Pool<Box<PodConnection>>>,
    wanted: ResponseKind,
    /// Runs while the pod has not asked for the body.
    continue_timer: Option<Pin<Box<Sleep>>>,
}

struct Live {
    connection: Box<PodConnection>,
    /// Number of bytes that the kernel had taken when the exchange began.
    begun_at: u64,
    progress: SendProgress,
    /// Whether a byte of a response has arrived.
    is_answered: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SendProgress {
    AwaitResponse,
    Sent,
    /// The pod reads no more of the request. It may have responded all the same.
    Refused,
}

impl Exchange {
    /// Begins to send. Nothing is written before the first poll.
    pub(crate) fn new(
        mut connection: Box<PodConnection>,
        pool: Rc<Pool<Box<PodConnection>>>,
        head: &Parts,
        scan: HeaderScan,
        routing: &RoutingHeaders<'_>,
        attempt: Attempt,
        wanted: ResponseKind,
    ) -> Self {
        let framing = match attempt.left() {
            Some(0) => RequestFraming::None,
            Some(bytes) => RequestFraming::Length(bytes),
            None => RequestFraming::Chunked,
        };
        let upload = &mut connection.upload;
        upload.begin(attempt, framing);
        encode_request(&mut upload.out, head, scan, routing, framing, wanted == ResponseKind::Switch);
        let expects = framing != RequestFraming::None && expects_continue(&head.headers);
        upload.withheld = expects;
        let begun_at = connection.stream.handed_over();
        Exchange {
            live: Some(Live { connection, begun_at, progress: SendProgress::AwaitResponse, is_answered: false }),
            to_head: head.method == Method::HEAD,
            pool,
            wanted,
            continue_timer: expects.then(|| Box::pin(tokio::time::sleep(CONTINUE_TIMEOUT))),
        }
    }

    /// Sends the request and waits for the head of the response. `interim` gets the informational responses, except
    /// those about the request's body.
    pub(crate) fn poll_response(
        &mut self,
        context: &mut Context<'_>,
        interim: &mut dyn FnMut(&ResponseHead),
    ) -> Poll<Result<PodResponse, SendError>> {
        let Some(live) = &mut self.live else {
            return Poll::Ready(Err(SendError::Failed(Broken::Closed)));
        };
        let result = loop {
            if let Some(timer) = &mut self.continue_timer
                && timer.as_mut().poll(context).is_ready()
            {
                live.connection.upload.withheld = false;
                self.continue_timer = None;
            }
            if let Err(error) = live.send(context) {
                break Err(error);
            }
            match live.poll_head(context, self.to_head, self.wanted == ResponseKind::Lines) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => break Err(error),
                Poll::Ready(Ok(head)) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                    break if self.wanted == ResponseKind::Switch && live.progress == SendProgress::Sent {
                        Ok(head)
                    } else {
                        Err(SendError::Failed(Broken::Garbled))
                    };
                }
                Poll::Ready(Ok(head)) if head.status == StatusCode::CONTINUE => {
                    live.connection.upload.withheld = false;
                    self.continue_timer = None;
                }
                Poll::Ready(Ok(head)) if head.status.is_informational() => {
                    interim(&head);
                    // The response may be here already, and the informational one has to be written before it.
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Ok(head)) => break Ok(head),
            }
        };
        // Dropping a failed exchange breaks it off.
        let head = match result {
            Ok(head) => head,
            Err(error) => return Poll::Ready(Err(error)),
        };
        Poll::Ready(match self.live.take() {
            None => Err(SendError::Failed(Broken::Closed)),
            Some(live) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                let PodConnection { stream, read, .. } = *live.connection;
                Ok(PodResponse::Switched(head, stream, read))
            }
            Some(live) => {
                let (body, rest) = live.into_body(&head, self.pool.clone());
                Ok(PodResponse::Response(head, body, rest))
            }
        })
    }
}

impl Live {
    /// Sends what can be sent now.
    fn send(&mut self, context: &mut Context<'_>) -> Result<(), SendError> {
        if self.progress != SendProgress::AwaitResponse {
            return Ok(());
        }
        let PodConnection { upload, stream, .. } = &mut *self.connection;
        match upload.poll(context, stream) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.progress = SendProgress::Sent,
            Poll::Ready(Err(UploadError::Io(error))) if !self.anything_left() => {
                return Err(SendError::NotSent(error));
            }
            Poll::Ready(Err(UploadError::Io(_))) => self.progress = SendProgress::Refused,
            Poll::Ready(Err(UploadError::Body)) => return Err(SendError::Failed(Broken::CutOff)),
        }
        Ok(())
    }

    /// Returns whether a byte of the request may have been sent. TLS buffers bytes, and if it fails later it does not
    /// report some that it has sent.
    fn anything_left(&self) -> bool {
        let PodConnection { stream, upload, .. } = &*self.connection;
        if stream.is_secure() { stream.handed_over() > self.begun_at } else { upload.written > 0 }
    }

    fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        to_head: bool,
        as_lines: bool,
    ) -> Poll<Result<ResponseHead, SendError>> {
        let PodConnection { stream, read, is_first, .. } = &mut *self.connection;
        loop {
            if !read.is_empty() {
                match parse_response_head(read, to_head, as_lines) {
                    Ok(Some(head)) => return Poll::Ready(Ok(head)),
                    Ok(None) => {}
                    Err(_) if *is_first && is_settings(read) => {
                        return Poll::Ready(Err(SendError::Failed(Broken::SpeaksHttp2)));
                    }
                    Err(_) => return Poll::Ready(Err(SendError::Failed(Broken::Garbled))),
                }
            }
            match reader::poll_fill(stream, read, READ_BYTES, context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) if *is_first && read.is_empty() && tls::refuses_certificate(&error) => {
                    return Poll::Ready(Err(SendError::NotSent(error)));
                }
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => {
                    let broken = if self.is_answered { Broken::Closed } else { Broken::Unanswered };
                    return Poll::Ready(Err(SendError::Failed(broken)));
                }
                Poll::Ready(Ok(_)) => self.is_answered = true,
            }
        }
    }

    /// Splits off the body of the response. The pod may respond before it has the whole request; the rest is still sent
    /// then, because the pod may want it.
    fn into_body(
        self,
        head: &ResponseHead,
        pool: Rc<Pool<Box<PodConnection>>>,
    ) -> (Body, Option<Box<dyn RequestSender>>) {
        match self.progress {
            SendProgress::Sent => (Body::new(self.connection, head, Some(pool)), None),
            // A client that never got `100 Continue` has sent nothing, and the pod has its response ready.
            SendProgress::AwaitResponse if !self.connection.upload.withheld => {
                let PodConnection { stream, read, upload, .. } = *self.connection;
                let (read_half, write) = stream.into_split();
                let rest = RestOfRequest::new(upload, write);
                (Body::Reader(BodyReader::half(read_half, read, head)), Some(Box::new(rest)))
            }
            SendProgress::AwaitResponse | SendProgress::Refused => (Body::new(self.connection, head, None), None),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(live) = &self.live
            && live.progress == SendProgress::AwaitResponse
        {
            live.connection.stream.throw_away();
        }
    }
}
