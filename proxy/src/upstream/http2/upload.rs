//! Sends the body of a request on its stream, as the pod's windows allow.
//!
//! # Invariants
//!
//! * A body that its client cut off is never ended as if it were complete.
//! * `h2` is never given more than it may send at once, so that breaking off leaves nothing behind that would still be
//!   sent.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;
use tokio::time::Instant;

use super::head::list_size;
use super::joined_writes::ExpectedBody;
use super::session::StreamLease;
use crate::message::request_body::Attempt;
use crate::upstream::rest::RequestSender;

/// Bytes of send capacity that are reserved at a time.
const RESERVED_BYTES: usize = 16 << 10;

/// A request's body that is being sent.
pub(super) struct Upload {
    attempt: Attempt,
    stream: SendStream<Bytes>,
    pub(super) lease: Rc<StreamLease>,
    /// Data that was taken from the body and not sent yet.
    waiting: Bytes,
    /// Whether the body ends with that data.
    is_last: bool,
    /// Bound on the trailers, as HTTP/2 counts their size.
    most_trailers: usize,
    sent: u64,
    /// Set while the head waits for the first bytes of the body.
    expected: Option<ExpectedBody>,
    has_waited: bool,
}

/// How an upload ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UploadEnd {
    Sent,
    /// The pod reads no more. It may have responded all the same.
    Refused,
    /// The client did not send all of it.
    CutOff,
    /// The trailers are larger than the pod accepts.
    TooLarge,
}

impl Upload {
    pub(super) fn new(
        attempt: Attempt,
        stream: SendStream<Bytes>,
        lease: Rc<StreamLease>,
        most_trailers: usize,
        expected: Option<ExpectedBody>,
    ) -> Self {
        Upload {
            attempt,
            stream,
            lease,
            waiting: Bytes::new(),
            is_last: false,
            most_trailers,
            sent: 0,
            expected,
            has_waited: false,
        }
    }

    /// Sends as much as can be sent. Ready when nothing more will be.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<UploadEnd> {
        loop {
            if !self.waiting.is_empty() {
                let room = match self.stream.capacity() {
                    0 => match self.stream.poll_capacity(context) {
                        Poll::Ready(Some(Ok(room))) => room,
                        Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(UploadEnd::Refused),
                        Poll::Pending => {
                            // The first wait is for the stream to be opened, any other one for the pod.
                            if std::mem::replace(&mut self.has_waited, true) {
                                self.expected = None;
                            }
                            return Poll::Pending;
                        }
                    },
                    room => room,
                };
                let data = self.waiting.split_to(room.min(self.waiting.len()));
                let ends = self.is_last && self.waiting.is_empty();
                self.sent += data.len() as u64;
                self.expected = None;
                if self.stream.send_data(data, ends).is_err() {
                    return Poll::Ready(UploadEnd::Refused);
                }
                if ends {
                    return Poll::Ready(UploadEnd::Sent);
                }
                self.stream.reserve_capacity(self.waiting.len().min(RESERVED_BYTES));
                continue;
            }
            let Poll::Ready(frame) = Pin::new(&mut self.attempt).poll_frame(context) else {
                // Registers for a reset by the pod, which has to wake this task too.
                return self.stream.poll_reset(context).map(|_| UploadEnd::Refused);
            };
            let sent = match frame {
                Some(Err(_)) => return Poll::Ready(UploadEnd::CutOff),
                None => self.stream.send_data(Bytes::new(), true),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.is_last = self.attempt.is_end_stream();
                        if data.is_empty() && !self.is_last {
                            continue;
                        }
                        if !data.is_empty() {
                            self.stream.reserve_capacity(data.len().min(RESERVED_BYTES));
                            self.waiting = data;
                            continue;
                        }
                        self.stream.send_data(data, true)
                    }
                    Err(frame) => {
                        let Ok(trailers) = frame.into_trailers() else { continue };
                        if list_size(&trailers) > self.most_trailers {
                            return Poll::Ready(UploadEnd::TooLarge);
                        }
                        self.stream.reserve_capacity(0);
                        self.stream.send_trailers(trailers)
                    }
                },
            };
            return Poll::Ready(if sent.is_ok() { UploadEnd::Sent } else { UploadEnd::Refused });
        }
    }

    /// Breaks the exchange off. What `h2` has not written of it is discarded.
    pub(super) fn reset(&mut self) {
        self.stream.send_reset(Reason::CANCEL);
        self.lease.note_reset();
    }
}

impl RequestSender for Upload {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match ready!(self.poll(context)) {
            UploadEnd::Sent | UploadEnd::Refused => {}
            UploadEnd::CutOff | UploadEnd::TooLarge => self.reset(),
        }
        Poll::Ready(())
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    fn upload_due(&self) -> Option<Instant> {
        self.attempt.upload_due()
    }

    fn abort(mut self: Box<Self>) {
        self.reset();
    }
}
