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
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
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

pub(crate) use connection::Connection;
pub(super) use connection::MAX_IDLE_AGE;
use connection::READ_BYTES;
pub(crate) use decoder::{Decoded, Decoder};
pub(crate) use reader::Reader;
use request_head::{Framing, encode_request};
use response_head::parse_response_head;
pub(crate) use response_head::{MAX_HEAD_BYTES, ResponseHead};
use rest::RestOfRequest;
pub(crate) use upload::chunk_size;
use upload::{Upload, UploadError};

use super::error::{Broken, SendError};
use super::pool::Pool;
use super::rest::Remaining;
use crate::message::expect_continue::{CONTINUE_TIMEOUT, expects_continue};
use crate::message::header_scan::HeaderScan;
use crate::message::headers::RoutingHeaders;
use crate::message::request_body::Attempt;
use crate::tls::{self, Stream};

/// A pod's response.
pub(crate) enum PodResponse {
    /// A head, a body to be read, and the rest of the request if it is still being sent.
    Response(ResponseHead, Reader, Option<Box<dyn Remaining>>),
    /// The pod switched protocols: the bare connection, and what had been read of it.
    Switched(ResponseHead, Stream, BytesMut),
}

/// A request that is being sent, until the head of its response is there.
pub(crate) struct Exchange {
    /// `None` once over.
    live: Option<Live>,
    /// Whether the request is a HEAD.
    to_head: bool,
    pool: Rc<Pool<Connection>>,
    upgrade: bool,
    /// Runs while the pod has not asked for the body.
    continue_timer: Option<Pin<Box<Sleep>>>,
}

struct Live {
    stream: Stream,
    /// Number of bytes that the kernel had taken when the exchange began.
    begun_at: u64,
    read: BytesMut,
    upload: Upload,
    progress: Progress,
    is_first: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    AwaitResponse,
    Sent,
    /// The pod reads no more of the request. It may have responded all the same.
    Refused,
}

impl Exchange {
    /// Begins to send. Nothing is written before the first poll.
    pub(crate) fn new(
        connection: Connection,
        pool: Rc<Pool<Connection>>,
        head: &Parts,
        scan: HeaderScan,
        routing: &RoutingHeaders<'_>,
        attempt: Attempt,
        upgrade: bool,
    ) -> Self {
        let framing = match attempt.left() {
            Some(0) => Framing::None,
            Some(bytes) => Framing::Length(bytes),
            None => Framing::Chunked,
        };
        let mut write = connection.write;
        write.clear();
        encode_request(&mut write, head, scan, routing, framing, upgrade);
        let mut upload = Upload::new(write, attempt, framing);
        let expects = framing != Framing::None && expects_continue(&head.headers);
        upload.withheld = expects;
        Exchange {
            live: Some(Live {
                begun_at: connection.stream.handed_over(),
                stream: connection.stream,
                read: connection.read,
                upload,
                progress: Progress::AwaitResponse,
                is_first: connection.is_first,
            }),
            to_head: head.method == Method::HEAD,
            pool,
            upgrade,
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
                live.upload.withheld = false;
                self.continue_timer = None;
            }
            if let Err(error) = live.send(context) {
                break Err(error);
            }
            match live.poll_head(context, self.to_head) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => break Err(error),
                Poll::Ready(Ok(head)) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                    break if self.upgrade && live.progress == Progress::Sent {
                        Ok(head)
                    } else {
                        Err(SendError::Failed(Broken::Garbled))
                    };
                }
                Poll::Ready(Ok(head)) if head.status == StatusCode::CONTINUE => {
                    live.upload.withheld = false;
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
                Ok(PodResponse::Switched(head, live.stream, live.read))
            }
            Some(live) => {
                let (reader, rest) = live.into_reader(&head, self.pool.clone());
                Ok(PodResponse::Response(head, reader, rest))
            }
        })
    }
}

impl Live {
    /// Sends what can be sent now.
    fn send(&mut self, context: &mut Context<'_>) -> Result<(), SendError> {
        if self.progress != Progress::AwaitResponse {
            return Ok(());
        }
        match self.upload.poll(context, &mut self.stream) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.progress = Progress::Sent,
            Poll::Ready(Err(UploadError::Io(error))) if !self.anything_left() => {
                return Err(SendError::NotSent(error));
            }
            Poll::Ready(Err(UploadError::Io(_))) => self.progress = Progress::Refused,
            Poll::Ready(Err(UploadError::Body)) => return Err(SendError::Failed(Broken::CutOff)),
        }
        Ok(())
    }

    /// Returns whether a byte of the request may have been sent. TLS buffers bytes, and if it fails later it does not
    /// report some that it has sent.
    fn anything_left(&self) -> bool {
        if self.stream.is_secure() { self.stream.handed_over() > self.begun_at } else { self.upload.written > 0 }
    }

    fn poll_head(&mut self, context: &mut Context<'_>, to_head: bool) -> Poll<Result<ResponseHead, SendError>> {
        loop {
            if !self.read.is_empty() {
                match parse_response_head(&mut self.read, to_head) {
                    Ok(Some(head)) => return Poll::Ready(Ok(head)),
                    Ok(None) => {}
                    Err(_) => return Poll::Ready(Err(SendError::Failed(Broken::Garbled))),
                }
            }
            match reader::poll_fill(&mut self.stream, &mut self.read, READ_BYTES, context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error))
                    if self.is_first && self.read.is_empty() && tls::refuses_certificate(&error) =>
                {
                    return Poll::Ready(Err(SendError::NotSent(error)));
                }
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => {
                    return Poll::Ready(Err(SendError::Failed(Broken::Closed)));
                }
                Poll::Ready(Ok(_)) => {}
            }
        }
    }

    /// Splits off the reader of the response. The pod may respond before it has the whole request; the rest is still
    /// sent then, because the pod may want it.
    fn into_reader(self, head: &ResponseHead, pool: Rc<Pool<Connection>>) -> (Reader, Option<Box<dyn Remaining>>) {
        match self.progress {
            Progress::Sent => (Reader::new(self.stream, self.read, self.upload.out, head, Some(pool)), None),
            // A client that never got `100 Continue` has sent nothing, and the pod has its response ready.
            Progress::AwaitResponse if !self.upload.withheld => {
                let (read, write) = self.stream.into_split();
                let rest = RestOfRequest::new(self.upload, write);
                (Reader::half(read, self.read, head), Some(Box::new(rest)))
            }
            Progress::AwaitResponse | Progress::Refused => {
                (Reader::new(self.stream, self.read, self.upload.out, head, None), None)
            }
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(live) = &self.live
            && live.progress == Progress::AwaitResponse
        {
            live.stream.throw_away();
        }
    }
}
