//! Reads the body of a response from its stream.
//!
//! # Invariants
//!
//! * A response whose stream was reset before its end is an error.
//! * Dropping the reader before the end breaks the exchange off.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http_body::Frame;

use super::session::StreamLease;
use super::upload::Upload;
use crate::upstream::error::Broken;

/// The body of a response.
pub(crate) struct BodyStream {
    stream: RecvStream,
    /// What is left of the body, where its length is known.
    left: Option<u64>,
    data_ended: bool,
    over: bool,
    /// Breaks the exchange off. `None` if the request was still being sent when the response began.
    sent: Option<Upload>,
    lease: Rc<StreamLease>,
}

impl BodyStream {
    pub(super) fn new(stream: RecvStream, length: Option<u64>, sent: Option<Upload>, lease: Rc<StreamLease>) -> Self {
        BodyStream { stream, left: length, data_ended: false, over: false, sent, lease }
    }

    /// Returns whether everything has been read.
    pub(crate) fn is_done(&self) -> bool {
        self.over || self.stream.is_end_stream()
    }

    /// Returns how much is left, where that is known.
    pub(crate) fn left(&self) -> Option<u64> {
        self.left
    }

    pub(crate) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if !self.data_ended {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => {
                    // Fails only if the stream is gone, which is noticed with the next frame.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(self.broken(&error)),
                None => self.data_ended = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(context));
        match trailers {
            Ok(trailers) => {
                self.over = true;
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Err(error) => Poll::Ready(self.broken(&error)),
        }
    }

    /// Returns how a reset ends the body. A pod whose response is complete and that wants no more of the request resets
    /// with `NO_ERROR` (RFC 9113, 8.1).
    fn broken(&mut self, error: &h2::Error) -> Option<Result<Frame<Bytes>, Broken>> {
        self.over = true;
        let whole = error.is_remote() && error.reason() == Some(Reason::NO_ERROR) && self.left.unwrap_or(0) == 0;
        if whole { None } else { Some(Err(Broken::Closed)) }
    }
}

impl Drop for BodyStream {
    fn drop(&mut self) {
        if self.is_done() {
            return;
        }
        match &mut self.sent {
            Some(upload) => upload.reset(),
            // The rest of the request has been sent or broken off, so `h2` resets the stream along with its last
            // handle.
            None => self.lease.note_reset(),
        }
    }
}
