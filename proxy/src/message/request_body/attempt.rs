//! One attempt's reading of a request's body, from its beginning.
//!
//! # Invariants
//!
//! * At most one attempt reads a body: an earlier one is told that the request was taken back.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::source::{BodyError, KEPT_BYTES, Source, SourceState};

/// One attempt's reading of the body.
pub(crate) struct Attempt {
    pub(super) source: Option<Rc<RefCell<Source>>>,
    pub(super) number: u32,
    pub(super) next: usize,
    /// How much is left, if the length is known.
    pub(super) left: Option<u64>,
    pub(super) trailers_given: bool,
}

impl Body for Attempt {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(source) = &this.source else {
            return Poll::Ready(None);
        };
        let source = &mut *source.borrow_mut();
        if source.attempt != this.number {
            return Poll::Ready(Some(Err(BodyError::TakenBack)));
        }
        source.ends_waiting();
        if let Some(data) = source.kept.get(this.next) {
            this.next += 1;
            source.progress = source.timer.now();
            let data = data.clone();
            if source.settled && this.next == source.kept.len() {
                source.forget();
                this.next = 0;
            }
            this.left = this.left.map(|left| left.saturating_sub(data.len() as u64));
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let (Some(trailers), false) = (&source.trailers, this.trailers_given) {
            this.trailers_given = true;
            return Poll::Ready(Some(Ok(Frame::trailers((**trailers).clone()))));
        }
        match source.reading {
            SourceState::Ended => return Poll::Ready(None),
            SourceState::Broken => return Poll::Ready(Some(Err(BodyError::CutOff))),
            SourceState::Malformed => return Poll::Ready(Some(Err(BodyError::Malformed))),
            SourceState::TooLarge => return Poll::Ready(Some(Err(BodyError::TooLarge))),
            SourceState::Open => {}
        }
        let Poll::Ready(frame) = source.poll_incoming(context) else {
            source.begins_waiting();
            return Poll::Pending;
        };
        source.progress = source.timer.now();
        let Some(frame) = frame.transpose()? else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(data) => {
                this.left = this.left.map(|left| left.saturating_sub(data.len() as u64));
                if source.settled || source.kept_bytes >= KEPT_BYTES {
                    source.partial = true;
                    source.forget();
                    this.next = 0;
                } else if !source.partial {
                    source.keep(data.clone());
                    this.next += 1;
                }
                Frame::data(data)
            }
            Err(frame) => {
                if let Some(trailers) = frame.trailers_ref() {
                    source.trailers = Some(Box::new(trailers.clone()));
                    this.trailers_given = true;
                }
                frame
            }
        })))
    }

    fn is_end_stream(&self) -> bool {
        let Some(source) = &self.source else {
            return true;
        };
        let source = source.borrow();
        // By HTTP/1.1 a body whose whole length has arrived has ended. By HTTP/2 trailers or a reset may follow.
        (self.left == Some(0) && !source.http2) || source.has_ended_after(self)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Source {
    /// Returns whether the attempt is known to have been given everything. If that is known with the last frame of
    /// data, the end needs no frame of its own.
    fn has_ended_after(&self, attempt: &Attempt) -> bool {
        let all_given = attempt.next == self.kept.len() && self.trailers.is_none() && self.attempt == attempt.number;
        let all_here = match self.reading {
            SourceState::Open => self.incoming.is_end_stream(),
            SourceState::Ended => true,
            SourceState::Broken | SourceState::Malformed | SourceState::TooLarge => false,
        };
        all_given && all_here
    }
}

impl Attempt {
    /// Returns the reading of a request without a body.
    pub(crate) fn empty() -> Self {
        Attempt { source: None, number: 0, next: 0, left: Some(0), trailers_given: true }
    }

    /// Returns the length of what is left, where it is known.
    pub(crate) fn left(&self) -> Option<u64> {
        self.left
    }

    /// Returns whether part of the kept body has not been handed out yet.
    pub(crate) fn is_at_hand(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.borrow().kept.len() > self.next)
    }

    /// Returns when more of the body has to have arrived for its client to be fast enough.
    pub(crate) fn upload_due(&self) -> Option<Instant> {
        self.source.as_ref()?.borrow().upload_due()
    }
}
