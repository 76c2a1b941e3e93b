//! The body of a request on its way to a pod, kept until it cannot be needed a second time.
//!
//! A pod that responds 421 has done nothing, so the request goes to another pod, and its body must still be there. What
//! was handed out is kept up to [`KEPT_BYTES`]; past that the request cannot be sent again. While a request is held its
//! body is read ahead up to the same bound, for two reasons: an HTTP/1.1 server notices a disconnect only where it
//! reads, and the stash counts what has arrived where no length is known. Elsewhere: reading from the client
//! (`source`), one attempt's reading (`attempt`), and how fast uploads have to be (`pace`).
//!
//! # Invariants
//!
//! * A body that the client cut off is never handed out as a complete one.
//! * Nothing more than the bound and one frame is kept.
//! * At most one attempt reads a body at a time.
//! * A body beyond its bound is broken off where it passes it, or not begun if its length says so.

mod attempt;
mod pace;
mod source;

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Version;
use http::request::Parts;
use http_body::{Body as _, Frame};
use tokio::time::Instant;

pub(crate) use self::attempt::Attempt;
pub(crate) use self::pace::{Pace, UploadWait};
pub(crate) use self::source::{BodyError, KEPT_BYTES};
use self::source::{Source, SourceState};
use crate::message::client_body::ClientBody;
use crate::message::header_scan::HeaderScan;
use crate::message::local_reply::is_grpc;
use crate::message::reserved::ReservedHeaders;
use crate::runtime::coarse_timer::CoarseTimer;

/// A request's body: what is left of it, and what may be needed again.
#[derive(Clone)]
pub(crate) struct RequestBody {
    /// `None`: there is no body.
    source: Option<Rc<RefCell<Source>>>,
}

impl RequestBody {
    /// `most` bounds its size. Streams of gRPC may be as slow as they like, because they are not always uploads.
    pub(crate) fn new(
        incoming: ClientBody,
        head: &Parts,
        most: u64,
        pace: Pace,
        reserved: &Rc<ReservedHeaders>,
        timer: &CoarseTimer,
    ) -> Self {
        if incoming.is_end_stream() {
            return RequestBody { source: None };
        }
        let length = incoming.size_hint().exact();
        let reading =
            if length.is_some_and(|length| length > most) { SourceState::TooLarge } else { SourceState::Open };
        RequestBody {
            source: Some(Rc::new(RefCell::new(Source {
                incoming,
                reserved: reserved.clone(),
                http2: head.version == Version::HTTP_2,
                length,
                allowed: most,
                kept: Vec::new(),
                ahead: BytesMut::new(),
                kept_bytes: 0,
                trailers: None,
                reading,
                partial: false,
                settled: false,
                attempt: 0,
                timer: timer.clone(),
                progress: timer.now(),
                awaits_client: false,
                waited: Duration::ZERO,
                waits_since: timer.now(),
                received: 0,
                pace: (!is_grpc(&head.headers)).then_some(pace),
            }))),
        }
    }

    /// Returns whether there is no body.
    pub(crate) fn is_empty(&self) -> bool {
        self.source.is_none()
    }

    /// Returns whether its length is known, or there is no body.
    pub(crate) fn is_sized(&self) -> bool {
        self.source.as_ref().is_none_or(|source| source.borrow().length.is_some())
    }

