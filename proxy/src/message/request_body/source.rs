//! A body as it comes from the client, and what of it is kept.
//!
//! # Invariants
//!
//! * A body that the client cut off never ends as if it were complete.
//! * Nothing more than [`KEPT_BYTES`] and one frame is kept.
//! * A body beyond its bound is broken off where it passes it.

use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame};
use tokio::time::Instant;

use super::pace::{Pace, UploadWait};
use crate::message::client_body::{BodyReadError, ClientBody};
use crate::message::frames::poll_telling_frame;
use crate::message::reserved::ReservedHeaders;
use crate::runtime::coarse_timer::CoarseTimer;

/// How much of a body is kept for another attempt, and read ahead while the request is held. 1,000 bodies of this size fill a
/// partition's stash by default (64 MiB), and most writes are smaller.
pub(crate) const KEPT_BYTES: usize = 64 << 10;
/// The least that a kept frame counts for: even a single byte takes as much memory.
const MIN_FRAME_BYTES: usize = 256;

pub(super) struct Source {
    pub(super) incoming: ClientBody,
    pub(super) reserved: Rc<ReservedHeaders>,
    pub(super) http2: bool,
    pub(super) length: Option<u64>,
    /// How much more of it is allowed.
    pub(super) allowed: u64,
    pub(super) kept: Vec<Bytes>,
    /// What was read ahead after that. It is copied, because a frame pins all that was read from the client along with it.
    pub(super) ahead: BytesMut,
    pub(super) kept_bytes: usize,
    pub(super) trailers: Option<Box<http::HeaderMap>>,
    pub(super) reading: SourceState,
    /// Whether frames were handed out that are not kept.
    pub(super) partial: bool,
    /// Whether the outcome is definite, so that nothing more has to be kept.
    pub(super) settled: bool,
    pub(super) attempt: u32,
    pub(super) timer: CoarseTimer,
    pub(super) progress: Instant,
    pub(super) awaits_client: bool,
    /// How long pods have waited for the client before, and when the current wait began.
    pub(super) waited: Duration,
    pub(super) waits_since: Instant,
    /// Bytes received from the client.
    pub(super) received: u64,
    /// How fast they have to arrive, if that is bounded.
    pub(super) pace: Option<Pace>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceState {
    Open,
    Ended,
    Broken,
    Malformed,
    TooLarge,
}

/// Why a body does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// The client did not send all of it.
    #[error("the client did not send the whole body")]
    CutOff,
    /// It is not framed as its head says.
    #[error("the body is not framed as its head says")]
    Malformed,
    /// There is more of it than is allowed.
    #[error("the body is too large")]
    TooLarge,
    /// Another attempt has taken it over.
    #[error("the request was taken back")]
    TakenBack,
}

impl Source {
    pub(super) fn upload(&self) -> UploadWait {
        let Source { progress, awaits_client, waits_since, waited, received, .. } = *self;
        UploadWait { progress, awaits_client, waits_since, waited, received }
    }

    pub(super) fn upload_due(&self) -> Option<Instant> {
        self.upload().due(self.pace?)
    }

    pub(super) fn poll_incoming(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match ready!(poll_telling_frame(&mut self.incoming, context)) {
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    self.reserved.clean_trailers(trailers);
                    // Nothing follows them, and the attempt that has got them does not ask again.
                    self.reading = SourceState::Ended;
                }
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(allowed) = self.allowed.checked_sub(length) else {
                    self.reading = SourceState::TooLarge;
                    return Poll::Ready(Some(Err(BodyError::TooLarge)));
                };
                self.allowed = allowed;
                self.received += length;
                Poll::Ready(Some(Ok(frame)))
            }
            // hyper ends the body of a stream that its client reset with NO_ERROR as if it were complete.
            None if !self.http2 || self.incoming.is_end_stream() => {
                self.reading = SourceState::Ended;
                Poll::Ready(None)
            }
            Some(Err(BodyReadError::Malformed)) => {
                self.reading = SourceState::Malformed;
                Poll::Ready(Some(Err(BodyError::Malformed)))
            }
            None | Some(Err(BodyReadError::CutOff)) => {
                self.reading = SourceState::Broken;
                Poll::Ready(Some(Err(BodyError::CutOff)))
            }
        }
    }

    pub(super) fn begins_waiting(&mut self) {
        if !std::mem::replace(&mut self.awaits_client, true) {
            self.waits_since = self.timer.now();
        }
    }

    pub(super) fn ends_waiting(&mut self) {
        if std::mem::take(&mut self.awaits_client) {
            self.waited += self.timer.now().saturating_duration_since(self.waits_since);
        }
    }

    /// Adds a frame to what has been read ahead.
    pub(super) fn read_ahead(&mut self, frame: Option<Frame<Bytes>>) {
        match frame.map(Frame::into_data) {
            Some(Ok(data)) => {
                self.kept_bytes += data.len();
                self.ahead.extend_from_slice(&data);
            }
            Some(Err(frame)) => self.trailers = frame.into_trailers().ok().map(Box::new),
            None => {}
        }
    }

    pub(super) fn keep(&mut self, data: Bytes) {
        self.kept_bytes += data.len().max(MIN_FRAME_BYTES);
        self.kept.push(data);
    }

    pub(super) fn forget(&mut self) {
        self.partial = true;
        self.kept = Vec::new();
        self.kept_bytes = 0;
    }
}