    /// Returns whether it has turned out to be larger than allowed.
    pub(crate) fn is_too_large(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.borrow().reading == SourceState::TooLarge)
    }

    /// Returns whether it has turned out to be framed in another way than its head says.
    pub(crate) fn is_malformed(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.borrow().reading == SourceState::Malformed)
    }

    /// Returns whether some of it has not been read from the client yet. Behind the last byte of a known length nothing comes
    /// that matters: by HTTP/2 the end of the stream, which may be a frame of its own, or trailers.
    pub(crate) fn is_unread(&self) -> bool {
        self.source.as_ref().is_some_and(|source| {
            let source = source.borrow();
            let has_all = source.incoming.is_end_stream() || source.incoming.size_hint().exact() == Some(0);
            source.reading != SourceState::Ended && !has_all
        })
    }

    /// Reads and drops what the client has sent already, up to [`KEPT_BYTES`]. No further attempt can be made.
    pub(crate) async fn discard_what_has_arrived(&self) {
        let Some(source) = &self.source else { return };
        self.take_back();
        source.borrow_mut().forget();
        let mut left = KEPT_BYTES;
        let mut has_waited = false;
        while source.borrow().reading == SourceState::Open && left > 0 {
            let polled = std::future::poll_fn(|context| Poll::Ready(source.borrow_mut().poll_incoming(context))).await;
            match polled {
                Poll::Ready(Some(Ok(frame))) => {
                    left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                    has_waited = false;
                }
                Poll::Ready(_) => return,
                // The rest of a small body may be a turn behind its head.
                Poll::Pending if !has_waited => {
                    has_waited = true;
                    tokio::task::yield_now().await;
                }
                Poll::Pending => return,
            }
        }
    }

    /// Returns what it counts for in the stash: as much as may be kept of it, or what has arrived if its length is not known.
    pub(crate) fn weight(&self) -> usize {
        self.source.as_ref().map_or(0, |source| {
            let source = source.borrow();
            let length = source.length.and_then(|length| usize::try_from(length).ok());
            let data = length.map_or(source.kept_bytes, |length| length.min(KEPT_BYTES));
            let trailers = source.trailers.as_ref().map_or(0, |trailers| HeaderScan::of(trailers).weight as usize);
            data + trailers + source.incoming.buffered()
        })
    }

    /// Reads ahead until the bound or the end. Ready means that there is nothing more to read ahead, not that the body has ended.
    pub(crate) fn poll_read_ahead(&self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let Some(source) = &self.source else {
            return Poll::Ready(Ok(()));
        };
        let source = &mut *source.borrow_mut();
        loop {
            match source.reading {
                SourceState::Broken => return Poll::Ready(Err(BodyError::CutOff)),
                SourceState::Malformed => return Poll::Ready(Err(BodyError::Malformed)),
                SourceState::TooLarge => return Poll::Ready(Err(BodyError::TooLarge)),
                SourceState::Ended => return Poll::Ready(Ok(())),
                SourceState::Open if source.kept_bytes >= KEPT_BYTES || source.partial => return Poll::Ready(Ok(())),
                SourceState::Open => {}
            }
            let frame = ready!(source.poll_incoming(context)).transpose()?;
            source.read_ahead(frame);
        }
    }

    /// Reads ahead until as many bytes are there as `needed` asks for by those that are, or all of them. Returns whether that is
    /// within the bound. To be called before an attempt.
    pub(crate) fn poll_needed(
        &self,
        context: &mut Context<'_>,
        needed: impl Fn(&[u8]) -> Option<usize>,
    ) -> Poll<Result<bool, BodyError>> {
        let Some(source) = &self.source else {
            return Poll::Ready(Ok(true));
        };
        let source = &mut *source.borrow_mut();
        source.ends_waiting();
        loop {
            let here = source.ahead.len();
            let wanted = needed(&source.ahead).or_else(|| usize::try_from(source.length?).ok());
            match source.reading {
                SourceState::Broken => return Poll::Ready(Err(BodyError::CutOff)),
                SourceState::Malformed => return Poll::Ready(Err(BodyError::Malformed)),
                SourceState::TooLarge => return Poll::Ready(Err(BodyError::TooLarge)),
                SourceState::Open | SourceState::Ended => {}
            }
            if wanted.is_some_and(|wanted| here >= wanted && wanted <= KEPT_BYTES) {
                return Poll::Ready(Ok(true));
            }
            if here.max(wanted.unwrap_or(0)) > KEPT_BYTES {
                return Poll::Ready(Ok(false));
            }
            if source.reading == SourceState::Ended {
                return Poll::Ready(Ok(true));
            }
            let Poll::Ready(frame) = source.poll_incoming(context) else {
                source.begins_waiting();
                return Poll::Pending;
            };
            source.read_ahead(frame.transpose()?);
        }
    }

    /// Calls `with` with what has been read ahead.
    pub(crate) fn ahead<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
        match &self.source {
            Some(source) => with(&source.borrow().ahead),
            None => with(&[]),
        }
    }

    /// Reads what has arrived, up to the bound. Returns whether that is all of it.
    pub(crate) fn is_here(&self) -> impl Future<Output = Result<bool, BodyError>> {
        std::future::poll_fn(|context| Poll::Ready(self.has_arrived(context)))
    }

    fn has_arrived(&self, context: &mut Context<'_>) -> Result<bool, BodyError> {
        let Some(source) = &self.source else { return Ok(true) };
        let source = &mut *source.borrow_mut();
        while source.reading == SourceState::Open && source.kept_bytes < KEPT_BYTES && !source.partial {
            let Poll::Ready(frame) = source.poll_incoming(context) else { break };
            match frame.transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => {
                    if !source.ahead.is_empty() {
                        let ahead = std::mem::take(&mut source.ahead).freeze();
                        source.kept.push(ahead);
                    }
                    source.keep(data);
                }
                Some(Err(frame)) => source.trailers = frame.into_trailers().ok().map(Box::new),
                None => {}
            }
        }
        match source.reading {
            SourceState::Ended => Ok(true),
            SourceState::Open => Ok(false),
            SourceState::Broken => Err(BodyError::CutOff),
            SourceState::Malformed => Err(BodyError::Malformed),
            SourceState::TooLarge => Err(BodyError::TooLarge),
        }
    }

    /// Returns the body from its beginning, for one more attempt, or `None` if some of it is no longer kept.
    pub(crate) fn attempt(&self) -> Option<Attempt> {
        let Some(source) = &self.source else {
            return Some(Attempt::empty());
        };
        let mut inner = source.borrow_mut();
        if inner.partial {
            return None;
        }
        if !inner.ahead.is_empty() {
            let ahead = std::mem::take(&mut inner.ahead).freeze();
            inner.kept.push(ahead);
        }
        inner.attempt += 1;
        inner.ends_waiting();
        inner.progress = inner.timer.now();
        Some(Attempt {
            source: Some(source.clone()),
            number: inner.attempt,
            next: 0,
            left: inner.length,
            trailers_given: false,
        })
    }

    /// Returns whether another attempt could be made.
    pub(crate) fn is_whole(&self) -> bool {
        self.source.as_ref().is_none_or(|source| !source.borrow().partial)
    }

    /// Ends the current attempt's reading.
    pub(crate) fn take_back(&self) {
        if let Some(source) = &self.source {
            let source = &mut *source.borrow_mut();
            source.attempt += 1;
            source.ends_waiting();
        }
    }

    /// Notes that the outcome is definite, so that no further attempt will be made.
    pub(crate) fn settle(&self) {
        if let Some(source) = &self.source {
            source.borrow_mut().settled = true;
        }
    }

    /// Returns how far the upload is, if there is one.
    pub(crate) fn upload(&self) -> Option<UploadWait> {
        Some(self.source.as_ref()?.borrow().upload())
    }

    /// Returns when more of it has to have arrived for its client to be fast enough.
    pub(crate) fn upload_due(&self) -> Option<Instant> {
        self.source.as_ref()?.borrow().upload_due()
    }
}
